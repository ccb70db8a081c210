"""The stdio bridge as a host runs it, also with endpoints that do not answer with MCP."""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from starlette.responses import Response

from mcp_server.dispatcher import PROTOCOL_VERSION
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from service.commands.stdio import RemoteEndpoint
from tests.doubles.fixed_answers import KEY, answering
from tests.service.commands.test_cli import refused
from tests.support.legacy_record import ENVELOPE
from tests.support.running_service import open_loopback_socket, run_app
from tests.support.signals_command import COMMAND, ENDS_WITHIN_S, build_environment

pytestmark = [pytest.mark.clause("endpoint"), pytest.mark.usefixtures("use_single_ca")]

OPEN, KEYED = {"name": "signals_get_stats"}, {"name": "signals_get_usage"}
ARGUMENTS = {"signals_get_state": {"ticker": "BTC"}, "signals_get_signals": {"limit": 2}}
REFUSED = [
    ("signals_get_state", {"ticker": "BTX"}),
    ("signals_get_signals", {"limit": 1000}),
    ("signals_get_catalog", {"tickers": "BTC"}),
]


def uncounted(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without its id and without the quota, which the call itself changes."""
    shown = json.loads(json.dumps(result))
    shown["_meta"].pop("signals/request_id")
    shown["_meta"].pop("signals/quota", None)
    if "quota" in shown.get("structuredContent", {}):
        shown["structuredContent"].pop("quota")
        shown.pop("content")
    return shown


@pytest.mark.clause("4.15.4", "4.15.7")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.sampled(2)
async def test_a_host_gets_the_same_responses_as_over_http(served, tmp_path, mode, monkeypatch):
    # Within this time the bridge must have started, or the client takes an older revision.
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", ENDS_WITHIN_S)
    own_members = {} if mode == "legacy" else {"resultType": "complete"}
    command, *options = COMMAND
    host = StdioServerParameters(
        command=command,
        args=[*options, "stdio", "--url", served.base_url],
        env=build_environment(tmp_path, api_key=served.api_key),
    )
    complaints = tmp_path / "stderr"
    with complaints.open("w") as errlog:
        transport = stdio_client(host, errlog=errlog)
        async with Client(transport, mode=mode, read_timeout_seconds=ENDS_WITHIN_S) as client:
            assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
            assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS_BY_NAME)
            calls = [(tool, ARGUMENTS.get(tool, {})) for tool in TOOLS_BY_NAME]
            for tool, arguments in [*calls, *REFUSED]:
                result = await client.call_tool(tool, arguments)
                shown = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
                over_http = await served.call(tool, arguments)
                assert uncounted(shown) == uncounted(own_members | over_http)
            with pytest.raises(MCPError) as refused:
                await client.call_tool("signals_get_stat", {})
    error = (await served.rpc("tools/call", {"name": "signals_get_stat"}))["error"]
    assert refused.value.error.model_dump(exclude_none=True) == error
    assert complaints.read_text() == ""


@asynccontextmanager
async def bridged(folder, url: str, **settings: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("stdio", "--url", url),
        env=build_environment(folder, **settings),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: Process, line: str) -> dict[str, Any]:
    """Send one line; return the response."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line.encode() + b"\n")
    back = await asyncio.wait_for(process.stdout.readline(), ENDS_WITHIN_S)
    answer: dict[str, Any] = json.loads(back)
    return answer


def asked(method: str, params: Any = None) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params or {}})


@pytest.mark.prove
async def test_it_survives_an_outage_of_the_service_and_ends_with_its_input(served, tmp_path):
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with bridged(tmp_path, f"{address}/api/v1/mcp/") as process:
            down = await said(process, asked("initialize"))
            called = await said(process, asked("tools/call", OPEN))
            assert (await said(process, "{]"))["error"]["code"] == -32700
            async with run_app(served.app, bound):
                begun = await said(process, asked("initialize"))
                answered = await said(process, asked("tools/call", OPEN))
                keyless = await said(process, asked("tools/call", KEYED))
            rest = await asyncio.wait_for(process.communicate(b""), ENDS_WITHIN_S)
    assert f"{address}/api/v1/mcp did not answer" in down["error"]["message"]
    assert "`signals serve`" in down["error"]["message"]
    assert called["result"]["isError"] is True
    error = json.loads(called["result"]["content"][0]["text"])
    assert (error["error"], error["docs"]) == ("unavailable", f"{address}/api/v1")
    assert error["message"] == down["error"]["message"]
    assert begun["result"]["protocolVersion"] == PROTOCOL_VERSION
    assert (answered["jsonrpc"], answered["id"]) == ("2.0", "tools/call")
    assert uncounted(answered["result"]) == uncounted(await served.call(OPEN["name"]))
    assert keyless["result"]["_meta"]["signals/error"] == "missing_key"
    assert (process.returncode, rest[0], rest[1].count(b"request_failed")) == (0, b"", 2)


BAD_IDS = ["{}", "[1]", "null", "true", "1.5"]


