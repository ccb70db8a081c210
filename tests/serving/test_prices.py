"""Prices for pages: stored bars and summaries of the snapshot that is served, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from schemas.vocabulary import DAY_MS, HOUR_MS
from serving.prices import NO_COLUMNS, BarColumns, Prices, PriceSummary
from serving.snapshot_cache import SnapshotCache
from store.market_rows import AssetBars, Batch, CarryRow
from store.sql.market_store import MarketStore
from tests.support.example_market import ASSETS, NOON, make_coverage
from tests.support.row_builders import BarRow, make_blocks
from tests.support.store_homes import StoreHome, open_and_close, open_market_as

pytestmark = pytest.mark.clause("pages")

HOUR_S, DAY_S = 3600, 86_400
# The close of the newest hour at NOON, which is three minutes after it: a Wednesday at 12:00.
LAST_CLOSE = NOON // HOUR_MS * HOUR_S


@pytest.fixture
async def store(home: StoreHome) -> AsyncIterator[MarketStore]:
    async with open_and_close(home.open_market()) as store:
        yield store


def make_hours(ticker: str, count: int, until: int = LAST_CLOSE) -> list[BarRow]:
    """Return consecutive hourly bars; the one that closes at `until` closes at 1000.

    Each earlier one closes lower by 1, opens 2 below its close, and has a volume of 10.
    """
    return [
        BarRow(ticker, "1h", until - back * HOUR_S - HOUR_S, c - 2, c + 3, c - 4, c, 10.0)
        for back in reversed(range(count))
        for c in [1000.0 - back]
    ]


def make_stepped(ticker: str, four_hours: int, day: int) -> list[CarryRow]:
    """Return carries of readings that stepped on bars with these closes."""
    return [
        CarryRow(ticker, timeframe, "enzo", 1, "f8", 0, close, b"")
        for timeframe, close in (("4h", four_hours), ("1d", day))
    ]


async def commit(store: MarketStore, rows: Iterable[BarRow], hour: int = 0, **parts) -> None:
    """Commit bars in the run `hour` hours after NOON."""
    bars = [replace(block, source="x") for block in make_blocks(*rows)]
    revision = parts.pop("revision", 0)
    bars = [replace(block, revision=revision) for block in bars]
    await store.commit(Batch(NOON + hour * HOUR_MS, bars=bars, **parts))


async def open_prices(store: MarketStore) -> Prices:
    await store.publish_coverage(make_coverage())
    return Prices(SnapshotCache(store))


def epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def get_closes(columns: BarColumns) -> list[tuple[int, float]]:
    """Return (hours before LAST_CLOSE at which the bar opens, close) of each bar."""
    opens = [(LAST_CLOSE - at // 1000) // HOUR_S for at in columns.open_times]
    return list(zip(opens, columns.closes, strict=True))


@pytest.mark.clause("14.1")
@pytest.mark.prove
async def test_hourly_bars_are_the_stored_ones_however_many_commits_wrote_them(store: MarketStore):
    rows = make_hours("BTC", 300)
    await commit(store, rows[:240] + make_hours("ETH", 3), publish_from={"BTC": 0, "ETH": 0})
    for hour, row in enumerate(rows[240:]):
        await commit(store, [row], hour=hour)
    prices = await open_prices(store)
    assert await prices.load_bars("BTC", "1h", 0) == BarColumns(
        [row.open_time * 1000 for row in rows],
        *([row[column] for row in rows] for column in range(3, 8)),
    )
    since = (LAST_CLOSE - 3 * HOUR_S) * 1000
    last_three = [(3, 998.0), (2, 999.0), (1, 1000.0)]
    assert get_closes(await prices.load_bars("BTC", "1h", since)) == last_three
    assert get_closes(await prices.load_bars("BTC", "1h", since - 1)) == last_three
    assert get_closes(await prices.load_bars("BTC", "1h", since + 1)) == last_three[1:]
    assert await prices.load_bars("DARK", "1h", 0) == NO_COLUMNS
    assert await prices.load_bars("NOPE", "4h", 0) == NO_COLUMNS


@pytest.mark.clause("14.2")
async def test_a_longer_bar_shows_once_readings_have_stepped_on_it(store: MarketStore):
    # From 00:00 two days before to 12:00. The readings of 4h were last stepped at 08:00.
    stepped = make_stepped("BTC", LAST_CLOSE - 4 * HOUR_S, LAST_CLOSE - 12 * HOUR_S)
    await commit(store, make_hours("BTC", 60), carries=stepped, publish_from={"BTC": 0})
    prices = await open_prices(store)
    columns = await prices.load_bars("BTC", "4h", (LAST_CLOSE - 13 * HOUR_S) * 1000)
    # Of 00:00 to 04:00 and 04:00 to 08:00; the one from 20:00 opens before `since`.
    assert columns == BarColumns(
        [(LAST_CLOSE - 12 * HOUR_S) * 1000, (LAST_CLOSE - 8 * HOUR_S) * 1000],
        opens=[987.0, 991.0],
        highs=[995.0, 999.0],
        lows=[985.0, 989.0],
        closes=[992.0, 996.0],
        volumes=[40.0, 40.0],
    )
    days = await prices.load_bars("BTC", "1d", 0)
    assert (get_closes(days), days.volumes) == ([(60, 964.0), (36, 988.0)], [240.0, 240.0])
    again = make_stepped("BTC", LAST_CLOSE, LAST_CLOSE - 12 * HOUR_S)
    await commit(store, [], hour=1, carries=again)
    columns = await prices.load_bars("BTC", "4h", (LAST_CLOSE - 13 * HOUR_S) * 1000)
    assert get_closes(columns) == [(12, 992.0), (8, 996.0), (4, 1000.0)]


@pytest.mark.clause("14.2")
async def test_a_daily_bar_of_a_metal_begins_with_the_hours_of_sunday(store: MarketStore):
    monday = epoch("2026-09-28")
    rows = make_hours("XAU", 26, until=monday + DAY_S)
    stepped = make_stepped("XAU", 0, monday + DAY_S)
    await commit(store, rows, carries=stepped, publish_from={"XAU": 0})
    metals = [a.model_copy(update={"joins_sundays": a.ticker == "XAU"}) for a in ASSETS]
    await store.publish_coverage(make_coverage().model_copy(update={"assets": tuple(metals)}))
    days = await Prices(SnapshotCache(store)).load_bars("XAU", "1d", monday * 1000)
    assert (days.open_times, days.opens) == ([monday * 1000], [973.0])
    assert (days.volumes, days.closes) == ([260.0], [1000.0])


@pytest.mark.clause("14.2")
async def test_an_asset_with_daily_bars_only_has_no_shorter_ones(store: MarketStore):
    midnight = LAST_CLOSE - 12 * HOUR_S
    rows = [
        row._replace(timeframe="1d", open_time=midnight - back * DAY_S)
        for back, row in zip((3, 2, 1), make_hours("XAU", 3), strict=True)
    ]
    await commit(store, rows, publish_from={"XAU": 0})
    prices = await open_prices(store)
    assert get_closes(await prices.load_bars("XAU", "1d", 0)) == [
        (84, 998.0),
        (60, 999.0),
        (36, 1000.0),
    ]
    assert await prices.load_bars("XAU", "4h", 0) == NO_COLUMNS
    assert (await prices.load_summaries())["XAU"] == PriceSummary(
        1000.0, midnight * 1000, pytest.approx(1000 / 999 - 1), [998.0, 999.0, 1000.0]
    )


@pytest.mark.clause("14.3")
async def test_a_summary_has_the_last_close_the_change_of_a_day_and_the_week(store: MarketStore):
    await commit(
        store,
        [
            *make_hours("BTC", 400),
            *make_hours("ETH", 24),
            # It ended a month ago.
            *make_hours("MATIC", 30, until=LAST_CLOSE - 30 * DAY_S),
            # Hours of trading on Thursday, Friday and Monday before LAST_CLOSE.
            *make_hours("NVDA", 2, until=epoch("2026-09-25T19:00")),
            *[
                r._replace(close=50.0, low=40.0)
                for r in make_hours("NVDA", 1, epoch("2026-09-28T15:00"))
            ],
        ],
        publish_from=dict.fromkeys(("BTC", "ETH", "MATIC", "NVDA"), 0),
    )
    summaries = await (await open_prices(store)).load_summaries()
    assert summaries.keys() == {"BTC", "ETH", "MATIC", "NVDA"}
    # The bar that closed 24 hours earlier, 24 bars before, closed at 976.
    assert summaries["BTC"] == PriceSummary(
        1000.0,
        LAST_CLOSE * 1000,
        pytest.approx(1000 / 976 - 1),
        [1000.0 - 4 * back for back in reversed(range(42))],
    )
    assert (summaries["ETH"].day_change, summaries["ETH"].closes) == (
        None,
        [980.0, 984.0, 988.0, 992.0, 996.0, 1000.0],
    )
    assert (summaries["MATIC"].closed_at, summaries["MATIC"].day_change) == (
        LAST_CLOSE * 1000 - 30 * DAY_MS,
        pytest.approx(1000 / 976 - 1),
    )
    # On Monday 24 hours earlier is Sunday, and the last close before that is Friday's.
    assert (summaries["NVDA"].day_change, summaries["NVDA"].closes) == (
        pytest.approx(50 / 1000 - 1),
        [1000.0, 50.0],
    )


@pytest.mark.clause("14.3")
async def test_summaries_follow_every_commit_and_a_new_history(store: MarketStore):
    rows = make_hours("BTC", 300)
    await commit(store, rows[:-3] + make_hours("ETH", 30), publish_from={"BTC": 0, "ETH": 0})
    await store.publish_coverage(make_coverage())
    snapshots = SnapshotCache(store)
    prices = Prices(snapshots)
    assert (await prices.load_summaries())["BTC"].last_close == 997.0
    await commit(store, rows[-3:-2], hour=1)
    # PostgreSQL reports a commit later.
    snapshots.expire()
    assert (await prices.load_summaries())["BTC"].last_close == 998.0
    await commit(store, rows[-2:], hour=2)
    snapshots.expire()
    followed = await prices.load_summaries()
    assert followed["BTC"].closes == [1000.0 - 4 * back for back in reversed(range(42))]
    assert followed == await Prices(SnapshotCache(store)).load_summaries()
    halved = [row._replace(close=row.close / 2, low=1.0) for row in rows]
    await commit(store, halved, hour=3, revision=1)
    snapshots.expire()
    restated = await prices.load_summaries()
    assert restated["BTC"].last_close == 500.0
    assert restated["BTC"].day_change == pytest.approx(1000 / 976 - 1)
    assert restated["ETH"] is followed["ETH"]
    assert restated == await Prices(SnapshotCache(store)).load_summaries()
    assert (await prices.load_bars("BTC", "1h", 0)).closes == [row.close for row in halved]


class MeddlingStore(MarketStore):
    """Commits another bar after the first read of prices, and counts these reads."""

    def __init__(self, engine) -> None:
        super().__init__(engine)
        self.later: list[BarRow] = []
        self.reads = 0

    async def asset_bars(self, ticker: str, after: int) -> AssetBars:
        self.reads += 1
        await self._commit_later()
        return await super().asset_bars(ticker, after)

    async def recent_bars(self, span_s, after_number=None):
        self.reads += 1
        await self._commit_later()
        return await super().recent_bars(span_s, after_number)

    async def _commit_later(self) -> None:
        rows, self.later = self.later, []
        if rows:
            await commit(self, rows, hour=1)


@pytest.mark.clause("14.1")
async def test_prices_are_never_newer_than_the_snapshot(tmp_path):
    async with open_and_close(open_market_as(MeddlingStore, tmp_path / "market.db")) as store:
        first, second, third = make_hours("BTC", 3)
        await commit(store, [first], publish_from={"BTC": 0})
        await store.publish_coverage(make_coverage())
        snapshots = SnapshotCache(store)
        prices = Prices(snapshots)
        store.later = [second]
        assert len((await prices.load_bars("BTC", "1h", 0)).closes) == 2
        # The read was repeated with the snapshot of the commit that came in between.
        assert store.reads == 2
        assert (await snapshots.snapshot()).stored.last_closes["BTC"] == LAST_CLOSE - HOUR_S
        store.later, store.reads = [third], 0
        summaries = await prices.load_summaries()
        assert summaries["BTC"].closes[-1] == summaries["BTC"].last_close == 1000.0
        assert store.reads == 2


@pytest.mark.clause("14.3")
async def test_concurrent_callers_share_one_read_per_snapshot(tmp_path):
    async with open_and_close(open_market_as(MeddlingStore, tmp_path / "market.db")) as store:
        await commit(store, make_hours("BTC", 2), publish_from={"BTC": 0})
        prices = await open_prices(store)
        found = await asyncio.gather(*(prices.load_summaries() for _ in range(20)))
        assert all(summaries is found[0] for summaries in found)
        assert store.reads == 1


@pytest.mark.clause("14.1")
async def test_there_are_no_prices_before_the_first_run(store: MarketStore):
    prices = await open_prices(store)
    assert await prices.load_bars("BTC", "1h", 0) == NO_COLUMNS
    assert await prices.load_summaries() == {}
