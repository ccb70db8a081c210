import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from compute.universe import load_universe
from mcp_server.dispatcher import INSTRUCTIONS
from mcp_server.jsonrpc import parse_message
from mcp_server.tools.tool_table import TOOLS, TOOLS_BY_NAME
from schemas.version import VERSION
from serving.arguments import find_nearest, get_argument_schemas
from serving.tool import to_mcp_tool
from store.store_errors import StoreError
from tests.support.bad_inputs import (
    CATALOG,
    CONFLUENCE,
    FLIPS,
    KEYED_PATHS,
    PATHS,
    SIGNALS,
    STATE,
    STATS,
    USAGE,
)
from tests.support.example_market import make_coverage
from tests.support.legacy_record import FILE, record_bytes, serve_later_version
from tests.support.response_schemas import ADDED_FIELD
from tests.support.running_service import run_service, served as served

pytestmark = pytest.mark.clause("endpoint")


SNAPSHOTS = Path(__file__).parent / "snapshots"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
OPTIONAL = ("timeframe", "indicator", "as_of")


def error_of(result):
    assert result["isError"] is True
    assert "structuredContent" not in result
    return json.loads(result["content"][0]["text"])


@pytest.mark.clause("4.14.3", "6.1", "6.12")
@pytest.mark.parametrize(
    ("requested", "offered"),
    [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2024-11-05", "2025-06-18"),
        ("2026-07-28", "2025-06-18"),
        (None, "2025-06-18"),
        (["2025-11-25"], "2025-06-18"),
    ],
)
async def test_initialize_offers_the_version_that_was_asked_for_if_it_is_served(
    served, requested, offered
):
    # Nothing is negotiated yet, so no version in a header refuses it.
    for header in ({}, {"mcp_protocol_version": "2024-11-05"}):
        params = {"protocolVersion": requested}
        result = (await served.rpc("initialize", params, **header))["result"]
        assert result["protocolVersion"] == offered
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    icon = f"{served.base_url}/web/icon.svg"
    assert result["serverInfo"] == {
        "name": "signals",
        "title": "Signals",
        "version": VERSION,
        "websiteUrl": f"{served.base_url}/",
        "icons": [{"src": icon, "mimeType": "image/svg+xml", "sizes": ["any"]}],
    }
    assert result["instructions"] == INSTRUCTIONS
    assert len(INSTRUCTIONS.encode()) < 1024
    assert "simulated" in INSTRUCTIONS


@pytest.mark.parametrize(
    ("header", "is_served"),
    [
        ("2025-11-25, 2025-11-25", True),
        ("2025-06-18,2025-06-18", True),
        ("2026-07-28, 2026-07-28", True),
        ("", True),
        ("2025-06-18, 2025-11-25", False),
        ("2025-06-18, 2026-07-28", False),
        ("2024-11-05", False),
    ],
)
async def test_equal_copies_of_the_version_header_count_as_one(served, header, is_served):
    response = await served.post_mcp(PING, mcp_protocol_version=header)
    assert response.status_code == (200 if is_served else 400)
    # A refusal has the id of its request.
    assert ("result" in response.json(), response.json()["id"]) == (is_served, 1)


@pytest.mark.clause("4.14.1", "4.14.6")
async def test_ping_returns_an_empty_result_and_echoes_every_kind_of_id(served):
    for request_id in ("a", "\ud800", 0, -5, 10**30, None):
        response = await served.post_mcp({**PING, "id": request_id})
        assert response.json() == {"jsonrpc": "2.0", "id": request_id, "result": {}}


@pytest.mark.clause("4.14.6", "4.14.10", "4.14.12")
async def test_a_notification_is_accepted_and_not_executed(served):
    for method in ("notifications/initialized", "ping", "tools/call", "no/such"):
        response = await served.post_mcp({"jsonrpc": "2.0", "method": method})
        assert (response.status_code, response.content) == (202, b"")


@pytest.mark.clause("4.14.22")
@pytest.mark.parametrize("outcome", [{"result": {}}, {"error": {"code": -1, "message": "no"}}])
async def test_a_posted_response_is_accepted_without_a_body_and_not_counted(served, outcome):
    before = (await served.call(USAGE))["structuredContent"]["quota"]["used_today"]
    for request_id in (7, "a", None):
        body = {"jsonrpc": "2.0", "id": request_id, **outcome}
        response = await served.post_mcp(body, **served.key_headers)
        assert (response.status_code, response.content) == (202, b"")
    assert (await served.call(USAGE))["structuredContent"]["quota"]["used_today"] == before + 1


