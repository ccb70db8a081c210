"""Past snapshots compared to a slow model that replays the commits."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import HOUR_MS, find_latest_run
from store.codes import TIMEFRAME_SET_CODES
from store.market_rows import Batch, ChangeRow, MissingBarsRow, StoredSnapshot, WatermarkRow
from store.sql.market_store import MarketStore
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
)
from tests.support.small_market import load_past
from tests.support.store_homes import HomeFactory, open_and_close

pytestmark = pytest.mark.clause("store")

LAST = find_latest_run(NOW)
EDGE = LAST - 365 * DAY_MS
TICKERS = ("BTC", "ETH", "XAU")
KEYS = ("enzo", "perpkit", "dexter")


async def test_commits_of_the_same_instant_count_together(market: MarketStore) -> None:
    """A catch-up writes several commits at the same market clock."""
    for step in (0, 1):
        rows = [make_change(LAST + step, after=1 - 2 * step)]
        await market.commit(make_batch(LAST + step * HOUR_MS, changes=rows, written_at=LAST + 5))
    held = await load_past(market, LAST + 5)
    assert (held.market_time, held.readings) == (LAST + HOUR_MS, {"BTC": {"enzo": {"1h": -1}}})


async def test_a_commit_without_rows_moves_only_the_market_time(market: MarketStore) -> None:
    await market.commit(make_batch(LAST, changes=[make_change(LAST)], written_at=LAST))
    await market.commit(make_batch(LAST + HOUR_MS, written_at=LAST + HOUR_MS))
    held = await load_past(market, LAST + HOUR_MS)
    assert (held.market_time, held.last_created_at) == (LAST + HOUR_MS, LAST)
    assert held.readings == {"BTC": {"enzo": {"1h": 1}}}


async def test_alerts_change_no_reading_but_move_the_last_row(market: MarketStore) -> None:
    await market.commit(
        make_batch(
            LAST, changes=[make_change(LAST)], alerts=[make_alert(LAST + 1)], written_at=LAST
        )
    )
    held = await load_past(market, LAST)
    assert (held.last_created_at, held.readings) == (LAST + 1, {"BTC": {"enzo": {"1h": 1}}})


async def test_history_starts_with_the_later_of_feed_and_first_commit(market: MarketStore) -> None:
    assert (await market.snapshot()).history_starts_at is None
    silent = [make_change(LAST, published=False), make_change(LAST + 1, "ETH", published=False)]
    feeds = {"BTC": LAST + 7, "ETH": LAST + 9}
    await market.commit(make_batch(LAST + HOUR_MS, changes=silent, publish_from=feeds))
    assert (await market.snapshot()).history_starts_at == LAST + 7
    assert (await load_past(market, LAST + 7)).history_starts_at == LAST + 7


async def test_the_last_bars_are_those_that_had_closed_by_then(market: MarketStore) -> None:
    """XAU has daily bars; ETH ends early; BTC opens off the hour, and its last bar is late."""
    hour = LAST // 1000 - 180
    day = hour // 86_400 * 86_400
    btc = [make_bar("BTC", hour - back * 3600 - 1800) for back in range(5, 0, -1)]
    eth = [make_bar("ETH", hour - back * 3600) for back in range(6, 2, -1)]
    xau = [make_bar("XAU", day - back * 86_400, "1d") for back in (3, 2, 1)]
    nominal = make_batch(LAST, bars=make_blocks(*btc, *eth, *xau))
    await market.commit(nominal)
    expected = {"BTC": hour, "ETH": hour - 2 * 3600, "XAU": day}
    assert (await market.snapshot()).last_closes == expected
    # Inside the first commit, which holds several runs.
    assert (await load_past(market, LAST - 3 * HOUR_MS)).last_closes == {
        "BTC": hour - 3 * 3600,
        "ETH": hour - 3 * 3600,
        "XAU": max(d for d in (day, day - 86_400) if d <= hour - 3 * 3600),
    }
    assert (await load_past(market, LAST - 60 * DAY_MS)).last_closes == {}
    then, later = LAST + HOUR_MS, LAST + HOUR_MS + 60_000
    late = [WatermarkRow("BTC", hour, late=("1h",))]
    await market.commit(make_batch(then, watermarks=late, written_at=then))
    bars = make_blocks(make_bar("BTC", hour - 1800))
    await market.commit(make_batch(then, bars=bars, written_at=later))
    assert (await load_past(market, LAST)).last_closes == expected
    assert (await load_past(market, then)).last_closes == expected
    assert (await load_past(market, later)).last_closes == expected | {"BTC": hour + 3600}
    assert (await market.snapshot()).last_closes == expected | {"BTC": hour + 3600}


async def test_the_last_bars_are_of_the_newest_revision(market: MarketStore) -> None:
    hour = LAST // 1000 - 180
    await market.commit(make_batch(LAST, bars=make_blocks(make_bar("BTC", hour - 3600))))
    again = make_blocks(make_bar("BTC", hour - 7200), revision=1)
    await market.commit(make_batch(LAST + HOUR_MS, bars=again, written_at=LAST + HOUR_MS))
    assert (await market.snapshot()).last_closes == {"BTC": hour - 3600}


async def test_missing_bars_are_counted_for_330_days_by_revision_and_as_of_a_time(
    market: MarketStore,
) -> None:
    hour = LAST // 1000 - 180

    def missing(ticker: str, days_ago: float, bars: int, revision: int = 0) -> MissingBarsRow:
        last = hour - round(days_ago * 86_400)
        return MissingBarsRow(ticker, revision, bars, last - 3600 * (bars - 1), last)

    async def commit(at: int, *rows: MissingBarsRow, revision: int = 0) -> None:
        stored = make_blocks(
            *(make_bar(row.ticker, at // 1000 - 3780) for row in rows), revision=revision
        )
        await market.commit(make_batch(at, bars=stored, missing_bars=rows, written_at=at))

    assert (await market.snapshot()).missing_bars == {}
    await commit(LAST, missing("BTC", 331, 9), missing("ETH", 40, 5))
    assert (await market.snapshot()).missing_bars == {"ETH": 5}
    later = LAST + HOUR_MS
    await commit(later, missing("BTC", 329, 2), missing("ETH", -1 / 24, 1))
    assert (await market.snapshot()).missing_bars == {"BTC": 2, "ETH": 6}
    assert (await load_past(market, LAST)).missing_bars == {"BTC": 2, "ETH": 5}
    # A restated history has its own holes.
    await commit(LAST + 2 * HOUR_MS, missing("ETH", 40, 3, revision=1), revision=1)
    assert (await market.snapshot()).missing_bars == {"BTC": 2, "ETH": 3}


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Draw commits around the edge of retention: nominal ones of many hours, then live ones."""
    hour, newest = EDGE - draw(st.integers(1, 6)) * HOUR_MS, 0
    passes: list[Batch] = []
    for is_live in [False] * draw(st.integers(1, 3)) + [True] * draw(st.integers(0, 4)):
        hours = draw(st.integers(1, 4))
        is_again = is_live and draw(st.booleans()) and passes[-1].written_at is not None
        ends = hour if is_again else hour + hours * HOUR_MS
        written_at = None
        if is_live:
            earlier = passes[-1].written_at or 0
            written_at = max(ends, earlier) + draw(st.sampled_from([0, 1, 30_000, 50 * 60_000]))
        runs = [ends] if is_again else range(hour + HOUR_MS, ends + 1, HOUR_MS)
        rows: list[ChangeRow] = []
        for run in runs:
            for _ in range(draw(st.integers(0, 4))):
                newest = max(newest + draw(st.sampled_from([1, 1, 400])), written_at or run)
                cell = draw(st.sampled_from(TICKERS)), draw(st.sampled_from(KEYS))
                rows.append(make_change(newest, *cell, after=draw(st.integers(-1, 1))))
        late = [
            WatermarkRow(ticker, 0, draw(st.sampled_from(list(TIMEFRAME_SET_CODES))))
            for ticker in draw(draw_subsets(TICKERS))
        ]
        passes.append(make_batch(ends, changes=rows, written_at=written_at, watermarks=late))
        hour = ends
    return [*passes, make_batch(LAST, written_at=LAST)]


