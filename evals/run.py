"""Asks questions and records the answers."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from evals.market import EvalMarket
from evals.questions import Question, is_right
from evals.session import Call, Problem, Session
from schemas.vocabulary import format_instant

UNANSWERABLE = "unanswerable"
# Returns the answer to a question asked at an instant, or UNANSWERABLE.
Answerer = Callable[[str, str, Session], Awaitable[str]]


@dataclass(frozen=True)
class Outcome:
    """The answer to a question and the calls that led to it."""

    question: Question
    answer: str
    calls: list[Call]

    @property
    def is_right(self) -> bool:
        """Whether the answer is the right one."""
        return is_right(self.question, self.answer)

    @property
    def characters(self) -> int:
        """The characters of all results."""
        return sum(call.characters for call in self.calls)

    def count_problems(self, problem: Problem) -> int:
        """Return how many calls had a problem."""
        return sum(call.problem == problem for call in self.calls)


async def ask_all(
    market: EvalMarket, questions: Iterable[Question], answer: Answerer
) -> list[Outcome]:
    """Ask each question in a session of its own, at its own time."""
    outcomes = []
    for question in questions:
        market.clock.now = question.now
        session = Session(market.service, question.tools)
        answered = await answer(question.text, format_instant(question.now), session)
        outcomes.append(Outcome(question, answered, session.calls))
    return outcomes
