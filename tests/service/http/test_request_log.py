"""Each request has a debug line, and each refusal another line, with the id that the client got."""

import json
from collections.abc import Callable, Mapping
from contextvars import Context
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import pytest

from mcp_server.endpoint import PATHS
from service.http.request_log import MAX_REFUSAL_LINES, RefusalLog
from serving.http import MAX_BODY_BYTES, MAX_HEAD_BYTES
from store.failure_log import INTERVAL_S
from tests.security.wire import exchange_bytes, open_raw_connection
from tests.support.bad_inputs import STATE
from tests.support.running_service import (
    RunningService,
    break_usage_counting,
    open_loopback_socket,
    run_app,
)
from tests.support.running_service import served as served
from tests.support.signals_command import Event, capture_log, parse_events

pytestmark = pytest.mark.clause("monitoring")

MCP = PATHS[0]
UNKNOWN_KEY = "ek_" + "B" * 43
OWN_KEY = {"Authorization": "own"}


def rpc(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


class Case(NamedTuple):
    """A request, and the fields of its line beside id, method and duration."""

    method: str
    path: str
    logged: Event
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


def refused(
    status: int, error: str | int, route: str | None = None, tool: str | None = None
) -> Event:
    fields = {"route": route, "tool": tool, "status": status, "error": error}
    return {name: value for name, value in fields.items() if value is not None}


STATE_PATH = "/api/v1/state"
STATE_REQUEST = b"GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CALL_STATE = rpc("tools/call", name=STATE, arguments={"ticker": "BTC"})
ANSWERED = [
    Case(
        "GET",
        f"{STATE_PATH}?ticker=BTC",
        {"route": STATE_PATH, "tool": STATE, "status": 200},
        OWN_KEY,
    ),
    Case("HEAD", STATE_PATH, {"route": STATE_PATH, "tool": STATE, "status": 200}, OWN_KEY),
    Case("POST", MCP, {"route": MCP, "tool": STATE, "status": 200}, OWN_KEY, CALL_STATE),
    Case("POST", MCP, {"route": MCP, "status": 200}, body=rpc("tools/list")),
    Case("POST", MCP, {"route": MCP, "status": 202}, body=b'{"jsonrpc":"2.0","method":"a"}'),
    Case("GET", "/api/v1", {"route": "/api/v1", "status": 200}),
    Case("GET", "/healthz", {"route": "/healthz", "status": 200}),
    Case("GET", "/assets/BTC", {"route": "/assets/{ticker}", "status": 200}),
    Case("POST", "/sign-out", {"route": "/sign-out", "status": 303}),
]
BAD = "invalid_parameter"
REFUSED = [
    Case("GET", STATE_PATH, refused(401, "missing_key", STATE_PATH, STATE)),
    Case(
        "GET",
        STATE_PATH,
        refused(401, "invalid_key", STATE_PATH, STATE),
        {"X-Api-Key": UNKNOWN_KEY},
    ),
    Case(
        "GET",
        f"{STATE_PATH}?ticker=NONE",
        refused(400, "unknown_ticker", STATE_PATH, STATE),
        OWN_KEY,
    ),
    Case("POST", MCP, refused(401, "missing_key", MCP, STATE), body=CALL_STATE),
    Case("POST", MCP, refused(200, -32602, MCP), body=rpc("tools/call", name="nothing")),
    Case("POST", MCP, refused(200, -32601, MCP), body=rpc("nothing")),
    Case("POST", MCP, refused(200, -32700, MCP), body=b"{"),
    Case("POST", MCP, refused(400, -32602, MCP), {"MCP-Protocol-Version": "1"}, rpc("tools/list")),
    Case("POST", MCP, refused(406, BAD, MCP), {"Accept": "text/html"}, rpc("tools/list")),
    Case("POST", MCP, refused(413, BAD, MCP), body=b" " * (MAX_BODY_BYTES + 1)),
    Case("GET", MCP, refused(405, BAD, MCP)),
    Case("POST", STATE_PATH, refused(405, BAD, STATE_PATH)),
    Case("GET", "/api/v1/nothing", refused(404, BAD)),
    Case(
        "POST",
        "/api/v1/access/claim",
        refused(404, BAD, "/api/v1/access/claim"),
        body=b'{"claim_token": "ct_%b"}' % (b"B" * 43),
    ),
    Case("GET", "/assets/NONE", refused(404, "unknown_ticker", "/assets/{ticker}")),
    Case("GET", "/api/v1", refused(421, BAD), {"Host": "evil.example"}),
    Case("GET", "/api/v1/state", refused(403, BAD), {"Origin": "https://evil.example"}),
]


async def send(served: RunningService, case: Case, request_id: str) -> httpx.Response:
    headers = served.key_headers if case.headers == OWN_KEY else case.headers
    content_type = {"Content-Type": "application/json"} if case.body else {}
    sent = {**content_type, **headers, "X-Request-Id": request_id}
    async with httpx.AsyncClient(base_url=served.base_url, verify=False) as client:
        answer = await client.request(case.method, case.path, headers=sent, content=case.body)
    assert answer.headers["x-request-id"] == request_id
    return answer


def without_times(event: Event) -> Event:
    assert event["duration_ms"] >= 0
    return {name: event[name] for name in event.keys() - {"timestamp", "duration_ms"}}


@pytest.mark.parametrize(
    "case", [*ANSWERED, *REFUSED], ids=lambda case: f"{case.method} {case.path}"
)
async def test_a_request_and_its_refusal_have_a_line_each(served: RunningService, case: Case):
    with capture_log("debug") as err:
        await send(served, case, "one")
    fields = {"request_id": "one", "method": case.method, **case.logged}
    expected = [{"level": "debug", "event": "request", **fields}]
    if case in REFUSED:
        expected.append({"level": "info", "event": "refused", **fields})
    assert [without_times(event) for event in parse_events(err.getvalue().splitlines())] == expected


@pytest.mark.parametrize("level", ["info", "warning"])
@pytest.mark.prove
async def test_only_refusals_are_logged_by_default_and_none_at_level_warning(
    served: RunningService, level
):
    with capture_log(level) as err:
        for number, case in enumerate([*ANSWERED, *REFUSED]):
            await send(served, case, str(number))
    ids = [event["request_id"] for event in parse_events(err.getvalue().splitlines())]
    first = len(ANSWERED)
    assert ids == ([str(first + n) for n in range(len(REFUSED))] if level == "info" else [])


async def test_an_outage_is_refused_at_level_warning_on_both_transports(
    served_alone: RunningService,
):
    path = "/api/v1/usage"
    call = rpc("tools/call", name="signals_get_usage")
    with break_usage_counting(served_alone.access), capture_log("warning") as err:
        await send(served_alone, Case("GET", path, {}, OWN_KEY), "rest")
        await send(served_alone, Case("POST", MCP, {}, OWN_KEY, call), "mcp")
    events = parse_events(err.getvalue().splitlines())
    lines = [without_times(event) for event in events if event["event"] == "refused"]
    fields = {"level": "warning", "event": "refused", "tool": "signals_get_usage"}
    outage = {**fields, "status": 503, "error": "unavailable"}
    assert lines == [
        {"request_id": "rest", "method": "GET", "route": path, **outage},
        {"request_id": "mcp", "method": "POST", "route": MCP, **outage},
    ]


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nA: " + b"a" * MAX_HEAD_BYTES, 431)],
)
async def test_bytes_that_are_not_http_are_refused_with_an_id_and_a_line(
    served: RunningService, sent: bytes, status: int
):
    with capture_log("info") as err:
        answer = await exchange_bytes(served.base_url, sent)
    (event,) = parse_events(err.getvalue().splitlines())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"x-request-id: {event['request_id']}".encode() in head.splitlines()
    assert (event["event"], event["level"], event["status"]) == ("refused", "info", status)
    assert event["reason"] == json.loads(body)["message"]


