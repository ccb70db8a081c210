"""The one client: a hostile service is cut off by size and time, and refused in one line."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx2
import pytest

from tests.doubles.fixed_answers import KEY, loopback
from verifier.client import (
    MAX_ANSWER_BYTES,
    ServiceClient,
    ServiceError,
    TransientError,
    fetch,
)
from verifier.report import VerifyError
from verifier.served_rows import read_feed, walk_rows
from verifier.verification import LogReader

pytestmark = [pytest.mark.clause("verify", "22.5"), pytest.mark.usefixtures("use_single_ca")]

HEAD = b"HTTP/1.1 200 OK\r\n"
TIME = "2026-03-01T00:03:00.000Z"
LEAF = {"index": 5, "created_at": TIME, "salt": "AAAA"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def answer_with(*parts: bytes, then_hangs: bool = False) -> AsyncIterator[str]:
    """Answer each request on loopback with these bytes, and then close, or send nothing more."""
    released = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(parts)
        if then_hangs:
            await released.wait()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        released.set()
        server.close()


async def get(address: str, deadline_s: float = 60) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await fetch(client, "GET", address, deadline_s)


async def test_an_answer_is_read_whole_and_unpacked() -> None:
    async with answer_with(HEAD, b"Content-Length: 2\r\nX-A: 1\r\n\r\n{}") as address:
        plain = await get(address)
    packed = gzip.compress(b"[1]")
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answer_with(HEAD, head, packed) as address:
        unpacked = await get(address)
    assert (plain.status_code, plain.headers["x-a"], plain.json()) == (200, "1", {})
    assert unpacked.json() == [1]


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (b"\r\n", bytes(MAX_ANSWER_BYTES + 1), "exceeds 16 MB"),
        (b"Content-Encoding: gzip\r\n\r\n", gzip.compress(bytes(10 * MAX_ANSWER_BYTES)), "16 MB"),
        (b"Content-Encoding: gzip\r\n\r\n", b"not packed", "no gzip"),
        (b"Content-Encoding: br\r\n\r\n", b"{}", "was not asked for"),
    ],
    ids=["large", "packed", "damaged", "foreign"],
)
async def test_an_answer_that_is_too_large_or_badly_packed_is_refused(
    head: bytes, body: bytes, reason: str
) -> None:
    async with answer_with(HEAD, head, body) as address:
        with pytest.raises(httpx2.HTTPError, match=reason):
            await get(address)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"])
async def test_an_answer_without_an_end_is_given_up(sent: bytes) -> None:
    async with answer_with(sent, then_hangs=True) as address:
        with pytest.raises(httpx2.ReadTimeout, match=r"no whole answer within 0\.05 seconds"):
            await get(address, 0.05)


async def refuse(status: int, body: object, **headers: str) -> ServiceError:
    """Return the error of a call on a server that always answers the same."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with loopback(status, content, **headers) as (address, _):
        async with ServiceClient(address, KEY) as client:
            with pytest.raises(ServiceError) as refused:
                await client.read_view("usage")
    text = str(refused.value)
    assert text.startswith(f"{address}/api/v1/usage answered {status}")
    assert KEY not in text
    assert text.isprintable()
    return refused.value


@pytest.mark.parametrize(
    ("status", "body", "reason", "retry_after_s"),
    [
        (401, {"message": "No."}, "401: No. Check the key in SIGNALS_API_KEY.", None),
        (403, b"no", "(text/html). Check the key in SIGNALS_API_KEY.", None),
        (404, b"no", "without an answer of the API (text/html); is --url the address of", None),
        (400, {"message": "Bad."}, "answered 400: Bad.", None),
        (408, {}, "answered 408", 900),
        (429, {"message": "Used up."}, "429: Used up.", 900),
        (500, {"message": f"Bad\n{KEY}\x1b[31m"}, r"500: Bad (the key)\u001b[31m", 900),
        (502, b"\x1b[31m", "answered 502 without an answer of the API", 900),
        (503, {"message": "Later."}, "answered 503: Later.", 900),
    ],
)
async def test_a_refusal_says_what_to_do_and_whether_it_may_pass(
    status: int, body: object, reason: str, retry_after_s: int | None
) -> None:
    error = await refuse(status, body, Content_Type="text/html", Retry_After="900")
    assert reason in str(error)
    assert error.status == status
    assert getattr(error, "retry_after_s", None) == retry_after_s


@pytest.mark.parametrize(
    ("sent", "kept_s"), [("43420", 3600), ("9" * 5000, 3600), ("-1", 0), ("1.5", 0), ("soon", 0)]
)
async def test_the_pause_that_a_service_asks_for_is_bounded(sent: str, kept_s: int) -> None:
    error = await refuse(503, {}, Retry_After=sent)
    assert isinstance(error, TransientError)
    assert error.retry_after_s == kept_s


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"", b"[1]", b"\xff\xfe{", b"[" * 100_000, b'{"a":' + b"[" * 70, rb'["\ud800"]'],
)
async def test_a_response_without_a_json_object_is_refused(body: bytes) -> None:
    assert "answered 200 without an answer of the API" in str(await refuse(200, body))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed_with_the_key(status: int) -> None:
    with loopback(200, b"{}") as (other, strangers):
        error = await refuse(status, b"", Location=f"{other}/?key={KEY}")
        assert f"a redirect to {other}/?key=(the key), which is not followed" in str(error)
    assert strangers == []


