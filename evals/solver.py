"""Answers the questions with scripts, which see only tools/list and the results of their calls.

A script belongs to a form of question. It proves that the tools give everything the answer needs.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from evals.run import UNANSWERABLE
from evals.session import Session, ToolCallError

# Returns the answer from the session, the time of the question, and the groups of the pattern.
Script = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class Form:
    """A form of question: a pattern of its text, and the script that answers it."""

    pattern: re.Pattern[str]
    script: Script


class Solver:
    """Answers questions that have one of some forms."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self._forms = tuple(forms)

    async def answer(self, text: str, now: str, session: Session) -> str:
        """Return the answer to a question; UNANSWERABLE if no tool has it, or a call is refused."""
        for form in self._forms:
            match = form.pattern.fullmatch(text)
            if match is not None:
                try:
                    return await form.script(session, now, **match.groupdict())
                except ToolCallError:
                    return UNANSWERABLE
        return UNANSWERABLE


def build_form(text: str, script: Script) -> Form:
    """Return the form of a text in which `{name}` stands for words, such as a ticker or a time."""
    parts = re.split(r"\{(\w+)\}", text)
    names = [rf"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)]
    return Form(re.compile("".join(names)), script)