@pytest.mark.clause("1.38", "1.40", "4.14.14", "4.14.18", "4.14.19")
@pytest.mark.parametrize("tool", PATHS)
async def test_exactly_the_keyed_tools_require_a_key(served, tool):
    unknown = {"Authorization": "Bearer ek_" + "a" * 43}
    for headers, code in (({}, "missing_key"), (unknown, "invalid_key")):
        reported = (await served.call(tool, headers=headers))["_meta"].get("signals/error")
        assert reported == (code if tool in KEYED_PATHS else None)


@pytest.mark.clause("4.14.9", "4.14.13", "4.14.17")
async def test_tools_list_shows_the_tools_of_the_specification(served):
    tools = (await served.rpc("tools/list"))["result"]["tools"]
    named = [STATE, SIGNALS, CONFLUENCE, FLIPS, CATALOG, STATS, USAGE]
    assert [tool["name"] for tool in tools] == named


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_equals_its_committed_snapshot(tool):
    shown = to_mcp_tool(tool, None).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert json.loads((SNAPSHOTS / f"{tool.name}.json").read_text()) == shown


async def test_tools_list_is_the_same_bytes_every_time(served):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert len({(await served.post_mcp(body)).content for _ in range(2)}) == 1


@pytest.mark.clause("4.0.2", "4.14.21")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_an_input_schema_is_flat_and_closed(tool):
    schema = to_mcp_tool(tool, None).input_schema
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == []
    for argument in schema["properties"].values():
        assert isinstance(argument["type"], str)
        assert len(argument["description"]) < 120
    text = json.dumps(schema)
    assert not [word for word in ("$ref", "anyOf", "oneOf", "allOf", "null") if word in text]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_no_model_provider_refuses_a_tool(tool):
    """Check names, lengths and keywords against the limits of OpenAI, Anthropic and Gemini."""
    shown = to_mcp_tool(tool, None)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", shown.name)
    assert 0 < len(shown.description) <= 1024
    for name, argument in shown.input_schema["properties"].items():
        assert re.fullmatch(r"[a-zA-Z0-9_]{1,64}", name)
        assert argument["type"] in {"string", "integer"}
        assert set(argument) <= {"type", "description", "enum", "default", "format"} | {
            "maxLength",
            "minimum",
            "maximum",
        }
        assert argument.get("format", "date-time") == "date-time"
        assert all(isinstance(value, str) and value for value in argument.get("enum", ()))
        assert all(abs(argument.get(bound, 0)) < 2**53 for bound in ("minimum", "maximum"))
        assert argument.get("default", "") is not None


async def test_a_byte_order_mark_before_a_body_is_skipped(served):
    response = await served.post_mcp(b"\xef\xbb\xbf" + json.dumps(PING).encode())
    assert response.json()["result"] == {}


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 415), ("br", 415), ("identity", 200), ("", 200)]
)
async def test_a_compressed_body_is_refused(served, coding, status):
    response = await served.post_mcp(PING, content_encoding=coding)
    assert response.status_code == status
    if status == 415:
        assert f'Content-Encoding "{coding}" is not accepted' in response.json()["message"]


MALFORMED = [
    ([], None),
    ([PING], None),
    (1, None),
    ("ping", None),
    (None, None),
    ({}, None),
    ({**PING, "jsonrpc": "1.0"}, 1),
    ({**PING, "jsonrpc": 2.0}, 1),
    ({"id": 7, "method": "ping"}, 7),
    ({"jsonrpc": "2.0", "id": 7}, 7),
    ({"jsonrpc": "2.0", "id": 7, "result": {}, "error": {}}, None),
    ({"jsonrpc": "2.0", "id": 7, "error": "failed"}, None),
    ({"jsonrpc": "2.0", "id": 1.5, "result": {}}, None),
    ({"jsonrpc": "2.0", "result": {}}, None),
    ({"jsonrpc": "1.0", "id": 7, "result": {}}, None),
    ([{"jsonrpc": "2.0", "id": 7, "result": {}}], None),
    ({**PING, "method": 5}, 1),
    ({**PING, "id": 1.5}, None),
    ({**PING, "id": 1.0}, None),
    ({**PING, "id": True}, None),
    ({**PING, "id": {}}, None),
    ({**PING, "id": [1]}, None),
    ({"jsonrpc": "1.0", "method": "ping"}, None),
]
FAILED_CALLS = [
    ("resources/list", {}, -32601),
    ("notifications/initialized", {}, -32601),
    ("", {}, -32601),
    ("ping", [], -32602),
    ("ping", "x", -32602),
    ("tools/list", {"cursor": "next"}, -32602),
    ("tools/call", {}, -32602),
    ("tools/call", {"name": None}, -32602),
    ("tools/call", {"name": "signals_get_stat"}, -32602),
    ("tools/call", {"name": "\ud800"}, -32602),
]


