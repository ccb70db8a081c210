"""Reports the outcomes of a run as tables and as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

from evals.run import Outcome

TITLES = {
    "closed": "closed questions",
    "unanswerable": "questions without an answer",
    "data": "questions about simulated or outdated data",
}
HEAD = ("", "right", "wrong", "calls", "characters", "wrong tools", "bad arguments")


def list_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return the cells of the table: a row for each kind of question, and one for all."""
    kinds = [(TITLES[kind], [o for o in outcomes if o.question.kind == kind]) for kind in TITLES]
    return [_format_row(*one) for one in [*kinds, ("all", list(outcomes))]]


def _format_row(title: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    right = sum(outcome.is_right for outcome in outcomes)
    figures = (
        right,
        len(outcomes) - right,
        sum(len(outcome.calls) for outcome in outcomes),
        sum(outcome.characters for outcome in outcomes),
        sum(outcome.count_problems("wrong_tool") for outcome in outcomes),
        sum(outcome.count_problems("bad_arguments") for outcome in outcomes),
    )
    return title, *(f"{figure:,}" for figure in figures)


def format_report(outcomes: Sequence[Outcome]) -> str:
    """Return the table for a terminal, and below it each wrong answer."""
    rows = [HEAD, *list_rows(outcomes)]
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
