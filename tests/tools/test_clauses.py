"""Every clause and promise is cited by a test, and every test cites one."""

from collections import Counter

import pytest

from tools.clauses import find_clause_tests, read_specification

pytestmark = pytest.mark.clause("tests")

SPECIFICATION = read_specification()
SENTENCES = SPECIFICATION.clauses | SPECIFICATION.promises


def test_every_test_cites_a_clause_and_every_clause_has_a_test():
    tests_by_id, wrong = find_clause_tests()
    assert wrong == []
    assert tests_by_id.keys() == SENTENCES.keys()


def test_every_clause_lies_in_a_titled_section():
    assert {id_.rpartition(".")[0] for id_ in SPECIFICATION.clauses} <= SPECIFICATION.titles.keys()


def test_no_two_clauses_say_the_same():
    texts = Counter(text.casefold() for text in SENTENCES.values())
    assert [text for text, count in texts.items() if count > 1] == []
