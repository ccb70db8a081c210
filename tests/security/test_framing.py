"""Requests with ambiguous framing are refused and their connections closed.

Each part of a request's head has a bound, checked before anything reads it.
"""

import gzip
import json
from pathlib import Path

import httpx
import pytest
import uvloop

from compute.universe import load_universe
from service.http.app import OPEN_READS
from service.http.server import MAX_FRAMING_BYTES
from serving.http import (
    BOUNDED_HEADERS,
    HEALTH_PATHS,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    MAX_QUERY_FIELDS,
    MAX_TARGET_BYTES,
    read_cookie,
    read_headers,
)
from tests.security.wire import (
    HOST,
    LAST,
    exchange_bytes,
    open_raw_connection,
    parse_statuses,
    read_until_closed,
)
from tests.support.openapi_document import list_operations
from tests.support.running_service import RunningService, run_service, served as served

pytestmark = pytest.mark.clause("endpoint")

HIDDEN = b"GET /hidden HTTP/1.1\r\n" + HOST + b"\r\n"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
POST = b"POST /api/v1/mcp HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN_LENGTH = b"Content-Length: %d\r\n\r\n" % len(HIDDEN)

REFUSED = {
    "chunked with a length that hides a request": POST
    + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (len(HIDDEN) + 5)
    + HIDDEN,
    "a length with chunked that hides a request": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
    "folded chunked with a length": POST
    + b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n12345" + HIDDEN,
    "two lengths in one": POST + b"Content-Length: 5, 0\r\n\r\n12345" + HIDDEN,
    "a signed length": POST + b"Content-Length: +5\r\n\r\n12345" + HIDDEN,
    "a negative length": POST + b"Content-Length: -5\r\n\r\n12345" + HIDDEN,
    "a hexadecimal length": POST + b"Content-Length: 0x5\r\n\r\n12345" + HIDDEN,
    "a length of thirty digits": POST + b"Content-Length: %s\r\n\r\n" % (b"9" * 30) + HIDDEN,
    "a space before the colon": POST + b"Content-Length : 5\r\n\r\n12345" + HIDDEN,
    "a space before the other colon": POST
    + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a coding that is none": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two coding headers": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a control character in a coding": POST
    + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a chunk size that is no number": CHUNKED + b"zz\r\n" + HIDDEN,
    "a negative chunk size": CHUNKED + b"-1\r\n" + HIDDEN,
    "a chunk size with a prefix": CHUNKED + b"0x0\r\n\r\n" + HIDDEN,
    "a chunk size of forty digits": CHUNKED + b"f" * 40 + b"\r\n" + HIDDEN,
    "a chunk longer than its size": CHUNKED + b"2\r\nabXX0\r\n\r\n" + HIDDEN,
    "chunks ended by line feeds": CHUNKED + b"0\n\n" + HIDDEN,
    "a folded first header": b"POST /api/v1/mcp HTTP/1.1\r\n X: y\r\n" + HOST + b"\r\n" + HIDDEN,
    "carriage returns alone": b"GET /hidden HTTP/1.1\rHost: localhost\r\r",
    "a NUL in a header": POST + b"X-A: a\0b\r\n\r\n" + HIDDEN,
    "a length sent twice": POST + b"Content-Length: 40\r\n" * 2 + b"\r\n" + PING,
    "line feeds alone": (POST + b"Content-Length: 40\r\n\r\n").replace(b"\r", b"") + PING,
    "no version": b"GET /hidden\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
WHOLE = {
    "chunks": CHUNKED + b"28\r\n%s\r\n0\r\n\r\n" % PING,
    "chunks with extensions": CHUNKED + b"28;a=b\r\n%s\r\n0\r\n\r\n" % PING,
    "a body that a GET has": b"GET /api/v1 HTTP/1.1\r\n" + HOST + HIDDEN_LENGTH + HIDDEN,
    "a body that is no JSON": POST + HIDDEN_LENGTH + HIDDEN,
}
UNREAD = {
    "a refused method": (b"PUT /api/v1/state HTTP/1.1\r\n" + HOST, 405),
    "a refused method, continued": (
        b"PUT /api/v1/mcp HTTP/1.1\r\nExpect: 100-continue\r\n" + HOST,
        405,
    ),
    "a foreign host": (b"POST /api/v1/mcp HTTP/1.1\r\nHost: evil.example\r\n", 421),
    "a foreign origin": (POST + b"Origin: https://evil.example\r\n", 403),
    "an unknown path": (b"POST /nothing HTTP/1.1\r\n" + HOST, 404),
}


UPGRADE = (
    b"GET /api/v1/mcp HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + HOST
)
HIDING = HIDDEN_LENGTH + HIDDEN
# Requests with the statuses of the responses to them and to another one.
EXCHANGES = {
    **{name: (sent, [400]) for name, sent in REFUSED.items()},
    **{name: (sent, [200, 200]) for name, sent in WHOLE.items()},
    **{name: (head + HIDING, [status, 200]) for name, (head, status) in UNREAD.items()},
    "an upgrade to another protocol": (UPGRADE + HIDING, [405]),
}


@pytest.mark.clause("7.1")
@pytest.mark.parametrize(("sent", "statuses"), EXCHANGES.values(), ids=EXCHANGES)
async def test_ambiguous_framing_is_refused_and_no_body_is_taken_for_a_request(
    served: RunningService, sent: bytes, statuses: list[int]
):
    received = await exchange_bytes(served.base_url, sent + LAST)
    assert parse_statuses(received) == statuses
    assert b"application/json" in received
    assert b"hidden" not in received


async def test_requests_sent_at_once_are_answered_in_their_order(served: RunningService):
    bodies = [json.dumps({"jsonrpc": "2.0", "id": n, "method": "ping"}).encode() for n in range(9)]
    sent = [POST + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]
    received = await exchange_bytes(served.base_url, b"".join(sent) + LAST)
    assert parse_statuses(received) == [200] * 10
    places = [received.index(b'"id":%d,' % n) for n in range(9)]
    assert places == sorted(places)


async def test_a_compressed_body_is_never_inflated(served: RunningService):
    answer = await served.post_mcp(gzip.compress(PING), content_encoding="gzip")
    assert (answer.status_code, answer.json()["error"]) == (415, "invalid_parameter")
    checkout = json.dumps({"contact_email": "agent@example.com"}).encode()
    for encoding, body in (("gzip", gzip.compress(checkout)), ("br", b"\x0b\x02\x80ab\x03")):
        refused = await served.client.post(
            "/api/v1/access/checkout", content=body, headers={"Content-Encoding": encoding}
        )
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")


def build_head(size: int) -> bytes:
    start, end = b"GET /api/v1/signals/sample HTTP/1.1\r\n" + HOST + b"X-Pad: ", b"\r\n\r\n"
    return start + b"a" * (size - len(start) - len(end)) + end


PREVIOUS = {
    "first": b"",
    "after a GET": b"GET /api/v1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "after a body": POST + b"Content-Length: 44\r\n\r\n" + PING + b"\r\n\r\n",
    "after chunks": CHUNKED + b"28\r\n%s\r\n0\r\n\r\n" % PING,
    "after trailers": CHUNKED + b"28\r\n%s\r\n0\r\nX-A: b\r\n\r\n" % PING,
}


@pytest.mark.parametrize("previous", PREVIOUS.values(), ids=PREVIOUS)
@pytest.mark.parametrize("split", ["whole", "middle", "boundary", "last byte"])
async def test_a_head_of_16_kib_is_served_and_a_longer_one_refused(
    served: RunningService, previous: bytes, split: str
):
    before = [200] if previous else []
    for size, expected in ((MAX_HEAD_BYTES, [200, 200]), (MAX_HEAD_BYTES + 1, [431, 200])):
        sent = previous + build_head(size)
        ends = {
            "whole": [],
            "middle": [len(previous) + 9, len(previous) + 9000],
            "boundary": [len(previous) - 1, len(previous) + 1] if previous else [1],
            "last byte": [len(sent) - 1],
        }[split]
        sent += LAST
        async with open_raw_connection(served.base_url) as (reader, writer):
            for start, end in zip([0, *ends], [*ends, len(sent)], strict=True):
                writer.write(sent[start:end])
                # Another exchange with the same event loop, so that the piece has been read.
                await exchange_bytes(served.base_url, LAST)
            assert parse_statuses(await read_until_closed(reader)) == before + expected


@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD_BYTES, 200), (MAX_HEAD_BYTES + 1, 431)])
async def test_a_body_that_comes_after_its_refusal_takes_no_room_of_the_next_head(
    served: RunningService, size: int, status: int
):
    body = b"a\r\n\r\n" * 1000
    async with open_raw_connection(served.base_url) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body))
        assert b" 401 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        # Another exchange with the same event loop, so that the body has been read.
        await exchange_bytes(served.base_url, LAST)
        writer.write(build_head(size) + LAST)
        assert parse_statuses(await read_until_closed(reader))[0] == status


