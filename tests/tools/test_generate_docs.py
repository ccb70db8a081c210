"""The pages for agents' builders: what is generated is up to date, what is shown is answered so.

The file of the sample is what today's engine computes: run `python -m tools.build_sample`.
"""

import asyncio
import json
import re
import tempfile
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from mcp_server.tools.get_signals import GET_SIGNALS
from mcp_server.tools.get_state import GET_STATE
from mcp_server.tools.tool_table import TOOLS
from rest_shim.sample import SAMPLE_FILE
from schemas.vocabulary import ErrorCode
from tests.support.bad_inputs import SIGNALS, STATE
from tests.support.example_market import fill_full_universe, make_coverage
from tests.support.response_schemas import parse_size
from tests.support.running_service import run_service
from tests.support.signals_command import ROOT
from tools import generate_docs as generate
from tools.build_sample import build_parts

Shown = list[dict[str, Any]]


def parse_calls(page: str) -> tuple[Shown, Shown]:
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    return shown[::2], shown[1::2]


AGENTS = (ROOT / "docs" / "agents.md").read_text()
EXAMPLES = (ROOT / "web" / "examples.md").read_text()
CALLS, ANSWERS = parse_calls(AGENTS)
SIZED = [(STATE, {}), (SIGNALS, {"limit": 200})]
REQUEST_ID = "1f0c9d7e5b3a2c48-0002"
SHORT_NAMES = {tool.name.removeprefix("signals_get_"): tool for tool in TOOLS}


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """The results of the calls of docs/agents.md, then of SIZED, on the full board."""

    async def called() -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            async with run_service(Path(folder)) as served:
                await fill_full_universe(served.market)
                asked = [(call["name"], call["arguments"]) for call in CALLS]
                headers = {**served.key_headers, "X-Request-Id": REQUEST_ID}
                results = [await served.call(*one, headers) for one in [*asked, *SIZED]]
                text = json.dumps(results).replace(served.base_url, "http://127.0.0.1:8000")
        return json.loads(text)

    return asyncio.run(called())


@pytest.mark.clause("documents")
def test_what_is_generated_is_up_to_date():
    assert list(generate.find_outdated(generate.PAGES)) == [], "run `make docs`"


@pytest.mark.clause("documents")
@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.prove
def test_a_call_of_the_page_gives_what_the_page_shows(results, number):
    result = results[number]
    assert (result if result["isError"] else result["structuredContent"]) == ANSWERS[number]


@pytest.mark.clause("documents")
async def test_the_examples_are_what_the_tools_answer_in_the_market_of_the_tests(tmp_path):
    calls, answers = parse_calls(EXAMPLES)
    assert [call["name"] for call in calls] == [tool.name for tool in TOOLS]
    assert re.findall(r"^## (.+)$", EXAMPLES, re.MULTILINE) == [tool.name for tool in TOOLS]
    async with run_service(tmp_path, make_coverage()) as served:
        for call, answer in zip(calls, answers, strict=True):
            result = await served.call(call["name"], call["arguments"])
            text = json.dumps(result["structuredContent"])
            assert json.loads(text.replace(served.base_url, "http://127.0.0.1:8000")) == answer


@pytest.mark.clause("documents")
@pytest.mark.parametrize(
    ("at", "tool", "size"), [(0, GET_STATE, "else"), (1, GET_SIGNALS, "rows have")]
)
@pytest.mark.prove
def test_a_description_names_the_size_of_the_largest_answer(results, at, tool, size):
    text = results[len(CALLS) + at]["content"][0]["text"]
    assert len(text) == pytest.approx(parse_size(tool.description, size), rel=0.1)


@pytest.mark.clause("documents")
def test_the_page_names_every_tool_and_every_refusal_of_a_tool():
    codes = re.findall(r"^\| (`.*`) \| .* \|$", AGENTS.split("## Errors")[1], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(codes))) == set(get_args(ErrorCode))
    first = AGENTS.split("## Which tool to call")[1].split("## ")[0]
    assert set(re.findall(r"signals_get_\w+", first)) == {tool.name for tool in TOOLS}


@pytest.mark.clause("documents")
def test_the_page_says_which_answers_have_which_field_of_meta():
    table = AGENTS.split("## Fields of `meta`")[1].split("## ")[0]
    said: dict[str, set[str]] = {name: set() for name in SHORT_NAMES}
    for fields, where in re.findall(r"^\| (`[\w`, ]+`) \| ([\w, ]+) \|", table, re.MULTILINE):
        named = set(where.removeprefix("all").removeprefix(" but ").split(", ")) - {""}
        for name in set(SHORT_NAMES) - named if where.startswith("all") else named:
            said[name] |= set(re.findall(r"\w+", fields))
    held = {
        name: set(tool.result.model_fields["meta"].annotation.model_fields)
        for name, tool in SHORT_NAMES.items()
    }
    assert said == held


@pytest.mark.clause("15.6")
@pytest.mark.prove
async def test_the_sample_holds_the_rows_and_bars_of_the_simulated_market(tmp_path: Path) -> None:
    built = await build_parts(tmp_path)
    with np.load(BytesIO(files("rest_shim").joinpath(SAMPLE_FILE).read_bytes())) as stored:
        assert stored.keys() == built.keys()
        for name, values in built.items():
            np.testing.assert_allclose(stored[name], values, rtol=1e-5, err_msg=name)
