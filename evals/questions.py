"""Reads the questions of an XML file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from xml.etree import ElementTree

from serving.argument_values import parse_instant_ms
from tools.example_service import NOW

QUESTIONS = Path(__file__).with_name("signals.xml")
Kind = Literal["closed", "unanswerable", "data"]


@dataclass(frozen=True)
class Question:
    """A question, its only answer, and the tools that help to find it.

    `now` (epoch ms) is the time at which it is put.
    """

    id: str
    kind: Kind
    text: str
    answer: str
    tools: frozenset[str]
    now: int


def read_questions(path: Path = QUESTIONS) -> Sequence[Question]:
    """Return the questions of a file in their order."""
    return [_parse(pair) for pair in ElementTree.parse(path).iter("qa_pair")]


def _parse(pair: ElementTree.Element) -> Question:
    attributes = pair.attrib
    now = attributes.get("now")
    return Question(
        id=attributes["id"],
        kind=cast(Kind, attributes["kind"]),
        text=" ".join(pair.findtext("question", "").split()),
        answer=pair.findtext("answer", "").strip(),
        tools=frozenset(f"signals_get_{name}" for name in attributes.get("tools", "").split()),
        now=NOW if now is None else parse_instant_ms("now", now),
    )


def is_right(question: Question, answer: str) -> bool:
    """Compare an answer with the right one, in any case and in any order of its parts."""
    return _normalize(answer) == _normalize(question.answer)


def _normalize(answer: str) -> list[str]:
    parts = (part.strip().strip(".`'\"").lower() for part in answer.split(","))
    return sorted(part for part in parts if part)
