"""The placeholders of all SQL statements; other tests execute them on both databases."""

import re

import pytest

from tests.support.signals_command import ROOT

# Also as built by an f-string.
NUMBERED = re.compile(r"\?(\d|\{)")


@pytest.mark.clause("store")
def test_no_statement_has_a_numbered_placeholder() -> None:
    files = list((ROOT / "store").rglob("*.py"))
    statements = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if NUMBERED.search(line)
    ]
    assert len(files) > 40
    assert statements == []