MANY = b"ab:\r\n" * 5000
LONG = b"a" * 2 * MAX_FRAMING_BYTES
FRAMING, HEAD = "framing of the body (heads of chunks, trailers)", "head of the request exceeds 16"
# Each with the part that the refusal names.
ENDLESS = {
    "trailers": (CHUNKED + b"28\r\n%s\r\n0\r\n" % PING + 8 * MANY, FRAMING),
    "a trailer": (CHUNKED + b"28\r\n%s\r\n0\r\nX-A: " % PING + LONG, FRAMING),
    "an extension of a chunk": (CHUNKED + b"28;" + LONG, FRAMING),
    "headers": (POST + MANY, HEAD),
    "headers with an end": (
        POST + MANY[: MAX_HEAD_BYTES // 2] + b":\r\nConnection: close\r\n\r\n",
        "1000 headers.",
    ),
}


@pytest.mark.parametrize(("sent", "named"), ENDLESS.values(), ids=ENDLESS)
async def test_many_headers_and_endless_trailers_are_refused(
    served: RunningService, sent: bytes, named: str
):
    received = await exchange_bytes(served.base_url, sent)
    assert parse_statuses(received)[-1:] == [431]
    assert named in received.decode()


async def test_malformed_bytes_after_a_request_are_refused(served: RunningService):
    received = await exchange_bytes(
        served.base_url, b"GET /api/v1 HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n"
    )
    # The request may have been answered before.
    assert parse_statuses(received)[-1] == 400
    # A page of any origin can read a refusal that is of no resource.
    assert b"access-control-allow-origin: *\r\n" in received


def test_repeated_headers_are_joined_in_their_order():
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"4")]
    assert read_headers({"headers": headers}) == {b"a": b"1, 3, 4", b"b": b"2"}


