"""Since when readings hold, the price then and the change since, on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.vocabulary import format_instant
from store.market_rows import BarRow, Batch, ChangeRow, EpochRow
from tests.support.bad_inputs import CONFLUENCE, STATE
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    make_first_readings,
)
from tests.support.row_builders import make_blocks
from tests.support.running_service import RunningService, run_service
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("answers")

HOUR_S = 3600
LAST_CLOSE = NOON // HOUR_MS * HOUR_S
START = NOON - 60 * 24 * HOUR_MS
ENZO = {"ticker": "BTC", "indicator": "enzo", "detail": "changes"}


def make_hours(ticker: str, closes: list[float], until: int = LAST_CLOSE) -> list[BarRow]:
    """Return consecutive hourly bars, of which the last one closes at `until`."""
    first = until - len(closes) * HOUR_S
    return [
        BarRow(ticker, "1h", first + n * HOUR_S, close, close, close, close, 1.0)
        for n, close in enumerate(closes)
    ]


def make_turn(hours_ago: int, price: float, after: int, before: int, **parts: str) -> ChangeRow:
    cell = {"ticker": "BTC", "indicator": "enzo", "timeframe": "1h"} | parts
    row = make_change(NOON - hours_ago * HOUR_MS, **cell, after=after, before=before)
    return row._replace(price=price)


async def commit(served: RunningService, hours_ago: int, *rows: ChangeRow, **parts) -> None:
    """Commit changes and bars in a run."""
    bars = [replace(block, source="x") for block in make_blocks(*parts.pop("bars", ()))]
    run = NOON - hours_ago * HOUR_MS
    await served.market.commit(replace(make_batch(run, list(rows)), bars=bars, **parts))


def get_address(home: StoreHome) -> Path | str:
    return Path(home.address) if isinstance(home, SqliteHome) else home.address


@pytest.fixture
async def moved(home: StoreHome) -> AsyncIterator[RunningService]:
    """A service whose BTC closed at 80, 90, 100, 110 and 120 in the last five hours."""
    async with run_service(get_address(home)) as served:
        await served.market.publish_coverage(make_coverage())
        first = [row._replace(price=50.0) for row in make_first_readings(START)]
        tickers = dict.fromkeys({row.ticker for row in first}, 0)
        await served.market.commit(Batch(START, changes=first, publish_from=tickers))
        btc = make_hours("BTC", [80.0, 90.0, 100.0, 110.0])
        past = [bar._replace(open_time=bar.open_time - HOUR_S) for bar in btc]
        stock = make_hours("NVDA", [10.0], LAST_CLOSE - 20 * HOUR_S)
        await commit(served, 2, make_turn(2, 100.0, -1, 1), bars=[*past[:3], *stock])
        perpkit = make_turn(1, 110.0, 0, 1, indicator="perpkit")
        await commit(served, 1, perpkit, bars=[past[3]])
        await commit(served, 0, make_turn(0, 120.0, 0, -1), bars=make_hours("BTC", [120.0]))
        yield served


@pytest.mark.clause("4.6.13")
async def test_each_reading_says_since_when_it_holds_and_how_the_price_has_moved(moved, transport):
    plain = await moved.fetch_answer(transport, STATE, ticker="BTC")
    answer = await moved.fetch_answer(transport, STATE, ticker="BTC", detail="changes")
    (asset,) = answer["assets"]
    changes = asset.pop("changes")
    assert asset.pop("last_bar") == {"closed_at": "2026-09-30T12:00:00.000Z", "close": 120.0}
    assert asset == plain["assets"][0]
    assert {key: set(cells) for key, cells in changes.items()} == {
        key: set(cells) for key, cells in asset["signals"].items()
    }
    turned = {"since": format_instant(NOON), "price": 120.0, "change_percent": 0.0}
    assert changes["enzo"]["1h"] == turned
    hour_ago = {
        "since": format_instant(NOON - HOUR_MS),
        "price": 110.0,
        "change_percent": 9.0909,
    }
    assert changes["perpkit"]["1h"] == hour_ago
    for key in ("enzo", "dexter", "ceres", "perpkit"):
        assert changes[key]["1d"]["price"] == 50.0
        assert changes[key]["1d"]["change_percent"] == 140.0
        assert changes[key]["1d"]["since"].startswith("2026-08-01T12:03:00.")


@pytest.mark.clause("4.6.13")
async def test_a_past_reading_has_the_change_and_the_close_of_then(moved, transport):
    at = format_instant(NOON - HOUR_MS + 60_000)
    answer = await moved.fetch_answer(transport, STATE, **ENZO, timeframe="1h", as_of=at)
    (asset,) = answer["assets"]
    assert asset["signals"] == {"enzo": {"1h": "bearish"}}
    held = {
        "since": format_instant(NOON - 2 * HOUR_MS),
        "price": 100.0,
        "change_percent": pytest.approx(10.0),
    }
    assert asset["changes"] == {"enzo": {"1h": held}}
    assert asset["last_bar"] == {"closed_at": "2026-09-30T11:00:00.000Z", "close": 110.0}


@pytest.mark.clause("4.6.13")
async def test_an_asset_without_new_bars_has_its_own_last_close_and_one_without_bars_none(
    moved, transport
):
    answer = await moved.fetch_answer(transport, STATE, ticker="NVDA,ETH", detail="changes")
    eth, nvda = answer["assets"]
    assert nvda["last_bar"] == {"closed_at": "2026-09-29T16:00:00.000Z", "close": 10.0}
    assert nvda["changes"]["llnr"]["4h"]["change_percent"] == -80.0
    assert "last_bar" not in eth
    assert eth["changes"]["llnr"]["4h"]["change_percent"] is None


@pytest.mark.clause("4.8.16")
@pytest.mark.parametrize("hours_ago", [0, 1])
async def test_each_vote_says_since_when_it_holds(moved, transport, hours_ago):
    as_of = {} if hours_ago == 0 else {"as_of": format_instant(NOON - HOUR_MS)}
    query = {"timeframe": "1h", "min_agree": 1, **as_of}
    plain = await moved.fetch_answer(transport, CONFLUENCE, **query)
    answer = await moved.fetch_answer(transport, CONFLUENCE, **query, detail="changes")
    assert answer["query"] == plain["query"] | {"detail": "changes"}
    state = await moved.fetch_answer(transport, STATE, timeframe="1h", detail="changes", **as_of)
    by_ticker = {asset["ticker"]: asset for asset in state["assets"]}
    for result, without in zip(answer["results"], plain["results"], strict=True):
        asset = by_ticker[result["ticker"]]
        assert result.pop("last_bar", None) == asset.get("last_bar")
        changes = {key: {"1h": change} for key, change in result.pop("changes").items()}
        assert changes == asset["changes"]
        assert result == without


@pytest.mark.clause("14.7")
async def test_a_service_that_hides_prices_leaves_closes_out(home, transport):
    async with run_service(get_address(home), shows_prices=False) as served:
        await served.market.publish_coverage(make_coverage())
        await commit(served, 0, *make_first_readings(NOON), publish_from={"BTC": 0})
        await commit(served, 0, bars=make_hours("BTC", [120.0]))
        answer = await served.fetch_answer(transport, STATE, **ENZO, timeframe="1h")
    (asset,) = answer["assets"]
    assert asset["last_bar"] == {"closed_at": "2026-09-30T12:00:00.000Z", "close": None}
    held = asset["changes"]["enzo"]["1h"]
    assert (held["price"], held["change_percent"]) == (101.5, None)


@pytest.mark.clause("4.6.13")
async def test_a_price_of_a_replaced_history_is_not_compared_with_the_present_one(moved, transport):
    """After a split the stored prices of older changes are those of another unit."""
    split = [
        replace(block, source="x", revision=1) for block in make_blocks(*make_hours("BTC", [12.0]))
    ]
    epoch = EpochRow("BTC", "1h", "enzo", 2, 1, 1, LAST_CLOSE, "history replaced")
    row = make_turn(0, 12.0, 1, 0)._replace(created_at=NOON + HOUR_MS, epoch=2)
    batch = make_batch(NOON + HOUR_MS, [row])
    await moved.market.commit(replace(batch, bars=split, epochs=[epoch]))
    answer = await moved.fetch_answer(transport, STATE, ticker="BTC", detail="changes")
    changes = answer["assets"][0]["changes"]
    assert changes["enzo"]["1h"]["change_percent"] == 0.0
    assert changes["enzo"]["4h"] == changes["enzo"]["4h"] | {"price": 50.0, "change_percent": None}


@pytest.mark.clause("4.6.14")
async def test_changes_do_not_fit_lines(served, transport):
    status, error = await served.fetch_refusal(transport, STATE, view="lines", detail="changes")
    assert (status, error["error"]) == (400, "invalid_parameter")
    assert "omit view or detail" in error["message"]