@pytest.mark.prove
async def test_a_message_that_cannot_be_answered_gets_the_error_of_the_server(served, tmp_path):
    lines = [f'{{"jsonrpc":"2.0","id":{one},"method":"ping"}}' for one in BAD_IDS]
    lines += ['[{"jsonrpc":"2.0","id":1,"method":"ping"}]', "7", '{"jsonrpc":"2.0","id":2}']
    unreadable = ["{]", "", "[" * 100_000, '{"jsonrpc":"2.0","id":NaN,"method":"ping"}']
    unreadable.append(f'{{"jsonrpc":"2.0","id":{"9" * 5000},"method":"ping"}}')
    async with bridged(tmp_path, served.base_url) as process:
        refused = [await said(process, line) for line in lines]
        unread = [await said(process, line) for line in unreadable]
        huge = await said(process, f'{{"jsonrpc":"2.0","id":{10**30},"method":"ping"}}')
        listed = await said(process, '{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}')
        half = await said(process, r'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}')
        rest = await asyncio.wait_for(process.communicate(b""), ENDS_WITHIN_S)
    assert [(one["id"], one["error"]["code"]) for one in refused] == [
        (id_, -32600) for id_ in (*[None] * 7, 2)
    ]
    assert "batches are not supported" in refused[5]["error"]["message"]
    assert {one["error"]["code"] for one in unread} <= {-32700, -32600}
    assert [one["id"] for one in unread] == [None] * len(unreadable)
    assert unread[0]["error"]["code"] == unread[3]["error"]["code"] == -32700
    assert (huge["id"], huge["result"]) == (10**30, {})
    assert (listed["id"], listed["error"]["code"], half["error"]["code"]) == (3, -32602, -32602)
    assert (process.returncode, rest) == (0, (b"", b""))


@pytest.mark.prove
async def test_a_signal_ends_it_while_its_input_is_open(tmp_path):
    async with bridged(tmp_path, "http://127.0.0.1:9", api_key=KEY) as process:
        assert "error" in await said(process, asked("ping"))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), ENDS_WITHIN_S) == 0


async def asked_of(address: str, method: str) -> JSONRPCResponse | JSONRPCError:
    remote = RemoteEndpoint(address, KEY)
    async with remote.client:
        return await remote.forward_request(JSONRPCRequest(jsonrpc="2.0", id=7, method=method))


async def refusal(response: Response) -> str:
    """Return the error message for a response without MCP; it is the same for every method."""
    async with answering(response) as (address, _):
        error = await asked_of(address, "tools/list")
        result = await asked_of(address, "tools/call")
    assert isinstance(error, JSONRPCError)
    assert isinstance(result, JSONRPCResponse)
    assert error.error.message == json.loads(result.result["content"][0]["text"])["message"]
    assert error.error.message.startswith(f"{address}/api/v1/mcp answered {response.status_code}")
    assert KEY not in error.model_dump_json() + result.model_dump_json()
    return error.error.message


async def test_a_redirect_is_not_followed_with_the_key():
    async with answering(Response()) as (other, strangers):
        to = f"{other}/api/v1/mcp?key={KEY}"
        message = await refusal(Response(status_code=307, headers={"Location": to}))
    assert strangers == []
    assert f"a redirect to {other}/api/v1/mcp?key=(the key), which is not followed" in message
    assert "--url" in message


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        b"[]",
        b"\xff",
        b'{"jsonrpc":"2.0","id":7}',
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":7,"result":{"a":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":' + b"[" * 9_000,
    ],
)
async def test_a_response_without_mcp_points_at_the_url_option(body):
    assert (await refusal(Response(body, media_type="text/html; charset=utf-8"))).endswith(
        "without an answer of the API (text/html; charset=utf-8); is --url the address of a signal "
        "service?"
    )


async def test_the_services_message_is_passed_on_in_one_line_without_the_key():
    body = json.dumps({"error": "unavailable", "message": f"Later,\n\x1b[31m{KEY}.", "docs": "x"})
    assert (await refusal(Response(body, 503))).endswith(r"503: Later, \u001b[31m(the key).")


async def test_a_json_rpc_error_is_passed_on_with_any_http_status():
    error = {"code": -32602, "message": "Unsupported.", "data": {"supported": ["2025-06-18"]}}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    async with answering(Response(body, 400)) as (address, received):
        answer = await asked_of(address, "tools/call")
    assert answer.model_dump() == {"jsonrpc": "2.0", "id": 7, "error": error}
    assert [headers["authorization"] for headers, _ in received] == [f"Bearer {KEY}"]


@pytest.mark.clause("4.15.7")
@pytest.mark.parametrize(
    ("method", "name", "code"),
    [("tools/call", "nothing", -32602), ("tools/call", "ä\n", -32602), ("no/such", "x", -32601)],
)
async def test_a_request_of_the_newest_revision_gets_the_headers_it_needs(
    served, method, name, code
):
    params = {"name": name, "_meta": ENVELOPE}
    remote = RemoteEndpoint(served.base_url, served.api_key)
    async with remote.client:
        answer = await remote.forward_request(
            JSONRPCRequest(jsonrpc="2.0", id=7, method=method, params=params)
        )
    assert isinstance(answer, JSONRPCError)
    assert answer.error.code == code


@pytest.mark.clause("4.14.26")
async def test_a_host_that_shows_views_keeps_them_over_stdio(served):
    extension = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
    begun = {"protocolVersion": "2025-11-25", "capabilities": {"extensions": extension}}
    remote = RemoteEndpoint(served.base_url, served.api_key)
    async with remote.client:
        for method, params in (("initialize", begun), ("resources/list", {})):
            request = JSONRPCRequest(jsonrpc="2.0", id=7, method=method, params=params)
            answer = await remote.forward_request(request)
    assert isinstance(answer, JSONRPCResponse)
    assert len(answer.result["resources"]) == 2


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://h", "http://", f"http://me:{KEY}@h", f"http://h/?key={KEY}"]
)
@pytest.mark.parametrize("command", ["stdio", "connect"])
def test_an_invalid_address_fails_in_one_line(tmp_path, command, url):
    line = refused(tmp_path, command, "--url", url, status=2)
    assert (line.startswith("signals: --url "), KEY in line) == (True, False)
