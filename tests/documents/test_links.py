"""Every link between the Markdown files of the repository leads to a file and a heading."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT
from web.markdown import build_anchor

pytestmark = pytest.mark.clause("documents")

FOLDERS = (
    "",
    ".github",
    "docs",
    "docs/images",
    "rest_shim",
    "skills/signals",
)
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


@cache
def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings; a repeated one has a number."""
    counts: Counter[str] = Counter()
    anchors = set()
    for title in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        anchor = build_anchor(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", title))
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    dead_links = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in list_anchors(target)):
            dead_links.append(link)
    assert dead_links == []
