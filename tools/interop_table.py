"""The table of docs/interop.md: `python -m tools.interop_table RESULTS.xml`, or `make prove`.

The file is pytest's junit XML. A test of tests/interop says there what it ran, as the property
`interop`: client, version and what, as JSON; one that did not come so far goes by its name.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tools.generate_docs import BLOCK, ROOT

PAGE = ROOT / "docs" / "interop.md"
HEAD = ("client or suite", "version", "what ran", "outcome")


class Ran(NamedTuple):
    """What one test ran, and how it ended."""

    client: str
    version: str
    what: str
    outcome: str


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Write the table of a results file into the page; 1 where the file has no such tests."""
    parser = argparse.ArgumentParser(prog="python -m tools.interop_table", description=__doc__)
    parser.add_argument("results", type=Path, help="a junit XML file that pytest wrote")
    results = parser.parse_args(arguments).results
    suites = ElementTree.parse(results).getroot()
    every = list(runs(suites))
    if not every:
        print(f"{results} has no tests of tests/interop", file=sys.stderr)
        return 1
    made = f"Run on {suites.find('testsuite').get('timestamp')[:10]}.\n\n{table(every)}"
    page.write_text(BLOCK.sub(lambda match: match[1] + made + match[3], page.read_text()))
    return 0


def runs(suites: ElementTree.Element) -> Iterator[Ran]:
    """Return what each test of tests/interop ran."""
    for case in suites.iter("testcase"):
        if case.get("classname", "").startswith("tests.interop."):
            said = case.find("properties/property[@name='interop']")
            ran = json.loads(said.get("value")) if said is not None else _by_name(case)
            yield Ran(*ran, _outcome(case))


def table(every: Sequence[Ran]) -> str:
    """Return a row for each client, version and outcome, in the order in which they first ran."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for ran in every:
        rows.setdefault((ran.client, ran.version, ran.outcome), []).append(ran.what)
    lines = [HEAD, ("---",) * len(HEAD)]
    for (client, version, outcome), whats in rows.items():
        lines.append((client, version, "; ".join(whats), outcome))
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _by_name(case: ElementTree.Element) -> tuple[str, str, str]:
    name, _, client = case.get("name", "").removesuffix("]").partition("[")
    client = client or case.get("classname", "").rpartition(".test_")[2]
    return client, "-", name.removeprefix("test_").replace("_", " ")


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else f"skipped: {skipped.get('message')}"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
