"""A first start on live venues, in real processes, as the operator and first clients see it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from compute.bars import DAY_S, HOUR_S
from compute.sources.history_checks import MAX_COMPARED_BARS
from compute.universe import Universe
from schemas.vocabulary import format_instant
from service.commands.cli import wall_clock
from service.config.settings import PREFIX
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.doubles.venues.venue import VenueRequest
from tests.service.commands.test_serve import stored
from tests.support.live_service import KEY, UNIVERSE, build_live_settings, list_universe
from tests.support.signals_command import create_store, run_signals, start_signals

pytestmark = pytest.mark.clause("live")

WITHIN_S = 120.0
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "signals_get_state", "arguments": {}},
}


def only(*tickers: str) -> Universe:
    assets = tuple(UNIVERSE.by_ticker[ticker] for ticker in tickers)
    return Universe(assets=assets, renamed_on=UNIVERSE.renamed_on)


@pytest.fixture
async def double() -> AsyncIterator[VenuesDouble]:
    """The venues' double on the wall clock; it lists a coin and a stock."""
    async with run_venues_double(wall_clock) as running_double:
        now = wall_clock() // 1000 // HOUR_S * HOUR_S
        await list_universe(running_double, only("ETH", "NVDA"), now - 332 * DAY_S, now + DAY_S)
        yield running_double


def history(double: VenuesDouble) -> list[VenueRequest]:
    return [request for request in double.get_venue("binance").requests if "klines" in request.path]


async def wait_for_requests(double: VenuesDouble, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(history(double)) < count:  # noqa: ASYNC110 (the double offers no event)
            await asyncio.sleep(0.002)


async def state_once_served(client: httpx.AsyncClient) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await client.get("/api/v1/state")
            if answer.status_code != 503:
                body: dict[str, Any] = answer.raise_for_status().json()
                return body
            await asyncio.sleep(0.02)


@pytest.mark.prove
@pytest.mark.clause("fresh")
async def test_a_first_start_reports_its_progress_and_continues_from_there_if_killed(
    double, tmp_path
):
    given = build_live_settings(tmp_path, only("ETH"), double)
    create_store(tmp_path)
    made = await asyncio.to_thread(run_signals, tmp_path, "keys", "create", "--label", "tests")
    headers = {"X-Api-Key": made.stdout.strip()}
    address = f"http://127.0.0.1:{given['port']}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=WITHIN_S) as client:
        with start_signals(tmp_path, "serve", **given) as process:
            await wait_for_requests(double, 4)
            double.get_venue("binance").add_failure("hanging", path="klines", times=None)
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            said = "Building history: responses are 503 until it is complete.\n"
            assert said in process.printed
            if "%" not in "".join(process.printed):  # where the machine is slow, it follows
                await asyncio.to_thread(process.wait_for_line, "%")
            assert [line for line in process.printed if line.startswith("building history: ")]
            kept = stored(tmp_path)[0]
            refused = await client.get("/api/v1/state")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "60")
            assert refused.json()["error"] == "unavailable"
            # Assets whose requests hang are set aside after a while, and the history goes on.
            built = {format_instant(time) for time in (kept, stored(tmp_path)[0])}
            assert any(
                f"built up to {time}, needed up to " in refused.json()["message"] for time in built
            )
            called = (await client.post("/api/v1/mcp", json=CALL)).json()["result"]
            assert called["isError"]
            again = await client.get("/api/v1/state")
            assert json.loads(called["content"][0]["text"]) in (refused.json(), again.json())
            for path in ("", "/catalog", "/openapi.json", "/signals/sample"):
                assert (await client.get(f"/api/v1{path}")).status_code == 200, path
        hung = len(history(double))
        double.clear_failures()
        with start_signals(tmp_path, "serve", **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            state = await state_once_served(client)
    assert (state["meta"]["source"], state["meta"]["simulated"]) == ("live", False)
    assert state["meta"]["stale"] is False
    assert [asset["ticker"] for asset in state["assets"]] == ["ETH"]
    after = [request.get_seconds("startTime", 0) for request in history(double)[hung:]]
    compared = (MAX_COMPARED_BARS + 1) * HOUR_S
    assert min(after) >= kept // 1000 // HOUR_S * HOUR_S - compared
    assert max(Counter(after).values()) == 1


@pytest.mark.prove
async def test_only_one_of_several_processes_sends_requests_to_the_venues(double, tmp_path):
    given = build_live_settings(tmp_path, only("ETH"), double)
    create_store(tmp_path)
    made = await asyncio.to_thread(run_signals, tmp_path, "keys", "create", "--label", "tests")
    headers = {"X-Api-Key": made.stdout.strip()}
    address = f"http://127.0.0.1:{given['port']}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=WITHIN_S) as client:
        with start_signals(tmp_path, "serve", "--workers", "2", **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            state = await state_once_served(client)
            assert await asyncio.to_thread(process.stop) == 0
    assert state["meta"]["source"] == "live"
    request = [one.get_seconds("startTime", 0) for one in history(double)]
    assert max(Counter(request).values()) == 1


@pytest.mark.prove
async def test_compute_builds_history_by_itself_and_quotes_no_secret_of_a_wrong_key(
    double, tmp_path
):
    given = build_live_settings(tmp_path, only("ETH", "NVDA"), double)
    wrong = {"alpaca_key_id": "PKWRONG0KEY", "alpaca_secret_key": "wrong+secret/value"}
    with start_signals(tmp_path, "compute", **given, **wrong) as process:
        await asyncio.to_thread(process.wait_for_line, "building history: 100%")
        assert await asyncio.to_thread(process.stop) == 0
    said = "".join(process.printed)
    assert f"check {PREFIX}ALPACA_KEY_ID and {PREFIX}ALPACA_SECRET_KEY" in said
    assert not [secret for secret in wrong.values() if secret in said]
    assert stored(tmp_path)[1] > 1
    done = await asyncio.to_thread(run_signals, tmp_path, "audit", universe=given["universe"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean")


def test_half_a_key_ends_the_command_in_one_line_without_it(tmp_path):
    done = run_signals(tmp_path, "compute", source="live", alpaca_key_id=KEY["alpaca_key_id"])
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert KEY["alpaca_key_id"] not in done.stderr
