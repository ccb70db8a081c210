"""A first start on live venues, in real processes, as the operator and first clients see it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from compute.bars import DAY_S, HOUR_S
from compute.universe import Universe
from service.commands.cli import wall_clock
from service.config.settings import PREFIX
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.service.commands.test_serve import served_process, stored
from tests.support.live_service import KEY, UNIVERSE, build_live_settings, list_universe
from tests.support.signals_command import (
    create_key,
    create_store,
    run_signals,
    start_signals,
    write_cut_universe,
)
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars

WITHIN_S = 120.0


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


@asynccontextmanager
async def open_client(folder: Path, given: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """Create a store and a key in a folder; yield a client of the service with these settings."""
    create_store(folder)
    headers = {"X-Api-Key": await asyncio.to_thread(create_key, folder)}
    address = f"http://127.0.0.1:{given['port']}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=WITHIN_S) as client:
        yield client


async def state_once_served(client: httpx.AsyncClient, ticker: str) -> dict[str, Any]:
    """Return the state as soon as it has an asset."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await client.get("/api/v1/state")
            if answer.status_code != 503:
                body = answer.raise_for_status().json()
                if ticker in [asset["ticker"] for asset in body["assets"]]:
                    return body
            await asyncio.sleep(0.02)


@pytest.mark.prove
@pytest.mark.clause("live", "fresh")
async def test_a_first_start_serves_what_is_complete_and_continues_from_there_if_killed(
    double, tmp_path
):
    both, now = only("ETH", "OKB"), wall_clock() // 1000 // HOUR_S * HOUR_S
    await list_universe(double, both, now - 332 * DAY_S, now + DAY_S)
    hanging = double.get_venue("binance").add_failure("hanging", path="klines", times=None)
    given = build_live_settings(tmp_path, both, double)
    async with open_client(tmp_path, given) as client:
        with start_signals(tmp_path, "serve", **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            said = "Building history, coins first: calls are answered with what is complete.\n"
            assert said in process.printed
            refused = await client.get("/api/v1/state")
            if refused.status_code == 503:
                assert refused.headers["Retry-After"] == "5"
                assert "No asset has its history yet." in refused.json()["message"]
            state = await state_once_served(client, "OKB")
            assert [asset["ticker"] for asset in state["assets"]] == ["OKB"]
            assert state["meta"]["building_assets"] == ["ETH"]
            # Just before an hourly run, which builds the rest, no share is printed.
            await asyncio.to_thread(process.wait_for_line, '"history_built"')
            for path in ("", "/catalog", "/openapi.json", "/signals/sample"):
                assert (await client.get(f"/api/v1{path}")).status_code == 200, path
        fetched = double.get_venue("okx").count_requests("candles")
        double.get_venue("binance").end_failure(hanging)
        with start_signals(tmp_path, "serve", **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            state = await state_once_served(client, "ETH")
    assert (state["meta"]["source"], state["meta"].get("simulated", False)) == ("live", False)
    assert state["meta"].get("stale", False) is False
    assert [asset["ticker"] for asset in state["assets"]] == ["ETH", "OKB"]
    # Not its history of 80 pages, if an hour was due meanwhile.
    assert double.get_venue("okx").count_requests("candles") - fetched < 10


@pytest.mark.clause("live")
@pytest.mark.prove
async def test_only_one_of_several_processes_sends_requests_to_the_venues(double, tmp_path):
    given = build_live_settings(tmp_path, only("ETH"), double)
    async with open_client(tmp_path, given) as client:
        with start_signals(tmp_path, "serve", "--workers", "2", **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Listening on ")
            state = await state_once_served(client, "ETH")
            assert await asyncio.to_thread(process.stop) == 0
    assert state["meta"]["source"] == "live"
    history = [one for one in double.get_venue("binance").requests if "klines" in one.path]
    assert max(Counter(one.get_seconds("startTime", 0) for one in history).values()) == 1


@pytest.mark.clause("live")
@pytest.mark.prove
async def test_compute_builds_history_by_itself_and_quotes_no_secret_of_a_wrong_key(
    double, tmp_path
):
    given = build_live_settings(tmp_path, only("ETH", "NVDA"), double)
    wrong = {"alpaca_key_id": "PKWRONG0KEY", "alpaca_secret_key": "wrong+secret/value"}
    with start_signals(tmp_path, "compute", **given, **wrong) as process:
        # Just before an hourly run, which builds the rest, no share is printed.
        await asyncio.to_thread(process.wait_for_line, '"history_built"')
        assert await asyncio.to_thread(process.stop) == 0
    said = "".join(process.printed)
    assert f"check {PREFIX}ALPACA_KEY_ID and {PREFIX}ALPACA_SECRET_KEY" in said
    assert not [secret for secret in wrong.values() if secret in said]
    assert stored(tmp_path)[1] > 1
    done = await asyncio.to_thread(run_signals, tmp_path, "audit", universe=given["universe"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean")


@pytest.mark.clause("live")
async def test_a_live_start_beside_a_simulated_store_has_its_keys_and_says_why_nothing_comes(
    double, tmp_path
):
    given = build_live_settings(tmp_path, only("ETH"), double) | {"database_url": ""}
    del given["source"]
    double.get_venue("binance").add_failure("unavailable", times=None)
    why = "no venue answers: check that this machine is online (binance "
    async with open_client(tmp_path, given) as client:
        with start_signals(tmp_path, "serve", "--live", **given) as process:
            places = "Live market data: 0 of 1 assets have a source that answers."
            await asyncio.to_thread(process.wait_for_line, places)
            await asyncio.to_thread(process.wait_for_line, f"Nothing can be computed yet: {why}")
            state = await client.get("/api/v1/state")
            doctor = await asyncio.to_thread(run_signals, tmp_path, "doctor", "--live", **given)
            assert await asyncio.to_thread(process.stop) == 0
        assert state.status_code == 503
        assert f"Nothing can be computed at the moment: {why}" in state.json()["message"]
        assert f"warn runs: nothing can be computed at the moment: {why}" in doctor.stdout
        assert "ok   prices: shown, because only this machine reaches the service" in doctor.stdout
    files = {path.name for path in tmp_path.glob("signals*.db*")}
    assert {"signals.db", "signals.db-access", "signals-live.db"} <= files
    assert "signals-live.db-access" not in files


@pytest.mark.clause("live")
def test_half_a_key_ends_the_command_in_one_line_without_it(tmp_path):
    done = run_signals(tmp_path, "compute", source="live", alpaca_key_id=KEY["alpaca_key_id"])
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert KEY["alpaca_key_id"] not in done.stderr


# Twelve entries of the packaged file, only crypto and stocks; alert engines follow the first two.
FOLLOWED = ("BTC", "NVDA")
OTHERS = ("AAPL", "ADA", "AVAX", "DOGE", "ETC", "LINK", "LTC", "META", "MSFT", "XRP")
DROPPED = "XAU"
FIRST_COUNT, COUNT = 240, 300
Answers = dict[str, Any]


def write_market(folder: Path, count: int) -> None:
    # Rows outside a session are left out, so those assets need more of them.
    days_before = {"NVDA": 45, DROPPED: 7}
    for ticker in ("BTC", "DOGE", "NVDA", DROPPED):
        first = DENSE - days_before.get(ticker, 0) * DAY_S
        write_bars(folder, ticker, make_bars(ticker, list_opens(first, DENSE + count * 3600)))


def fetch_answers(address: str, api_key: str) -> Answers:
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=f"{address}/api/v1", headers=headers) as client:
        listing = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        return {
            "catalog": client.get("/catalog").json(),
            "stats": client.get("/stats").json(),
            "state": client.get("/state").json(),
            "dropped": client.get("/signals", params={"ticker": DROPPED}).json(),
            "tools": {tool["name"]: tool for tool in listing.json()["result"]["tools"]},
        }


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory) -> tuple[Answers, Answers]:
    """The answers of one server process under the packaged universe, then under the other one.

    It steps the folder to its end; then the folder grows, and another process steps the rest.
    """
    folder = tmp_path_factory.mktemp("universe")
    bars = folder / "bars"
    bars.mkdir()
    write_market(bars, FIRST_COUNT)
    create_store(folder)
    api_key = create_key(folder)
    with served_process(folder, source=f"files:{bars}") as (address, _):
        before = fetch_answers(address, api_key)
        write_market(bars, COUNT)
        (bars / f"{DROPPED}_1h.csv").unlink()
        other = write_cut_universe(folder, {*FOLLOWED, *OTHERS})
        replayed = run_signals(folder, "replay", "--bars", str(bars), universe=other)
        assert replayed.returncode == 0, replayed.stderr
        return before, fetch_answers(address, api_key)


@pytest.mark.clause("sources", "1.2", "1.5", "1.6")
@pytest.mark.prove
def test_the_running_catalog_has_the_assets_of_the_new_file_and_names_the_other(
    before_and_after,
):
    counts = [
        [answers["catalog"]["assets"][n] for n in ("total", "crypto", "equities_and_metals")]
        for answers in before_and_after
    ]
    assert counts == [[251, 176, 75], [12, 8, 4]]
    before, after = (
        {row["ticker"]: row for row in answers["catalog"]["coverage"]["assets"]}
        for answers in before_and_after
    )
    assert sorted(after) == sorted([*FOLLOWED, *OTHERS])
    assert list(after) == [ticker for ticker in before if ticker in after]
    for ticker, universe, alerts in (
        ("NVDA", ["1h", "4h", "1d"], ["4h", "1d"]),
        ("DOGE", ["1h", "4h", "1d"], []),
        # It has no file.
        ("XRP", [], []),
    ):
        assert (after[ticker]["universe"], after[ticker]["alerts"]) == (universe, alerts)
    for name in ("catalog", "stats", "state"):
        assert before_and_after[1][name]["meta"].get("removed_assets", []) == [DROPPED]


@pytest.mark.clause("sources", "1.23")
def test_the_tiers_follow_the_files_of_the_folder_and_the_alerts_of_the_universe(before_and_after):
    before, after = (answers["catalog"]["tiers"] for answers in before_and_after)
    assert (before["universe"]["assets"], after["universe"]["assets"]) == (4, 3)
    assert before["universe"]["logged_combinations"] == 4 * 3 * 6
    assert after["universe"]["logged_combinations"] == 3 * 3 * 6
    assert after["universe"]["state_readings"] == 3 * 3 * 7
    # Only assets that the source covers are followed, so the other four of the six never were.
    for tiers in (before, after):
        assert tiers["alerts"]["tickers"] == list(FOLLOWED)
        assert tiers["alerts"]["engines"] == 2 * 2 * 7


@pytest.mark.clause("sources")
def test_the_enums_of_the_tools_lose_the_class_that_is_gone(before_and_after):
    for tool in ("signals_get_state", "signals_get_confluence"):
        before, after = (
            answers["tools"][tool]["inputSchema"]["properties"] for answers in before_and_after
        )
        assert before["asset_class"]["enum"] == ["crypto", "stock", "metal"]
        assert after["asset_class"]["enum"] == ["crypto", "stock"]
        assert after.get("indicator") == before.get("indicator")


@pytest.mark.clause("sources")
def test_the_running_stats_count_the_rows_of_the_second_replay(before_and_after):
    before, after = (answers["stats"] for answers in before_and_after)
    assert before["window"]["until"] < after["window"]["until"]
    totals = [stats["universe_tier"]["total_signals"] for stats in (before, after)]
    assert 0 < totals[0] < totals[1]
    starts = [stats["universe_tier"]["history_starts_at"] for stats in (before, after)]
    assert starts[0] == starts[1]


@pytest.mark.clause("sources", "2.4.11", "2.4.12")
def test_readings_and_rows_of_a_dropped_asset_stay(before_and_after):
    before, after = (
        {asset["ticker"]: asset for asset in answers["state"]["assets"]}
        for answers in before_and_after
    )
    assert after[DROPPED] == before[DROPPED]
    assert set(after) == set(before) == {"BTC", "DOGE", "NVDA", DROPPED}
    assert after != before
    assert (
        before_and_after[1]["dropped"]["signals"] == before_and_after[0]["dropped"]["signals"] != []
    )
