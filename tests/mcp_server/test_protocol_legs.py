"""Requests of revision 2026-07-28, and the mixtures of both eras that hosts send."""

import base64
import itertools
import json
from typing import Any

import pytest
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types.methods import validate_server_result

from mcp_server.jsonrpc import Message, RpcError
from mcp_server.protocol_legs import LEGACY, MODERN, check_modern_request, choose_leg, read_version
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from serving.http import read_headers
from tests.security.wire import HOST, exchange_bytes
from tests.support.legacy_record import ENVELOPE, LEGACY_VERSIONS
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("endpoint")

MODERN_VERSION = "2026-07-28"
VERSION_KEY, CAPABILITIES_KEY = (
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
)
STATE, USAGE = "signals_get_state", "signals_get_usage"
ARGUMENTS = {STATE: {"ticker": "BTC"}, "signals_get_signals": {"limit": 2}}
DISCOVER, LIST, CALL = "server/discover", "tools/list", "tools/call"


def build_request(
    method: str, params: dict[str, Any] | None = None, **changes: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return body and headers of a valid modern request, with changed headers (None to omit)."""
    params = {"_meta": ENVELOPE, **(params or {})}
    headers = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": method}
    if method == CALL and isinstance(params.get("name"), str):
        headers["mcp-name"] = params["name"]
    changed = headers | {name.replace("_", "-"): value for name, value in changes.items()}
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return body, {name: value for name, value in changed.items() if value is not None}


async def send(served, body, headers):
    return await served.client.post("/api/v1/mcp", json=body, headers=headers)


async def send_modern(served, method, params=None, **changes):
    body, headers = build_request(method, params, **changes)
    return await send(served, body, served.key_headers | headers)


def remove_ids(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what differs between two equal calls."""
    result["_meta"].pop("signals/request_id")
    result["_meta"].pop("signals/quota", None)
    return result


@pytest.mark.clause("4.15.2", "4.15.3")
async def test_discover_describes_the_server_and_needs_no_key(served):
    body, headers = build_request(DISCOVER)
    response = await send(served, body, headers)
    assert (response.status_code, response.json()["id"]) == (200, 7)
    result = response.json()["result"]
    begun = (await served.rpc("initialize"))["result"]
    assert (result["supportedVersions"], result["capabilities"], result["instructions"]) == (
        [MODERN_VERSION],
        begun["capabilities"],
        begun["instructions"],
    )
    assert result["_meta"] == {"io.modelcontextprotocol/serverInfo": begun["serverInfo"]}


@pytest.mark.clause("4.15.4", "4.15.5")
@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("12:03:00.000", 3_600_000),
        ("12:03:00.001", 3_599_999),
        ("12:30:00.000", 1_980_000),
        ("13:02:59.999", 1),
        ("23:03:00.000", 3_600_000),
    ],
)
async def test_listings_may_be_cached_until_the_next_hourly_run(served_alone, now, expected):
    hours, minutes, seconds = now.split(":")
    midnight = served_alone.clock.now // 86_400_000 * 86_400_000
    elapsed = (int(hours) * 60 + int(minutes)) * 60_000 + round(float(seconds) * 1000)
    served_alone.clock.now = midnight + elapsed
    for method in (DISCOVER, LIST):
        result = (await send_modern(served_alone, method)).json()["result"]
        assert (result["resultType"], result["cacheScope"]) == ("complete", "public")
        assert result["ttlMs"] == expected


@pytest.mark.clause("4.15.4", "4.15.5")
async def test_both_legs_list_the_same_tools_for_every_caller(served):
    body, headers = build_request(LIST)
    listed = (await send(served, body, headers)).json()["result"]
    assert listed == (await send(served, body, headers | served.key_headers)).json()["result"]
    assert set(listed) == {"resultType", "ttlMs", "cacheScope", "tools"}
    assert listed["tools"] == (await served.rpc(LIST))["result"]["tools"]


@pytest.mark.clause("4.15.4", "4.15.9")
@pytest.mark.parametrize("tool", TOOLS_BY_NAME)
@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_call_has_the_same_result_in_both_legs(served, tool, is_refused):
    arguments = {"colour": "red"} if is_refused else ARGUMENTS.get(tool, {})
    response = await send_modern(served, CALL, {"name": tool, "arguments": arguments})
    assert response.status_code == 200
    assert ("x-ratelimit-limit" in response.headers) is TOOLS_BY_NAME[tool].requires_key
    modern = response.json()["result"]
    legacy = await served.call(tool, arguments)
    if tool == USAGE and not is_refused:
        assert modern["_meta"]["signals/quota"] == modern["structuredContent"]["quota"]
        del modern["structuredContent"], legacy["structuredContent"]
        del modern["content"], legacy["content"]
    assert modern.pop("resultType") == "complete"
    assert modern["isError"] is is_refused
    assert remove_ids(modern) == remove_ids(legacy)


