"""Searches the documentation: the index holds every section of the rendered pages."""

import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from itertools import islice
from typing import NamedTuple

from markupsafe import Markup, escape

MAX_QUERY_CHARS = 100
MAX_TERMS = 8
MAX_RESULTS = 20
MAX_RESULTS_PER_PAGE = 3
SNIPPET_CHARS = 180
# A match in a heading says more about a section than several in its text.
TITLE_WEIGHT, HEADING_WEIGHT, MAX_TEXT_WEIGHT = 6, 10, 3
PHRASE_WEIGHT = 20
# A shorter word matches only itself, since many words begin with its letters.
MIN_PREFIX_CHARS = 3
WORD_PATTERN = re.compile(r"[^\W_]+")
# Text on both sides of such a tag can be one word.
INLINE_TAGS = frozenset({"a", "b", "code", "em", "mark", "span", "strong"})
SKIPPED_TAGS = frozenset({"nav", "svg", "form"})


class Section(NamedTuple):
    """A part of a page that can be linked to; `anchor` is empty for its beginning."""

    page: str
    title: str
    anchor: str
    heading: str
    text: str


class SearchResult(NamedTuple):
    """A section that matches, and the part of its text with the terms marked."""

    section: Section
    snippet: Markup


class SectionReader(HTMLParser):
    """Splits the article of a rendered page at its headings and at anchors within lists."""

    def __init__(self, page: str, title: str, html: str) -> None:
        super().__init__()
        self.sections: list[Section] = []
        self._page, self._title = page, title
        self._anchor = self._heading = self._text = self._chapter = ""
        self._heading_tag = self._level = ""
        self._skipped = 0
        # A plain text: `Markup` would escape what is added to it.
        self.feed(str(html))
        self._finish("")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a section at a heading or an anchor."""
        anchor = dict(attrs).get("id")
        if tag in SKIPPED_TAGS:
            self._skipped += 1
        elif anchor and tag in {"h2", "h3"}:
            self._finish(anchor)
            self._heading_tag, self._level, self._heading = tag, tag, ""
        elif anchor and tag == "span":
            self._finish(anchor)
            self._level, self._heading = tag, anchor
        self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        """End a heading or a skipped element."""
        self._skipped -= tag in SKIPPED_TAGS
        if tag == self._heading_tag:
            self._heading_tag = ""
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        """Add text to the heading or to the section."""
        if self._heading_tag:
            self._heading += data
        elif not self._skipped:
            self._text += data

    def _separate(self, tag: str) -> None:
        if tag not in INLINE_TAGS:
            self._text += " "

    def _finish(self, anchor: str) -> None:
        """Store the current section and begin one at an anchor."""
        text = " ".join(self._text.split())
        if text or self._anchor:
            heading = " ".join(self._heading.split())
            if self._level == "h2":
                self._chapter = heading
            elif self._level == "h3" and self._chapter:
                heading = f"{self._chapter} › {heading}"
            self.sections.append(Section(self._page, self._title, self._anchor, heading, text))
        self._anchor, self._text = anchor, ""


def build_index(pages: Mapping[str, tuple[str, str]]) -> tuple[Section, ...]:
    """Return the sections of all pages, given as (title, HTML) by name."""
    return tuple(
        section
        for name, (title, html) in pages.items()
        for section in SectionReader(name, title, html).sections
    )


def search(query: str, index: Iterable[Section]) -> list[SearchResult]:
    """Return the best sections that contain all words of a query, best first.

    A word matches words that begin with it. If no section has all words, those with any count.
    """
    terms = list(dict.fromkeys(map(_stem, WORD_PATTERN.findall(query.lower()))))[:MAX_TERMS]
    if not terms:
        return []
    patterns = {term: re.compile(_build_pattern(term)) for term in terms}
    phrase = " ".join(query.lower().split())
    scored = [(_score(section, patterns, phrase), section) for section in index]
    most = max((matched for (matched, _), _ in scored), default=0)
    found = [(score, section) for (matched, score), section in scored if matched == most > 0]
    found.sort(key=lambda pair: -pair[0])
    marked = re.compile("|".join(f"{_build_pattern(term)}[^\\W_]*" for term in terms), re.I)
    return [
        SearchResult(section, _mark(_cut(section.text, marked), marked))
        for section in _limit_per_page(section for _, section in found)
    ]


def _build_pattern(term: str) -> str:
    end = "" if len(term) >= MIN_PREFIX_CHARS else r"(?![^\W_])"
    return rf"(?<![^\W_]){re.escape(term)}{end}"


def _stem(word: str) -> str:
    # A plural finds the singular; the other way round, the prefix does.
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _score(
    section: Section, patterns: Mapping[str, re.Pattern[str]], phrase: str
) -> tuple[int, int]:
    """Return how many terms a section contains, and its score."""
    title, heading, text = (part.lower() for part in (section.title, section.heading, section.text))
    matched = score = 0
    for term, pattern in patterns.items():
        if not (term in text or term in heading or term in title):
            continue  # Most sections: a pattern takes ten times as long.
        points = (
            TITLE_WEIGHT * bool(pattern.search(title))
            + HEADING_WEIGHT * bool(pattern.search(heading))
            + sum(1 for _ in islice(pattern.finditer(text), MAX_TEXT_WEIGHT))
        )
        matched += points > 0
        score += points
    score += PHRASE_WEIGHT * ((phrase in heading or phrase in text) + (phrase == heading))
    # The beginning of a page stands for the whole page.
    return matched, score + (matched > 0 and not section.anchor)


def _limit_per_page(sections: Iterable[Section]) -> list[Section]:
    counts: dict[str, int] = {}
    kept: list[Section] = []
    for section in sections:
        counts[section.page] = counts.get(section.page, 0) + 1
        if counts[section.page] <= MAX_RESULTS_PER_PAGE:
            kept.append(section)
        if len(kept) == MAX_RESULTS:
            break
    return kept


def _cut(text: str, marked: re.Pattern[str]) -> str:
    """Return the part of a text around its first match, cut between words."""
    match = marked.search(text)
    start = max(0, match.start() - SNIPPET_CHARS // 3) if match else 0
    if start:
        start = text.find(" ", start) + 1
    end = len(text)
    if end > start + SNIPPET_CHARS:
        end = max(text.rfind(" ", start, start + SNIPPET_CHARS), start + 1)
    return f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"


def _mark(text: str, marked: re.Pattern[str]) -> Markup:
    """Return a text as HTML, with its matches in `<mark>`."""
    parts, at = [], 0
    for match in marked.finditer(text):
        parts += [escape(text[at : match.start()]), Markup("<mark>"), escape(match[0])]
        parts.append(Markup("</mark>"))
        at = match.end()
    return Markup("").join([*parts, escape(text[at:])])
