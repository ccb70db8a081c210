"""docs/glossary.md names existing files, and names that they define."""

import re
from collections import Counter

import pytest

from tools.clauses import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "glossary.md").read_text()
PLACES, TERMS = PAGE.partition("## Market data")[::2]
TERM_ROWS = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", TERMS, re.MULTILINE)


def test_every_place_exists():
    paths = re.findall(r"`([a-z_]+/[a-z_/.]+)`", PAGE)
    assert len(paths) > len(TERM_ROWS)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_is_defined_in_the_file_of_its_row():
    named = [(name, path) for term, _, path in TERM_ROWS for name in re.findall(r"`(\w+)`", term)]
    assert len(named) > 50
    assert [one for one in named if not is_defined(*one)] == []


def test_every_term_has_one_row():
    counts = Counter(term for cells, _, _ in TERM_ROWS for term in cells.split(", "))
    assert [term for term, count in counts.items() if count > 1] == []
    assert len(TERM_ROWS) == len(re.findall(r"^\| .+ \|$", TERMS, re.MULTILINE)) - 6 >= 60


def is_defined(name: str, path: str) -> bool:
    defined = rf"^(class {name}\b|(async )?def {name}\b|{name}\b.* = )"
    return re.search(defined, (ROOT / path).read_text(), re.MULTILINE) is not None
