"""Tests of the benchmark tools: equal results, distinct calls, one table. No speeds are tested."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.__main__ import FAILED, PAGE, find_modules, main, measure_modules
from bench.background import BackgroundGets, pick_median_pair, poll_in_background
from bench.calls import STATE, STATE_OF_ONE, USAGE, require_equal, sample_call
from bench.generator import generate_load, is_complete
from bench.latency import select_during
from bench.load import (
    NUMBER,
    SINCE,
    SINCE_STEP_MS,
    Arrivals,
    Call,
    has_wrk,
    measure_arrivals,
    measure_load,
)
from bench.served import Service
from bench.strangers import SIZES, list_probes, list_routes, list_rows, measure
from bench.table import Row, format_table, replace_between_markers
from schemas.vocabulary import DAY_MS
from tests.support.example_market import NOON
from tests.support.running_service import RunningService
from tests.support.service_process import run_service_process

pytestmark = pytest.mark.clause("tests")


@asynccontextmanager
async def echoing(seen: list[bytes]) -> AsyncIterator[str]:
    """Yield the URL of a server that records each request and returns two bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                seen.append(head + await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def ours(served: RunningService) -> Service:
    return Service(served.base_url, served.api_key, NOON, os.getpid())


def test_a_table_shows_for_each_figure_if_its_target_was_met():
    rows = [Row("a", "1"), Row("b", "2", "3", "0.67", ">= 0.5", True), Row("c", "4", is_met=False)]
    assert format_table(rows).splitlines()[2:] == [
        "| a | 1 |  |  |  |  |",
        "| b | 2 | 3 | 0.67 | >= 0.5 | yes |",
        "| c | 4 |  |  |  | **no** |",
    ]


def test_only_the_text_between_the_markers_is_replaced():
    begin, end = "<!-- generated: bench -->\n", "<!-- end -->"
    page = f"{end}before\n{begin}old\n{end}\nafter\n"
    new = replace_between_markers(page, "bench", "new\n")
    assert new == f"{end}before\n{begin}\nnew\n\n{end}\nafter\n"
    assert (
        replace_between_markers(replace_between_markers(page, "bench", "old"), "bench", "new\n")
        == new
    )


def test_a_page_without_markers_is_refused_and_the_real_one_has_them():
    with pytest.raises(SystemExit):
        replace_between_markers("no markers", "bench", "new")
    assert "new" in replace_between_markers(PAGE.read_text(), "bench", "new")


def test_all_modules_that_have_rows_are_run_and_have_a_line_in_the_guide():
    guide = Path("bench/README.md").read_text()
    named = {f"bench.{name}" for name in re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)}
    assert {module.__name__ for module in find_modules()} == named


def test_a_module_that_fails_leaves_a_row_and_the_next_one_runs(tmp_path):
    fails, works = ModuleType("fails"), ModuleType("works")
    fails.rows = lambda: must_fail()
    works.rows = lambda: [Row("b", "2")]
    took: dict[str, float] = {}
    failed, row = measure_modules([fails, works], tmp_path, took)
    assert (failed.what, failed.ours, failed.is_met) == ("fails", f"{FAILED}SystemExit('x')", False)
    assert row == Row("b", "2")
    assert list(took) == ["fails", "works"]


def must_fail() -> list[Row]:
    raise SystemExit("x")


def test_an_unknown_module_is_an_error():
    with pytest.raises(ModuleNotFoundError):
        main(["no_such_module"])


