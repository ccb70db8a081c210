"""The ledger finds the same as a plain walk over all rows."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    DAY_MS,
    HOUR_MS,
    READING_NAMES,
    TIMEFRAMES,
    UNIVERSE_RETENTION_MS,
    Direction,
)
from serving.feed_ledger import Ledger, read_ledger
from serving.signal_rows import FeedQuery, build_signal
from serving.snapshot import build_snapshot
from store.market_rows import AlertRow, ChangeRow, FeedRow, LastChange
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.support.example_market import make_coverage
from tests.support.row_builders import (
    EVER,
    NOW,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
    make_epoch,
)
from tests.support.store_homes import StoreHome, open_and_close, open_market_as, run_sql

pytestmark = pytest.mark.clause("feed")

TICKERS = ("BTC", "ETH", "NVDA", "XAU")
START = NOW - 100 * DAY_MS
PRICES = (0.3, 0.1 + 0.2, 2.15407e-05, 1e22, 5e-324, 100_000.0, 1 / 3, 12_345_678.9)


@pytest.fixture
async def market(home: StoreHome) -> AsyncIterator[MarketStore]:
    async with open_and_close(home.open_market()) as store:
        yield store


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every search take several steps, and gather the rows of few queries."""
    monkeypatch.setattr("serving.feed_ledger.FIRST_STEP", 8)
    monkeypatch.setattr("serving.feed_ledger.LONGEST_STEP", 32)
    monkeypatch.setattr("serving.feed_ledger.MAX_GATHERED_CELLS", 12)
    monkeypatch.setattr("serving.feed_ledger.MAX_GATHERED_ROWS", 100)


