"""Views in a chat, by the extension io.modelcontextprotocol/ui: who gets which."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp_types.methods import validate_server_result

from tests.support.example_market import make_coverage
from tests.support.legacy_record import ENVELOPE, LEGACY_VERSIONS
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.web_page import Page, parse_heat_map

pytestmark = pytest.mark.clause("4.14.25")

VIEWS = {"mimeTypes": ["text/html;profile=mcp-app"]}
WITH_VIEWS = {"extensions": {"io.modelcontextprotocol/ui": VIEWS}}
CHART, BOARD = "ui://signals/chart.html", "ui://signals/board.html"
LIST, READ, DRAW = "resources/list", "resources/read", "signals_draw_page"
SESSION, MODERN = "mcp-session-id", "2026-07-28"


class Host:
    """A client that shows views, and says so in one of three ways."""

    def __init__(self, served: RunningService, way: str = "meta") -> None:
        self._served = served
        self._has_session = way == "session"
        declared = ENVELOPE | {"io.modelcontextprotocol/clientCapabilities": WITH_VIEWS}
        self.meta = {} if self._has_session else {"_meta": declared}
        self.is_modern = way == MODERN

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        headers = {**self._served.key_headers}
        if self._has_session:
            begun = await self._served.post_mcp(begin(WITH_VIEWS))
            headers["mcp_session_id"] = begun.headers[SESSION]
        if self.is_modern:
            name = params.get("name") or params.get("uri")
            headers |= {"mcp_protocol_version": MODERN, "mcp_method": method}
            headers |= {} if name is None else {"mcp_name": name}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | self.meta}
        return (await self._served.post_mcp(body, **headers)).json()

    async def draw(self, address: str) -> dict[str, Any]:
        return (await self.send("tools/call", name=DRAW, arguments={"address": address}))["result"]


def begin(capabilities: Any) -> dict[str, Any]:
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": ENVELOPE}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@pytest.fixture(params=["session", "meta", MODERN])
def host(request: pytest.FixtureRequest, served: RunningService) -> Host:
    return Host(served, request.param)


@pytest.mark.clause("4.14.26")
@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_initialize_offers_views_and_a_session_id_that_nobody_else_has(
    served: RunningService, version: str
) -> None:
    plain = await served.post_mcp(begin({}), mcp_protocol_version=version)
    first, second = [await served.post_mcp(begin(WITH_VIEWS)) for _ in range(2)]
    assert first.headers[SESSION] != second.headers[SESSION]
    result, without = first.json()["result"], plain.json()["result"]
    assert result["capabilities"] == without["capabilities"] | {
        "resources": {"subscribe": False, "listChanged": False},
        "extensions": {"io.modelcontextprotocol/ui": {}},
    }
    assert {**result, "capabilities": None} == {**without, "capabilities": None}


async def test_a_host_with_views_finds_one_for_state_and_one_for_flips(
    served: RunningService, host: Host
) -> None:
    tools = {tool["name"]: tool for tool in (await host.send("tools/list"))["result"]["tools"]}
    assert tools.pop(DRAW)["_meta"] == {"ui": {"visibility": ["app"]}}
    named = {name: tool.get("_meta", {}).pop("ui", None) for name, tool in tools.items()}
    shown = {name: ui["resourceUri"] for name, ui in named.items() if ui}
    assert shown == {"signals_get_state": CHART, "signals_get_flips": BOARD}
    # Apart from these names, the tools are those of other hosts.
    assert [*tools.values()] == (await served.rpc("tools/list"))["result"]["tools"]
    listed = (await host.send(LIST))["result"]["resources"]
    assert [each["uri"] for each in listed] == [CHART, BOARD]


@pytest.mark.clause("4.14.27")
@pytest.mark.parametrize("uri", [CHART, BOARD])
async def test_a_view_is_one_document_that_loads_nothing(host: Host, uri: str) -> None:
    (content,) = (await host.send(READ, uri=uri))["result"]["contents"]
    text = content.pop("text")
    assert content == {
        "uri": uri,
        "mimeType": "text/html;profile=mcp-app",
        "_meta": {
            "ui": {"csp": {"connectDomains": [], "resourceDomains": []}, "prefersBorder": True}
        },
    }
    assert text.startswith("<!doctype html>\n")
    assert len(text) < 60_000
    addresses = set(re.findall(r"[a-z]+://[\w.]*", text))
    assert addresses == {"http://www.w3.org", "http://view"}  # SVG's name, and a base of links
    assert not re.search(r"<link|<img|<iframe| src=|url\(|@import|fetch\(|XMLHttp", text)


@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        None,
        {"extensions": []},
        {"extensions": {"io.modelcontextprotocol/ui": {}}},
        {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": "text/html;profile=mcp-app"}}},
        {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}}},
        {"extensions": {"com.example/ui": VIEWS}},
    ],
)
async def test_a_host_without_views_gets_the_same_bytes_as_ever(
    served: RunningService, capabilities: Any
) -> None:
    meta = {"_meta": ENVELOPE | {"io.modelcontextprotocol/clientCapabilities": capabilities}}
    for body in (
        begin({}),
        *(
            {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            for method, params in (
                ("tools/list", {}),
                (LIST, {}),
                (READ, {"uri": CHART}),
                ("tools/call", {"name": DRAW, "arguments": {"address": "/"}}),
            )
        ),
    ):
        plain = await served.post_mcp(body, **served.key_headers)
        if body["method"] == "initialize":
            sent = begin(capabilities)
        else:
            sent = {**body, "params": {**body["params"], **meta}}
        # A session id of another server says nothing about views.
        other = await served.post_mcp(sent, **served.key_headers, mcp_session_id="7")
        assert other.content == plain.content
        assert SESSION not in other.headers
        if body["method"] not in ("initialize", "tools/list"):
            assert other.json()["error"]["code"] in (-32601, -32602)


@pytest.mark.clause("4.14.28")
async def test_an_unknown_address_is_refused_with_the_known_ones(host: Host) -> None:
    for uri in ("ui://signals/other.html", "file:///etc/passwd"):
        error = (await host.send(READ, uri=uri))["error"]
        assert error["code"] == -32602
        assert f"known: {CHART}, {BOARD}" in error["message"]
    assert (await host.send(READ))["error"]["code"] == -32602


@pytest.mark.clause("4.15.5", "4.15.7")
async def test_results_of_the_newest_revision_are_private_to_a_host_with_views(
    served: RunningService,
) -> None:
    host = Host(served, MODERN)
    for method, params in (("server/discover", {}), ("tools/list", {}), (LIST, {}), (READ, {})):
        result = (await host.send(method, **(params or {"uri": CHART})))["result"]
        assert (result["cacheScope"], result["resultType"]) == ("private", "complete")
        assert result["ttlMs"] > 0
        validate_server_result(method, MODERN, result)
    headers = {"mcp_protocol_version": MODERN, "mcp_method": READ, "mcp_name": BOARD}
    params = {"uri": CHART, **host.meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": READ, "params": params}
    refused = await served.post_mcp(body, **headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)


class Fragment(Page):
    """The HTML that a view shows."""

    def __init__(self, result: dict[str, Any]) -> None:
        assert result["isError"] is False, result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        super().__init__(type("Answer", (), {"text": result["structuredContent"]["html"]})())


@pytest.mark.clause("4.14.27")
async def test_a_view_draws_what_the_pages_show_members(served: RunningService, host: Host) -> None:
    chart = Fragment(await host.draw("/assets/btc?timeframe=1h"))
    page = Page(await served.get_page("/assets/BTC?timeframe=1h", is_member=True))
    assert chart.chart == page.chart
    assert chart.find_all("rect") == page.find_all("rect")
    assert "Simulated market" in chart.text
    board = Fragment(await host.draw("/?timeframe=1h"))
    shown = parse_heat_map(Page(await served.get_page("/?timeframe=1h", is_member=True)))
    assert parse_heat_map(board) == shown
    assert {"BTC", "NVDA"} < shown.keys()
    assert "Simulated market" in board.text


@pytest.mark.clause("4.14.27")
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("/assets/BTCC", "unknown_ticker"),
        ("/assets/BTC?timeframe=9h", "invalid_parameter"),
        ("/settings/api-access", "invalid_parameter"),
        ("/?sort=luck", "invalid_parameter"),
        ("x" * 5000, "invalid_parameter"),
    ],
)
async def test_a_view_shows_no_other_page(served: RunningService, address: str, code: str) -> None:
    assert (await Host(served).draw(address))["_meta"]["signals/error"] == code


@pytest.mark.clause("4.14.27")
async def test_a_picture_needs_the_key_and_counts_as_a_call(served: RunningService) -> None:
    host = Host(served)
    used = [(await host.draw("/assets/BTC"))["_meta"]["signals/quota"]["used_today"] for _ in "ab"]
    assert used[1] == used[0] + 1
    params = {"name": DRAW, "arguments": {"address": "/"}, **host.meta}
    refused = (await served.rpc("tools/call", params))["result"]
    assert refused["_meta"]["signals/error"] == "missing_key"


@pytest.mark.clause("14.4")
@pytest.mark.parametrize("shows_prices", [True, False])
async def test_views_show_prices_as_the_pages_do(tmp_path: Path, shows_prices: bool) -> None:
    async with run_service(tmp_path, make_coverage(), shows_prices=shows_prices) as running:
        board = Fragment(await Host(running).draw("/"))
    assert ("7 days" in board.text) is shows_prices
