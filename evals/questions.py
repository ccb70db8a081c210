"""Reads the questions, lets a model answer them with the tools, and records its calls."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from xml.etree import ElementTree

import httpx

from evals.chats import AnthropicChat, JsonObject, OpenAiChat
from evals.market import NOW, SettableClock
from schemas.vocabulary import format_instant
from serving.argument_values import parse_instant_ms

QUESTIONS = Path(__file__).with_name("signals.xml")
MAX_ROUNDS = 25
UNANSWERABLE = "unanswerable"
PROMPT = """{instructions}

The time is {now}. Answer the question with the tools. When you know the answer, write it between
<answer> and </answer>, without any explanation: a number, a word, a date, or names separated by
commas. If nothing matches, write none. If the tools cannot give the answer, write
{unanswerable}."""
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "evals", "version": "1"},
}

Kind = Literal["closed", "unanswerable", "data"]
Problem = Literal["wrong_tool", "bad_arguments"]
# Sends the body of a request to the model and returns that of its response.
Send = Callable[[JsonObject], Awaitable[JsonObject]]
# Starts a conversation from the system prompt, the listed tools and the question.
OpenChat = Callable[[str, list[JsonObject], str], OpenAiChat | AnthropicChat]


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


@dataclass(frozen=True)
class Call:
    """One call: its tool, the characters of its result, and the mistake in it."""

    tool: str
    characters: int
    problem: Problem | None


@dataclass
class Outcome:
    """The answer to a question, empty if there is none, and the calls that led to it."""

    question: Question
    answer: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether the answer equals the right one, in any case and in any order of its parts."""
        return _normalize(self.answer) == _normalize(self.question.answer)


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


async def ask_all(
    service: httpx.AsyncClient,
    clock: SettableClock,
    questions: Iterable[Question],
    open_chat: OpenChat,
    send: Send,
) -> list[Outcome]:
    """Ask each question in a conversation of its own, at its own time."""
    outcomes = []
    for question in questions:
        clock.now = question.now
        instructions = (await _request(service, "initialize", INITIALIZE))["result"]["instructions"]
        tools = (await _request(service, "tools/list", {}))["result"]["tools"]
        now = format_instant(question.now)
        prompt = PROMPT.format(instructions=instructions, now=now, unanswerable=UNANSWERABLE)
        outcomes.append(outcome := Outcome(question))
        chat = open_chat(prompt, tools, question.text)
        for _ in range(MAX_ROUNDS):
            text, requests = chat.add_reply(await send(chat.body))
            if not requests:
                outcome.answer = extract_answer(text)
                break
            results = [(id_, *await _call(service, outcome, *call)) for id_, *call in requests]
            chat.add_results(results)
    return outcomes


def extract_answer(text: str) -> str:
    """Return the last answer in the text of a model, empty if there is none."""
    answers: list[str] = ANSWER.findall(text)
    return answers[-1].strip() if answers else ""


def _normalize(answer: str) -> list[str]:
    parts = (part.strip().strip(".`'\"").lower() for part in answer.split(","))
    return sorted(part for part in parts if part)


async def _call(
    service: httpx.AsyncClient, outcome: Outcome, tool: str, arguments: Any
) -> tuple[str, bool]:
    """Record a call; return the text of its result and whether it is an error.

    The service also gets arguments that are no object, which it refuses.
    """
    response = await _request(service, "tools/call", {"name": tool, "arguments": arguments})
    result = response.get("result")
    # An unknown tool and arguments that are no object are protocol errors.
    text: str = result["content"][0]["text"] if result else response["error"]["message"]
    is_error: bool = result is None or result["isError"]
    problem: Problem | None = "bad_arguments" if is_error else None
    if tool not in outcome.question.tools:
        problem = "wrong_tool"
    outcome.calls.append(Call(tool, len(text), problem))
    return text, is_error


async def _request(
    service: httpx.AsyncClient, method: str, params: Mapping[str, Any]
) -> JsonObject:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer: JsonObject = (await service.post("/api/v1/mcp", json=body)).raise_for_status().json()
    return answer
