"""Rows recomputed from a customer's bars: equal bars give equal rows, others are explained."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compute.indicators.registry import INDICATORS
from compute.own_bars.comparison import (
    Comparison,
    Period,
    ServedRow,
    compare_asset,
    parse_served_row,
)
from compute.own_bars.recompute import OwnAsset, recompute_asset
from compute.sources.files import FilesSource
from compute.universe import Universe, load_universe
from schemas.vocabulary import format_instant
from store.market_rows import AlertRow, ChangeRow
from tests.support.bar_sets import (
    copy_newest_rows,
    generate_folder,
    get_recorded_folder,
    has_recorded_bars,
)
from tests.support.small_market import (
    load_small_universe,
    open_store,
    replay_bars,
    write_small_market,
)

pytestmark = pytest.mark.clause("verify")

BY_ID = {indicator.id: indicator for indicator in INDICATORS}
WHOLE = Period(0, 2**40, 2**40)
HOURLY = 1500
READINGS = {1: "bullish", 0: "neutral", -1: "bearish"}
Rows = list[ServedRow]


def build_served(row: ChangeRow | AlertRow) -> ServedRow:
    """Return a stored row as the feed serves it, parsed."""
    is_change = isinstance(row, ChangeRow)
    served = {
        "id": row.id,
        "tier": "universe" if is_change else "alerts",
        "ticker": row.ticker,
        "indicator": row.indicator,
        "timeframe": row.timeframe,
        "transition": None,
        "action": None if is_change else row.action,
        "price": row.price,
        "created_at": format_instant(row.created_at),
    }
    if is_change:
        served["transition"] = {"from": READINGS[row.before], "to": READINGS[row.after]}
    return parse_served_row(served)


async def publish(path: Path, folder: Path, universe: Universe) -> Rows:
    """Return the rows that a service publishes from a folder of bars."""
    await replay_bars(path, folder, universe, 2**40)
    async with open_store(path) as store:
        changes = [row async for row in store.changes()]
        alerts = [row async for row in store.alerts()]
    return [build_served(row) for row in (*changes, *alerts) if getattr(row, "published", True)]


async def recompute(folder: Path, ticker: str, universe: Universe) -> OwnAsset:
    source = FilesSource(folder, universe)
    fetched = await source.fetch(ticker, -1, 2**40)
    native = source.get_native_timeframe(ticker)
    return recompute_asset(ticker, native, fetched.bars, fetched.funding, universe, INDICATORS)


async def compare(
    folder: Path, ticker: str, rows: Rows, universe: Universe, period: Period = WHOLE
) -> Comparison:
    session = universe.by_ticker[ticker].session
    asset = await recompute(folder, ticker, universe)
    own = [row for row in rows if row.key.ticker == ticker]
    return compare_asset(asset, own, period, BY_ID, has_sessions=session != "24x7")


async def assert_equal(folder: Path, rows: Rows, universe: Universe) -> int:
    """Assert that every asset gives exactly its rows; return how many there are."""
    count = 0
    for ticker in FilesSource(folder, universe).list_tickers():
        compared = await compare(folder, ticker, rows, universe)
        assert compared.differences == [], ticker
        count += compared.equal_count
    assert count == len(rows)
    return count


async def test_the_bars_of_the_service_give_its_rows_in_every_session(tmp_path):
    universe, folder = load_small_universe(tmp_path), write_small_market(tmp_path)
    rows = await publish(tmp_path / "market.db", folder, universe)
    assert await assert_equal(folder, rows, universe) > 150
    assert {row.key.tier for row in rows} == {"universe", "alerts"}


@pytest.mark.prove
@pytest.mark.skipif(not has_recorded_bars(), reason="no recorded bars in the default folder")
async def test_recorded_bars_give_the_rows_of_a_service_that_replays_them(tmp_path):
    universe, folder = load_universe(), tmp_path / "bars"
    copy_newest_rows(get_recorded_folder(), folder, ("BTC_1h.csv", "BTC_funding.csv"), 6000)
    copy_newest_rows(get_recorded_folder(), folder, ("NVDA_1h.csv",), 2000)
    rows = await publish(tmp_path / "market.db", folder, universe)
    assert await assert_equal(folder, rows, universe) > 500


# Differences


@pytest.fixture(scope="module")
def served_folder(tmp_path_factory) -> Path:
    """Generated bars of one coin, which the service of this module has."""
    folder = tmp_path_factory.mktemp("served")
    copy_newest_rows(generate_folder(HOURLY), folder, ("BTC_1h.csv", "BTC_funding.csv"), HOURLY)
    return folder


@pytest.fixture(scope="module")
def universe() -> Universe:
    return load_universe()


@pytest.fixture
async def rows(served_folder, universe, tmp_path) -> Rows:
    return await publish(tmp_path / "market.db", served_folder, universe)


@pytest.fixture
def own(served_folder, tmp_path) -> Path:
    """A copy of the service's bars, for a test to change."""
    folder = tmp_path / "own"
    copy_newest_rows(served_folder, folder, ("BTC_1h.csv", "BTC_funding.csv"), HOURLY)
    return folder


