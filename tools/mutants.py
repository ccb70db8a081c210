"""Apply each change of `docs/clauses` to a copy of the code and check that a test fails.

`make mutants` runs it. Each change is applied by itself, and the tests that name its clause run
until one fails, those of `make test` first.
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

from tools.clauses import ROOT, Clause, ClauseTests, find_clause_tests, read_specification

TIMEOUT_S = 300
# Changes are tried in parallel, each in its own copy of the tree.
COPY_COUNT = 2
MAX_SERIAL_TESTS = 100

# Imported once in a fork server: importing these libraries takes most of the time of a test. No
# module of the project may be in this list, or the change would have no effect.
PRELOADED_MODULES = [
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
class MutationResult:
    """The verdict on one change, and the test that failed or the reason why none did."""

    clause: Clause
    verdict: Verdict
    detail: str


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Try the changes of the named clauses, or of all; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="clauses or sections, such as 4.9")
    parser.add_argument(
        "--tested", action="store_true", help="the tests have just passed without any change"
    )
    options = parser.parse_args(arguments)
    selected_ids = options.ids
    specification = read_specification(root / "docs" / "clauses")
    clauses = [c for c in specification.clauses if c.change and _is_selected(c.id, selected_ids)]
    if not clauses:
        print(f"no clause with a change matches {', '.join(selected_ids)}", file=sys.stderr)
        return 2
    tests_by_clause, _ = find_clause_tests(root)
    if not options.tested:
        failure = _find_failure_without_change(root, clauses, tests_by_clause)
        if failure:
            print(f"a test fails without any change: {failure}", file=sys.stderr)
            return 2
    results = []
    for number, result in zip(count(1), try_changes(root, clauses, tests_by_clause), strict=False):
        results.append(result)
        print(
            f"[{number}/{len(clauses)}] {result.clause.id} {result.verdict}: {result.detail}",
            flush=True,
        )
    counts = Counter(result.verdict for result in results)
    print(", ".join(f"{verdict} {number}" for verdict, number in sorted(counts.items())))
    return 0 if counts["caught"] == len(clauses) else 1


def try_changes(
    root: Path, clauses: Iterable[Clause], tests_by_clause: dict[str, ClauseTests]
) -> Iterator[MutationResult]:
    """Yield the result of each change, in the order of the clauses; two run at a time."""
    with _make_copies(root) as copies, ThreadPoolExecutor(COPY_COUNT) as pool:

        def try_one(clause: Clause) -> MutationResult:
            copy = copies.get()
            try:
                return _try_change(copy, clause, tests_by_clause.get(clause.id, ClauseTests()))
            finally:
                copies.put(copy)

        yield from pool.map(try_one, clauses)


def _try_change(copy: Path, clause: Clause, clause_tests: ClauseTests) -> MutationResult:
    assert clause.change
    try:
        changed_text = clause.change.render_changed_file(copy)
    except (OSError, ValueError) as error:
        return MutationResult(clause, "broken", str(error))
    if not [*clause_tests]:
        return MutationResult(clause, "survived", "no test names it")
    changed_path = copy / clause.change.file
    original_text = changed_path.read_text()
    changed_path.write_text(changed_text)
    try:
        status, detail = _run_tests(copy, clause_tests)
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            proof = _run_tests(copy, clause_tests, "-m", "prove")
            if proof[0] != pytest.ExitCode.NO_TESTS_COLLECTED:
                status, detail = proof
    except TimeoutError:
        return MutationResult(clause, "hung", f"still running after {TIMEOUT_S} s")
    finally:
        changed_path.write_text(original_text)
    return MutationResult(clause, _classify_result(status, detail), detail)


def _classify_result(status: int, detail: str) -> Verdict:
    """Return the verdict for pytest's exit status and first failure; "broken" if no test ran."""
    if status == 0:
        return "survived"
    # If a module cannot be imported, pytest may exit as after a failed test, but names no test.
    names_a_test = "::" in detail.partition(" - ")[0]
    return "caught" if status == 1 and names_a_test else "broken"


def _find_failure_without_change(
    root: Path, clauses: Iterable[Clause], tests_by_clause: dict[str, ClauseTests]
) -> str | None:
    """Return the first failure without any change, or None.

    If the tests fail anyway, their failure says nothing about a change.
    """
    all_tests = ClauseTests(
        sorted(
            {test for clause in clauses for test in tests_by_clause.get(clause.id, ClauseTests())}
        )
    )
    if not all_tests.tests:
        return None
    parallel_options = ["-n", str(COPY_COUNT)] if len(all_tests.tests) > MAX_SERIAL_TESTS else []
    with _make_copies(root, 1) as copies:
        status, detail = _run_tests(copies.get(), all_tests, *parallel_options, timeout_s=None)
    return detail if status else None


def _run_tests(
    copy: Path, tests: Iterable[str], *options: str, timeout_s: int | None = TIMEOUT_S
) -> tuple[int, str]:
    """Run tests until one fails; return pytest's exit status and its line on the first failure.

    TimeoutError if they run longer than `timeout_s`.
    """
    output = copy.parent / "said"
    fork_context = multiprocessing.get_context("forkserver")
    fork_context.set_forkserver_preload(PRELOADED_MODULES)
    process = fork_context.Process(target=_run_pytest, args=(copy, output, [*options, *tests]))
    process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError
    lines = [line for line in output.read_text().splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return process.exitcode, (failed[:1] or lines or ["pytest printed nothing"])[-1]


def _run_pytest(copy: Path, output: Path, arguments: list[str]) -> None:
    """Run pytest in this process, which was forked with the libraries imported."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    # pytest warns that it cannot rewrite asserts of modules that are already imported. Those are
    # libraries, so the warning does not matter.
    warning_options = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = ["-x", "--tb=no", "-p", "no:cacheprovider", "-m", "not prove", *warning_options]
    raise SystemExit(pytest.main([*options, *arguments]))


@contextmanager
def _make_copies(root: Path, number: int = COPY_COUNT) -> Iterator[SimpleQueue[Path]]:
    """Yield a queue of copies of all files that git tracks or would add.

    Each copy has a link to the shared folder next to the original.
    """
    git_listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in git_listing.stdout.split("\0") if (root / name).is_file()]
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


def _is_selected(id_: str, selected_ids: Sequence[str]) -> bool:
    return not selected_ids or any(
        f"{id_}.".startswith(f"{selected_id}.") for selected_id in selected_ids
    )


if __name__ == "__main__":
    raise SystemExit(main())