@pytest.mark.parametrize(
    "generator", ["ours", pytest.param("wrk", marks=pytest.mark.prove)], ids=str
)
async def test_no_two_calls_are_alike(generator, monkeypatch):
    if generator == "wrk" and not has_wrk():
        pytest.skip("wrk is not installed")
    if generator == "ours":
        monkeypatch.setenv("PATH", "")
    seconds = 1 if generator == "wrk" else 0.1
    call = Call(f"/a?since={SINCE}", f'{{"id": {NUMBER}}}', {"X-Key": "k"}, NOON, DAY_MS)
    seen: list[bytes] = []
    async with echoing(seen) as url:
        load = await asyncio.to_thread(measure_load, url, call, seconds, 2)
    assert (load.failed, load.answer_bytes) == (
        0,
        len("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    )
    numbers = [json.loads(request.partition(b"\r\n\r\n")[2])["id"] for request in seen]
    instants = [request.partition(b"since=")[2].split()[0].decode() for request in seen]
    assert len(set(numbers)) == len(numbers) > 1
    assert len(set(instants)) == len(instants)
    expected = [NOON + number * SINCE_STEP_MS % DAY_MS for number in numbers]
    assert [since_ms(text) for text in instants] == expected
    assert all(b"\r\nx-key: k\r\n" in request.lower() for request in seen)


def since_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000 + 1e-3)


async def test_calls_at_a_rate_are_due_evenly_and_all_are_made(served):
    call = USAGE.build_mcp_call(ours(served))
    came = await asyncio.to_thread(measure_arrivals, served.base_url, call, 100.0, 0.2, 1)
    usage = await served.fetch_answer("rest", "signals_get_usage")
    assert (len(came.took_s), came.failed) == (20, 0)
    assert usage["quota"]["used_today"] == 21
    assert np.diff(came.due_at) == pytest.approx(0.01, abs=1e-6)


async def test_a_refused_call_counts_as_failed_or_ends_the_bench(served):
    refused = Call("/api/v1/usage")
    came = await asyncio.to_thread(measure_arrivals, served.base_url, refused, 100.0, 0.02, 1)
    assert (len(came.took_s), came.failed) == (2, 2)
    for call in (refused, USAGE.build_mcp_call(replace(ours(served), api_key="wrong"))):
        with pytest.raises(SystemExit, match="key"):
            await asyncio.to_thread(sample_call, served.base_url, call)


async def test_results_must_be_equal_except_for_the_quota(served):
    def over(call: Call):
        return asyncio.to_thread(sample_call, served.base_url, call)

    us = ours(served)
    require_equal(
        "usage", await over(USAGE.build_mcp_call(us)), await over(USAGE.build_rest_call(us))
    )
    one = await over(STATE_OF_ONE.build_mcp_call(us))
    require_equal("state", one, await over(STATE_OF_ONE.build_rest_call(us)))
    with pytest.raises(SystemExit, match="differ"):
        require_equal("state", one, await over(USAGE.build_rest_call(us)))


@pytest.mark.parametrize("requested", ["whole", "not modified", "gzip"])
async def test_each_response_under_load_has_the_size_of_the_sample(served, requested):
    us = ours(served)
    plain = await asyncio.to_thread(sample_call, us.url, STATE.build_rest_call(us))
    given = {"not modified": {"If_None_Match": plain.headers["etag"]}}
    call = STATE.build_rest_call(us, **given.get(requested, {"Accept_Encoding": requested}))
    sample = await asyncio.to_thread(sample_call, us.url, call)
    at_rate = {"first": 0, "seconds": 0.02, "connections": 1, "rate": 100.0}
    load = await generate_load({"url": us.url, "call": asdict(call), **at_rate})
    assert (len(load["times"]), load["failed"]) == (2, 0)
    assert load["bytes"] == 2 * sample.wire_bytes
    assert (sample.body_bytes == 0) is (requested == "not modified")
    assert (sample.body_bytes < len(sample.content)) is (requested == "gzip")


@pytest.mark.parametrize(
    ("seen", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
    ],
)
def test_a_response_is_complete_by_its_length_or_its_last_chunk(seen, whole):
    assert is_complete(bytearray(seen)) is whole


async def test_background_requests_are_sent_and_a_failure_ends_the_bench(served):
    gets = BackgroundGets("pages", paths=("/healthz",), operations=("/readyz",))
    addresses = gets.list_addresses(served.base_url, served.base_url)
    assert addresses == [f"{served.base_url}/healthz", f"{served.base_url}/readyz"]

    def ask(addresses: list[str]) -> None:
        with poll_in_background(addresses, "session=none"):
            pass

    await asyncio.to_thread(ask, addresses)
    with pytest.raises(SystemExit, match="404"):
        await asyncio.to_thread(ask, [*addresses, f"{served.base_url}/nothing"])


def test_the_pair_with_the_median_ratio_is_reported():
    assert pick_median_pair([(1.0, 2.0), (9.0, 3.0), (4.0, 4.0)]) == (4.0, 4.0)


def test_calls_in_progress_during_a_run_count_for_it():
    arrivals = Arrivals(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 0.1, 0.1]), 0)
    assert list(select_during([arrivals], [(1.5, 2.05)])) == [1.5, 0.1]
    assert list(select_during([arrivals], [(0.6, 0.9)])) == []


async def test_strangers_ask_each_route_and_fill_each_field(served, monkeypatch, tmp_path, seeded):
    for place in SIZES:
        monkeypatch.setitem(SIZES, place, (1_000,))
    listed = await asyncio.to_thread(list_probes, served.base_url, served.app.routes)
    called = {(call.method, call.path.partition("?")[0]) for call in listed.values()}
    for method, route in list_routes(served.app.routes):
        asked = [path for by, path in called if by == method and route.path_regex.match(path)]
        assert asked, f"{method} {route.path}"
    for place in (
        "GET /feed ticker=",
        "GET /api/v1/signals since=",
        "POST /sign-in contact_email=",
        "POST /docs/try/signals_claim_key claim_token=",
        "POST /api/v1/access/checkout agent_name:",
        "POST /api/v1/mcp signals_get_state ticker:",
        "POST /oauth/token code_verifier=",
        "POST /oauth/register redirect_uris:",
        "/feed Cookie:",
    ):
        assert any(name.startswith(place) for name in listed), place
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service_process(tmp_path, NOON) as apart:
        strangers = Service(apart.base_url, "", NOON, apart.pid)
        plain = {name: call for name, call in listed.items() if name == f"GET {call.path}"}
        costs = await measure(strangers, plain)
    assert all(cost.answer_bytes > 0 for cost in costs)
    worst = max(costs, key=lambda cost: cost.answer_bytes)
    sizes = [row.what for row in list_rows(costs, costs) if row.ours.endswith(" bytes")]
    assert sizes[0] == f"{worst.name} ({worst.status})"