@pytest.mark.parametrize("framing", ["length", "chunks", "no host"])
async def test_a_refusal_reaches_a_client_that_sends_its_whole_body_first(
    served: RunningService, framing: str
):
    body = b"x" * (4 << 20)
    head = POST + b"Connection: close\r\n"
    sent = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "chunks": head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body,
        "no host": b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
    }[framing]
    async with open_raw_connection(served.base_url) as (reader, writer):
        writer.write(sent)
        await writer.drain()
        expected = 400 if framing == "no host" else 413
        assert parse_statuses(await read_until_closed(reader)) == [expected]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([PING[n : n + 1] for n in range(len(PING))], [200]),
        ([b" "] * 1500 + [PING], [200]),
        ([b" "] * 3000 + [PING], [431]),
        ([b" " * 100] * 600 + [PING], [200]),
        ([b"\r\n\r\n" * 256] * 300, [413]),
    ],
    ids=["a byte each", "within the bound", "over it", "large", "that look like ends of heads"],
)
async def test_a_body_of_very_many_chunks_is_refused(
    served: RunningService, chunks: list[bytes], expected: list[int]
):
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    head = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parse_statuses(await exchange_bytes(served.base_url, head + framed)) == expected


def test_a_body_that_is_sent_at_once_is_read_up_to_its_bound(tmp_path: Path):
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n"

    async def post_all() -> list[bytes]:
        async with run_service(tmp_path) as running:
            return [
                await exchange_bytes(running.base_url, head % size + PING.ljust(size))
                for size in range(16 * 1024, MAX_BODY_BYTES + 1, 4096)
            ]

    # The loop of a service reads several times in a turn, unlike that of the other tests.
    assert {*map(tuple, map(parse_statuses, uvloop.run(post_all())))} == {(200,)}


