"""Tests of the benchmark tools: comparable results, distinct calls, one table; no speeds."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from bench.__main__ import PAGE
from bench.calls import SIGNALS, STATE_OF_ONE, fetch, read_result
from bench.load import Call, run_wrk, watch
from schemas.vocabulary import DAY_MS
from tests.support.example_market import NOON
from tools.generate_docs import BLOCK_PATTERN

pytestmark = pytest.mark.clause("tests")


@asynccontextmanager
async def echoing(seen: list[bytes]) -> AsyncIterator[str]:
    """Yield the URL of a server that records the body of each request and returns two bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                seen.append(await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_the_page_has_one_table_of_at_most_25_rows():
    (block,) = BLOCK_PATTERN.finditer(PAGE.read_text())
    assert block[2] == "bench"
    assert 0 < block[0].count("\n| ") - 1 <= 25


@pytest.mark.parametrize("transport", ["MCP", "REST"])
def test_no_two_polls_are_alike(transport):
    calls = SIGNALS._replace(since=(NOON, NOON + DAY_MS)).list_calls(transport, {}, number=1_000)
    assert len({(call.path, call.body) for call in calls}) == 1_000


@pytest.mark.prove
async def test_wrk_sends_the_calls_in_turn():
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    seen: list[bytes] = []
    calls = [Call("/a", json.dumps({"id": number})) for number in range(3)]
    async with echoing(seen) as url:
        calls_s, mean_bytes, failed = await asyncio.to_thread(run_wrk, url, calls, 1, 1)
    # wrk reads one more before the first that it sends.
    assert [json.loads(body)["id"] for body in seen[:4]] == [1, 2, 0, 1]
    assert calls_s > 0
    assert failed == 0
    assert mean_bytes == len("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_calls_at_a_rate_are_due_evenly_and_all_are_made(served):
    calls = STATE_OF_ONE.list_calls("MCP", served.key_headers, number=3)
    came = await asyncio.to_thread(watch, served.base_url, calls, 100.0, 0.2)
    usage = await served.fetch_answer("rest", "signals_get_usage")
    assert (len(came.took_s), came.failed.sum()) == (20, 0)
    assert usage["quota"]["used_today"] == 21
    assert np.diff(came.due_at) == pytest.approx(0.01, abs=1e-6)


async def test_a_refused_call_counts_as_failed_or_ends_the_bench(served):
    refused = Call("/api/v1/usage")
    came = await asyncio.to_thread(watch, served.base_url, [refused], 100.0, 0.02)
    assert list(came.failed) == [True, True]
    (wrong,) = STATE_OF_ONE.list_calls("MCP", {"Authorization": "Bearer wrong"}, number=1)
    for call in (refused, wrong):
        with pytest.raises(SystemExit, match="key"):
            await asyncio.to_thread(fetch, served.base_url, call)


async def test_a_result_is_the_same_over_both_transports(served):
    over_mcp, over_rest = [
        await asyncio.to_thread(
            fetch, served.base_url, *STATE_OF_ONE.list_calls(by, served.key_headers, number=1)
        )
        for by in ("MCP", "REST")
    ]
    assert read_result(over_mcp) == json.loads(over_rest)
