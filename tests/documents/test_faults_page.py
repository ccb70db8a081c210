"""docs/faults.md names the test of each fault."""

import re

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_every_fault_names_a_test_that_exists():
    rows = re.findall(r"^\| (?!fault|---).+ \|$", PAGE, re.MULTILINE)
    named = [re.search(r"\| `(test_\w+)` \|$", row) for row in rows]
    assert len(rows) > 25
    assert None not in named
    names = re.findall(r"`(test_\w+)`", PAGE)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in names if f"def {name}(" not in tests] == []


def test_every_event_of_the_page_is_written_by_the_service():
    rows = re.findall(r"^\|(?! fault|---).+\|$", PAGE.split("## Recorded")[0], re.MULTILINE)
    events = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[5])}
    written = "".join(
        path.read_text() for part in ("compute", "service") for path in (ROOT / part).rglob("*.py")
    )
    assert len(events) > 10
    assert {event for event in events if f'"{event}"' not in written} == set()
