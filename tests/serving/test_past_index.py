"""Past snapshots from memory equal those of the store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import HOUR_MS, RUN_DELAY_MS, Timeframe
from serving import board_log, past_index
from serving.board_log import BoardLog
from serving.past_index import BarTimes, PastIndex
from store.codes import KEY_CODES, TIMEFRAME_SET_CODES
from store.market_rows import BarBlock, BarRun, Batch, MissingBarsRow, WatermarkRow
from store.sql.market_store import MarketStore
from store.sql.past_log import PastLog
from tests.store.sql.test_past_snapshot import (
    EDGE,
    LAST,
    TICKERS,
    draw_subsets,
    histories,
    list_moments,
)
from tests.support.example_market import make_coverage
from tests.support.row_builders import make_bar, make_batch, make_blocks, make_change
from tests.support.store_homes import DEADLINE_S, HomeFactory, StoreHome, open_and_close

pytestmark = pytest.mark.clause("answers")

PERIODS_S: dict[Timeframe, int] = {"1h": 3600, "1d": 86_400}
NATIVE: dict[str, Timeframe] = {"BTC": "1h", "ETH": "1h", "XAU": "1d"}


@pytest.fixture
async def market(home: StoreHome) -> AsyncIterator[MarketStore]:
    """An empty market store on each engine in turn."""
    async with open_and_close(home.open_market()) as store:
        yield store


@pytest.fixture
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_log, "CHANGES_PER_BOARD", 3)
    monkeypatch.setattr(past_index, "CHANGES_PER_READ", 2)
    monkeypatch.setattr(past_index, "COMMITS_PER_READ", 2)
    monkeypatch.setattr(past_index, "PAUSE_S", 0)


@st.composite
def markets(draw: st.DrawFn) -> list[Batch]:
    """Draw commits of changes, with bars that have holes, restated histories and lagging assets."""
    opens = dict.fromkeys(TICKERS, (EDGE - RUN_DELAY_MS) // 1000 - 9 * 86400)
    revisions = dict.fromkeys(TICKERS, 0)
    batches: list[Batch] = []
    for batch in draw(histories()):
        blocks: list[BarBlock] = []
        missing: list[MissingBarsRow] = []
        for ticker in draw(draw_subsets(TICKERS)):
            if draw(st.integers(0, 4)) == 0:
                revisions[ticker] += 1
                opens[ticker] -= draw(st.integers(0, 5)) * 3600
            timeframe = NATIVE[ticker]
            bars = []
            for _ in range(draw(st.integers(1, 5))):
                step = draw(st.sampled_from([1, 1, 1, 1, 3, 1.5]))
                opens[ticker] += int(PERIODS_S[timeframe] * step)
                bars.append(make_bar(ticker, opens[ticker], timeframe))
            blocks += make_blocks(*bars, revision=revisions[ticker], source="recorded")
            if draw(st.booleans()):
                hole = opens[ticker] - 7200, opens[ticker]
                missing.append(MissingBarsRow(ticker, revisions[ticker], 2, *hole))
        kinds = st.sampled_from(["followed", "building", "built"])
        lagging = [
            WatermarkRow(ticker, opens[ticker] - draw(st.integers(0, 9)) * 1800, late, draw(kinds))
            for ticker in sorted(draw(draw_subsets(TICKERS)))
            for late in [draw(st.sampled_from(list(TIMEFRAME_SET_CODES)))]
        ]
        watermarks = lagging if draw(st.booleans()) else ()
        batches.append(replace(batch, bars=blocks, missing_bars=missing, watermarks=watermarks))
    return batches


async def compare(index: PastIndex, store: MarketStore, moments: list[int]) -> None:
    """Compare the index with the store at each moment."""
    latest = await store.snapshot()
    assert index.number == latest.number
    keys = [await store.past_key(at) for at in moments]
    assert [index.find_key(at) for at in moments] == keys
    for key in dict.fromkeys(keys):
        assert index.build(key, latest) == await store.past_snapshot(key), key


@pytest.mark.usefixtures("_small_slices")
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=markets(), followed=st.integers(0, 8), source=st.sampled_from(["live", "recorded"]))
async def test_every_past_moment_equals_the_store_while_it_grows_and_is_pruned(
    new_home: HomeFactory, batches: list[Batch], followed: int, source: str
) -> None:
    async with new_home() as home, open_and_close(home.open_market()) as store:
        await store.publish_coverage(make_coverage("live" if source == "live" else "simulated"))
        index = PastIndex(store)
        for number, batch in enumerate(batches):
            await store.commit(batch)
            if number == followed:
                await index.follow()
                await compare(index, store, list_moments(batches[: number + 1]))
        await index.follow()
        for _ in range(2):
            await compare(index, store, list_moments(batches))
            await store.prune()


@pytest.mark.usefixtures("_small_slices")
async def test_the_oldest_changes_are_dropped_and_left_to_the_store(market: MarketStore) -> None:
    rows = [make_change(LAST + n, after=n % 3 - 1) for n in range(30)]
    for number in range(3):
        changes = rows[10 * number : 10 * number + 10]
        await market.commit(
            make_batch(LAST + number * HOUR_MS, changes=changes, written_at=LAST + 10 * number)
        )
    size = 5 * (3 * board_log.BYTES_PER_CHANGE + 2 * board_log.CELLS_PER_ASSET)
    index = PastIndex(market, max_bytes=size + 3 * past_index.BYTES_PER_COMMIT)
    await index.follow()
    latest = await market.snapshot()
    old, new = index.find_key(LAST), index.find_key(LAST + 20)
    assert index.build(old, latest) is None
    assert index.build(new, latest) == await market.past_snapshot(new)


@pytest.mark.usefixtures("_small_slices")
async def test_a_store_with_too_many_changes_is_not_read(market: MarketStore) -> None:
    changes = [make_change(LAST + n, after=n % 3 - 1) for n in range(30)]
    await market.commit(make_batch(LAST, changes=changes))
    index = PastIndex(market, max_bytes=29 * board_log.BYTES_PER_CHANGE)
    await index.follow()
    assert index.number == 0
    assert not await index.prepare(await market.snapshot())


async def test_the_first_call_is_answered_by_the_store_and_later_ones_from_memory(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage())
    await market.commit(make_batch(LAST, changes=[make_change(LAST)]))
    index = PastIndex(market)
    assert not await index.prepare(await market.snapshot())
    await index.follow()
    assert await index.prepare(await market.snapshot())
    later = LAST + HOUR_MS
    await market.commit(make_batch(later, changes=[make_change(later, after=-1)], written_at=later))
    # A few hours more are read by the call that needs them.
    latest = await market.snapshot()
    assert index.build(index.find_key(later), latest) is None
    assert await index.prepare(latest)
    built = index.build(index.find_key(later), latest)
    assert built is not None
    assert built.readings == {"BTC": {"enzo": {"1h": -1}}}


@pytest.mark.clause("monitoring")
async def test_a_reading_that_is_cancelled_or_fails_is_begun_again(market: MarketStore) -> None:
    await market.commit(make_batch(LAST, changes=[make_change(LAST)]))
    index = PastIndex(market)
    reading = asyncio.create_task(index.follow())
    await asyncio.sleep(0)
    reading.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await index.follow()
    assert index.number == 1


def make_rows(count: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield readings of 1, 0 and -1 in turn, of three assets."""
    for n in range(count):
        yield 1000 + 10 * n, 7 * (n % 3), KEY_CODES["enzo"], n % 2, 1 - n % 3