@pytest.mark.parametrize(
    ("method", "params"),
    [(DISCOVER, {}), (LIST, {}), (CALL, {"name": STATE}), (CALL, {"name": USAGE})],
)
async def test_results_match_the_schema_of_the_revision(served, method, params):
    response = await send_modern(served, method, params)
    validate_server_result(method, MODERN_VERSION, response.json()["result"])


@pytest.mark.clause("4.15.2")
@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "subscriptions/listen",
        "no/such",
        "",
    ],
)
async def test_an_unknown_or_removed_method_is_not_found(served, method):
    response = await send_modern(served, method)
    answer = response.json()
    assert (response.status_code, answer["error"]["code"], answer["id"]) == (404, -32601, 7)
    assert "server/discover, tools/list, tools/call" in answer["error"]["message"]


CAPABLE = {CAPABILITIES_KEY: {}}
UNSUPPORTED = {**ENVELOPE, VERSION_KEY: "2027-01-01"}
NAME = {"name": STATE}
REFUSALS: list[tuple[str, dict[str, Any], dict[str, str | None], int]] = [
    # Each request carries its envelope; discover always, whatever its headers say.
    (DISCOVER, {"_meta": {}}, {}, -32602),
    (DISCOVER, {"_meta": None}, {}, -32602),
    (DISCOVER, {"_meta": {}}, {"mcp_protocol_version": None, "mcp_method": None}, -32602),
    (DISCOVER, {"_meta": CAPABLE}, {}, -32602),
    (DISCOVER, {"_meta": {VERSION_KEY: MODERN_VERSION}}, {}, -32602),
    (LIST, {"_meta": {VERSION_KEY: MODERN_VERSION}}, {}, -32602),
    (CALL, {**NAME, "_meta": {VERSION_KEY: MODERN_VERSION}}, {}, -32602),
    # The headers repeat the body.
    (DISCOVER, {}, {"mcp_protocol_version": None}, -32020),
    (DISCOVER, {}, {"mcp_protocol_version": "2025-11-25"}, -32020),
    (DISCOVER, {}, {"mcp_protocol_version": "2027-01-01"}, -32020),
    (DISCOVER, {"_meta": UNSUPPORTED}, {}, -32020),
    (DISCOVER, {"_meta": {**ENVELOPE, VERSION_KEY: 5}}, {}, -32020),
    (DISCOVER, {}, {"mcp_method": None}, -32020),
    (LIST, {}, {"mcp_method": None}, -32020),
    (LIST, {}, {"mcp_method": CALL}, -32020),
    (LIST, {}, {"mcp_method": "TOOLS/LIST"}, -32020),
    (LIST, {}, {"mcp_protocol_version": f"{MODERN_VERSION}, {MODERN_VERSION}"}, -32020),
    (LIST, {"_meta": UNSUPPORTED}, {}, -32020),
    (CALL, NAME, {"mcp_name": None}, -32020),
    (CALL, NAME, {"mcp_name": USAGE}, -32020),
    (CALL, NAME, {"mcp_name": "=?base64?c2lnbmFscw==?="}, -32020),
    (CALL, NAME, {"mcp_name": "=?base64?no base64?="}, -32020),
    (CALL, NAME, {"mcp_name": "=?base64?/////w==?="}, -32020),
    (CALL, {"name": 5}, {"mcp_name": "5"}, -32020),
    # Parameters.
    (LIST, {"cursor": "x"}, {}, -32602),
    (CALL, {}, {}, -32602),
    (CALL, {"name": None}, {"mcp_name": STATE}, -32602),
    (CALL, {"name": "signals_get_stat"}, {}, -32602),
]


@pytest.mark.clause("4.15.6", "4.15.7", "4.15.9", "4.15.10", "4.15.12")
@pytest.mark.parametrize(("method", "params", "changes", "code"), REFUSALS)
async def test_a_request_that_breaks_a_rule_is_refused(served, method, params, changes, code):
    response = await send_modern(served, method, params, **changes)
    answer = response.json()
    assert (response.status_code, answer["error"]["code"], answer["id"]) == (400, code, 7)
    assert response.headers["content-type"] == "application/json"