SAMPLE = "/api/v1/signals/sample"


def build_request(path: str = SAMPLE, headers: str = "", host: bytes = HOST) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n".encode() + host + b"\r\n"


def check_refusal(served: RunningService, received: bytes, status: int, named: str) -> None:
    assert parse_statuses(received) == [status]
    body = httpx.Response(status, content=received.partition(b"\r\n\r\n")[2]).json()
    assert (body["error"], body["docs"]) == ("invalid_parameter", f"{served.base_url}/api/v1")
    assert named in body["message"]
    # A page of any origin can read why its request was refused.
    assert received.lower().count(b"\r\naccess-control-allow-origin: *\r\n") == 1
    assert len(received) < 1000


@pytest.mark.parametrize("start", ["/", "/assets/", "/docs/", "/api/v1/", "/mcp/"])
@pytest.mark.parametrize("filler", ["a", "/"])
async def test_a_path_over_1_kib_is_refused_in_few_bytes(
    served: RunningService, start: str, filler: str
):
    path = start.ljust(MAX_PATH_BYTES, filler)
    browser = "Accept: text/html\r\n"
    assert parse_statuses(await exchange_bytes(served.base_url, build_request(path))) == [404]
    received = await exchange_bytes(served.base_url, build_request(f"{path}a", browser))
    check_refusal(served, received, 414, "path exceeds 1 KiB")


async def test_a_target_over_8_kib_is_refused(served: RunningService):
    for excess, expected in ((0, 200), (1, 414)):
        query = "?".ljust(MAX_TARGET_BYTES - len("/healthz") + excess, "a")
        received = await exchange_bytes(served.base_url, build_request(f"/healthz{query}"))
        assert parse_statuses(received) == [expected]
    check_refusal(served, received, 414, "exceeds 8 KiB")
    longer = await exchange_bytes(served.base_url, build_request("/?" + "a" * MAX_HEAD_BYTES))
    check_refusal(served, longer, 414, "exceeds 8 KiB")


@pytest.mark.parametrize("path", ["/", "/oauth/authorize", "/api/v1/state", "/api/v1/catalog"])
async def test_a_query_of_many_fields_is_refused(served: RunningService, path: str):
    target = f"{path}?a=1" + "&a=" * MAX_QUERY_FIELDS
    received = await exchange_bytes(served.base_url, build_request(target))
    check_refusal(served, received, 414, "more than 100 fields")
    fewer = await exchange_bytes(served.base_url, build_request(target.removesuffix("&a=")))
    assert parse_statuses(fewer) != [414]


async def test_all_tickers_with_encoded_commas_fit_the_target(served: RunningService):
    tickers = "%2C".join(asset.ticker for asset in load_universe().assets)
    assert tickers.count("%2C") >= 250
    target = f"/api/v1/state?ticker={tickers}"
    assert parse_statuses(await exchange_bytes(served.base_url, build_request(target))) == [401]