def edit_bars(folder: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    path = folder / "BTC_1h.csv"
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *change(rows)])


def list_causes(compared: Comparison) -> str:
    return "\n".join(cause for one in compared.differences for cause in one.causes)


async def test_the_same_bars_give_the_same_rows(own, rows, universe):
    assert await assert_equal(own, rows, universe) > 100


async def test_a_shorter_history_is_named_with_its_bars(own, rows, universe):
    edit_bars(own, lambda table: table[900:])
    first = (await recompute(own, "BTC", universe)).bars["1h"].close_time[0]
    compared = await compare(own, "BTC", rows, universe, Period(int(first), 2**40, 2**40))
    assert compared.equal_count > 0
    assert all(one.causes for one in compared.differences)
    causes = list_causes(compared)
    assert re.search(r"your bars begin \d+ bars before it, and the first reading needs 199", causes)


async def test_bars_that_the_customer_lacks_are_named(own, rows, universe):
    key = next(row.key for row in reversed(rows) if row.key.timeframe == "1h")
    edit_bars(own, lambda table: [one for one in table if int(one[0]) + 3600 != key.close_time])
    compared = await compare(own, "BTC", rows, universe)
    assert all(one.causes for one in compared.differences)
    causes = list_causes(compared)
    assert "you have no such bar (yours close from " in causes


async def test_a_bar_with_another_close_is_named_with_both_prices(own, rows, universe):
    row = next(row for row in reversed(rows) if row.key.timeframe == "1h")

    def raise_price(table: list[list[str]]) -> list[list[str]]:
        for one in table:
            if int(one[0]) + 3600 == row.key.close_time:
                one[1:5] = [repr(1.001 * float(price)) for price in one[1:5]]
        return table

    edit_bars(own, raise_price)
    compared = await compare(own, "BTC", rows, universe)
    causes = list_causes(compared)
    assert f"the bar closed at {row.price:.10g} there, at {1.001 * row.price:.10g} in" in causes
    assert re.search(r"\d+ of \d+ prices of BTC differ from your bars", causes)
    assert all(one.causes for one in compared.differences)


async def test_missing_funding_is_named(own, rows, universe):
    (own / "BTC_funding.csv").unlink()
    compared = await compare(own, "BTC", rows, universe)
    assert {re.match(r"alerts BTC (\w+)", one.text)[1] for one in compared.differences} <= {
        "perpkit"
    }
    for one in compared.differences:
        assert any("no funding of the 24 hours before" in cause for cause in one.causes)


async def test_a_rebuilt_indicator_is_named(own, rows, universe):
    changed = [
        row._replace(content="neutral to bullish", epoch=2) if at == len(rows) - 1 else row
        for at, row in enumerate(rows)
    ]
    compared = await compare(own, "BTC", changed, universe)
    assert "the service had rebuilt this indicator before (epoch 2)" in list_causes(compared)


async def test_an_alert_that_a_downtime_delayed_is_named(own, rows, universe):
    alert = next(row for row in reversed(rows) if row.key.tier == "alerts")
    before = [row for row in rows if row.key.close_time <= alert.key.close_time]
    change = next(row for row in reversed(before) if row.key.tier == "universe")
    late = change._replace(created_at=change.key.close_time + 30 * 3600)
    others = [late if row == change else row for row in rows if row != alert]
    compared = await compare(own, "BTC", others, universe)
    assert "the service wrote rows 30 hours late before it" in list_causes(compared)


async def test_an_invented_row_and_a_withheld_row_have_no_cause(own, rows, universe):
    settled = [row for row in rows if row.key.timeframe == "1h" and row.key.tier == "universe"]
    withheld = settled[-1]
    invented = withheld._replace(
        key=withheld.key._replace(close_time=withheld.key.close_time - 7200), price=None
    )
    others = [row for row in rows if row != withheld]
    start = invented.key.close_time
    compared = await compare(own, "BTC", [*others, invented], universe, Period(start, 2**40, 2**40))
    texts = [one.text for one in compared.differences]
    assert f"the feed has {invented.content}, your bars give no row" in texts[0]
    assert texts[0].endswith(", but have it 2 bars after")
    assert any(f"the feed has no row, your bars give {withheld.content}" in one for one in texts)
    assert [cause for one in compared.differences for cause in one.causes] == []


async def test_rows_that_may_still_come_are_not_held_against_the_service(own, rows, universe):
    last = max(rows, key=lambda row: row.key.close_time)
    others = [row for row in rows if row != last]
    period = Period(0, 2**40, last.key.close_time - 1)
    compared = await compare(own, "BTC", others, universe, period)
    assert "the service may publish it late" in list_causes(compared)


async def test_a_value_near_a_threshold_is_named_if_the_bars_differ(own, rows, universe):
    edit_bars(own, lambda table: table[300:])
    compared = await compare(own, "BTC", rows, universe)
    near = [cause for cause in list_causes(compared).split("\n") if "near a threshold" in cause]
    assert near
    assert all(re.search(r": [\w ]+ is [-\d.e+]+, [\d.]+% from [-\d.e+]+$", one) for one in near)