async def test_a_service_that_does_not_answer_is_named_and_may_come_back() -> None:
    async with ServiceClient("http://127.0.0.1:1", KEY) as client:
        with pytest.raises(TransientError, match="/state did not answer: ConnectError") as failed:
            await client.read_view("state")
    assert "(`signals serve`), or set --url" in str(failed.value)


async def test_a_proxy_is_used_and_named_if_it_fails() -> None:
    with loopback(200, b"{}") as (proxy, asked):
        async with ServiceClient(
            "http://signals.example", KEY, proxy=("HTTP_PROXY", proxy)
        ) as client:
            await client.read_view("state")
    assert asked[0]["host"] == "signals.example"
    nowhere = ("ALL_PROXY", "http://127.0.0.1:1")
    async with ServiceClient("https://signals.example", KEY, proxy=nowhere) as client:
        with pytest.raises(TransientError, match=r"through the proxy that ALL_PROXY names\. Check"):
            await client.read_view("state")


async def test_the_key_is_not_sent_with_open_files() -> None:
    with loopback(200, b"{}") as (address, asked):
        async with ServiceClient(address, KEY) as client:
            await LogReader(client).read_text("checkpoint")
            await client.read_view("catalog", is_open=True)
            assert KEY not in str(asked)
            await client.read_view("state")
            assert (len(asked), client.calls) == (3, 1)
            assert asked[2]["authorization"] == f"Bearer {KEY}"
        async with ServiceClient(address, "") as client:
            with pytest.raises(ServiceError, match="SIGNALS_API_KEY is not set"):
                await client.read_view("state")
    assert len(asked) == 3


@pytest.mark.clause("22.3")
async def test_an_answer_says_when_it_was_sent_by_the_clock_of_the_service() -> None:
    before = time.time() // 1
    with loopback(200, b"{}") as (address, _):
        async with ServiceClient(address, KEY) as client:
            sent_at = (await client.read_view("usage")).sent_at
    assert sent_at is not None
    assert before <= sent_at / 1000 <= time.time()  # the header Date, in whole seconds


# The log and the feed


async def call(method: str, body: object, *arguments: object) -> object:
    """Call a method of a reader of the log, or read the feed, where all answers are the same.

    `read_first_page` reads a page of the feed alone, as for rows of a record.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with loopback(200, content) as (address, _):
        async with ServiceClient(address, KEY) as client:
            if method == "read_first_page":
                return await anext(walk_rows(client, ""))
            if method == "read_feed":
                return await read_feed(client, None, NOON, lambda done, total: None)
            return await getattr(LogReader(client), method)(*arguments)


BAD_LEAVES = [{}, {"salt": "?"}, {"created_at": "2026"}, {"index": 5.0}]
BAD_STARTS = [
    *("x", ["a"], {}, {"source": 7, "started_at": TIME}),
    {"source": "live", "started_at": "2026"},
]
BAD_PAGES = [
    *({}, {"signals": []}, {"signals": {}, "meta": {}}),
    {"signals": [7], "meta": {"as_of": "now"}},
]


@pytest.mark.parametrize(
    ("method", "body", "arguments", "reason"),
    [
        ("read_leaves", {}, (5, 1), "malformed leaves"),
        ("read_leaves", {"leaves": [7]}, (5, 1), "malformed leaves"),
        *(
            ("read_leaves", {"leaves": [bad and LEAF | bad]}, (5, 1), "malformed leaves")
            for bad in BAD_LEAVES
        ),
        (
            *("read_leaves", b'{"leaves": [{"salt": "\\ud800"}]}', (5, 1)),
            "without an answer of the API",
        ),
        *(
            ("read_leaves", {"leaves": leaves}, (5, 1), "did not list the leaves 5 to 5")
            for leaves in ([LEAF | {"index": 6}], [LEAF, LEAF])
        ),
        *(
            ("read_start", {"leaves": [LEAF], "start": start}, (), "malformed leaves")
            for start in BAD_STARTS
        ),
        *(
            ("fetch_tile", b"x" * size, (0, 0, 2), f"sent {size} bytes as tile/0/000.p/2")
            for size in (0, 31, 33, 65)
        ),
        ("read_text", b"\xff", ("checkpoint",), "without text"),
        *(
            (method, body, (), "sent a page of the feed that is none")
            for method in ("read_feed", "read_first_page")
            for body in BAD_PAGES
        ),
        (
            "read_feed",
            {
                "signals": [],
                "meta": {"as_of": TIME, "source": "live"},
                "pagination": {"has_more": True},
            },
            *((), "claims more rows and sends none"),
        ),
    ],
)
async def test_an_answer_in_another_form_is_refused(
    method: str, body: object, arguments: tuple[object, ...], reason: str
) -> None:
    with pytest.raises(VerifyError, match=reason):
        await call(method, body, *arguments)


async def test_a_feed_that_takes_more_than_the_daily_quota_is_given_up() -> None:
    body = {
        "signals": [],
        # The feed of the 30 days before it begins earlier than any time that is served.
        "meta": {"as_of": "1900-01-01T00:00:00.000Z", "source": "live"},
        "pagination": {"has_more": False},
    }
    with loopback(200, json.dumps(body).encode()) as (address, _):
        async with ServiceClient(address, KEY) as client:
            await read_feed(client, None, NOON, lambda done, total: None)
            client.calls = 10_000
            with pytest.raises(VerifyError, match="the feed takes more than 10,000 calls"):
                await read_feed(client, None, NOON, lambda done, total: None)
            with pytest.raises(VerifyError, match="the log takes more than 10,000 calls"):
                await LogReader(client).read_leaves(0, 1)
