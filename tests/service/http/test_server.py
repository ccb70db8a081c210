"""The log lines of requests, and a restart that cuts no call off.

Each request has a debug line, and each refusal another line, with the id that the client got. At a
restart the socket stays, and open connections get one more response.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextvars import Context
from email.message import EmailMessage
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from mcp_server.endpoint import PATHS
from service.http import server
from service.http.server import (
    MAX_REFUSAL_LINES,
    RefusalLog,
    build_server_config,
    open_kept_listener,
    serve_in_background,
)
from serving.http import MAX_BODY_BYTES, MAX_HEAD_BYTES, read_body
from store.failure_log import INTERVAL_S
from tests.doubles.smtp.server import Mailbox
from tests.security.wire import exchange_bytes, open_raw_connection
from tests.support.bad_inputs import STATE
from tests.support.running_service import (
    RunningService,
    break_usage_counting,
    open_loopback_socket,
    run_app,
    served as served,
)
from tests.support.signals_command import (
    Event,
    capture_log,
    find_free_port,
    parse_events,
    select_events,
)
from tests.support.web_page import EMAIL, buy_plan, run_second_service

MCP = PATHS[0]
UNKNOWN_KEY = "ek_" + "B" * 43
OWN_KEY = {"Authorization": "own"}


def rpc(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


class Case(NamedTuple):
    """A request, and the fields of its line but id, method and duration."""

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
    # The client behind a proxy is not in the line.
    Case(
        "GET",
        STATE_PATH,
        refused(401, "missing_key", STATE_PATH, STATE),
        {"X-Forwarded-For": "192.0.2.1"},
    ),
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


@pytest.mark.clause("monitoring")
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


@pytest.mark.clause("monitoring")
async def test_an_outage_is_refused_at_level_warning_on_both_transports(
    served_alone: RunningService,
):
    path = "/api/v1/usage"
    call = rpc("tools/call", name="signals_get_usage")
    with break_usage_counting(served_alone.access), capture_log("warning") as err:
        await send(served_alone, Case("GET", path, {}, OWN_KEY), "rest")
        await send(served_alone, Case("POST", MCP, {}, OWN_KEY, call), "mcp")
    outage = {
        **{"level": "warning", "event": "refused", "tool": "signals_get_usage"},
        **{"status": 503, "error": "unavailable"},
    }
    lines = select_events(err.getvalue().splitlines(), "refused")
    assert [without_times(line) for line in lines] == [
        {"request_id": "rest", "method": "GET", "route": path, **outage},
        {"request_id": "mcp", "method": "POST", "route": MCP, **outage},
    ]


@pytest.mark.clause("monitoring")
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


@pytest.mark.clause("monitoring")
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


@pytest.mark.clause("monitoring")
async def test_requests_sent_at_once_on_one_connection_have_a_line_each(served: RunningService):
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\n%b\r\n"
    sent = (
        request % (b"/healthz", b"a", b"")
        + request % (STATE_PATH.encode(), b"b", b"")
        + request % (b"/api/v1", b"c", b"Connection: close\r\n")
    )
    with capture_log("debug") as err:
        ids = re.findall(rb"x-request-id: (\S+)", await exchange_bytes(served.base_url, sent))
    assert ids == [b"a", b"b", b"c"]
    lines = parse_events(err.getvalue().splitlines())
    assert [(line["request_id"], line["event"], line["status"]) for line in lines] == [
        ("a", "request", 200),
        ("b", "request", 401),
        ("b", "refused", 401),
        ("c", "request", 200),
    ]


@pytest.mark.clause("monitoring")
@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", STATE_REQUEST])
async def test_of_many_refusals_ten_are_logged(served: RunningService, sent: bytes):
    with open_loopback_socket() as bound, capture_log("info") as err:
        host, port = bound.getsockname()
        async with run_app(served.app, bound, refusals=RefusalLog()):
            for _ in range(MAX_REFUSAL_LINES + 10):
                await exchange_bytes(f"http://{host}:{port}", sent)
    events = parse_events(err.getvalue().splitlines())
    assert [event["event"] for event in events] == ["refused"] * MAX_REFUSAL_LINES


@pytest.mark.clause("monitoring")
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


MADE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{4,}")
ASKED = [
    ("GET", "/api/v1", {}, 200),
    ("GET", "/api/v1/catalog", {}, 200),
    ("GET", "/api/v1/state", {}, 401),
    ("GET", "/api/v1/nothing", {}, 404),
    ("POST", "/api/v1/state", {}, 405),
    ("GET", PATHS[0], {}, 405),
    ("POST", "/api/v1/access/claim", {}, 400),
    ("GET", "/sandbox/checkout/none", {}, 404),
    ("GET", "/web/page.css", {}, 200),
    ("GET", "/readyz", {}, 200),
    ("GET", "/api/v1", {"Host": "evil.example"}, 421),
    ("GET", "/readyz", {"Origin": "https://evil.example"}, 403),
]


@pytest.mark.clause("monitoring")
@pytest.mark.parametrize(("method", "path", "headers", "status"), ASKED)
async def test_every_response_has_its_own_id(
    served: RunningService, method: str, path: str, headers: dict[str, str], status: int
):
    answers = [await served.client.request(method, path, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    first, second = (answer.headers.get_list("x-request-id") for answer in answers)
    assert len(first) == len(second) == 1
    assert MADE.fullmatch(first[0])
    assert first != second


@pytest.mark.clause("monitoring")
@pytest.mark.parametrize("path", ["/api/v1/catalog", "/api/v1", "/healthz"])
@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        *((["a"], True), (["x" * 64], True), (["9f.A_z-0"], True), (["0" * 32], True)),
        *(([one], False) for one in ("", "x" * 65, "a b", 'a"b', "a,b", "a/b", "\xe4", "a=b")),
        (["a", "b"], False),
    ],
)
async def test_only_a_plain_id_from_the_client_is_kept(
    served: RunningService, path: str, sent: list[str], is_kept: bool
):
    headers = [(b"X-Request-Id", one.encode("latin-1")) for one in sent]
    given = (await served.client.get(path, headers=headers)).headers["x-request-id"]
    assert given == sent[0] if is_kept else MADE.fullmatch(given)


@pytest.mark.clause("monitoring")
@pytest.mark.parametrize("headers", [None, {}], ids=["answered", "refused"])
async def test_the_result_of_a_tool_repeats_it(
    served: RunningService, headers: dict[str, str] | None
):
    key = served.key_headers if headers is None else headers
    for sent in ("first", "second"):
        answer = await served.post_mcp(CALL_STATE, **{"X-Request-Id": sent}, **key)
        assert answer.headers["x-request-id"] == sent
        assert answer.json()["result"]["_meta"]["signals/request_id"] == sent


@pytest.mark.clause("monitoring")
async def test_the_list_of_tools_is_the_same_bytes_whatever_the_id(served: RunningService):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    one, other = [await served.post_mcp(body, **{"X-Request-Id": sent}) for sent in "ab"]
    assert one.content == other.content


@pytest.mark.clause("monitoring")
async def test_log_lines_of_a_request_have_its_id(served_alone: RunningService):
    with capture_log() as err:
        with break_usage_counting(served_alone.access):
            # Lines of one failure are a minute apart, so only the first request has some.
            for sent in ("first", "repeated"):
                answer = await served_alone.client.get(
                    "/api/v1/usage", headers={**served_alone.key_headers, "X-Request-Id": sent}
                )
                assert answer.status_code == 503
        answer = await served_alone.client.get("/api/v1/usage", headers={"X-Request-Id": "other"})
        assert answer.status_code == 401
        structlog.get_logger("tests").info("elsewhere")
    *events, last = parse_events(err.getvalue().splitlines())
    lines = [(event["event"], event["request_id"]) for event in events]
    assert [line for line in lines if line[0] != "request"] == [
        ("store_failed", "first"),
        ("refused", "first"),
        ("refused", "other"),
    ]
    assert [id_ for name, id_ in lines if name == "request"] == ["first", "repeated", "other"]
    assert (last["event"], "request_id" in last) == ("elsewhere", False)


class Speaking(Mailbox):
    """A Mailer that logs, after the response was sent."""

    async def send(self, mail: EmailMessage) -> None:
        structlog.get_logger("tests").info("mailed")
        await super().send(mail)


@pytest.mark.clause("monitoring")
async def test_work_after_a_response_keeps_its_id_during_the_next_request(
    served_alone: RunningService,
):
    await buy_plan(served_alone)
    form = f"contact_email={quote(EMAIL)}".encode()
    head = b"Host: localhost\r\nContent-Length: %d\r\nX-Request-Id: %b\r\n%b\r\n"
    asks = b"POST /sign-in HTTP/1.1\r\n" + head % (len(form), b"asks", b"") + form
    last = b"GET /healthz HTTP/1.1\r\n" + head % (0, b"next", b"Connection: close\r\n")
    mailbox = Speaking()
    async with run_second_service(served_alone, mailer=mailbox) as other:
        with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            await exchange_bytes(other.base_url, asks + last)
            await mailbox.wait_for_mail()
    assert [line["request_id"] for line in lines if line["event"] == "mailed"] == ["asks"]


HOST = "127.0.0.1"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await read_body(scope, receive)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.clause("operation")
async def test_an_open_connection_gets_one_more_response_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "LAST_REQUEST_STEPS", 3000)
    listener = server.open_listener(HOST, 0)
    port = listener.getsockname()[1]
    serving = serve_in_background(build_server_config(answer), listener)
    task = await serving.__aenter__()
    reader, writer = await asyncio.open_connection(HOST, port)

    async def exchange() -> bytes:
        writer.write(POST)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert await reader.readexactly(2) == b"ok"
        return head

    assert b"connection: close" not in await exchange()
    ending = asyncio.create_task(serving.__aexit__(None, None, None))
    while listener.fileno() >= 0 and not is_refused(port):
        await asyncio.sleep(0)
    assert b"connection: close" in await exchange()
    assert await reader.read() == b""
    await asyncio.wait_for(ending, 30)
    assert task.done()
    writer.close()


# The number of segments with data that a connection has received, in the tcp_info of Linux.
SEGMENTS_IN = slice(152, 156)


@pytest.mark.clause("operation")
async def test_a_response_comes_in_one_segment(served: RunningService):
    """Each write costs a system call, and a packet that a proxy may pass on by itself."""
    async with open_raw_connection(served.base_url) as (reader, writer):
        for count in range(1, 4):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
            info = writer.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, SEGMENTS_IN.stop
            )
            assert int.from_bytes(info[SEGMENTS_IN], sys.byteorder) == count


def is_refused(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) != 0


@pytest.mark.clause("operation")
def test_a_connection_of_a_restart_waits_in_the_kept_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(find_free_port())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        open_kept_listener(HOST, port).close()
        assert manager.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=listener"
        message, [kept], _, _ = socket.recv_fds(manager, 100, 1)
        assert message == b"FDSTORE=1\nFDNAME=listener"
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setattr(server, "FIRST_PASSED_DESCRIPTOR", os.dup(kept))
        with (
            socket.create_connection((HOST, port), 30) as caller,
            open_kept_listener(HOST, port) as listener,
        ):
            accepted, address = listener.accept()
            accepted.close()
            assert address == caller.getsockname()
        # With other settings, systemd keeps another socket, although it still has this one.
        monkeypatch.setattr(server, "FIRST_PASSED_DESCRIPTOR", os.dup(kept))
        with open_kept_listener("0.0.0.0", port) as listener:
            assert listener.getsockname() == ("0.0.0.0", port)
        os.close(kept)


@pytest.mark.clause("operation")
def test_a_manager_that_cannot_be_told_keeps_no_socket_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    port = int(find_free_port())
    with open_kept_listener(HOST, port) as listener:
        assert listener.getsockname() == (HOST, port)
