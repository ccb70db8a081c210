"""Every response and every log line of a request has the request's id."""

import re
from email.message import EmailMessage
from urllib.parse import quote

import pytest
import structlog
from structlog.testing import capture_logs

from mcp_server.endpoint import PATHS
from tests.doubles.smtp.server import Mailbox
from tests.security.wire import exchange_bytes
from tests.support.bad_inputs import STATE
from tests.support.running_service import RunningService, break_usage_counting
from tests.support.running_service import served as served
from tests.support.signals_command import capture_log, parse_events
from tests.support.web_page import EMAIL, buy_plan, run_second_service

pytestmark = pytest.mark.clause("monitoring")

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


@pytest.mark.parametrize("sent", ["a", "x" * 64, "9f.A_z-0", "0" * 32])
async def test_a_plain_id_from_the_client_is_kept(served: RunningService, sent: str):
    for path in ("/api/v1/catalog", "/api/v1", "/healthz"):
        answer = await served.client.get(path, headers={"X-Request-Id": sent})
        assert answer.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 65, "a b", 'a"b', "a,b", "a/b", "\xe4", "a=b"])
async def test_any_other_id_is_replaced(served: RunningService, sent: str):
    headers = [(b"X-Request-Id", sent.encode("latin-1"))]
    answer = await served.client.get("/api/v1", headers=headers)
    assert MADE.fullmatch(answer.headers["x-request-id"])


async def test_two_ids_from_the_client_are_ignored(served: RunningService):
    headers = [("X-Request-Id", "a"), ("X-Request-Id", "b")]
    answer = await served.client.get("/api/v1", headers=headers)
    assert MADE.fullmatch(answer.headers["x-request-id"])


async def test_requests_sent_at_once_on_one_connection_have_an_id_each(served: RunningService):
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    sent = request % b"" + request % b"X-Request-Id: mine\r\n" + request % b"Connection: close\r\n"
    answers = await exchange_bytes(served.base_url, sent)
    ids = re.findall(rb"x-request-id: (\S+)", answers)
    assert len(set(ids)) == 3
    assert ids[1] == b"mine"


@pytest.mark.parametrize("headers", [None, {}], ids=["answered", "refused"])
async def test_the_result_of_a_tool_repeats_it(
    served: RunningService, headers: dict[str, str] | None
):
    params = {"name": STATE, "arguments": {"ticker": "BTC"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    key = served.key_headers if headers is None else headers
    for sent in ("first", "second"):
        answer = await served.post_mcp(body, **{"X-Request-Id": sent}, **key)
        assert answer.headers["x-request-id"] == sent
        assert answer.json()["result"]["_meta"]["signals/request_id"] == sent


async def test_the_list_of_tools_is_the_same_bytes_whatever_the_id(served: RunningService):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    one, other = [await served.post_mcp(body, **{"X-Request-Id": sent}) for sent in "ab"]
    assert one.content == other.content


async def test_log_lines_of_a_request_have_its_id(served_alone: RunningService):
    with capture_log() as err:
        with break_usage_counting(served_alone.access):
            # Lines of one failure are a minute apart, so only the first request has some.
            for sent in ("first", "repeated"):
                headers = {**served_alone.key_headers, "X-Request-Id": sent}
                answer = await served_alone.client.get("/api/v1/usage", headers=headers)
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
    requests = [request_id for name, request_id in lines if name == "request"]
    assert requests == ["first", "repeated", "other"]
    assert (last["event"], "request_id" in last) == ("elsewhere", False)


class Speaking(Mailbox):
    """A Mailer that logs, after the response was sent."""

    async def send(self, mail: EmailMessage) -> None:
        structlog.get_logger("tests").info("mailed")
        await super().send(mail)


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