@pytest.mark.clause("4.14.5", "4.14.6", "4.14.7", "4.14.8", "4.14.9", "4.14.11", "4.14.16", "7.34")
@pytest.mark.parametrize(
    ("body", "code", "echoed"),
    [
        *((body, -32600, echoed) for body, echoed in MALFORMED),
        *(
            ({**PING, "method": method, "params": params}, code, 1)
            for method, params, code in FAILED_CALLS
        ),
    ],
)
async def test_a_malformed_request_or_a_failed_call_is_an_error_object(served, body, code, echoed):
    response = await served.post_mcp(body)
    assert response.status_code == 200
    answer = response.json()
    assert (answer["error"]["code"], answer["id"]) == (code, echoed)


@pytest.mark.clause("4.6.8", "4.14.14", "4.14.21", "5.24", "7.5", "7.7", "7.17", "7.18")
@pytest.mark.parametrize(
    ("headers", "code", "status"),
    [
        ({}, "missing_key", 401),
        ({"Authorization": "Bearer ek_" + "a" * 43}, "invalid_key", 401),
        ({"X-Api-Key": "nonsense"}, "invalid_key", 401),
    ],
)
async def test_a_bad_key_is_a_result_that_says_how_to_get_one(served, headers, code, status):
    for arguments in ({}, {"colour": "red"}):
        result = await served.call(STATE, arguments, headers)
        meta = result["_meta"]
        assert meta.pop("signals/request_id")
        assert meta == {"signals/error": code, "signals/status": status}
        error = error_of(result)
        assert error["error"] == code
        assert error["how_to_get_access"]["price_usd"] == {"monthly": 129, "yearly": 1199}
        assert error["docs"].startswith(served.base_url)


@pytest.mark.parametrize(("given", "meant"), [("BTX", "BTC"), ("SOLL", "SOL"), ("xrpp", "XRP")])
def test_of_equally_near_tickers_the_one_with_the_same_prefix_is_suggested(given, meant):
    tickers = {asset.ticker.lower(): asset.ticker for asset in load_universe().tracked_assets}
    assert find_nearest(given, tickers) == meant


@pytest.mark.clause("4.14.14", "5.2", "5.29")
async def test_the_key_may_come_as_x_api_key_and_arguments_may_be_absent(served):
    answer = await served.rpc("tools/call", {"name": STATE}, x_api_key=served.api_key)
    assert answer["result"]["isError"] is False


@pytest.mark.clause("4.0.5", "4.0.6", "4.14.23", "4.14.24")
@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        (SIGNALS, {"limit": True, "offset": [None]}, ["limit: true is", "offset: [null] is"]),
        (SIGNALS, {"limit": "x", "timeframe": ["1h"]}, ['limit: "x" is', 'timeframe: ["1h"] is']),
        (SIGNALS, {"tier": {"a": [1, "b"]}}, ['tier: {"a": [1, "b"]} is not accepted']),
        (STATE, {"view": "a\n\u202eb"}, ['view: "a\\n\\u202eb" is not accepted']),
        (STATE, {"view": "ek_" + "k" * 43, "x": 1}, ['view: "ek_kkk..." is not', 'argument "x"']),
        (CATALOG, {"ticker": "BTCC", "x": 1}, ['"BTCC" (did you mean BTC (Bit', 'argument "x"']),
        *((STATE, {"colour": one}, ['unknown argument "colour"']) for one in (None, "", "null")),
        (
            SIGNALS,
            {"limit": "201", "offset": "-1"},
            [
                "limit: 201 is not accepted; accepted: an integer from 1 to 200",
                "offset: -1 is not accepted",
            ],
        ),
        (SIGNALS, {"limit": 0}, ["an integer from 1 to 200; omit it for the default."]),
        (STATS, {"days": 7}, ["this call takes no arguments"]),
    ],
)
async def test_values_are_quoted_as_json_and_every_bad_argument_is_named(
    served, tool, arguments, named
):
    message = error_of(await served.call(tool, arguments))["message"]
    assert not [part for part in named if part not in message], message


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": True},
        {"limit": "50.0"},
        {"limit": " 50"},
        {"limit": "\u0665"},
        {"limit": "5" * 5000},
        {"limit": [1]},
        {"ticker": [None]},
        {"ticker": 5},
        {"ticker": "\ud800"},
        {"since": {"a": [[[[1]]]]}},
        {"timeframe": ["1h"]},
    ],
)
async def test_json_of_the_wrong_type_is_refused(served, arguments):
    assert error_of(await served.call(SIGNALS, arguments))["message"].startswith(*arguments)


