"""The questions of evals/signals.xml, and their answers."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from evals.market import SettableClock, open_eval_market
from evals.questions import read_questions
from tests.evals.truths import Truths

pytestmark = pytest.mark.clause("understood")

QUESTIONS = read_questions()


@pytest.fixture(scope="module")
def truths() -> Truths:
    """What the store says."""
    truths = Truths()

    async def fill() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_eval_market(Path(folder), SettableClock(), truths.add):
                pass

    asyncio.run(fill())
    return truths


def test_there_are_forty_closed_questions_and_others():
    assert Counter(q.kind for q in QUESTIONS) == {"closed": 40, "unanswerable": 6, "data": 8}
    assert (
        len({q.id for q in QUESTIONS})
        == len({(q.text, q.now) for q in QUESTIONS})
        == len(QUESTIONS)
    )


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_an_answer_follows_from_the_stored_changes(truths, question):
    assert question.answer == truths.find_answer(question.text, question.now)
