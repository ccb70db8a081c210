"""Make each change of `docs/clauses` to a copy of the code and see a test fail: `make mutants`.

Every clause's change is made alone, and the tests that name the clause are run until one fails.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import pytest

from tools.clauses import ROOT, Clause, Holders, named_by_tests, read

TIMEOUT_S = 300
COPIES = 2
MANY_TESTS = 100

# Importing what the code rests on takes most of a test's time, so that is done once.
PRELOADED = [
    "httpx",
    "hypothesis",
    "jsonschema",
    "mcp_types",
    "numpy",
    "pydantic",
    "pytest",
    "rich.progress",
    "starlette.applications",
    "stripe",
    "structlog",
    "uvicorn",
]

Verdict = Literal["caught", "survived", "broken", "hung"]


@dataclass(frozen=True)
class Outcome:
    """What became of one change, and the test that failed, or why none could."""

    clause: Clause
    verdict: Verdict
    word: str


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Try the changes of the named clauses, or of all; 1 where one was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="clauses or sections, such as 4.9")
    wanted = parser.parse_args(arguments).ids
    specification = read(root / "docs" / "clauses")
    chosen = [c for c in specification.clauses if c.change and _is_wanted(c.id, wanted)]
    if not chosen:
        print(f"no clause with a change is named {', '.join(wanted)}", file=sys.stderr)
        return 2
    named, _ = named_by_tests(root)
    if failed := _unchanged(root, chosen, named):
        print(f"without any change: {failed}", file=sys.stderr)
        return 2
    outcomes = []
    for number, outcome in zip(count(1), tried(root, chosen, named), strict=False):
        outcomes.append(outcome)
        print(
            f"[{number}/{len(chosen)}] {outcome.clause.id} {outcome.verdict}: {outcome.word}",
            flush=True,
        )
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(", ".join(f"{verdict} {number}" for verdict, number in sorted(counts.items())))
    return 0 if counts["caught"] == len(chosen) else 1


def tried(root: Path, chosen: Iterable[Clause], named: dict[str, Holders]) -> Iterator[Outcome]:
    """Yield what became of each change, in the order of the clauses, two at a time."""
    with _copies(root) as copies, ThreadPoolExecutor(COPIES) as pool:

        def try_one(clause: Clause) -> Outcome:
            copy = copies.get()
            try:
                return _try(copy, clause, named.get(clause.id, Holders()))
            finally:
                copies.put(copy)

        yield from pool.map(try_one, chosen)


def _try(copy: Path, clause: Clause, holders: Holders) -> Outcome:
    assert clause.change
    try:
        after = clause.change.applied(copy)
    except (OSError, ValueError) as error:
        return Outcome(clause, "broken", str(error))
    if not [*holders]:
        return Outcome(clause, "survived", "no test names it")
    changed = copy / clause.change.file
    before = changed.read_text()
    changed.write_text(after)
    try:
        status, word = _pytest(copy, holders)
    except TimeoutError:
        return Outcome(clause, "hung", f"no end after {TIMEOUT_S} s")
    finally:
        changed.write_text(before)
    return Outcome(clause, _verdict(status, word), word)


def _verdict(status: int, word: str) -> Verdict:
    """Tell by pytest's exit status and the test that failed; broken where none could run."""
    if status == 0:
        return "survived"
    # A module that could not be imported may end in the status of a failed test, but names none.
    names_a_test = "::" in word.partition(" - ")[0]
    return "caught" if status == 1 and names_a_test else "broken"


def _unchanged(root: Path, chosen: Iterable[Clause], named: dict[str, Holders]) -> str | None:
    """Say which test fails without any change, so that a failure means the change; None if none."""
    everything = Holders(
        sorted({test for clause in chosen for test in named.get(clause.id, Holders())})
    )
    if not everything.tests:
        return None
    side_by_side = ["-n", str(COPIES)] if len(everything.tests) > MANY_TESTS else []
    with _copies(root, 1) as copies:
        status, word = _pytest(copies.get(), everything, *side_by_side, timeout_s=None)
    return word if status else None


def _pytest(
    copy: Path, tests: Iterable[str], *options: str, timeout_s: int | None = TIMEOUT_S
) -> tuple[int, str]:
    """Run tests until one fails; return pytest's status and what it said first of a failure.

    TimeoutError where they do not end.
    """
    said = copy.parent / "said"
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)
    process = forks.Process(target=_run_pytest, args=(copy, said, [*options, *tests]))
    process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError
    lines = [line for line in said.read_text().splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return process.exitcode, (failed[:1] or lines or ["pytest said nothing"])[-1]


def _run_pytest(copy: Path, said: Path, arguments: list[str]) -> None:
    """Run pytest in this process, which was forked with everything foreign imported."""
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    # What is imported before pytest begins has its asserts as they were written: none are ours.
    rewriting = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = ["-x", "--tb=no", "-p", "no:cacheprovider", "-m", "not prove", *rewriting]
    raise SystemExit(pytest.main([*options, *arguments]))


@contextmanager
def _copies(root: Path, number: int = COPIES) -> Iterator[SimpleQueue[Path]]:
    """Give copies of what git knows or would add, each beside the shared folder of the original."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in listed.stdout.split("\0") if (root / name).is_file()]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for index in range(number):
            copy = Path(folder, str(index), "code")
            for name in names:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, copy / name)
            (copy.parent / "shared").symlink_to(root.parent / "shared")
            copies.put(copy)
        yield copies


def _is_wanted(id_: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(f"{id_}.".startswith(f"{one}.") for one in wanted)


if __name__ == "__main__":
    raise SystemExit(main())
