"""Renders the Markdown files of web/texts as pages: HTML is escaped, every heading has an anchor.

The files are symbolic links into docs/, so each text exists once. A wheel contains their targets.
Links between the files become links between pages.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

# Comments that mark generated blocks. HTML is off, so they would be shown as text.
MARKS_PATTERN = re.compile(r"^<!--.*-->\n", re.MULTILINE)

# What only those who change the code need stands between such comments; pages leave it out.
DEVELOPERS_PATTERN = re.compile(
    r"^<!-- developers -->\n.*?^<!-- end of developers -->\n", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading that can be linked to."""

    level: int
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Article:
    """A rendered Markdown file; `about` is its first sentence, without markup."""

    title: str
    about: str
    headings: tuple[Heading, ...]
    html: Markup


def parse_article(text: str, pages: Collection[str]) -> Article:
    """Parse Markdown that begins with its title; only links to `pages` are kept."""
    tokens = _create_parser().parse(MARKS_PATTERN.sub("", DEVELOPERS_PATTERN.sub("", text)))
    title, *headings = _add_anchors(tokens)
    for token in tokens:
        token.children = list(_resolve_links(token.children or (), pages)) or None
        # The Content-Security-Policy forbids the inline styles by which the parser aligns cells.
        if style := str(token.attrs.pop("style", "")):
            token.attrSet("class", style.removeprefix("text-align:"))
    about = next(_extract_text(tokens[at + 1]) for at in _find_tokens(tokens, "paragraph_open"))
    parser = _create_parser()
    return Article(
        title.text,
        about.split(". ")[0].rstrip(".:") + ".",
        tuple(headings),
        Markup(parser.renderer.render(tokens[3:], parser.options, {})),
    )


@cache
def load_articles(other_pages: tuple[str, ...]) -> dict[str, Article]:
    """Return all articles by name; they can link to each other and to `other_pages`."""
    found = [file.name for file in files("web").joinpath("texts").iterdir()]
    names = [name.removesuffix(".md") for name in found if name.endswith(".md")]
    return {name: parse_article(read_text(name), [*other_pages, *names]) for name in names}


@cache
def load_examples() -> dict[str, tuple[str, str]]:
    """Return an example of each tool by name: a call and its result, both as JSON text."""
    # In examples.md, code blocks alternate between a call and its result.
    text = files("web").joinpath("examples.md").read_text(encoding="utf-8")
    blocks = list_code_blocks(text)
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return {json.loads(call)["name"]: (call, answer) for call, answer in pairs}


def read_text(name: str) -> str:
    """Return the Markdown of an article."""
    return files("web").joinpath("texts", f"{name}.md").read_text(encoding="utf-8")


def render_inline(text: str) -> Markup:
    """Return one line of Markdown as HTML, without a paragraph."""
    return Markup(_create_parser().renderInline(text))


def list_code_blocks(text: str) -> list[str]:
    """Return the contents of the fenced code blocks."""
    return [token.content for token in _create_parser().parse(text) if token.type == "fence"]


def build_anchor(text: str) -> str:
    """Return the anchor of a heading, by the rule of GitHub."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _add_anchors(tokens: Sequence[Token]) -> Iterator[Heading]:
    """Set a unique anchor on every heading, and yield the headings."""
    seen: dict[str, int] = {}
    for at in _find_tokens(tokens, "heading_open"):
        text = _extract_text(tokens[at + 1])
        anchor = build_anchor(text)
        seen[anchor] = seen.get(anchor, -1) + 1
        id_ = f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        tokens[at].attrSet("id", id_)
        yield Heading(int(tokens[at].tag[1:]), id_, text)


def _resolve_links(children: Sequence[Token], pages: Collection[str]) -> Iterator[Token]:
    """Point links between files to pages; replace links to other files with their text."""
    # A file that is not served would be a dead link, which is worse than none.
    is_kept = True
    for child in children:
        if child.type == "link_open":
            target = _resolve_target(str(child.attrGet("href")), pages)
            is_kept = target is not None
            child.attrSet("href", target or "")
        if is_kept or child.type not in ("link_open", "link_close"):
            yield child


def _resolve_target(href: str, pages: Collection[str]) -> str | None:
    """Return the link target as seen from a page, None if the target is not served."""
    if href.startswith(("https://", "mailto:", "#")):
        return href
    name, dot, rest = href.partition(".md")
    return name + rest if dot and name in pages else None


def _find_tokens(tokens: Sequence[Token], kind: str) -> Iterator[int]:
    return (at for at, token in enumerate(tokens) if token.type == kind)


def _extract_text(token: Token) -> str:
    """Return the text of an inline token without its markup."""
    kinds = {"softbreak": " "}
    return "".join(kinds.get(child.type, child.content) for child in token.children or ())


@cache
def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    rules: dict[str, Callable[[Token], str]] = {
        # A wide table scrolls inside its own box; `tabindex` lets the keyboard scroll it too.
        "table_open": lambda token: (
            '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table>\n'
        ),
        "table_close": lambda token: "</table></div>\n",
        "fence": lambda token: (
            f'<pre tabindex="0" data-copy><code>{escape(token.content)}</code></pre>\n'
        ),
    }
    for name, render in rules.items():
        parser.add_render_rule(
            name, lambda renderer, tokens, at, *rest, render=render: render(tokens[at])
        )
    return parser
