"""Only one of two processes computes on a PostgreSQL database; one that lost the lock stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from store.errors import LockTakenError
from store.postgres.market_store import open_postgres_market
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ClockEnded,
    ScriptedSource,
    check_store,
    list_hours,
    march_s,
)
from tests.support.postgres.databases import cut_sessions

pytestmark = pytest.mark.clause("postgres")

BEGINS = march_s("00:00", day=2)
BEHIND_S = 2 * 3600


@asynccontextmanager
async def looping(
    database: str, source: ScriptedSource, clock: AcceleratedClock
) -> AsyncIterator[tuple[HourlyLoop, MarketStore]]:
    """Return the loop of a separate process over a database; its pipeline is not open yet."""
    store = await open_postgres_market(database)
    try:
        yield create_loop(store, source, clock), store
    finally:
        await store.close()


def create_loop(store: MarketStore, source: ScriptedSource, clock: AcceleratedClock) -> HourlyLoop:
    open_pipeline = partial(HourlyPipeline.open, store, source, source.universe, ALTERNATING, clock)
    return HourlyLoop(open_pipeline, store, clock, clock.sleep)


def script(clock: AcceleratedClock) -> ScriptedSource:
    return ScriptedSource(clock, {"BTC": "24x7", "ETH": "24x7"}, BEGINS)


async def test_a_leader_cut_off_during_a_run_writes_no_more_and_one_with_a_slow_clock_continues(
    database: str,
):
    clock, behind = (
        AcceleratedClock(march_s("10:20")),
        AcceleratedClock(march_s("14:03") - BEHIND_S),
    )
    source = script(clock)
    clock.ends_at = behind.ends_at = march_s("16:30")
    written = []

    async def taken_over(ticker: str, until: int) -> None:
        """Cut the first one off while it fetches; let the second run to the end of its day."""
        if until < march_s("14:00") or written:
            return
        written.append(until)
        await cut_sessions(database)
        async with looping(database, script(behind), behind) as (loop, _):
            with pytest.raises(ClockEnded):
                await loop.run()
            with pytest.raises(LockTakenError, match="is computing on"):
                await first.lock()

    source.before_fetch = taken_over
    async with looping(database, source, clock) as (loop, first):
        with pytest.raises(LockTakenError, match="no longer computing"):
            await loop.run()
        rows = await check_store(first, source, march_s("16:00"))
        commit_rows = await first.commits()
    assert [run.market_time // 1000 - 180 for run in commit_rows[1:]] == list_hours(
        "11:00", "16:00"
    )
    hours = [row for row in rows if (row.ticker, row.timeframe) == ("BTC", "1h")]
    times = {row.close_time: row.created_at // 1000 for row in hours}
    assert [times[hour] for hour in list_hours("13:00", "16:00")] == [
        hour + 180 for hour in list_hours("13:00", "16:00")
    ]


async def test_a_leader_cut_off_between_runs_takes_the_lead_again_if_no_other_has(
    database: str,
):
    clock = AcceleratedClock(march_s("10:20"))
    source = script(clock)

    async def cut() -> None:
        if clock.now_s == march_s("12:30"):
            await cut_sessions(database)

    clock.watch, clock.ends_at = cut, march_s("14:30")
    async with looping(database, source, clock) as (loop, store):
        with pytest.raises(LockTakenError, match="no longer computing"):
            await loop.run()
        assert clock.now_s < march_s("13:03"), "it noticed only when the next run was due"
        with pytest.raises(ClockEnded):
            await create_loop(store, source, clock).run()
        await check_store(store, source, march_s("14:00"))
