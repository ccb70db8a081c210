"""docs/architecture.md names files that exist, and functions and classes that they define."""

import re

import pytest

from tools.clauses import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATH = r"[A-Za-z_]+(?:/[A-Za-z_]+)+(?:\.[a-z]+)?"
# Such as "`Purchases.claim` (`access/purchases.py`)"; a line may break between the two.
NAMED = rf"`([A-Za-z_.]+)`\s+(?:\(|in\s+)`({PATH})`"


def test_every_path_exists():
    paths = re.findall(rf"`({PATH})`", PAGE)
    assert len(paths) > 60
    templates = [path for path in paths if "NAME" in path]
    assert len(templates) == 6
    assert [path for path in paths if path not in templates and not (ROOT / path).exists()] == []


def test_every_name_is_defined_in_the_file_that_follows_it():
    named = re.findall(NAMED, PAGE)
    assert len(named) > 30
    assert [one for one in named if not defines(*one)] == []


def defines(name: str, path: str) -> bool:
    text = (ROOT / path).read_text()
    return all(
        re.search(rf"^ *(?:(class|(async )?def) {part}\b|{part}\b.* = )", text, re.MULTILINE)
        for part in name.split(".")
    )