@pytest.mark.parametrize("name", BOUNDED_HEADERS)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_header_over_4_kib_is_refused_also_in_sum(
    served: RunningService, name: str, count: int
):
    part = "a" * ((MAX_HEADER_BYTES + 1) // count)
    host = b"" if name == "Host" else HOST
    received = await exchange_bytes(
        served.base_url, build_request(headers=f"{name}: {part}\r\n" * count, host=host)
    )
    check_refusal(served, received, 431, f"header {name} exceeds 4 KiB")


async def test_a_browser_gets_a_page_about_a_header_that_is_too_long(served: RunningService):
    answer = await served.client.get(
        "/feed", headers={"Accept": "text/html", "Cookie": "a" * (MAX_HEADER_BYTES + 1)}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (431, "text/html; charset=utf-8")
    assert "header Cookie exceeds 4 KiB" in answer.text


async def test_a_head_is_refused_at_16_kib_without_its_end(served: RunningService):
    async with open_raw_connection(served.base_url) as (reader, writer):
        writer.write(build_request()[:-2] + b"X-Pad: " + b"a" * MAX_HEAD_BYTES)
        received = await reader.read(1000)
    check_refusal(served, received, 431, "head of the request exceeds 16 KiB")


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        ("ours=ab-c_1.2", "ab-c_1.2"),
        ("other=1; ours=abc", "abc"),
        ("other=1;ours=abc;more", "abc"),
        ("other=1, ours=abc, x=2", "abc"),
        ("ours=abc; ours=def", "abc"),
        ("yours=abc", ""),
        ("__Host-ours=abc", ""),
        ('ours="abc"', ""),
        ("ours=a b", ""),
        ("ours=", ""),
        ("ours", ""),
        ("", ""),
    ],
)
def test_only_plain_values_of_our_own_cookie_are_read(sent: str, value: str):
    assert read_cookie({"headers": [(b"cookie", sent.encode())]}, "ours") == value


@pytest.mark.parametrize("unit", ['a="\\"', "ours=", "ours=\\", "; ", ";ours=a ", ", ,"])
def test_a_cookie_of_any_shape_is_found_behind_the_bytes_before_it(unit: str):
    before = (unit * MAX_HEADER_BYTES)[: MAX_HEADER_BYTES - 10]
    headers = [(b"cookie", f"{before}; mine=abc".encode())]
    assert read_cookie({"headers": headers}, "mine") == "abc"


PAGES = [
    ("GET", "/docs"),
    ("GET", "/docs/tools"),
    ("GET", "/web/page.css"),
    ("GET", "/sandbox/checkout/x"),
    ("POST", "/sandbox/checkout/x"),
]
PROBES = [("GET", "/healthz"), ("GET", "/readyz")]
FOREIGN_HOSTS = [
    *(
        "localhost..",
        "localhost.evil",
        ".",
        ".:80",
        "127.1",
        "127.0.0.2",
        "0.0.0.0",
        "2130706433",
        "0x7f.0.0.1",
    ),
    *("host.docker.internal.evil.example", "evil.example", "localhost.evil.example"),
    "evil.example@localhost",
    *("[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::1", "::1", "[::1]evil.example", "[]"),
    *("", ":80", "localhost:80:80", "localhost:999999", "localhost:x", "localhost,evil.example"),
    *("localhost evil.example", "localhost/", "localhost?", "localhost#", "evil.example:8000"),
    *("localhost\\evil.example", "localhost%00", "%6cocalhost", "http://localhost", "l\xf6calhost"),
]
FOREIGN_ORIGINS = [
    *("http://localhost.evil.example", "http://localhost@evil.example", "http://localhost.."),
    *("http://evil.example#localhost", "http://evil.example/localhost", "http://localhost/path"),
    *("", "null", "localhost", "//localhost", "http:localhost", "http://", "ftp://localhost"),
    *("chrome-extension://localhost", "http://localhost http://evil.example", "http://[::1"),
]
OUR_ORIGINS = [
    "HTTPS://LOCALHOST:3000",
    "http://localhost.:3000",
    "http://[::1]:3000",
    "http://127.0.0.1",
]


