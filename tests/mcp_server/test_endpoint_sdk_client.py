import json

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_server.tools.registry import TOOLS_BY_NAME
from tests.support.example_market import make_coverage
from tests.support.legacy_record import serve_later_version
from tests.support.response_schemas import ADDED_FIELD
from tests.support.running_service import run_service

pytestmark = pytest.mark.clause("endpoint")

NEEDS = {"signals_get_state": {"ticker": "BTC"}, "signals_get_signals": {"ticker": "BTC"}}


MODES = ["auto", "legacy", "2026-07-28"]


@pytest.mark.clause("1.39", "4.14.2", "4.14.9", "4.14.10", "4.14.17", "4.15.1", "4.15.3")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sampled(3)
async def test_the_sdks_client_lists_and_calls_every_tool(served, mode):
    async with httpx2.AsyncClient(headers=served.key_headers) as http:
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=10) as client:
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
async def test_a_client_sends_few_requests_before_its_first_call_and_caches_the_tools(
    served, mode, before_call
):
    sent = []

    async def record(request):
        if request.method == "POST":
            sent.append(json.loads(request.content)["method"])

    async with httpx2.AsyncClient(
        headers=served.key_headers, event_hooks={"request": [record]}
    ) as http:
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=10) as client:
            await client.call_tool("signals_get_state", {"ticker": "BTC"})
            assert sent[: len(before_call) + 1] == [*before_call, "tools/call"]
            await client.list_tools()
            listed = sent.count("tools/list")
            await client.list_tools()
            # Before revision 2026-07-28, nothing says how long a list stays valid.
            assert sent.count("tools/list") - listed == (mode == "legacy")


@pytest.mark.clause("9.21")
async def test_the_sdks_client_accepts_results_to_which_fields_were_added(served):
    async with (
        serve_later_version(served) as base_url,
        httpx2.AsyncClient(headers=served.key_headers) as http,
    ):
        transport = streamable_http_client(f"{base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS_BY_NAME)
            for name in TOOLS_BY_NAME:
                result = await client.call_tool(name, NEEDS.get(name, {}))
                assert not result.is_error
                assert result.structured_content[ADDED_FIELD] == 1


async def test_the_sdk_client_reads_the_quota_and_when_to_retry(tmp_path):
    async with (
        run_service(tmp_path, make_coverage(), daily_limit=1) as served,
        httpx2.AsyncClient(headers=served.key_headers) as http,
    ):
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
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
