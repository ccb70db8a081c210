"""Requests with ambiguous framing are refused and their connections closed."""

import gzip
import json

import pytest

from tests.security.wire import HOST, LAST, exchange_bytes, parse_statuses
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served

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


@pytest.mark.clause("7.1")
@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_ambiguous_framing_is_refused_and_the_connection_closed(
    served: RunningService, sent: bytes
):
    received = await exchange_bytes(served.base_url, sent + LAST)
    assert parse_statuses(received) == [400]
    is_parsed = sent in (REFUSED["two codings"], REFUSED["no version"])
    assert (b"application/json" if is_parsed else b"text/plain") in received
    assert b"hidden" not in received


@pytest.mark.parametrize("sent", WHOLE.values(), ids=WHOLE)
async def test_a_well_framed_request_is_answered_once(served: RunningService, sent: bytes):
    received = await exchange_bytes(served.base_url, sent + LAST)
    assert parse_statuses(received) == [200, 200]
    assert b"hidden" not in received


@pytest.mark.parametrize(("head", "status"), UNREAD.values(), ids=UNREAD)
async def test_an_unread_body_is_not_taken_for_a_request(
    served: RunningService, head: bytes, status: int
):
    received = await exchange_bytes(served.base_url, head + HIDDEN_LENGTH + HIDDEN + LAST)
    assert parse_statuses(received) == [status, 200]
    assert b"hidden" not in received


async def test_an_upgrade_to_another_protocol_is_refused_and_closed(served: RunningService):
    upgrade = (
        b"GET /api/v1/mcp HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + HOST
    )
    received = await exchange_bytes(served.base_url, upgrade + HIDDEN_LENGTH + HIDDEN + LAST)
    assert parse_statuses(received) == [405]


async def test_requests_sent_at_once_are_answered_in_their_order(served: RunningService):
    bodies = [json.dumps({"jsonrpc": "2.0", "id": n, "method": "ping"}).encode() for n in range(9)]
    sent = [POST + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]
    received = await exchange_bytes(served.base_url, b"".join(sent) + LAST)
    assert parse_statuses(received) == [200] * 10
    places = [received.index(b'"id":%d,' % n) for n in range(9)]
    assert places == sorted(places)


async def test_a_compressed_body_is_never_inflated(served: RunningService):
    packed = gzip.compress(PING)
    answer = await served.post_mcp(packed, content_encoding="gzip")
    assert answer.json()["error"]["code"] == -32700
    checkout = json.dumps({"contact_email": "agent@example.com"}).encode()
    for encoding, body in (("gzip", gzip.compress(checkout)), ("br", b"\x0b\x02\x80ab\x03")):
        refused = await served.client.post(
            "/api/v1/access/checkout", content=body, headers={"Content-Encoding": encoding}
        )
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")