@pytest.mark.clause("4.14.16", "4.14.23", "4.14.24")
@pytest.mark.parametrize(
    ("tool", "sent", "meant"),
    [
        *((tool.name, dict.fromkeys(get_argument_schemas(tool.query)), {}) for tool in TOOLS),
        *(
            (STATE, {"ticker": "BTC"} | dict.fromkeys(OPTIONAL, blank), {"ticker": "BTC"})
            for blank in ("", "  ", "null", "None")
        ),
        (STATE, '{"ticker": "BTC", "timeframe": "1d"}', {"ticker": "BTC", "timeframe": "1d"}),
        (SIGNALS, {"limit": "2", "offset": "1"}, {"limit": 2, "offset": 1}),
        (CONFLUENCE, {"min_agree": "1"}, {"min_agree": 1}),
        (FLIPS, {"timeframe": "4h", "hours": "024"}, {"timeframe": "4h", "hours": 24}),
    ],
)
async def test_what_frameworks_send_for_nothing_for_an_object_and_for_an_integer_is_understood(
    served, tool, sent, meant
):
    given, expected = await served.call(tool, sent), await served.call(tool, meant)
    assert given["isError"] is False
    # The quota of usage differs from call to call.
    assert tool == USAGE or given["structuredContent"] == expected["structuredContent"]


TOO_DEEP = '{"a":' * 40 + "1" + "}" * 40


@pytest.mark.clause("4.14.16", "7.5")
@pytest.mark.parametrize("sent", [[], 5, True, "BTC", "[]", "5", "{", TOO_DEEP])
async def test_arguments_that_are_no_object_are_a_result_that_a_model_reads(served, sent):
    params = {"name": STATE, "arguments": sent}
    error = error_of((await served.rpc("tools/call", params, **served.key_headers))["result"])
    assert error["error"] == "invalid_parameter"
    assert error["message"].startswith("arguments: ")
    assert error["message"].endswith("accepted: an object of arguments.")


HIDDEN = "secret"


async def test_an_unexpected_failure_shows_no_internals_and_logs_no_values(
    served_alone, transport, capsys, monkeypatch
):
    monkeypatch.setattr(served_alone.market, "version", lambda: int(HIDDEN))
    error = await served_alone.check_refusal(transport, STATE, 500, "unavailable", ticker="secret")
    assert set(error) == {"error", "message", "docs"}
    logged = capsys.readouterr().out
    assert "call_failed" in logged
    assert not [
        secret for secret in (served_alone.api_key, "secret") if secret in logged + error["message"]
    ]


async def test_an_unexpected_failure_outside_of_a_tool_is_an_internal_error(
    served_alone, capsys, monkeypatch
):
    monkeypatch.setattr(served_alone.market, "version", lambda: int(HIDDEN))
    answer = await served_alone.rpc("tools/list")
    assert answer["error"] == {"code": -32603, "message": "internal error"}
    assert "mcp_request_failed" in capsys.readouterr().out


async def test_the_tools_are_listed_while_the_store_fails(served_alone, monkeypatch):
    listed = await served_alone.rpc("tools/list")

    def fail():
        raise StoreError("the disk is gone")

    monkeypatch.setattr(served_alone.market, "version", fail)
    assert await served_alone.rpc("tools/list") == listed


NEEDS = {"signals_get_state": {"ticker": "BTC"}, "signals_get_signals": {"ticker": "BTC"}}


@asynccontextmanager
async def open_client(served, on_request=(), **options):
    """Connect the SDK's client with the key; `on_request` are called with each request."""
    hooks = {"request": [*on_request]}
    async with httpx2.AsyncClient(headers=served.key_headers, event_hooks=hooks) as http:
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10, **options) as client:
            yield client


