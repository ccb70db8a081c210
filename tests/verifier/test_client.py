"""Responses that are none of a signal service fail in one line, and the key stays private."""

import json

import pytest

from tests.doubles.published_log import API_KEY
from tests.service.public_audit.test_command_refusals import loopback
from verifier.client import ServiceClient
from verifier.errors import LogUnavailableError, MissingError, VerifyError

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

LEAF = {"index": 5, "created_at": "2026-03-01T00:03:00.000Z", "salt": "AAAA"}


async def call(method: str, status: int, body: object, *arguments: object, **headers: str):
    """Call a method of a client on a server that always answers the same."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with loopback(status, content, **headers) as (address, _):
        async with ServiceClient(address, API_KEY) as client:
            return await getattr(client, method)(*arguments)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "without a JSON object"),
        (b"[1]", "without a JSON object"),
        ({}, "malformed leaves"),
        ({"leaves": [{}]}, "malformed leaves"),
        ({"leaves": [LEAF | {"salt": "?"}]}, "malformed leaves"),
        ({"leaves": [LEAF | {"created_at": "2026"}]}, "malformed leaves"),
        ({"leaves": [LEAF | {"index": 5.0}]}, "malformed leaves"),
        ({"leaves": [7]}, "malformed leaves"),
        (b'{"leaves":' + b"[" * 100_000, "without a JSON object"),
        (b'{"leaves": [{"salt": "\\ud800"}]}', "without a JSON object"),
        ({"leaves": [LEAF | {"index": 6}]}, "did not list the leaves 5 to 5"),
        ({"leaves": [LEAF, LEAF]}, "did not list the leaves 5 to 5"),
    ],
)
async def test_malformed_leaves_are_refused(body, reason):
    with pytest.raises(VerifyError, match=reason):
        await call("read_leaves", 200, body, 5, 1)


@pytest.mark.parametrize("body", [{}, {"signals": []}, {"signals": {}, "meta": {}}])
async def test_a_page_without_rows_or_meta_is_refused(body):
    with pytest.raises(VerifyError, match="without rows or meta"):
        await call("read_rows", 200, body)


async def test_a_row_that_is_no_object_is_refused():
    with pytest.raises(VerifyError, match="sent a row that is no object"):
        await call("read_rows", 200, {"signals": [7], "meta": {}})


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33, b"x" * 65])
async def test_a_tile_of_another_length_is_refused(content):
    with pytest.raises(VerifyError, match=f"sent {len(content)} bytes as tile/0/000.p/2"):
        await call("fetch_tile", 200, content, 0, 0, 2)


async def test_a_text_that_is_not_unicode_is_refused():
    with pytest.raises(VerifyError, match="without text"):
        await call("read_checkpoint", 200, b"\xff")


async def test_refusals_are_told_apart():
    error = {"error": "unavailable", "message": "Not signed yet."}
    with pytest.raises(LogUnavailableError, match=r"503 \(unavailable\).*900 seconds: Not signed"):
        await call("read_checkpoint", 503, error, Retry_After="900")
    with pytest.raises(MissingError, match="404"):
        await call("read_key", 404, {})
    with pytest.raises(VerifyError, match=r"401 .*; check the key in SIGNALS_API_KEY"):
        await call("read_rows", 401, {"error": "invalid_key", "message": "No."})


async def test_redirects_are_not_followed():
    with pytest.raises(VerifyError, match="with 302"):
        await call("read_rows", 302, b"", Location="http://127.0.0.1:9/")


async def test_the_key_is_neither_printed_nor_sent_to_open_files():
    with pytest.raises(VerifyError) as caught:
        await call("read_rows", 500, {"error": "x", "message": f"Bad\n{API_KEY}\x1b[31m"})
    assert r"Bad (the key)\u001b[31m" in str(caught.value)
    with loopback(200, b"note") as (address, asked):
        async with ServiceClient(address, API_KEY) as client:
            await client.read_checkpoint()
            await client.read_key()
    assert len(asked) == 2
    assert API_KEY not in str(asked)
