"""Write the table of docs/interop.md: `python -m tools.interop_table RESULTS.xml`, or `make prove`.

The file is pytest's JUnit XML. Each test in tests/interop records the property `interop`: client,
version and description, as JSON. If a test fails before it does, its name is used instead.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tools.generate_docs import BLOCK_PATTERN, ROOT

PAGE = ROOT / "docs" / "interop.md"
HEADER = ("client or suite", "version", "what ran", "outcome")


class InteropRun(NamedTuple):
    """The client that one test ran, and the outcome."""

    client: str
    version: str
    what: str
    outcome: str


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Write the table of a results file into the page; return 1 if the file has no such tests."""
    parser = argparse.ArgumentParser(prog="python -m tools.interop_table", description=__doc__)
    parser.add_argument("results", type=Path, help="a junit XML file that pytest wrote")
    results = parser.parse_args(arguments).results
    suites = ElementTree.parse(results).getroot()
    all_runs = list(read_runs(suites))
    if not all_runs:
        print(f"{results} has no tests of tests/interop", file=sys.stderr)
        return 1
    # The date of the run, not of the rendering: the file may be from another machine.
    started_at = next(suites.iter("testsuite")).get("timestamp", "")
    content = f"Run on {started_at[:10]}.\n\n{render_table(all_runs)}"
    page.write_text(
        BLOCK_PATTERN.sub(lambda match: match[1] + content + match[3], page.read_text())
    )
    return 0


def read_runs(suites: ElementTree.Element) -> Iterator[InteropRun]:
    """Yield the run that each test of tests/interop recorded."""
    for case in suites.iter("testcase"):
        if case.get("classname", "").startswith("tests.interop."):
            interop_property = case.find("properties/property[@name='interop']")
            client, version, what = (
                _parse_test_name(case)
                if interop_property is None
                else json.loads(interop_property.get("value", ""))
            )
            yield InteropRun(client, version, what, _parse_outcome(case))


def render_table(all_runs: Sequence[InteropRun]) -> str:
    """Return a row for each client, version and outcome, in the order of their first run."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for run in all_runs:
        rows.setdefault((run.client, run.version, run.outcome), []).append(run.what)
    lines = [HEADER, ("---",) * len(HEADER)]
    for (client, version, outcome), descriptions in rows.items():
        lines.append((client, version, "; ".join(descriptions), outcome))
    return "".join(f"| {' | '.join(map(_escape_cell, line))} |\n" for line in lines)


def _parse_test_name(case: ElementTree.Element) -> tuple[str, str, str]:
    name, _, client = case.get("name", "").removesuffix("]").partition("[")
    client = client or case.get("classname", "").rpartition(".test_")[2]
    return client, "-", name.removeprefix("test_").replace("_", " ")


def _parse_outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else f"skipped: {skipped.get('message')}"


def _escape_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