@pytest.mark.clause("4.15.7")
@pytest.mark.parametrize("name", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
async def test_a_header_that_is_sent_twice_is_a_mismatch(served, name):
    body, headers = build_request(CALL, NAME)
    response = await send(served, body, [*headers.items(), (name, headers[name.lower()])])
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
    assert f"{name.lower()} must be sent once" in response.json()["error"]["message"]


@pytest.mark.clause("4.15.7")
async def test_whitespace_around_the_value_of_a_header_does_not_count(served):
    body, headers = build_request(CALL, NAME)
    content = json.dumps(body).encode()
    for sent in (headers, {"mcp-protocol-version": "2025-06-18"}):
        padded = "".join(f"{name}: \t {value} \t \r\n" for name, value in sent.items()).encode()
        head = b"POST /api/v1/mcp HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + padded
        message = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(content), content)
        answer = await exchange_bytes(served.base_url, message)
        assert b"200 OK" in answer
        assert b'"result"' in answer


@pytest.mark.clause("4.15.7")
async def test_the_name_of_a_tool_may_be_encoded_in_its_header(served):
    encoded = f"=?base64?{base64.b64encode(STATE.encode()).decode()}?="
    response = await send_modern(served, CALL, {"name": STATE}, mcp_name=encoded)
    assert response.json()["result"]["isError"] is False
    body, headers = build_request(CALL, {"name": "ä"})
    headers["mcp-name"] = f"=?base64?{base64.b64encode('ä'.encode()).decode()}?="
    # The header matches, so the request reaches the search for the tool.
    assert (await send(served, body, headers)).json()["error"]["code"] == -32602


@pytest.mark.clause("4.15.8")
@pytest.mark.parametrize(
    ("method", "version"),
    [
        *itertools.product(
            (DISCOVER, LIST, CALL, "no/such"), ("2027-01-01", "DRAFT-2026-v1", "x" * 200)
        ),
        (DISCOVER, "2025-11-25"),
    ],
)
async def test_a_version_that_is_not_served_is_refused_with_those_that_are(served, method, version):
    params = {"name": STATE, "_meta": {**ENVELOPE, VERSION_KEY: version}}
    response = await send_modern(served, method, params, mcp_protocol_version=version)
    answer = response.json()
    assert (response.status_code, answer["error"]["code"], answer["id"]) == (400, -32022, 7)
    discovered = (await send_modern(served, DISCOVER)).json()["result"]["supportedVersions"]
    assert answer["error"]["data"] == {"supported": discovered, "requested": version}


@pytest.mark.clause("4.15.10")
async def test_an_error_never_has_the_id_null(served):
    body, headers = build_request(LIST)
    for malformed in (
        b"{",
        b"[]",
        b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
        json.dumps(body | {"id": None}).encode(),
    ):
        response = await served.post_mcp(malformed, **headers)
        assert (response.status_code, set(response.json())) == (400, {"jsonrpc", "error"})
    unknown = await served.post_mcp(b'{"jsonrpc":"1.0","id":"a","method":"tools/list"}', **headers)
    assert (unknown.status_code, unknown.json()["id"]) == (400, "a")
    assert unknown.json()["error"]["code"] == -32600


@pytest.mark.clause("4.15.1")
async def test_notifications_sessions_and_other_methods_are_treated_as_in_older_revisions(served):
    body, headers = build_request("notifications/cancelled", {"requestId": 1})
    del body["id"]
    accepted = await send(served, body, headers)
    assert (accepted.status_code, accepted.content) == (202, b"")
    assert (await send_modern(served, LIST, mcp_session_id="7")).status_code == 200
    for method in ("GET", "DELETE"):
        refused = await served.client.request(method, "/api/v1/mcp", headers=headers)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert (await send_modern(served, LIST, origin="https://example.com")).status_code == 403


@pytest.mark.clause("4.15.9")
async def test_a_call_without_a_key_is_a_result_that_says_so(served):
    body, headers = build_request(CALL, {"name": STATE})
    response = await send(served, body, headers)
    assert (response.status_code, response.json()["result"]["isError"]) == (200, True)
    assert response.json()["result"]["resultType"] == "complete"
    assert "www-authenticate" not in response.headers


