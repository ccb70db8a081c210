"""docs/decisions.md has at most fifty dated records of one form, and an index of them."""

import re

import pytest

from tools.clauses import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "decisions.md").read_text()
INDEX, RECORDS = PAGE.split("\n## ", maxsplit=1)
RECORD = re.compile(
    r"^### (\d+)\. (.+)\n\n(\d{4}-\d{2}-\d{2})\n\n"
    r"\*\*Context\.\*\* ((?:.+\n)+)\n\*\*Decision\.\*\* ((?:.+\n)+)\n"
    r"\*\*Consequences\.\*\* ((?:.+\n?)+)",
    re.MULTILINE,
)
FOUND = RECORD.findall(RECORDS)


def test_every_record_has_a_date_and_three_parts():
    assert len(FOUND) == len(re.findall(r"^### ", RECORDS, re.MULTILINE)) <= 50
    assert [int(number) for number, *_ in FOUND] == list(range(1, len(FOUND) + 1))


def test_every_record_is_short():
    sizes = {title: len(" ".join(parts).split()) for _, title, _, *parts in FOUND}
    assert {title: size for title, size in sizes.items() if not 60 <= size <= 150} == {}


def test_the_index_names_every_record_with_its_date_and_anchor():
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\(#(.+)\) \| (.+) \| .+ \|$", INDEX, re.MULTILINE)
    assert rows == [
        (number, title, make_anchor(f"{number}. {title}"), date)
        for number, title, date, *_ in FOUND
    ]


def make_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
