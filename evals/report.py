"""Reports the outcomes of a run as tables and as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from evals.run import Outcome

TITLES = {
    "closed": "closed questions",
    "unanswerable": "questions without an answer",
    "data": "questions about simulated or outdated data",
}
HEAD = ("", "right", "wrong", "calls", "characters", "wrong tools", "bad arguments")


class Totals(NamedTuple):
    """The figures of all questions of a kind."""

    title: str
    right: int
    wrong: int
    calls: int
    characters: int
    wrong_tools: int
    bad_arguments: int


def list_totals(outcomes: Sequence[Outcome]) -> list[Totals]:
    """Return the totals of each kind of question, and those of all."""
    kinds = [(TITLES[kind], [o for o in outcomes if o.question.kind == kind]) for kind in TITLES]
    return [_add_up(*one) for one in [*kinds, ("all", outcomes)]]


def _add_up(title: str, outcomes: Sequence[Outcome]) -> Totals:
    right = sum(outcome.is_right for outcome in outcomes)
    return Totals(
        title,
        right,
        len(outcomes) - right,
        sum(len(outcome.calls) for outcome in outcomes),
        sum(outcome.characters for outcome in outcomes),
        sum(outcome.count_problems("wrong_tool") for outcome in outcomes),
        sum(outcome.count_problems("bad_arguments") for outcome in outcomes),
    )


def format_report(outcomes: Sequence[Outcome]) -> str:
    """Return the table for a terminal, and below it each wrong answer."""
    rows = [HEAD, *(tuple(map(str, totals)) for totals in list_totals(outcomes))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *_describe_wrong(outcomes)])


def _describe_wrong(outcomes: Iterable[Outcome]) -> list[str]:
    return [
        f"{outcome.question.id}: {outcome.question.text}\n"
        f"  expected {outcome.question.answer!r}, got {outcome.answer!r}"
        for outcome in outcomes
        if not outcome.is_right
    ]


def to_json_rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return an object for each question, with its calls."""
    return [
        {
            "id": outcome.question.id,
            "question": outcome.question.text,
            "expected": outcome.question.answer,
            "answer": outcome.answer,
            "right": outcome.is_right,
            "calls": [vars(call) for call in outcome.calls],
        }
        for outcome in outcomes
    ]