class Feed:
    """A store, and a copy of all rows that were written to it."""

    def __init__(self, market: MarketStore, seed: int = 0) -> None:
        self.market = market
        self.rows: list[FeedRow] = []
        self.draw = Random(seed)

    async def commit_runs(self, count: int, step_ms: int = DAY_MS // 4) -> None:
        """Commit runs of up to nine rows together; some of the rows are not published."""
        begins = self.rows[-1].created_at if self.rows else START
        times = [begins + number * step_ms for number in range(1, count + 1)]
        rows = [self._draw_row(at + n) for at in times for n in range(self.draw.randrange(1, 10))]
        await self.commit(*rows)

    async def commit(self, *rows: FeedRow) -> None:
        changes = [row for row in rows if isinstance(row, ChangeRow)]
        alerts = [row for row in rows if isinstance(row, AlertRow)]
        at = max(row.created_at for row in rows)
        await self.market.commit(make_batch(at, changes=changes, alerts=alerts))
        self.rows += rows

    def _draw_row(self, at: int) -> FeedRow:
        choose = self.draw.choice
        cell = choose(TICKERS), choose(["enzo", "llnr", "perpkit"]), choose(TIMEFRAMES)
        if self.draw.random() < 0.2:
            row: FeedRow = make_alert(at, choose([*ACTION_DIRECTIONS]), *cell)
        else:
            before, after = self.draw.sample([-1, 0, 1, None], 2)
            shown = self.draw.random() < 0.8
            row = make_change(at, *cell, before=before, after=after or 0, published=shown)
        return row._replace(price=choose(PRICES), epoch=choose([0, 0, 3]))

    async def read(self, known: Ledger | None = None) -> Ledger:
        return await read_ledger(self.market, self.rows[-1].created_at, known)

    def draw_query(self) -> FeedQuery:
        choose, first = self.draw.choice, self.rows[0].created_at
        after, until = sorted(self.draw.sample(range(first - 9, self.rows[-1].created_at + 9), 2))
        return FeedQuery(
            tier=choose(["universe", "alerts", "all"]),
            after=choose([after, after, 0]),
            alerts_after=self.draw.randint(after, until),
            until=choose([until, EVER]),
            limit=choose([1, 13, 200]),
            offset=choose([0, 0, 0, 1, 40, 1_000_000_000]),
            oldest_first=choose([True, False]),
            tickers=choose([None, None, ("BTC",), ("SOL",), (), ("XAU", "BTC"), TICKERS[1:]]),
            indicator=choose([None, None, "enzo", "perpkit", "enzo' OR 1=1 --"]),
            timeframe=choose([None, None, "1h", "1d"]),
            direction=choose([None, None, "bullish", "bearish", "neutral", "exit"]),
        )


def find_direction(row: FeedRow) -> Direction:
    return ACTION_DIRECTIONS[row.action] if isinstance(row, AlertRow) else READING_NAMES[row.after]


def matches(row: FeedRow, query: FeedQuery) -> bool:
    is_alert = isinstance(row, AlertRow)
    return (
        (isinstance(row, AlertRow) or row.published)
        and query.tier in ("all", "alerts" if is_alert else "universe")
        and (query.alerts_after if is_alert else query.after) < row.created_at <= query.until
        and (query.tickers is None or row.ticker in query.tickers)
        and query.indicator in (None, row.indicator)
        and query.timeframe in (None, row.timeframe)
        and query.direction in (None, find_direction(row))
    )


def check_pages(ledger: Ledger, feed: Feed, count: int) -> None:
    """Compare random pages with a plain filter of all rows."""
    sizes = set()
    for drawn in (feed.draw_query() for _ in range(count)):
        # The second one ends before all alerts that are kept.
        early = drawn._replace(until=(drawn.after + drawn.alerts_after) // 2)
        for query in (drawn, early):
            if query.tier == "all":
                query = query._replace(alerts_after=max(query.after, query.alerts_after))
            found = [row for row in feed.rows if matches(row, query)]
            ordered = found if query.oldest_first else found[::-1]
            rest = ordered[query.offset :]
            places, has_more = ledger.find_page(query)
            page = rest[: query.limit]
            assert ledger.build_rows(places) == page, query
            assert has_more == (len(rest) > len(page)), query
            assert ledger.get_times(places) == [row.created_at for row in page]
            sizes.add(len(page))
    assert len(sizes) > 8


@pytest.fixture
def feed(market: MarketStore) -> Feed:
    return Feed(market)


@pytest.mark.usefixtures("_small_steps")
async def test_a_page_equals_a_plain_filter_of_all_rows_while_runs_follow(
    feed: Feed,
) -> None:
    await feed.commit_runs(150)
    ledger = await feed.read()
    check_pages(ledger, feed, 300)
    for _ in range(4):
        held, shown = ledger, list(feed.rows)
        await feed.commit_runs(3)
        ledger = await feed.read(ledger)
        check_pages(ledger, feed, 100)
        # A reader that still has the earlier ledger sees no row of the run.
        everything = FeedQuery("all", 0, 0, EVER, 9999)
        published = [row for row in reversed(shown) if matches(row, everything)]
        assert held.build_rows(held.find_page(everything)[0]) == published


def check_boards(ledger: Ledger, feed: Feed, times: Sequence[int], begins: int = 0) -> None:
    """Compare readings, last changes and histories from `begins` on with a replay of all rows."""
    for at in times:
        # The last change of each cell up to a time, published or not.
        last = {
            (row.ticker, row.indicator, row.timeframe): row
            for row in feed.rows
            if isinstance(row, ChangeRow) and row.created_at <= at
        }
        assert {
            (ticker, key, timeframe): reading
            for ticker, keys in ledger.find_readings(at).items()
            for key, own in keys.items()
            for timeframe, reading in own.items()
        } == {cell: row.after for cell, row in last.items()}, at
        for timeframe in (None, "1d"):
            found = ledger.find_last_changes(at, ["ETH", "SOL", "BTC"], timeframe)
            assert sorted(found) == sorted(
                LastChange(*cell, row.created_at, row.price, is_current=True)
                for cell, row in last.items()
                if cell[0] in ("ETH", "BTC") and timeframe in (None, cell[2])
            )
        after = max(at - 9 * DAY_MS, begins)
        newest = {row for cell, row in last.items() if cell[0] == "BTC"}
        in_window = {
            row
            for row in feed.rows
            if isinstance(row, ChangeRow)
            and (row.ticker, row.timeframe) == ("BTC", "1h")
            and after < row.created_at <= at
        }
        assert ledger.find_history("BTC", "1h", after, at) == sorted(newest | in_window), at


async def test_boards_of_any_time_equal_a_replay_of_all_changes(feed: Feed) -> None:
    await feed.commit_runs(60)
    ledger = await feed.read()
    for _ in range(3):
        times = [START, *feed.draw.sample([row.created_at for row in feed.rows], 40), EVER]
        check_boards(ledger, feed, [at + by for at in times for by in (-1, 0)])
        await feed.commit_runs(2)
        ledger = await feed.read(ledger)
    assert ledger.find_history("SOL", "1h", 0, EVER) == []


async def test_counts_are_those_of_a_plain_walk_over_all_rows(feed: Feed) -> None:
    await feed.commit_runs(60)
    ledger = await feed.read()
    for _ in range(50):
        query = feed.draw_query()
        for tier in ("universe", "alerts"):
            whole = FeedQuery(tier, query.after, query.after, query.until, 1)
            found = [row for row in feed.rows if matches(row, whole)]
            assert ledger.count_kinds(tier, query.after, query.until) == Counter(
                (row.indicator, row.timeframe, find_direction(row)) for row in found
            )
            oldest = min((row.created_at for row in found), default=None)
            assert ledger.find_oldest(tier, query.after, query.until) == oldest


@pytest.mark.clause("answers")
async def test_every_row_is_written_as_its_model_writes_it(market: MarketStore, feed: Feed) -> None:
    await market.publish_coverage(make_coverage())
    await feed.commit_runs(60)
    snapshot = build_snapshot(await market.snapshot())
    names = {key: f'100 % "{name}"' for key, name in snapshot.indicator_names.items()}
    for named in (snapshot, replace(snapshot, indicator_names=names)):
        ledger = await feed.read()
        places, _ = ledger.find_page(FeedQuery("all", 0, 0, EVER, 9999))
        models = [
            build_signal(
                row, named.assets[row.ticker].asset_class, named.get_indicator_name(row.indicator)
            )
            for row in ledger.build_rows(places)
        ]
        texts = [model.model_dump_json(by_alias=True) for model in models]
        assert ledger.encode_rows(places, named) == texts
        assert len(texts) > 100


@pytest.mark.usefixtures("_small_steps")
async def test_an_empty_store_has_no_rows_until_the_first_run(
    market: MarketStore, feed: Feed
) -> None:
    ledger = await read_ledger(market, 0, None)
    assert (ledger.last_at, ledger.find_readings(EVER)) == (0, {})
    assert ledger.find_page(FeedQuery("all", 0, 0, EVER, 5)) == ([], False)
    assert ledger.find_oldest("alerts", 0, EVER) is None
    assert ledger.find_last_changes(EVER, ["BTC"], None) == []
    await feed.commit_runs(40)
    check_pages(await feed.read(ledger), feed, 100)


@pytest.mark.clause("store")
@pytest.mark.prove
async def test_rows_past_retention_go_except_the_base_of_boards(
    market: MarketStore, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.feed_ledger.ROWS_PER_DROP", 5)
    await feed.commit_runs(100)
    ledger = await feed.read()
    # A day is kept beyond retention, for readers that still have an earlier snapshot.
    begins = feed.rows[len(feed.rows) // 2].created_at + DAY_MS
    await feed.commit(make_change(begins + UNIVERSE_RETENTION_MS + 1, "BTC"))
    followed, read = await feed.read(ledger), await feed.read()
    await market.prune()
    for each in (followed, read, await feed.read()):
        everything, _ = each.find_page(FeedQuery("all", 0, 0, EVER, 9999))
        assert len(everything) < 0.7 * len(feed.rows)
        times = [row.created_at for row in feed.rows if row.created_at > begins]
        check_boards(each, feed, [begins, *times[::20]], begins)
        kept = [row for row in feed.rows if row.created_at > begins and isinstance(row, AlertRow)]
        places, _ = each.find_page(FeedQuery("alerts", begins, begins, EVER, 9999))
        # The store keeps the newest alert of each action only.
        assert set(each.build_rows(places)) <= set(kept)


@pytest.mark.clause("store")
async def test_a_database_that_was_restored_from_a_copy_is_read_again(tmp_path: Path) -> None:
    """Whether its newest row is older than the last one here, of the same time, or newer."""
    copy, path = tmp_path / "copy.db", tmp_path / "market.db"
    async with open_and_close(open_market_as(MarketStore, path)) as market:
        feed = Feed(market)
        await feed.commit_runs(20)
    shutil.copy(path, copy)
    early = list(feed.rows)
    async with open_and_close(open_market_as(MarketStore, path)) as market:
        feed.market = market
        await feed.commit_runs(5)
        ledger = await feed.read()
    for runs in (0, 5, 9):
        shutil.copy(copy, path)
        async with open_and_close(open_market_as(MarketStore, path)) as market:
            other = Feed(market, seed=runs)
            other.rows = list(early)
            if runs:
                await other.commit_runs(runs)
            again = await other.read(ledger)
            everything = FeedQuery("all", 0, 0, EVER, 9999, oldest_first=True)
            published = [row for row in other.rows if matches(row, everything)]
            assert again.build_rows(again.find_page(everything)[0]) == published


async def test_a_change_before_a_restated_history_is_not_current(market: MarketStore) -> None:
    change = make_change(NOW, "BTC", "reversals", "4h")
    ether = make_change(NOW + 1, "ETH", "reversals", "4h")
    bars = make_blocks(make_bar("BTC"), make_bar("ETH"))
    await market.commit(make_batch(NOW + 1, bars=bars, changes=[change, ether]))
    again = make_blocks(make_bar("BTC"), revision=1)
    at = NOW + HOUR_MS
    await market.commit(make_batch(at, bars=again, epochs=[make_epoch()]))
    ledger = await read_ledger(market, NOW + 1, None)
    current = {one.ticker: one.is_current for one in ledger.find_last_changes(EVER, TICKERS, None)}
    assert current == {"BTC": False, "ETH": True}
    rebuilt = make_change(at, "BTC", "reversals", "4h", before=1, after=-1)._replace(epoch=1)
    await market.commit(make_batch(at, changes=[rebuilt]))
    followed = await read_ledger(market, at, ledger)
    assert [one.is_current for one in followed.find_last_changes(EVER, ["BTC"], None)] == [True]


@pytest.mark.parametrize(("indicator", "close_time"), [(99, NOW), (0, 2**62)])
async def test_a_row_that_no_version_writes_is_refused(
    home: StoreHome, market: MarketStore, indicator: int, close_time: int
) -> None:
    await market.commit(make_batch(changes=[make_change(NOW)]))
    row = NOW + 1, 1, indicator, 0, close_time
    await run_sql(home, f"INSERT INTO changes VALUES ({str(row)[1:-1]}, 0, NULL, 1, 0.3, 1)")
    with pytest.raises(StoreError, match=r"a row of the feed has|OutOfRange"):
        await read_ledger(market, NOW + 1, None)


async def test_many_rows_are_read_in_parts(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.sql.ledger_reads.ROWS_PER_READ", 7)
    await feed.commit_runs(40)
    check_pages(await feed.read(), feed, 100)
