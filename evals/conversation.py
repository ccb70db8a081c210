"""Lets a model answer a question with the tools."""

import re

from evals.chats import OpenChat, ToolRequest, ToolResult
from evals.run import UNANSWERABLE
from evals.session import Session, ToolCallError

MAX_ROUNDS = 25
PROMPT = """{instructions}

The time is {now}. Answer the question with the tools. When you know the answer, write it between
<answer> and </answer>, without any explanation: a number, a word, a date, or names separated by
commas. If nothing matches, write none. If the tools cannot give the answer, write
{unanswerable}."""
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ModelAnswerer:
    """Answers questions with a model."""

    def __init__(self, open_chat: OpenChat) -> None:
        self._open_chat = open_chat

    async def answer(self, text: str, now: str, session: Session) -> str:
        """Return the answer of the model, empty if it gives none."""
        system = PROMPT.format(
            instructions=await session.fetch_instructions(), now=now, unanswerable=UNANSWERABLE
        )
        chat = self._open_chat(system, await session.list_tools(), text)
        results: list[ToolResult] = []
        for _ in range(MAX_ROUNDS):
            reply = await chat.send(results)
            if not reply.requests:
                return extract_answer(reply.text)
            results = [await _run(session, request) for request in reply.requests]
        return ""


def extract_answer(text: str) -> str:
    """Return the last answer in the text of a model, empty if there is none."""
    answers: list[str] = ANSWER.findall(text)
    return answers[-1].strip() if answers else ""


async def _run(session: Session, request: ToolRequest) -> ToolResult:
    try:
        text = await session.call_text(request.tool, request.arguments)
    except ToolCallError as error:
        return ToolResult(request, str(error), is_error=True)
    return ToolResult(request, text, is_error=False)
