"""Every clause of SPEC.md is spoken for, and every test says what it is for."""

import re
import subprocess
import sys

import pytest

from tools.clauses import ROOT, Clause, ClauseTests, find_clause_tests, read_specification

pytestmark = pytest.mark.clause("tests")

SPECIFICATION = read_specification()
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
SPEC = ROOT.parent / "shared" / "SPEC.md"

ByTests = tuple[dict[str, ClauseTests], list[str]]


@pytest.fixture(scope="module")
def by_tests() -> ByTests:
    """Who names each id, and what names wrongly."""
    return find_clause_tests()


def test_every_clause_has_an_id_of_its_own():
    ids = [one.id for one in (*SPECIFICATION.clauses, *SPECIFICATION.promises)]
    assert len(ids) == len(set(ids))


def test_every_clause_with_a_change_is_named_by_a_test(by_tests: ByTests):
    named, _ = by_tests
    assert [c.id for c in SPECIFICATION.clauses if c.change and c.id not in named] == []


def test_every_promise_is_named_by_a_test(by_tests: ByTests):
    named, _ = by_tests
    assert [promise.id for promise in SPECIFICATION.promises if promise.id not in named] == []


def test_every_test_and_nothing_else_names_a_clause_or_a_promise(by_tests: ByTests):
    _, wrong = by_tests
    assert wrong == []


def test_no_test_names_what_is_not_there(by_tests: ByTests):
    named, _ = by_tests
    assert {id_: list(named[id_]) for id_ in named.keys() - SPECIFICATION.ids} == {}


def test_every_change_is_of_one_line_that_is_there_once():
    for clause in SPECIFICATION.clauses:
        if clause.change:
            clause.change.render_changed_file(ROOT)


def test_a_changed_file_names_only_what_it_defines(tmp_path):
    for clause in SPECIFICATION.clauses:
        if clause.change and clause.change.file.endswith(".py"):
            text = clause.change.render_changed_file(ROOT)
            (tmp_path / f"clause_{clause.id.replace('.', '_')}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    options = ["--select", "F821", "--output-format", "concise", str(tmp_path)]
    assert subprocess.run([*command, *options], capture_output=True, text=True).returncode == 0


def test_what_is_said_twice_points_to_clauses_with_a_change():
    by_id = {clause.id: clause for clause in SPECIFICATION.clauses}
    pointers = [(c.id, other) for c in SPECIFICATION.clauses for other in c.same_as]
    assert [(id_, other) for id_, other in pointers if not by_id[other].change] == []


def test_every_decision_that_is_named_is_written():
    named = {clause.decision for clause in SPECIFICATION.clauses if clause.decision}
    assert named - set(re.findall(r"^### \d+\. (.+)$", DECISIONS, re.MULTILINE)) == set()


def test_whatever_is_not_shown_is_decided():
    not_shown = [clause for clause in SPECIFICATION.clauses if "not shown" in clause.says]
    assert [clause.id for clause in not_shown if not clause.decision] == []


def test_the_clauses_together_are_the_whole_specification():
    if not SPEC.exists():
        pytest.skip(f"no {SPEC}")
    rest = SPEC.read_text()
    rest = re.sub(r"^#.*$", "", rest, flags=re.MULTILINE)
    rest = re.sub(r"^\|.*\|\n(?=\|[-|]+\|$)", "", rest, flags=re.MULTILINE)
    for clause in SPECIFICATION.clauses:
        between, said, rest = rest.partition(clause.says)
        assert said, f"{clause.id} is not in SPEC.md here: {clause.says}"
        assert _is_punctuation(between), f"before {clause.id} nobody speaks for: {between.strip()}"
    assert _is_punctuation(rest), f"after the last clause nobody speaks for: {rest.strip()}"


def _is_punctuation(text: str) -> bool:
    return re.fullmatch(r"(\s|[-|.;,]|\d+\.)*", text) is not None


@pytest.mark.parametrize(
    "spoken_for",
    [{}, {"untested": "a title", "decision": "One"}],
    ids=["by nothing", "twice"],
)
def test_a_clause_is_spoken_for_once(spoken_for):
    with pytest.raises(ValueError, match="needs one of"):
        Clause(id="1.1", says="It works.", **spoken_for)
