"""The schemas of every read reject a missing field and a corrupted value, for each field."""

import copy
import json
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import jsonschema
import pytest

from mcp_server.tools.tool_table import TOOLS_BY_NAME
from rest_shim.sample import render_sample
from tests.support.bad_inputs import PATHS, build_path
from tests.support.openapi_document import fetch_document
from tests.support.response_schemas import ADDED_FIELD, add_fields, close_schema
from tests.support.running_service import served as served
from tools.output_schemas import build_output_schema

pytestmark = pytest.mark.clause("documents")

FOREIGN = "foreign"
CALLS: dict[str, dict[str, Any]] = {
    "signals_get_state": {"ticker": "BTC,DARK"},
    "signals_get_signals": {"tier": "all", "limit": 2},
    "signals_get_confluence": {"min_agree": 6, "asset_class": "crypto"},
    "signals_get_flips": {"timeframe": "1h"},
    "signals_get_catalog": {},
    "signals_get_stats": {},
    "signals_get_usage": {},
}
LINED = tuple(f"signals_get_{view}" for view in ("state", "signals", "confluence", "flips"))
OPEN_MAPS = (
    *("indicator_fields", "meta.confluence", "meta.stand_ins", "meta.missing_bars"),
    "meta.late_assets",
)
CLOSED_MAPS = (
    "assets.signals",
    "assets.signals.*",
    "assets.changes",
    "assets.changes.*",
    "results.votes",
    "results.changes",
    "meta.legacy_keys",
    "meta.next_update",
    "indicator_statuses",
    "board.legend",
    "tickers",
)
# What `meta` leaves out at its usual value.
META_EXCEPTIONS = (
    *("simulated", "next_update", "nothing_new_before", "stale", "late_assets", "building_assets"),
    *("ended_assets", "missing_bars", "most_delay_seconds", "removed_assets", "note", "last_bars"),
    *("not_covered", "legacy_keys", "stand_ins", "confluence", "timing", "rules"),
)
OPTIONAL: dict[str, tuple[str, ...]] = {
    "signals_get_state": ("lines", "assets.changes", "assets.last_bar"),
    "signals_get_signals": ("lines",),
    "signals_get_confluence": (
        *("lines", "query.as_of", "query.detail", "results.changes", "results.last_bar"),
        "results.current_agree",
    ),
    "signals_get_flips": ("lines", "query.ticker", "query.asset_class"),
    "signals_get_catalog": (
        *("tickers", "indicator_fields", "indicator_statuses", "legacy_indicator_keys", "tiers"),
        *("coverage", "cadence", "meta.as_of"),
    ),
}
FREE_TEXT = (
    "*ticker",
    "*tickers",
    "*.name",
    "*indicator_name",
    "signals.id",
    "*note",
    "*appears_in",
    "indicator_fields.*",
    "indicator_statuses.*",
    "cadence.*",
    "board.legend.*",
    "board.rows",
    "tickers.*",
    "meta.rules.*",
    "meta.removed_assets",
    "meta.stand_ins.*",
    "meta.building_assets",
    "meta.ended_assets",
    "meta.not_covered",
    "meta.timing",
    "meta.confluence.*",
    "lines",
    "meta.counted",
    "key.label",
)
FRACTIONS = ("*price", "*.change_percent", "*.close", "results.score", "*signals_per_day")

Keys = tuple[str | int, ...]


def dotted(keys: Keys) -> str:
    return ".".join(key for key in keys if isinstance(key, str))


def is_one_of(keys: Keys, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(dotted(keys), pattern) for pattern in patterns)