@pytest.mark.clause("1.39", "4.14.2", "4.14.9", "4.14.10", "4.14.17", "4.15.1", "4.15.3")
@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
@pytest.mark.sampled(3)
async def test_the_sdks_client_lists_and_calls_every_tool(served_alone, mode):
    async with open_client(served_alone, mode=mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == list(TOOLS_BY_NAME)
        for name in names:
            result = await client.call_tool(name, NEEDS.get(name, {}))
            assert not result.is_error
            assert result.structured_content is not None
            assert ("signals/quota" in (result.meta or {})) is TOOLS_BY_NAME[name].requires_key
        refused = await client.call_tool("signals_get_state", {"ticker": "XBT"})
        assert refused.is_error
        assert "BTC (Bitcoin)" in refused.content[0].text


@pytest.mark.clause("4.15.1", "4.15.3", "4.15.5")
@pytest.mark.parametrize(
    ("mode", "before_call"),
    [
        ("auto", ["server/discover"]),
        ("legacy", ["initialize", "notifications/initialized"]),
        ("2026-07-28", []),
    ],
)
@pytest.mark.prove
async def test_a_client_sends_few_requests_before_its_first_call_and_caches_the_tools(
    served_alone, mode, before_call
):
    sent = []

    async def record(request):
        if request.method == "POST":
            sent.append(json.loads(request.content)["method"])

    async with open_client(served_alone, [record], mode=mode) as client:
        await client.call_tool("signals_get_state", {"ticker": "BTC"})
        assert sent[: len(before_call) + 1] == [*before_call, "tools/call"]
        await client.list_tools()
        listed = sent.count("tools/list")
        await client.list_tools()
        # Before revision 2026-07-28, nothing says how long a list stays valid.
        assert sent.count("tools/list") - listed == (mode == "legacy")


@pytest.mark.clause("9.21")
@pytest.mark.prove
async def test_the_sdks_client_accepts_results_to_which_fields_were_added(served_alone):
    async with (
        serve_later_version(served_alone) as base_url,
        open_client(replace(served_alone, base_url=base_url)) as client,
    ):
        assert len((await client.list_tools()).tools) == len(TOOLS_BY_NAME)
        for name in TOOLS_BY_NAME:
            result = await client.call_tool(name, NEEDS.get(name, {}))
            assert not result.is_error
            assert result.structured_content[ADDED_FIELD] == 1


@pytest.mark.prove
async def test_the_sdk_client_reads_the_quota_and_when_to_retry(tmp_path):
    async with (
        run_service(tmp_path, make_coverage(), daily_limit=1) as served_alone,
        open_client(served_alone) as client,
    ):
        answered = await client.call_tool("signals_get_state", {"ticker": "BTC"})
        spent = await client.call_tool("signals_get_state", {"ticker": "BTC"})
        usage = await client.call_tool("signals_get_usage", {})
    assert answered.meta["signals/quota"] == usage.structured_content["quota"]
    assert answered.meta["signals/quota"]["remaining_today"] == 0
    assert spent.is_error
    assert "daily quota of 1 " in spent.content[0].text
    assert spent.meta == {
        "signals/error": "rate_limited",
        "signals/status": 429,
        "signals/retry_after_seconds": 42_820,
        "signals/quota": answered.meta["signals/quota"],
        "signals/request_id": spent.meta["signals/request_id"],
    }


ATOMS = (0, -1, 10**30, 0.1, -2.5e-7, 1e300, True, False, None, "", "a", "\x00\n", "ü", "😀", '"\\')


def made_up(random: Random, depth: int) -> Any:
    kind = random.randrange(5) if depth else 0
    if kind == 1:
        return [made_up(random, depth - 1) for _ in range(random.randrange(4))]
    if kind > 1:
        names = random.sample(["a", "b", "ü", "c d", "\x7f"], random.randrange(4))
        return {name: made_up(random, depth - 1) for name in names}
    return random.choice(ATOMS)


@pytest.mark.parametrize("is_ascii", [True, False])
def test_values_are_parsed_as_they_were_written(is_ascii: bool) -> None:
    random = Random(8)
    for number in range(300):
        params = {"name": "x", "arguments": made_up(random, 4)}
        for note in ("plain", "with: colons", "\ud800"):
            call = {"jsonrpc": "2.0", "id": note, "method": "tools/call", "params": params}
            body = json.dumps(call, ensure_ascii=is_ascii or note == "\ud800").encode()
            message = parse_message(body)
            assert message.request_id == note, number
            # repr() distinguishes 1, 1.0 and True, which are equal.
            assert repr(message.params) == repr(params), number


@pytest.mark.clause("4.14.3", "4.14.11")
async def test_requests_of_older_revisions_get_the_recorded_bytes(tmp_path):
    async with run_service(tmp_path, make_coverage()) as served_alone:
        recorded = await record_bytes(served_alone)
    assert recorded == json.loads(FILE.read_text())