def draw_subsets(of: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(of), unique=True)


def replay_commits(passes: Sequence[Batch], at: int) -> tuple[object, ...]:
    """Return market time, readings and late assets at a time by replaying all commits."""
    cells: dict[tuple[str, str], int] = {}
    late: dict[str, tuple[str, ...]] = {}
    market_time = 0
    for work_ in passes:
        rows = work_.changes
        if (work_.written_at or work_.market_time) <= at:
            market_time = work_.market_time
            late = {row.ticker: row.late for row in work_.watermarks if row.late}
        elif work_.written_at is None and (run := find_latest_run(at)) > market_time:
            market_time, late = run, {}
            rows = [row for row in rows if find_latest_run(row.created_at) <= run]
        else:
            break
        cells |= {(row.ticker, row.indicator): row.after for row in rows}
    return market_time, cells, late


def summarize(held: StoredSnapshot) -> tuple[object, ...]:
    cells = {
        (ticker, key): readings["1h"]
        for ticker, keys in held.readings.items()
        for key, readings in keys.items()
    }
    return held.market_time, cells, held.late


def list_moments(passes: Sequence[Batch]) -> list[int]:
    """Return each time at which something changes, and its neighbours, if within the history."""
    times = {EDGE, LAST}
    for work_ in passes:
        times |= {work_.market_time, work_.written_at or work_.market_time}
        times |= {row.created_at for row in work_.changes}
        times |= {find_latest_run(row.created_at) for row in work_.changes}
    beside = {at + by for at in times for by in (-1, 0, 1)}
    return sorted(at for at in beside if EDGE <= at <= LAST)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(passes=histories())
@pytest.mark.sampled(2)
async def test_every_past_moment_equals_the_model_before_and_after_pruning(
    new_home: HomeFactory, passes: list[Batch]
) -> None:
    async with new_home() as home, open_and_close(home.open_market()) as store:
        for work_ in passes:
            await store.commit(work_)
        for _ in range(2):
            for at in list_moments(passes):
                assert summarize(await load_past(store, at)) == replay_commits(passes, at), at
            await store.prune()