# Headers and envelopes of hosts that mix the eras; each is served as a request without them.
MIXED_HEADERS = [
    {"mcp-protocol-version": MODERN_VERSION},
    {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": STATE},
    {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "no/such", "mcp-name": "nothing"},
]
OTHER_METAS = [{}, {"progressToken": 1}, None, {VERSION_KEY: "2025-11-25"}, {VERSION_KEY: None}]
MIXTURES = [
    *itertools.product(MIXED_HEADERS, [{"_meta": meta} for meta in OTHER_METAS] + [{}]),
    *itertools.product(
        [{}, *({"mcp-protocol-version": version} for version in LEGACY_VERSIONS)],
        [{"_meta": ENVELOPE}],
    ),
    ({"mcp-method": "no/such", "mcp-name": "nothing"}, {"_meta": ENVELOPE}),
]


@pytest.mark.clause("4.15.11")
@pytest.mark.parametrize(("headers", "meta"), MIXTURES)
@pytest.mark.sampled(3)
async def test_a_request_that_mixes_the_eras_is_served_as_legacy(served, headers, meta):
    requests = [
        ("initialize", {"protocolVersion": "2025-06-18"}),
        ("ping", {}),
        (LIST, {}),
        (CALL, {"name": "signals_get_stats"}),
        (CALL, {"name": "nothing"}),
        ("resources/list", {}),
    ]
    for method, params in requests:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        plain = await send(served, body, {})
        mixed = await send(served, body | {"params": params | meta}, headers)
        assert mixed.status_code == plain.status_code == 200
        if method == CALL and "result" in plain.json():
            assert remove_ids(mixed.json()["result"]) == remove_ids(plain.json()["result"])
        else:
            assert mixed.content == plain.content


VERSIONS = [None, "", *LEGACY_VERSIONS, MODERN_VERSION, "2024-11-05", "2027-01-01", "v999"]
METAS: list[Any] = [
    None,
    "x",
    [],
    {},
    CAPABLE,
    *({VERSION_KEY: value} for value in (MODERN_VERSION, "2027-01-01")),
    *({VERSION_KEY: value} | CAPABLE for value in (*VERSIONS, 5, ["2026-07-28"])),
]
ROUTED = [(DISCOVER, None), (LIST, None), ("ping", None), ("initialize", None)]
ROUTED += [(CALL, name) for name in (STATE, "ä", "", 5, None)]


def list_generated_requests():
    """Yield (raw headers, body): versions, envelopes, methods and names that fit or do not."""
    for version, meta, (method, name) in itertools.product(VERSIONS, METAS, ROUTED):
        names = {None, "other", name if isinstance(name, str) and name.isascii() else "5"}
        names |= {"=?base64?w6Q=?=", "=?base64?w6R=?=", "=?base64?w6Q?="} if name == "ä" else set()
        for method_header, name_header in itertools.product((None, method, "other"), names):
            fields = {
                "mcp-protocol-version": version,
                "mcp-method": method_header,
                "mcp-name": name_header,
            }
            headers = [(key, value) for key, value in fields.items() if value is not None]
            params = {"_meta": meta} if name is None else {"_meta": meta, "name": name}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            yield headers, body
            yield headers + headers[-1:], body


def decide(headers: list[tuple[str, str]], body: dict[str, Any]) -> tuple[str, Any]:
    """Return the leg and the error's code and data, or None."""
    scope = {"headers": [(name.encode(), value.encode()) for name, value in headers]}
    message = Message(body["method"], body["params"], body["id"], False)
    try:
        leg = choose_leg(message, read_version(read_headers(scope)))
        if leg is LEGACY:
            return "legacy", None
        check_modern_request(message, read_headers(scope), scope, {CALL: "name"})
    except RpcError as error:
        return ("unserved" if error.status == 400 else "modern"), (error.code, error.data)
    assert leg is MODERN
    return "modern", None


@pytest.mark.clause("4.15.1", "4.15.7", "4.15.8", "4.15.11")
@pytest.mark.prove
def test_every_modern_request_is_judged_as_by_the_sdk():
    counts = dict.fromkeys(("legacy", "unserved", "modern", "accepted"), 0)
    for headers, body in list_generated_requests():
        chosen, refusal = decide(headers, body)
        counts["accepted" if (chosen, refusal) == ("modern", None) else chosen] += 1
        theirs = classify_inbound_request(body, headers=dict(headers))
        duplicated = find_duplicated_routing_header(headers)
        if chosen != "modern":
            # The SDK's server has no era to fall back to: it refuses what is legacy here.
            assert duplicated or not isinstance(theirs, InboundModernRoute), (headers, body)
        elif duplicated:
            assert refusal == (-32020, None), (headers, body)
        elif isinstance(theirs, InboundModernRoute):
            assert refusal is None, (headers, body)
        else:
            assert refusal == (theirs.code, theirs.data), (headers, body)
    assert min(counts.values()) > 10, counts


@pytest.mark.clause("4.15.2", "4.15.9")
def test_errors_have_the_http_statuses_of_the_sdk():
    unused = {-32021}
    theirs = {code: status for code, status in ERROR_CODE_HTTP_STATUS.items() if code not in unused}
    assert MODERN.statuses == theirs
