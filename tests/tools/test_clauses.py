"""The clauses of the contract are complete sentences with evidence, and every test cites one."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from tools.clauses import (
    DECISIONS_PAGE,
    ROOT,
    Clause,
    ClauseTests,
    find_clause_tests,
    read_specification,
)

pytestmark = pytest.mark.clause("tests")

CONTRACT = read_specification()
ENTRIES = (*CONTRACT.clauses, *CONTRACT.promises)
MIN_WORDS = 5
FILE_PATTERN = re.compile(r"[\w/-]*\w\.(?:md|py|sql|toml|json|html)\b")
# A clause that begins so needs its predecessor to be understood.
DEPENDENT_START = re.compile(r"(?:It|Its|They|Their|This|That|These|Those|And|Or|But)\b")

ByTests = tuple[dict[str, ClauseTests], list[str]]


@pytest.fixture(scope="module")
def by_tests() -> ByTests:
    """The tests of each cited id, and the functions whose citations are wrong."""
    return find_clause_tests()


def test_every_id_is_unique():
    ids = Counter(entry.id for entry in ENTRIES)
    assert [id_ for id_, count in ids.items() if count > 1] == []


def test_every_clause_with_a_change_or_a_decision_is_cited_by_a_test(by_tests: ByTests):
    cited, _ = by_tests
    testable = [clause.id for clause in CONTRACT.clauses if clause.change or clause.decision]
    assert [id_ for id_ in testable if id_ not in cited] == []


def test_every_promise_is_cited_by_a_test(by_tests: ByTests):
    cited, _ = by_tests
    assert [promise.id for promise in CONTRACT.promises if promise.id not in cited] == []


def test_every_test_and_nothing_else_cites_a_clause_or_a_promise(by_tests: ByTests):
    _, wrong = by_tests
    assert wrong == []


def test_no_test_cites_an_unknown_id(by_tests: ByTests):
    cited, _ = by_tests
    assert {id_: list(cited[id_]) for id_ in cited.keys() - CONTRACT.ids} == {}


def test_every_change_replaces_text_that_occurs_once_by_names_that_are_defined(tmp_path):
    for clause in CONTRACT.clauses:
        if clause.change:
            text = clause.change.render_changed_file(ROOT)
            if clause.change.file.endswith(".py"):
                (tmp_path / f"clause_{clause.id.replace('.', '_')}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    options = ["--select", "F821", "--output-format", "concise", str(tmp_path)]
    assert subprocess.run([*command, *options], capture_output=True, text=True).returncode == 0


def test_every_same_as_refers_to_clauses_with_a_change():
    by_id = {clause.id: clause for clause in CONTRACT.clauses}
    references = [(c.id, other) for c in CONTRACT.clauses for other in c.same_as]
    assert [(id_, other) for id_, other in references if not by_id[other].change] == []


def test_every_decision_is_the_title_of_a_record():
    titles = re.findall(r"^### \d+\. (.+)$", DECISIONS_PAGE.read_text(), re.MULTILINE)
    named = {clause.decision for clause in CONTRACT.clauses if clause.decision}
    assert named - set(titles) == set()


def test_every_clause_lies_in_a_titled_section():
    assert {clause.section for clause in CONTRACT.clauses} <= CONTRACT.titles.keys()


def test_every_clause_is_a_sentence_that_can_be_understood_by_itself():
    for entry in ENTRIES:
        assert re.match(r"[A-Z`].*\.$", entry.says), entry
        assert not DEPENDENT_START.match(entry.says), entry
        assert len(entry.says.split()) >= MIN_WORDS, entry
        # A pipe ends a table cell, and an odd backtick turns prose into code.
        assert "|" not in entry.says, entry
        assert entry.says.count("`") % 2 == 0, entry


def test_a_clause_names_only_files_of_the_repository():
    named = {(entry.id, path) for entry in ENTRIES for path in FILE_PATTERN.findall(entry.says)}
    # A path that begins with a slash is one of the API, such as /openapi.json.
    missing = [pair for pair in named if pair[1][0] != "/" and not (ROOT / pair[1]).is_file()]
    assert missing == []


def test_no_two_clauses_say_the_same():
    texts = Counter(entry.says.casefold() for entry in ENTRIES)
    assert [text for text, count in texts.items() if count > 1] == []


def test_a_clause_refers_only_to_clauses_that_exist():
    references = {
        (clause.id, id_)
        for clause in CONTRACT.clauses
        if "lauses " in clause.says
        for id_ in re.findall(r"\b\d+\.\d+(?:\.\d+)?\b", clause.says)
    }
    assert [pair for pair in references if pair[1] not in CONTRACT.ids] == []


@pytest.mark.parametrize(
    "evidence",
    [{}, {"untested": "It is a title.", "decision": "One"}],
    ids=["none", "two"],
)
def test_a_clause_has_exactly_one_kind_of_evidence(evidence):
    with pytest.raises(ValueError, match="needs exactly one of"):
        Clause(id="1.1", says="It works.", **evidence)
