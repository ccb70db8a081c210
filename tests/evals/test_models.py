"""Models answer through either format of endpoint, or as a local command."""

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import httpx
import pytest

from evals.__main__ import main
from evals.chats import AnthropicChat, OpenAiChat
from evals.conversation import ModelAnswerer, extract_answer
from evals.market import EvalMarket, SettableClock
from evals.models import ModelError, build_command_send, build_http_send
from evals.questions import read_questions
from evals.report import format_report, to_json_rows
from evals.run import ask_all
from tests.doubles.chat_endpoint import ChatEndpoint, to_openai
from tests.support.bad_inputs import STATE, STATS
from tests.support.running_service import open_loopback_socket, run_app
from tools.example_market import make_coverage, seed_market
from tools.example_service import open_example_service

pytestmark = pytest.mark.clause("understood")

# Answered from the small market of the other tests; its right answer is no.
QUESTION = replace(next(q for q in read_questions() if q.kind == "data"), tools={STATE})
READ_BTC = [(STATE, {"ticker": "BTC"})]
FORMATS = {
    "openai": (OpenAiChat, "/v1/chat/completions"),
    "anthropic": (AnthropicChat, "/v1/messages"),
}


@pytest.fixture
async def market(tmp_path) -> AsyncIterator[EvalMarket]:
    clock = SettableClock()
    async with open_example_service(tmp_path, clock) as service:
        await seed_market(service.market, make_coverage())
        yield EvalMarket(service, clock)


@asynccontextmanager
async def run_endpoint(endpoint, form="openai", sleep=None):
    """Yield an answerer that uses the endpoint."""
    chat, path = FORMATS[form]
    with open_loopback_socket() as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
        async with run_app(endpoint.app, bound), httpx.AsyncClient() as client:
            send = build_http_send(client, url, {"x-api-key": "secret"}, sleep)
            yield ModelAnswerer(partial(chat, send, "small-model")).answer


@pytest.mark.parametrize("form", FORMATS)
async def test_a_model_calls_tools_and_answers(market, form):
    endpoint = ChatEndpoint([READ_BTC, "It is simulated.\n<answer> No </answer>"])
    async with run_endpoint(endpoint, form) as answer:
        (outcome,) = await ask_all(market, [QUESTION], answer)
    assert outcome.is_right
    assert [(call.tool, call.problem) for call in outcome.calls] == [(STATE, None)]
    assert outcome.characters > 500
    first, second = endpoint.bodies
    assert first["model"] == "small-model"
    assert len(first["tools"]) == 7
    assert "simulated" in json.dumps(second["messages"][-1])
    assert endpoint.headers[0]["x-api-key"] == "secret"


@pytest.mark.parametrize("form", FORMATS)
async def test_wrong_tools_and_bad_arguments_are_counted(market, form):
    calls = [
        ("signals_get_weather", {}),
        (STATS, {}),
        (STATE, {"ticker": "BTX"}),
        (STATE, {"coin": 1}),
    ]
    endpoint = ChatEndpoint([calls, "<answer>yes</answer>"])
    async with run_endpoint(endpoint, form) as answer:
        outcomes = await ask_all(market, [QUESTION], answer)
    (outcome,) = outcomes
    assert not outcome.is_right
    assert outcome.count_problems("wrong_tool") == 2
    assert outcome.count_problems("bad_arguments") == 2
    assert "expected 'no', got 'yes'" in format_report(outcomes)
    (row,) = to_json_rows(outcomes)
    assert (row["answer"], row["right"], len(row["calls"])) == ("yes", False, 4)


async def test_arguments_that_are_no_json_are_bad_arguments(market):
    endpoint = ChatEndpoint([[(STATE, "{ticker: BTC")], "<answer>no</answer>"])
    async with run_endpoint(endpoint) as answer:
        (outcome,) = await ask_all(market, [QUESTION], answer)
    assert outcome.is_right
    assert outcome.count_problems("bad_arguments") == 1


async def test_a_model_that_never_answers_is_stopped(market):
    endpoint = ChatEndpoint([READ_BTC] * 30)
    async with run_endpoint(endpoint) as answer:
        (outcome,) = await ask_all(market, [QUESTION], answer)
    assert outcome.answer == ""
    assert len(outcome.calls) == 25


async def test_a_busy_endpoint_is_asked_again_when_it_says(market):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    endpoint = ChatEndpoint(["<answer>no</answer>"], failures=[429, 503])
    async with run_endpoint(endpoint, sleep=sleep) as answer:
        (outcome,) = await ask_all(market, [QUESTION], answer)
    assert outcome.is_right
    assert slept == [7, 7]


async def test_an_endpoint_that_refuses_is_an_error_with_its_text(market):
    async with run_endpoint(ChatEndpoint([], failures=[401])) as answer:
        with pytest.raises(ModelError, match="answered 401: busy"):
            await ask_all(market, [QUESTION], answer)


async def test_a_local_command_is_a_model(market, tmp_path):
    replies = [to_openai(READ_BTC), to_openai("<answer>no</answer>")]
    script = tmp_path / "model.py"
    script.write_text(
        "import json, sys\n"
        "has_result = json.load(sys.stdin)['messages'][-1]['role'] == 'tool'\n"
        f"print(json.dumps({replies!r}[has_result]))\n"
    )
    send = build_command_send(shlex.join([sys.executable, str(script)]))
    answer = ModelAnswerer(partial(OpenAiChat, send, "")).answer
    (outcome,) = await ask_all(market, [QUESTION], answer)
    assert outcome.is_right
    assert len(outcome.calls) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/command", "cannot run '/no/such/command': No such file or directory"),
        ("false", "'false' exited with status 1"),
        ("echo hello", "'echo hello' printed b'hello\\n'; it must print a JSON response"),
    ],
)
async def test_a_command_that_is_no_model_is_an_error(command, message):
    with pytest.raises(ModelError) as raised:
        await build_command_send(command)({})
    assert str(raised.value) == message


def test_the_last_answer_of_a_text_counts():
    assert extract_answer("<answer>a</answer> or <answer>\nb</answer>") == "b"
    assert extract_answer("I do not know") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--openai", "http://127.0.0.1:9/v1"], "--model is required"),
        (["--solver", "--only", "closed-99"], "--only names no question"),
        ([], "one of the arguments --solver --openai --anthropic --command is required"),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.prove
def test_the_command_runs_the_solver(capsys, tmp_path):
    answers = tmp_path / "answers.json"
    assert main(["--solver", "--only", "data-1", "--json", str(answers)]) == 0
    assert "all" in capsys.readouterr().out
    assert json.loads(answers.read_text())[0]["right"] is True


@pytest.mark.prove
def test_a_model_that_cannot_be_reached_is_one_line(capsys):
    arguments = ["--anthropic", "http://127.0.0.1:9", "--model", "m", "--only", "data-1"]
    assert main(arguments, {}) == 2
    assert "cannot be reached" in capsys.readouterr().err
