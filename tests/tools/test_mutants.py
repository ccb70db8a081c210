"""Changes of a small tree are tried with real runs of pytest on copies of it."""

import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tools.mutants import main

pytestmark = [
    pytest.mark.clause("tests"),
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here"),
]

FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
addopts = "--import-mode=importlib --strict-markers"
pythonpath = ["."]
markers = ["prove: what takes long", "clause(id): what of the clauses a test holds"]
""",
    "fares.py": """
from math import ceil

def fare(km):
    return 3 + 2 * ceil(km)

def night_fare(km):
    return fare(km) * 2
""",
    "tests/test_day.py": """
import pytest
from fares import fare

pytestmark = pytest.mark.clause("1.4")

@pytest.mark.clause("1.1", "10.1")
def test_each_begun_kilometre_costs_two():
    assert fare(1.5) == 7
""",
    "tests/test_night.py": """
import pytest
from fares import fare, night_fare

pytestmark = pytest.mark.clause("1.4")

@pytest.mark.clause("1.2", "1.3", "1.5")
def test_a_night_costs_more_than_a_day():
    assert night_fare(1) > fare(1)
""",
    "tests/test_long.py": """
import pytest
from fares import fare

@pytest.mark.prove
@pytest.mark.clause("10.2")
def test_a_long_ride_costs_more_than_a_short_one():
    assert fare(1000) > fare(1)
""",
    "tests/test_short.py": """
import pytest
from fares import fare

@pytest.mark.clause("2.1")
def test_a_short_ride_is_free():
    assert fare(0.1) == 0
""",
}
# A clause id, the line of fares.py, and its replacement.
CHANGES = [
    ("1.1", "ceil(km)", "km"),
    ("1.2", "ceil(km)", "ceil(km + 1)"),
    ("1.3", "fare(km) * 5", "fare(km) * 6"),
    ("1.4", "from math", "from maths"),
    ("1.5", "ceil(km)", "ceil(km"),
    ("1.6", "3 +", "4 +"),
    ("2.1", "3 +", "4 +"),
    ("10.1", "2 * ceil", "3 * ceil"),
    ("10.2", "ceil(km)", "ceil(1)"),
]
CLAUSE = """
[[clause]]
id = "{}"
says = "A ride costs what it costs."
change = {{ file = "fares.py", old = "{}", new = "{}" }}
"""
WRITTEN = FILES | {"docs/clauses/1.toml": "".join(CLAUSE.format(*change) for change in CHANGES)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A git repository, and an environment without variables that git or pytest would use."""
    root = tmp_path_factory.mktemp("changed") / "code"
    for name, text in WRITTEN.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GIT_", "PYTEST_ADDOPTS"))]:
            patch.delenv(name)
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        yield root


@pytest.fixture(scope="module")
def one(tree: Path) -> CompletedProcess[str]:
    return mutants(tree, "10.1")


def mutants(root: Path, *arguments: str) -> CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments, root)
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def test_a_change_that_fails_a_test_is_caught_by_it(one):
    tried, total = one.stdout.splitlines()
    assert tried.startswith("[1/1] 10.1 caught: ")
    assert "tests/test_day.py::test_each_begun_kilometre_costs_two" in tried
    assert (one.returncode, total, one.stderr) == (0, "caught 1", "")


@pytest.mark.prove
def test_the_result_of_each_change_of_a_section_is_reported(tree):
    section = mutants(tree, "1")
    *lines, total = section.stdout.splitlines()
    tried = [re.fullmatch(r"\[\d/6\] (\S+) (\w+): (.+)", line) for line in lines]
    verdicts, words = {t[1]: t[2] for t in tried if t}, {t[1]: t[3] for t in tried if t}
    assert verdicts == {
        "1.1": "caught",
        "1.2": "survived",
        "1.3": "broken",
        "1.4": "broken",
        "1.5": "broken",
        "1.6": "survived",
    }
    assert words["1.3"] == "fares.py has this text 0 times, not once: fare(km) * 5"
    assert "tests/test_day.py" in words["1.4"]
    assert words["1.5"] == "fares.py is not valid Python with: ceil(km"
    assert words["1.6"] == "no test names it"
    assert (section.returncode, total) == (1, "broken 3, caught 1, survived 2")


@pytest.mark.parametrize("id_", ["1.3", "1.6"], ids=["broken", "survived"])
@pytest.mark.sampled(2)
def test_any_change_that_is_not_caught_is_a_failure(tree, id_):
    assert mutants(tree, id_).returncode == 1


def test_a_test_that_fails_without_a_change_is_named_and_no_change_is_tried(tree):
    run = mutants(tree, "10.1", "2")
    assert (run.returncode, run.stdout) == (2, "")
    assert "tests/test_short.py::test_a_short_ride_is_free" in run.stderr


def test_tests_that_have_just_run_are_not_run_again_without_a_change(tree):
    run = mutants(tree, "--tested", "10.1", "2")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[-1] == "caught 2"


def test_a_change_that_only_a_test_of_make_prove_notices_is_caught_by_it(tree):
    run = mutants(tree, "--tested", "10.2")
    assert run.stdout.startswith("[1/1] 10.2 caught: ")
    assert "tests/test_long.py::test_a_long_ride_costs_more_than_a_short_one" in run.stdout


def test_an_id_that_matches_nothing_is_reported(tree):
    run = mutants(tree, "3.1")
    assert (run.returncode, run.stdout) == (2, "")
    assert "3.1" in run.stderr


def test_the_tree_itself_is_not_changed(tree, one):
    files = [path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert {str(path.relative_to(tree)): path.read_text() for path in files} == WRITTEN