async def test_a_request_whose_client_leaves_has_a_line(served: RunningService):
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: left\r\nContent-Length: 9\r\n\r\n"
    with capture_log("debug") as err:
        async with open_raw_connection(served.base_url) as (_, writer):
            writer.write(head % MCP.encode())
            # The next response shows that the server has read the head.
            await served.client.get("/healthz")
        while "left" not in err.getvalue():
            await served.client.get("/healthz")
    (event,) = [
        event
        for event in parse_events(err.getvalue().splitlines())
        if event["request_id"] == "left"
    ]
    assert without_times(event) == {
        "level": "debug",
        "event": "request",
        "request_id": "left",
        "method": "POST",
        "route": MCP,
        "status": 499,
    }


async def test_requests_sent_at_once_on_one_connection_have_a_line_each(served: RunningService):
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\n%b\r\n"
    sent = (
        request % (b"/healthz", b"a", b"")
        + request % (STATE_PATH.encode(), b"b", b"")
        + request % (b"/api/v1", b"c", b"Connection: close\r\n")
    )
    with capture_log("debug") as err:
        await exchange_bytes(served.base_url, sent)
    lines = parse_events(err.getvalue().splitlines())
    assert [(line["request_id"], line["event"], line["status"]) for line in lines] == [
        ("a", "request", 200),
        ("b", "request", 401),
        ("b", "refused", 401),
        ("c", "request", 200),
    ]


async def test_the_client_behind_a_proxy_changes_nothing_in_the_line(served: RunningService):
    case = Case("GET", STATE_PATH, {}, {"X-Forwarded-For": "192.0.2.1"})
    with capture_log("info") as err:
        await send(served, case, "one")
    (event,) = parse_events(err.getvalue().splitlines())
    assert (event["route"], event["tool"], event["error"]) == (STATE_PATH, STATE, "missing_key")


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", STATE_REQUEST])
async def test_of_many_refusals_ten_are_logged(served: RunningService, sent: bytes):
    with open_loopback_socket() as bound, capture_log("info") as err:
        host, port = bound.getsockname()
        async with run_app(served.app, bound, refusals=RefusalLog()):
            for _ in range(MAX_REFUSAL_LINES + 10):
                await exchange_bytes(f"http://{host}:{port}", sent)
    events = parse_events(err.getvalue().splitlines())
    assert [event["event"] for event in events] == ["refused"] * MAX_REFUSAL_LINES


def test_a_minute_of_many_refusals_ends_with_their_number_by_status_and_route():
    due: list[Callable[[], object]] = []

    def call_later(delay: float, callback: Callable[[], object], *, context: Context) -> None:
        assert delay == INTERVAL_S
        due.append(callback)

    refusals = RefusalLog(call_later)
    with capture_log("info") as err:
        for count in (MAX_REFUSAL_LINES, 300):
            for number in range(count):
                route = {} if number % 3 else {"route": STATE_PATH}
                refusals.write({"request_id": str(number), "status": 401, **route})
            due.pop()()
        assert not due
        refusals.write({"request_id": "next", "status": 404})
    *events, counted, last = parse_events(err.getvalue().splitlines())
    first = [str(number) for number in range(MAX_REFUSAL_LINES)]
    assert [event["request_id"] for event in events] == first * 2
    del counted["timestamp"]
    by_route = ["401 no route: 200", f"401 {STATE_PATH}: 100"]
    assert counted == {"level": "info", "event": "refusals", "count": 300, "by_route": by_route}
    assert last["request_id"] == "next"