def get(
    host_line: bytes, target: bytes = b"/api/v1/signals/sample", version: bytes = b"1.1"
) -> bytes:
    return b"GET %s HTTP/%s\r\n%s\r\n" % (target, version, host_line)


OUR_HOSTS = [
    *("localhost", "LocalHost:1", "127.0.0.1:", "[::1]:8000", "localhost.", "LOCALHOST.:80"),
    *("host.docker.internal:8000", "host.containers.internal"),
]


@pytest.mark.parametrize(
    ("host", "status"),
    [*((host, 421) for host in FOREIGN_HOSTS), *((host, 200) for host in OUR_HOSTS)],
)
async def test_only_our_own_host_is_served_in_each_of_its_spellings(
    served: RunningService, host: str, status: int
):
    sent = get(b"Host: %s\r\n" % host.encode("latin-1")) + LAST
    assert parse_statuses(await exchange_bytes(served.base_url, sent)) == [status, 200]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (get(b"Host: localhost\r\nHost: evil.example\r\n"), [400]),
        (get(b"Host: localhost\r\nHost: localhost\r\n"), [400]),
        (get(b""), [400]),
        (get(b"", version=b"1.0"), [421]),
        (get(b"X-Forwarded-Host: localhost\r\nHost: evil.example\r\n"), [421, 200]),
        (get(b"Host: evil.example\r\n", b"http://localhost/api/v1/signals/sample"), [421, 200]),
        (get(b"Host: localhost\r\n", b"http://evil.example/api/v1/signals/sample"), [200, 200]),
        (get(b"Host: localhost\r\n", b"//evil.example/api/v1/signals/sample"), [404, 200]),
    ],
)
async def test_only_one_host_header_of_our_own_is_served(
    served: RunningService, sent: bytes, expected: list[int]
):
    assert parse_statuses(await exchange_bytes(served.base_url, sent + LAST)) == expected


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
async def test_an_origin_that_only_looks_like_ours_is_refused(served: RunningService, origin: str):
    assert (await served.client.get("/api/v1/state", headers={"Origin": origin})).status_code == 403
    both = [("Origin", "http://localhost"), ("Origin", origin)]
    assert (await served.client.get("/api/v1/state", headers=both)).status_code == 403


async def test_pages_and_unknown_paths_are_protected_from_other_origins_too(served: RunningService):
    for method, path in [*PAGES, *PROBES, ("GET", "/nothing"), ("GET", "/")]:
        for name, value, status in (
            ("Host", "evil.example", 421),
            ("Origin", "https://evil.example", 403),
        ):
            answer = await served.client.request(method, path, headers={name: value})
            # Balancers and containers probe under any name.
            assert answer.status_code == (
                200 if path in HEALTH_PATHS and name == "Host" else status
            )


@pytest.mark.prove
async def test_no_response_allows_scripts_of_another_origin_to_read_it(served: RunningService):
    requested = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    keyed = [each for each in list_operations(served) if each[1] not in OPEN_READS]
    for method, path in [*keyed, *PAGES]:
        for origin in [*OUR_ORIGINS, "https://evil.example"]:
            sent = served.key_headers | {"Origin": origin}
            answer = await served.client.request(method, path, headers=sent)
            preflight = await served.client.request("OPTIONS", path, headers=sent | requested)
            assert (answer.status_code == 403) is (origin not in OUR_ORIGINS)
            assert preflight.status_code == 403
            assert "SIGNALS_ALLOWED_ORIGINS" in preflight.json()["message"]
            for headers in (answer.headers, preflight.headers):
                assert not [name for name in headers if name.startswith("access-control")]
