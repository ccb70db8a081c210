"""Pages of the feed from memory are those of the store, byte for byte, or none at all."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mcp_server.tools.get_signals import render_recent_signals, render_signals
from schemas.signals import SignalsQuery
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    DAY_MS,
    READING_NAMES,
    TIMEFRAMES,
    format_instant,
)
from serving import recent_feed
from serving.context import Context
from serving.recent_feed import FeedPage, FeedWindow, RecentFeed, RowFilter, encode_row
from serving.snapshot import Snapshot, build_snapshot
from serving.snapshot_cache import SnapshotCache
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow
from store.sql.market_store import MarketStore
from tests.support.example_market import NOON, make_batch, make_change, make_coverage, seed_market
from tests.support.row_builders import make_alert
from tests.support.store_homes import DEADLINE_S, StoreHome, open_and_close, open_market_as

pytestmark = pytest.mark.clause("feed")

TIERS = ("universe", "alerts", "all")
FILTERS = [
    RowFilter(*values)
    for values in product(
        TIERS,
        (None, "BTC", "NVDA", "unknown"),
        (None, "enzo", "perpkit"),
        (None, "1h", "1d"),
        (None, "bullish", "bearish", "neutral", "exit"),
    )
]
FILTERS += [
    RowFilter(tier, None, None, timeframe, direction, asset_class, tickers)
    for tier, timeframe, direction, (asset_class, tickers) in product(
        TIERS,
        (None, "4h"),
        (None, "bearish"),
        (("crypto", None), ("metal", None), (None, ("BTC", "NVDA")), (None, ("ETH", "unknown"))),
    )
]


@pytest.fixture
async def market(home: StoreHome) -> AsyncIterator[MarketStore]:
    async with open_and_close(home.open_market()) as store:
        yield store


ANY = RowFilter("all", None, None, None, None)
RUN_MS = DAY_MS // 4


class Feed:
    """A store that has 60 days of rows, in runs of a few rows each, and a copy of them."""

    def __init__(self, market: MarketStore) -> None:
        self.market = market
        self.rows: list[FeedRow] = []
        self.draw = Random(28)
        self.runs = 0

    async def commit_runs(self, count: int) -> None:
        """Commit runs of up to nine rows together; some of the rows are not published."""
        times = [NOON + (self.runs + number) * RUN_MS for number in range(1, count + 1)]
        self.runs += count
        rows = [self._draw_row(at + n) for at in times for n in range(self.draw.randrange(10))]
        changes = [row for row in rows if isinstance(row, ChangeRow)]
        alerts = [row for row in rows if isinstance(row, AlertRow)]
        await self.market.commit(replace(make_batch(times[-1], changes), alerts=alerts))
        self.rows += [row for row in rows if isinstance(row, AlertRow) or row.published]

    def _draw_row(self, at: int) -> FeedRow:
        choose = self.draw.choice
        ticker, timeframe = choose(["BTC", "ETH", "NVDA"]), choose(TIMEFRAMES)
        if self.draw.random() < 0.2:
            alert = make_alert(at, choose([*ACTION_DIRECTIONS]), ticker, "enzo", timeframe)
            return alert._replace(close_time=at)
        indicator = choose(["enzo", "llnr", "perpkit"])
        readings = self.draw.sample([-1, 0, 1], 2)
        row = make_change(at, ticker, indicator, timeframe, *readings)
        return row._replace(close_time=at, published=indicator != "perpkit")

    async def load_snapshot(self) -> Snapshot:
        snapshot = build_snapshot(await self.market.snapshot())
        assert snapshot is not None
        return snapshot

    def select(self, chosen: RowFilter, window: FeedWindow, snapshot: Snapshot) -> FeedPage:
        """Return the page by a plain filter of all rows."""
        found = [row for row in self.rows if window.after < row.created_at <= window.until]
        found = [row for row in found if _matches(row, chosen)]
        ordered = found if window.oldest_first else found[::-1]
        rest = ordered[window.offset :]
        page = rest[: window.limit]
        newest_at = max((row.created_at for row in page), default=None)
        return FeedPage([encode_row(r, snapshot) for r in page], len(rest) > len(page), newest_at)


def _matches(row: FeedRow, chosen: RowFilter) -> bool:
    if isinstance(row, AlertRow):
        tier, direction = "alerts", ACTION_DIRECTIONS[row.action]
    else:
        tier, direction = "universe", READING_NAMES[row.after]
    asset_class = "stock" if row.ticker == "NVDA" else "crypto"
    fields = (tier, row.ticker, row.indicator, row.timeframe, direction, asset_class)
    is_requested = chosen.tickers is None or row.ticker in chosen.tickers
    wanted = zip(chosen[:-1], fields, strict=True)
    return is_requested and all(want in (None, "all", field) for want, field in wanted)


async def fill_feed(market: MarketStore, runs: int) -> Feed:
    await seed_market(market, make_coverage())
    feed = Feed(market)
    feed.rows = [row async for row in market.changes() if row.published]
    await feed.commit_runs(runs)
    return feed


def draw_window(draw: Random, until: int, earliest: int) -> FeedWindow:
    after = draw.randrange(earliest, until)
    return FeedWindow(
        after, until, draw.randint(1, 60), draw.choice([0, 0, 7]), draw.random() < 0.5
    )


async def test_pages_of_thirty_days_come_from_memory_while_runs_follow(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=140)
    recent = RecentFeed(market)
    for _ in range(4):
        snapshot = await feed.load_snapshot()
        await recent.follow(snapshot)
        until, earliest = snapshot.stored.last_created_at, snapshot.market_time - 30 * DAY_MS
        for chosen in FILTERS:
            window = draw_window(feed.draw, until, earliest)
            assert recent.find_page(chosen, window) == feed.select(chosen, window, snapshot), chosen
        await feed.commit_runs(10)


async def test_a_page_that_needs_older_rows_is_left_to_the_store(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=240)
    recent = RecentFeed(market)
    snapshot = await feed.load_snapshot()
    await recent.follow(snapshot)
    until, earliest = snapshot.stored.last_created_at, snapshot.market_time - 30 * DAY_MS
    pages = left = 0
    for chosen in FILTERS:
        window = draw_window(feed.draw, until, NOON)
        expected = feed.select(chosen, window, snapshot)
        page = recent.find_page(chosen, window)
        if page is None:
            left += 1
            assert window.after < earliest
        else:
            pages += 1
            assert page == expected, chosen
    assert pages > 50
    assert left > 50


async def test_the_newest_page_of_every_ticker_comes_from_memory(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=240)
    recent = RecentFeed(market)
    snapshot = await feed.load_snapshot()
    await recent.follow(snapshot)
    for ticker in (None, "BTC", "ETH", "NVDA"):
        chosen = ANY._replace(ticker=ticker)
        window = FeedWindow(0, snapshot.stored.last_created_at, 50, 0, oldest_first=False)
        assert recent.find_page(chosen, window) == feed.select(chosen, window, snapshot)


async def test_a_short_history_is_in_memory_from_its_first_row(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=20)
    recent = RecentFeed(market)
    snapshot = await feed.load_snapshot()
    await recent.follow(snapshot)
    for oldest_first in (False, True):
        window = FeedWindow(0, snapshot.stored.last_created_at, 200, 0, oldest_first)
        assert recent.find_page(ANY, window) == feed.select(ANY, window, snapshot)
    assert len(feed.rows) > 60


async def test_too_many_bytes_leave_only_the_newest_rows(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=100)
    recent = RecentFeed(market, max_bytes=42_000)
    snapshot = await feed.load_snapshot()
    for _ in range(2):
        await recent.follow(snapshot)
        until = snapshot.stored.last_created_at
        newest = FeedWindow(0, until, 50, 0, oldest_first=False)
        assert recent.find_page(ANY, newest) == feed.select(ANY, newest, snapshot)
        assert recent.find_page(ANY, newest._replace(limit=100)) is None
        assert recent.find_page(ANY, newest._replace(oldest_first=True)) is None
        await feed.commit_runs(30)
        snapshot = await feed.load_snapshot()


async def test_rows_after_the_last_read_are_left_to_the_store(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=4)
    recent = RecentFeed(market)
    newest = FeedWindow(0, feed.rows[-1].created_at, 50, 0, oldest_first=False)
    assert recent.find_page(ANY, newest) is None
    await recent.follow(await feed.load_snapshot())
    assert recent.find_page(ANY, newest) is not None
    assert recent.find_page(ANY, newest._replace(until=newest.until + 1)) is None


async def test_a_new_name_of_an_indicator_reaches_the_rows_in_memory(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=8)
    recent = RecentFeed(market)
    await recent.follow(await feed.load_snapshot())
    coverage = make_coverage()
    renamed = [one.model_copy(update={"name": f"New {one.name}"}) for one in coverage.indicators]
    await market.publish_coverage(coverage.model_copy(update={"indicators": tuple(renamed)}))
    snapshot = await feed.load_snapshot()
    await recent.follow(snapshot)
    newest = FeedWindow(0, snapshot.stored.last_created_at, 50, 0, oldest_first=False)
    page = recent.find_page(ANY, newest)
    assert page == feed.select(ANY, newest, snapshot)
    assert page is not None
    assert b'"indicator_name":"New ' in page.rows[0].plain


async def test_a_database_that_lost_its_newest_runs_is_read_again(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=8)
    earlier = await feed.load_snapshot()
    await feed.commit_runs(4)
    recent = RecentFeed(market)
    for snapshot in (await feed.load_snapshot(), earlier):
        await recent.follow(snapshot)
        newest = FeedWindow(0, snapshot.stored.last_created_at, 200, 0, oldest_first=False)
        assert recent.find_page(ANY, newest) == feed.select(ANY, newest, snapshot)
    beyond = FeedWindow(0, earlier.stored.last_created_at + 1, 50, 0, oldest_first=False)
    assert recent.find_page(ANY, beyond) is None


def draw_query(draw: Random, chosen: RowFilter, earliest: int, until: int) -> SignalsQuery:
    """Return a query with a filter, whose `since` is anywhere, or missing."""
    since = draw.choice([None, format_instant(draw.randrange(earliest, until))])
    return SignalsQuery.model_validate(
        {
            **{name: value for name, value in chosen._asdict().items() if name != "tickers"},
            "ticker": ",".join(chosen.tickers) if chosen.tickers else chosen.ticker,
            "since": since,
            "limit": draw.choice([1, 20, 200]),
            "offset": draw.choice([0, 0, 3]),
            "order": draw.choice(["newest", "oldest"]),
        }
    )


async def test_responses_from_memory_are_those_from_the_store(market: MarketStore) -> None:
    feed = await fill_feed(market, runs=240)
    recent = RecentFeed(market)
    with_memory, without = (
        Context(SnapshotCache(market, each), "http://x", "http://x", lambda: NOON, None, 100)
        for each in (recent, None)
    )
    snapshot = await with_memory.snapshot()
    begins, until = snapshot.market_time - 30 * DAY_MS, snapshot.stored.last_created_at
    from_memory = 0
    for chosen in FILTERS:
        if "unknown" in (chosen.ticker, *(chosen.tickers or ())):
            continue
        query = draw_query(feed.draw, chosen, feed.draw.choice([NOON, begins]), until)
        found = render_recent_signals(query, with_memory, snapshot)
        from_memory += found is not None
        ours = await render_signals(query, with_memory)
        assert ours.text == (await render_signals(query, without)).text, query
        assert found is None or found.text == ours.text
    assert from_memory > 100


class HeldStore(MarketStore):
    """A store whose reads of the feed wait until they are released."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.released = asyncio.Event()

    async def merged_feed(self, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
        await self.released.wait()
        return await super().merged_feed(query, alerts_after)


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[HeldStore]:
    async with open_and_close(open_market_as(HeldStore, tmp_path / "market.db")) as store:
        yield store


def get_newest(snapshot: Snapshot) -> FeedWindow:
    return FeedWindow(0, snapshot.stored.last_created_at, 200, 0, oldest_first=False)


async def test_no_call_waits_for_the_first_read_after_which_the_latest_rows_are_there(
    held: HeldStore,
) -> None:
    feed = await fill_feed(held, runs=8)
    recent = RecentFeed(held)
    recent.keep_up(await feed.load_snapshot())
    await recent.wait()
    await feed.commit_runs(4)
    latest = await feed.load_snapshot()
    recent.keep_up(latest)
    await recent.wait()
    assert recent.find_page(ANY, get_newest(latest)) is None
    held.released.set()
    async with asyncio.timeout(DEADLINE_S):
        while recent.find_page(ANY, get_newest(latest)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert recent.find_page(ANY, get_newest(latest)) == feed.select(ANY, get_newest(latest), latest)


async def test_calls_wait_for_the_rows_of_a_run_but_not_for_long(
    held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = await fill_feed(held, runs=8)
    recent = RecentFeed(held)
    held.released.set()
    await recent.follow(await feed.load_snapshot())
    held.released.clear()
    await feed.commit_runs(4)
    latest = await feed.load_snapshot()
    recent.keep_up(latest)
    with monkeypatch.context() as brief:
        brief.setattr(recent_feed, "MAX_WAIT_S", 0)
        await recent.wait()
    assert recent.find_page(ANY, get_newest(latest)) is None
    monkeypatch.setattr(recent_feed, "MAX_WAIT_S", DEADLINE_S)
    async with asyncio.TaskGroup() as calls:
        calls.create_task(recent.wait())
        await asyncio.sleep(0)
        held.released.set()
    assert recent.find_page(ANY, get_newest(latest)) == feed.select(ANY, get_newest(latest), latest)


async def test_a_snapshot_does_not_wait_for_the_rows_of_the_feed(
    held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_feed, "MAX_WAIT_S", 2 * DEADLINE_S)
    feed = await fill_feed(held, runs=8)
    recent = RecentFeed(held)
    held.released.set()
    await recent.follow(await feed.load_snapshot())
    held.released.clear()
    snapshots = SnapshotCache(held, recent)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(2):
            await feed.commit_runs(4)
            snapshot = await snapshots.snapshot()
            assert snapshot is not None
            assert recent.find_page(ANY, get_newest(snapshot)) is None
    held.released.set()
