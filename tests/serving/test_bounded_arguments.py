"""Every argument and body field has a bound, which its error names, and a full list fits."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from compute.universe import load_universe
from mcp_server.tools.registry import TOOLS, TOOLS_BY_NAME
from schemas.purchase import Body
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS, Query
from schemas.signals import MAX_OFFSET
from serving.argument_values import MAX_TICKERS, find_assets
from serving.arguments import (
    MAX_COMPARED_CHARS,
    MAX_SUGGESTIONS,
    ArgumentError,
    get_argument_schemas,
    quote_value,
)
from serving.json_schema import Schema, build_input_schema
from serving.tool_runner import AnyTool
from tests.support.bad_inputs import CATALOG, SIGNALS, STATE
from tests.support.example_market import make_full_coverage
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("endpoint")

INPUTS = [*Query.__subclasses__(), *Body.__subclasses__()]


def find_unbounded(name: str, part: Schema) -> Iterator[str]:
    """Yield the path of each part of a schema that accepts values of any size."""
    kind = part.get("type")
    if kind == "string" and not part.keys() & {"enum", "const", "maxLength"}:
        yield name
    if kind in {"integer", "number"} and not {"minimum", "maximum"} <= part.keys():
        yield name
    if kind == "array":
        if "maxItems" not in part:
            yield name
        yield from find_unbounded(f"{name}[]", part.get("items", {}))
    if kind == "object":
        if part.get("additionalProperties", True) is not False:
            yield name
        for key, value in part.get("properties", {}).items():
            yield from find_unbounded(f"{name}.{key}", value)
    if kind is None and not part.keys() & {"enum", "const"}:
        yield name


@pytest.mark.parametrize("model", INPUTS, ids=lambda model: model.__name__)
def test_every_argument_and_field_is_bounded(model: type[BaseModel]) -> None:
    assert list(find_unbounded("", build_input_schema(model))) == []


def test_every_tool_and_every_body_is_among_the_checked_models() -> None:
    assert {tool.query for tool in TOOLS} <= set(INPUTS)
    assert {model.__name__ for model in Body.__subclasses__()} == {
        "AccessRequestBody",
        "CheckoutBody",
        "ClaimBody",
    }


def test_the_check_names_what_is_unbounded() -> None:
    class Unbounded(BaseModel):
        text: str
        pattern: str = Field(pattern="^a+$")
        number: int = Field(ge=0)
        names: list[str]
        choice: Literal["a", "b"]
        short: str = Field(max_length=3)

    found = list(find_unbounded("", build_input_schema(Unbounded)))
    assert found == [".text", ".pattern", ".number", ".names", ".names[]"]


def test_a_list_of_all_tickers_fits() -> None:
    tickers = [asset.ticker for asset in load_universe().assets]
    assert len(tickers) <= MAX_TICKERS
    assert len(", ".join(tickers)) <= MAX_LIST_CHARS
    assert max(map(len, tickers)) <= MAX_NAME_CHARS


TEXTS = [
    (tool, name, schema["maxLength"])
    for tool in TOOLS
    for name, schema in get_argument_schemas(tool.query).items()
    if "maxLength" in schema
]


@pytest.mark.parametrize(
    ("tool", "name", "limit"), TEXTS, ids=lambda value: getattr(value, "name", str(value))
)
async def test_a_text_beyond_its_bound_is_refused_with_the_bound(
    served: RunningService, transport: str, tool: AnyTool, name: str, limit: int
) -> None:
    _, error = await served.fetch_refusal(transport, tool.name, **{name: "x" * (limit + 1)})
    assert (
        f"{name}: too long ({limit + 1} characters); accepted: text of at most {limit}"
        in (error["message"])
    )
    _, longest = await served.fetch_refusal(transport, tool.name, **{name: "x" * limit})
    assert "too long" not in longest["message"]


@pytest.mark.parametrize("tool", [STATE, CATALOG])
async def test_a_list_of_too_many_tickers_is_refused(
    served: RunningService, transport: str, tool: str
) -> None:
    known = ["BTC"] * MAX_TICKERS
    assert "error" not in await served.fetch_answer(transport, tool, ticker=",".join(known))
    _, error = await served.fetch_refusal(transport, tool, ticker=",".join([*known, "BTC"]))
    assert f"ticker: {MAX_TICKERS + 1} items are too many; accepted: at most" in error["message"]


@pytest.mark.parametrize(
    "text",
    [
        "x" * 58,
        "international business",
        "american incorporated holdings corp",
        "etaoinsrhldcu" * 4,
    ],
)
def test_the_work_of_suggestions_is_bounded(text: str) -> None:
    assets = {asset.ticker: asset for asset in make_full_coverage().assets}
    unknown = ",".join(f"{text}{number:02}" for number in range(20))
    with count_compared_chars() as compared, pytest.raises(ArgumentError, match="unknown"):
        find_assets(unknown, assets)
    assert sum(compared) <= MAX_SUGGESTIONS * MAX_COMPARED_CHARS


@contextmanager
def count_compared_chars() -> Iterator[list[int]]:
    """Collect the length of the text in each comparison with a name that difflib begins."""
    compared: list[int] = []

    def observe(frame: FrameType, event: str, argument: object) -> None:
        is_comparison = frame.f_code is difflib.SequenceMatcher.set_seq1.__code__
        # Without a text, a matcher is created and compares nothing yet.
        if event == "call" and is_comparison and (text := frame.f_locals["self"].b):
            compared.append(len(text))

    sys.setprofile(observe)
    try:
        yield compared
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "typo", ["Artificial Superinteligence Alliance", "Nvidai", "Goldd", "SOLL"]
)
def test_a_bounded_search_finds_the_nearest_name(typo: str) -> None:
    assets = {asset.ticker: asset for asset in make_full_coverage().assets}
    nearest = {"A": "FET", "N": "NVDA", "G": "XAU", "S": "SOL"}[typo[0]]
    with pytest.raises(ArgumentError, match=f"did you mean {nearest}"):
        find_assets(typo, assets)


async def test_an_offset_beyond_its_bound_is_refused(
    served: RunningService, transport: str
) -> None:
    _, error = await served.fetch_refusal(transport, SIGNALS, offset=MAX_OFFSET + 1)
    assert f"accepted: an integer from 0 to {MAX_OFFSET}" in error["message"]


async def test_a_number_out_of_range_is_not_quoted_as_infinity(served: RunningService) -> None:
    body = (
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        f'{{"name":"{SIGNALS}","arguments":{{"limit":1e999}}}}}}'
    )
    headers = {
        "Authorization": f"Bearer {served.api_key}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    response = await served.client.post("/api/v1/mcp", content=body, headers=headers)
    assert "limit: a number out of range is not accepted" in response.text


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (float("inf"), "a number out of range"),
        ([1, float("-inf")], "[1, a number out of range]"),
        ("Infinity", '"Infinity"'),
        (["-Infinity"], '["-Infinity"]'),
    ],
)
def test_only_numbers_out_of_range_are_replaced(value: object, quoted: str) -> None:
    assert quote_value(value) == quoted


def test_the_schemas_of_tools_carry_the_bounds() -> None:
    listed = build_input_schema(TOOLS_BY_NAME[STATE].query)["properties"]
    assert listed["ticker"]["maxLength"] == MAX_LIST_CHARS
    assert listed["as_of"]["maxLength"] == MAX_NAME_CHARS