def test_a_board_log_gives_the_last_reading_at_or_before_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_log, "CHANGES_PER_BOARD", 4)
    log, tickers = BoardLog(), {0: "A", 7: "B", 14: "C"}
    log.append(make_rows(9))
    assert log.get_readings(999, tickers) == {}
    assert log.get_readings(1000, tickers) == {"A": {"enzo": {"1h": 1}}}
    assert log.get_readings(1029, tickers) == {
        "A": {"enzo": {"1h": 1}},
        "B": {"enzo": {"4h": 0}},
        "C": {"enzo": {"1h": -1}},
    }
    both = {"enzo": {"1h": 1, "4h": 1}}
    assert log.get_readings(1030, tickers)["A"] == both
    # The asset of which the ticker is not known yet is left out.
    assert log.get_readings(5000, {0: "A"}) == {"A": both}
    assert log.begins == 0
    assert log.drop_oldest()
    assert log.begins == 1040
    assert log.get_readings(1040, tickers)["B"] == {"enzo": {"1h": 0, "4h": 0}}


def test_the_last_close_is_of_a_bar_that_a_run_of_bars_holds() -> None:
    times = BarTimes(3600)
    times.extend([BarRun(0, 7200), BarRun(5 * 3600, 6 * 3600)])
    times.extend([BarRun(7 * 3600, 7 * 3600), BarRun(10 * 3600 - 1800, 10 * 3600 - 1800)])
    assert len(times) == 3
    closes = [times.find_last_close(hour * 3600) for hour in range(12)]
    expected = [None, 1, 2, 3, 3, 3, 6, 7, 8, 8, 8, 11]
    # A bar that opens off the hour, at 9:30, closes at the next full hour after it ends, 11:00.
    assert closes == [None if hour is None else hour * 3600 for hour in expected]


async def test_a_restored_database_is_read_anew(new_home: HomeFactory) -> None:
    """A process serves a database while it is replaced by one with another past."""
    async with new_home() as home, open_and_close(home.open_market()) as store:
        await store.commit(make_batch(LAST, changes=[make_change(LAST)]))
        index = PastIndex(store)
        await index.follow()
        latest = await store.snapshot()
        assert await index.prepare(latest)
        assert not await index.prepare(replace(latest, last_created_at=LAST + 1))
        assert index.number == 0
        # A state that was read before the index knew of the newest commit leaves it as it is.
        await index.follow()
        later = LAST + HOUR_MS
        await store.commit(make_batch(later, changes=[make_change(later)], written_at=later))
        await index.follow()
        assert not await index.prepare(latest)
        assert index.number == 2


class LaterLog(PastLog):
    """The past of a store in which a later version has written an indicator of its own."""

    async def load_readings(self, after: int, until: int, limit: int) -> NoReturn:
        raise KeyError(99)


@pytest.mark.clause("monitoring")
async def test_a_past_that_cannot_be_read_is_logged_once_and_left_to_the_store(
    market: MarketStore, capsys: pytest.CaptureFixture[str]
) -> None:
    await market.commit(make_batch(LAST, changes=[make_change(LAST)]))
    market.past_log = LaterLog(market._engine)
    index = PastIndex(market)
    for _ in range(3):
        await index.follow()
        assert not await index.prepare(await market.snapshot())
    assert capsys.readouterr().out.count("past_index_failed") == 1
