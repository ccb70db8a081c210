"""The questions of evals/signals.xml, their answers, and the solver that needs only the tools."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from evals.forms import SOLVER
from evals.market import open_eval_market
from evals.questions import is_right, read_questions
from evals.report import format_report, list_totals
from evals.run import Outcome, ask_all
from tests.evals.truths import Truths
from tools.generate_docs import ROOT, format_row, format_totals_cells

pytestmark = pytest.mark.clause("understood")

QUESTIONS = read_questions()
PAGE = (ROOT / "docs" / "agents.md").read_text()


@pytest.fixture(scope="module")
def solved() -> tuple[list[Outcome], Truths]:
    """The answers of the solver, and what the store says."""
    truths = Truths()

    async def solve() -> list[Outcome]:
        with tempfile.TemporaryDirectory() as folder:
            async with open_eval_market(Path(folder), truths.add) as market:
                return await ask_all(market, QUESTIONS, SOLVER.answer)

    return asyncio.run(solve()), truths


def test_there_are_forty_closed_questions_and_others():
    assert Counter(q.kind for q in QUESTIONS)["closed"] == 40
    assert {q.kind for q in QUESTIONS} == {"closed", "unanswerable", "data"}
    assert (
        len({q.id for q in QUESTIONS})
        == len({(q.text, q.now) for q in QUESTIONS})
        == len(QUESTIONS)
    )


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_an_answer_follows_from_the_stored_changes(solved, question):
    _, truths = solved
    assert question.answer == truths.find_answer(question.text, question.now)


def test_the_solver_answers_every_question_with_the_tools_alone(solved):
    outcomes, _ = solved
    assert all(outcome.is_right for outcome in outcomes), format_report(outcomes)
    assert sum(outcome.count_problems("wrong_tool") for outcome in outcomes) == 0


def test_a_closed_question_takes_several_calls_and_no_refused_one(solved):
    outcomes, _ = solved
    for outcome in outcomes:
        if outcome.question.kind == "closed":
            assert len(outcome.calls) >= 2, outcome.question.text
            assert outcome.count_problems("bad_arguments") == 0, outcome.question.text


def test_the_page_has_the_run_of_the_solver(solved):
    outcomes, _ = solved
    for totals in list_totals(outcomes):
        assert format_row(format_totals_cells(totals)) in PAGE, "run `make docs`"


async def test_the_solver_does_not_guess_at_other_questions():
    assert await SOLVER.answer("Is it raining?", "2026-09-30T12:00:00Z", None) == "unanswerable"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("XPD, XPT", True),
        ("xpt,xpd.", True),
        ("XPD", False),
        ("XPD, XPT, XAU", False),
        ("", False),
    ],
)
def test_an_answer_is_compared_in_any_case_and_order(answer, right):
    (question,) = [question for question in QUESTIONS if question.answer == "XPD, XPT"]
    assert is_right(question, answer) is right
