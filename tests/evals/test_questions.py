"""Models answer closed questions through either format of endpoint."""

import hashlib
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from evals.__main__ import format_report
from evals.chats import AnthropicChat, OpenAiChat, post
from evals.market import SettableClock, open_eval_market
from evals.questions import Outcome, ask_all, extract_answer, read_questions
from store.market_rows import Batch
from tests.support.bad_inputs import STATE, STATS
from tests.support.example_market import make_coverage
from tests.support.running_service import run_service, serve_app

pytestmark = pytest.mark.clause("understood")


# Answered from the small market of the other tests; its right answer is no.
QUESTION = replace(next(q for q in read_questions() if q.kind == "data"), tools={STATE})
READ_BTC = [(STATE, {"ticker": "BTC"})]
FORMATS = {
    "openai": (OpenAiChat, "/v1/chat/completions"),
    "anthropic": (AnthropicChat, "/v1/messages"),
}


@asynccontextmanager
async def open_ask(folder, endpoint, form="openai", sleep=None):
    """Yield a function that asks QUESTION of a model behind the endpoint."""
    chat, path = FORMATS[form]
    async with (
        run_service(folder, make_coverage()) as served,
        serve_app(lambda _: endpoint) as address,
        httpx.AsyncClient() as client,
    ):
        send = partial(post, client, address + path, {"x-api-key": "secret"}, sleep=sleep)
        served.client.headers.update(served.key_headers)
        open_chat = partial(chat, "small-model")
        yield lambda: ask_all(served.client, served.clock, [QUESTION], open_chat, send)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_model_calls_tools_and_answers(tmp_path, form):
    endpoint = ChatEndpoint([READ_BTC, "It is simulated.\n<answer> No </answer>"])
    async with open_ask(tmp_path, endpoint, form) as ask:
        (outcome,) = await ask()
    assert outcome.is_right
    assert [(call.tool, call.problem) for call in outcome.calls] == [(STATE, None)]
    assert outcome.calls[0].characters > 500
    first, second = endpoint.bodies
    assert first["model"] == "small-model"
    assert len(first["tools"]) == 7
    assert "simulated" in json.dumps(second["messages"][-1])
    assert endpoint.headers[0]["x-api-key"] == "secret"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.prove
async def test_wrong_tools_and_bad_arguments_are_counted(tmp_path, form):
    calls = [
        ("signals_get_weather", {}),
        (STATS, {}),
        (STATE, {"ticker": "BTX"}),
        (STATE, {"coin": 1}),
        # No JSON object; only one of the two forms sends arguments as text.
        (STATE, "{ticker: BTC"),
    ]
    async with open_ask(tmp_path, ChatEndpoint([calls, "<answer>yes</answer>"]), form) as ask:
        outcomes = await ask()
    (outcome,) = outcomes
    assert not outcome.is_right
    problems = [call.problem for call in outcome.calls]
    assert problems == [*["wrong_tool"] * 2, *["bad_arguments"] * 3]
    assert "expected 'no', got 'yes'" in format_report(outcomes)


@pytest.mark.prove
async def test_a_busy_endpoint_is_asked_again_when_it_says(tmp_path):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    endpoint = ChatEndpoint(["<answer>no</answer>"], failures=[429, 503])
    async with open_ask(tmp_path, endpoint, sleep=sleep) as ask:
        (outcome,) = await ask()
    assert outcome.is_right
    assert slept == [7, 7]


def test_the_last_answer_of_a_text_counts():
    assert extract_answer("<answer>a</answer> or <answer>\nb</answer>") == "b"
    assert extract_answer("I do not know") == ""


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
    assert Outcome(replace(QUESTION, answer="XPD, XPT"), answer).is_right is right


Calls = list[tuple[str, Any]]


@dataclass
class ChatEndpoint:
    """The app, its scripted replies, and the requests that it received.

    `failures` are statuses with which it answers first.
    """

    replies: list[str | Calls]
    failures: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        if self.failures:
            response = Response("busy", self.failures.pop(0), {"retry-after": "7"})
        else:
            to_form = to_anthropic if scope["path"] == "/v1/messages" else to_openai
            response = JSONResponse(to_form(self.replies.pop(0)))
        await response(scope, receive, send)


def to_openai(reply: str | Calls) -> dict[str, Any]:
    if isinstance(reply, str):
        return {"choices": [{"message": {"role": "assistant", "content": reply}}]}
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": text}}
        for number, (tool, arguments) in enumerate(reply)
        for text in [arguments if isinstance(arguments, str) else json.dumps(arguments)]
    ]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]}


def to_anthropic(reply: str | Calls) -> dict[str, Any]:
    if isinstance(reply, str):
        return {"content": [{"type": "text", "text": reply}]}
    return {
        "content": [
            {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": arguments}
            for number, (tool, arguments) in enumerate(reply)
        ]
    }


# Of all changes and alerts of the market. The answers to the questions were computed from these
# by a program, which the history of this file still has: use it again if the market changes.
MARKET_DIGEST = "1e6b343d8c907d8a71031833ab43a1a42a73874b626a508b23dce9ade13e7b3c"


def test_there_are_forty_closed_questions_and_others():
    questions = read_questions()
    kinds = Counter(question.kind for question in questions)
    assert kinds == {"closed": 40, "unanswerable": 6, "data": 8}
    assert len({question.id for question in questions}) == len(questions)
    assert len({(question.text, question.now) for question in questions}) == len(questions)


@pytest.mark.prove
async def test_the_answers_are_those_of_this_market(tmp_path):
    digest = hashlib.sha256()

    def add(batch: Batch) -> None:
        for row in batch.changes:
            cell = (row.ticker, row.indicator, row.timeframe, row.before, row.after)
            digest.update(repr((cell, row.created_at, row.published)).encode())
        for alert in batch.alerts:
            place = (alert.ticker, alert.indicator, alert.timeframe)
            digest.update(repr((place, alert.action, alert.created_at)).encode())

    async with open_eval_market(tmp_path, SettableClock(), add):
        pass
    assert digest.hexdigest() == MARKET_DIGEST