def walked(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    yield keys, value
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, part in value.items():
            yield from walked(part, (*keys, key))


def wrong_types(keys: Keys, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield "true"
    elif isinstance(value, int | float):
        yield str(value)
        if not is_one_of(keys, FRACTIONS):
            yield value + 0.5
    elif isinstance(value, str):
        yield 7
        if not is_one_of(keys, FREE_TEXT):
            yield FOREIGN
    else:
        yield [] if isinstance(value, dict) else {}


def wrong_fields(keys: Keys, value: dict[str, Any], tool: str) -> Iterator[dict[str, Any]]:
    # The keys of a map are data, not fields.
    if not is_one_of(keys, OPEN_MAPS + CLOSED_MAPS):
        yield {**value, FOREIGN: None}
        optional = (*OPTIONAL.get(tool, ()), *(f"meta.{name}" for name in META_EXCEPTIONS))
        for gone in (key for key in value if dotted((*keys, key)) not in optional):
            yield {key: part for key, part in value.items() if key != gone}
    elif is_one_of(keys, CLOSED_MAPS):
        for old in value:
            yield {FOREIGN if key == old else key: part for key, part in value.items()}


def corrupted(answer: Any, tool: str) -> Iterator[tuple[Keys, Any, Any]]:
    """Yield (path, fault, result) with one fault per result."""
    for keys, value in walked(answer):
        wrong = list(wrong_types(keys, value))
        if isinstance(value, dict):
            wrong += wrong_fields(keys, value, tool)
        for other in wrong:
            yield keys, other, replaced(answer, keys, other)


def replaced(answer: Any, keys: Keys, other: Any) -> Any:
    if not keys:
        return other
    made = copy.copy(answer)
    made[keys[0]] = replaced(answer[keys[0]], keys[1:], other)
    return made


def fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of every field in a schema without references."""
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from fields(part, f"{path}{name}.")
    inner = [schema["items"]] if "items" in schema else schema.get("anyOf", [])
    for part in inner:
        yield from fields(part, path)


def completed(tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the fields filled in that are empty here, so that all are tested."""
    meta = answer["meta"]
    if tool not in ("signals_get_catalog", "signals_get_usage"):
        meta |= {key: ["XAU"] for key in ("ended_assets", "building_assets", "removed_assets")}
        meta |= {"missing_bars": {"XAU": 2}, "late_assets": {"ETH": ["1d"]}, "stale": True}
        meta |= {"most_delay_seconds": 900, "note": "Late.", "nothing_new_before": meta["as_of"]}
    if tool in LINED:
        answer["lines"] = "ticker score"
    change = {"since": "2026-09-30T12:03:00.000Z", "price": 101.5, "change_percent": 2.25}
    last_bar = {"closed_at": "2026-09-30T12:00:00.000Z", "close": 103.78}
    if tool == "signals_get_state":
        for asset in answer["assets"]:
            asset |= {"changes": {"enzo": {"1h": change}}, "last_bar": last_bar}
        meta |= {"not_covered": ["DARK"], "legacy_keys": {"dexter": "enzo"}}
        answer["meta"]["last_bars"] = [{"closed_at": answer["as_of"], "tickers": ["BTC"]}]
    if tool == "signals_get_signals":
        answer["signals"] += json.loads(render_sample())["signals"]
    if tool == "signals_get_catalog":
        answer["tickers"] = {"crypto": "BTC Bitcoin"}
        answer["tiers"]["alerts"] |= {"tickers": ["BTC"], "timeframes": ["4h"]}
        answer["coverage"]["assets"][0]["alerts"] = ["4h"]
        meta |= {"stand_ins": {"XAU": "binance XAU/USDT:USDT"}, "removed_assets": ["MATIC"]}
        meta["nothing_new_before"] = meta["as_of"]
    if tool == "signals_get_stats":
        answer["alerts_tier"] = answer["universe_tier"]
    if tool == "signals_get_confluence":
        answer["query"] |= {"as_of": answer["as_of"], "detail": "changes"}
        meta["legacy_keys"] = {"dexter": "enzo"}
        for result in answer["results"]:
            result |= {"changes": {"enzo": change}, "last_bar": last_bar, "current_agree": 6}
    if tool == "signals_get_flips":
        answer["query"] |= {"ticker": "BTC", "asset_class": "crypto"}
    if tool == "signals_get_usage":
        answer["meta"]["note"] = "The quota is used up."
        answer["meta"]["nothing_new_before"] = answer["quota"]["resets_at"]
    return answer


async def answer_of(served, tool):
    response = await served.get_api(build_path(tool, CALLS[tool]))
    assert response.status_code == 200, response.text
    return response.json()


def test_every_read_is_tried():
    assert set(CALLS) == set(TOOLS_BY_NAME)


@pytest.mark.clause("2.6.1", "2.6.8", "2.6.20")
@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.sampled(4)
async def test_both_schemas_accept_the_result_and_reject_it_with_any_fault(served, tool):
    real = await answer_of(served, tool)
    answer = completed(tool, copy.deepcopy(real))
    document = await fetch_document(served)
    success = document.response("GET", f"/api/v1{PATHS[tool]}", 200)
    validators = {
        "tool": jsonschema.Draft202012Validator(
            close_schema(build_output_schema(TOOLS_BY_NAME[tool].result)),
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        ),
        "openapi": document.build_validator(success["content"]["application/json"]["schema"]),
    }
    for name, validator in validators.items():
        validator.validate(real)
        validator.validate(answer)
        assert [
            (dotted(keys), other)
            for keys, other, wrong in corrupted(answer, tool)
            if validator.is_valid(wrong)
        ] == [], name


@pytest.mark.parametrize("tool", CALLS)
async def test_every_field_of_a_schema_occurs_in_the_corrupted_result(served, tool):
    answer = completed(tool, await answer_of(served, tool))
    seen = {dotted(keys) for keys, _ in walked(answer)}
    assert set(fields(build_output_schema(TOOLS_BY_NAME[tool].result))) <= seen
    filled = {dotted(keys) for keys, value in walked(answer) if value not in (None, [], {})}
    assert seen - filled == set()


def walked_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a schema except for the maps from field names to schemas."""
    if isinstance(schema, list):
        for part in schema:
            yield from walked_schemas(part)
    if isinstance(schema, dict):
        yield schema
        for key, part in schema.items():
            yield from walked_schemas(list(part.values()) if key == "properties" else part)


@pytest.mark.clause("9.21")
@pytest.mark.parametrize("tool", CALLS)
async def test_published_schemas_accept_a_response_to_which_fields_were_added(served, tool):
    own = build_output_schema(TOOLS_BY_NAME[tool].result)
    added = add_fields(completed(tool, await answer_of(served, tool)), own)
    assert json.dumps(added).count(ADDED_FIELD) >= 4
    document = (await fetch_document(served)).content
    success = document["paths"][f"/api/v1{PATHS[tool]}"]["get"]["responses"]["200"]
    for schema in (own, {**success["content"]["application/json"]["schema"], **document}):
        jsonschema.Draft202012Validator(schema).validate(added)


@pytest.mark.clause("9.21")
async def test_no_schema_of_a_response_is_closed_or_has_a_default(served):
    tools = (await served.rpc("tools/list"))["result"]["tools"]
    document = (await fetch_document(served)).content["components"]
    bodies = {"CheckoutBody", "ClaimBody", "AccessRequestBody", "RpcRequest"}
    responses = {n: part for n, part in document["schemas"].items() if n not in bodies}
    assert len(responses) == len(document["schemas"]) - len(bodies)
    roots = [tool["outputSchema"] for tool in tools] + [responses, document["responses"]]
    found = list(walked_schemas(roots))
    assert len(found) > 500
    for schema in found:
        assert "default" not in schema
        assert schema.get("additionalProperties") is not False
        assert "title" not in schema
        assert not isinstance(schema.get("type"), list)
