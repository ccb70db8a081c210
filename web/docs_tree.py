"""The order of the documentation pages, by reader; the navigation tree follows it."""

from collections.abc import Sequence
from typing import NamedTuple


class PageLink(NamedTuple):
    """A link to a page, with its title and summary."""

    name: str
    title: str
    about: str


class TreeBranch(NamedTuple):
    """The pages for one kind of reader."""

    reader: str
    links: list[PageLink]


OPERATORS = "Operators"
# Pages by reader. A page has one place, so that previous and next are unambiguous.
PAGES_BY_READER: dict[str, tuple[str, ...]] = {
    "Everyone": (
        "getting-started",
        "indicator-guide",
        "indicators",
        "behavior",
        "universe",
        "faq",
    ),
    "Agents and their builders": ("connect", "agents", "tools", "try", "interop"),
    "Script authors": ("terminal", "rest", "openapi", "examples", "contract", "proof"),
    "Members": ("buy", "members", "legal"),
    OPERATORS: (
        "deployment",
        "settings",
        "commands",
        "sources",
        "selling",
        "monitoring",
        "recovery",
        "proof-of-storage",
        "faults",
        "scaling",
    ),
}
PAGE_ORDER = tuple(name for names in PAGES_BY_READER.values() for name in names)


def build_tree(links: Sequence[PageLink]) -> list[TreeBranch]:
    """Return the links grouped by reader."""
    by_name = {link.name: link for link in links}
    return [
        TreeBranch(reader, [by_name[name] for name in names if name in by_name])
        for reader, names in PAGES_BY_READER.items()
    ]


def find_neighbours(
    name: str, links: Sequence[PageLink]
) -> tuple[PageLink | None, PageLink | None]:
    """Return the links before and after a page; None at either end, and for an unlisted page."""
    names = [link.name for link in links]
    if name not in names:
        return None, None
    at = names.index(name)
    return (links[at - 1] if at else None), (links[at + 1] if at + 1 < len(links) else None)
