"""The hourly loop on a clock that tests move: no bar is lost, stepped twice or stepped early."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from compute import hourly_pipeline as runs_module
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop, log_run_failure
from compute.hourly_pipeline import HourlyPipeline
from compute.sources.source import SourceError
from compute.universe import Session
from schemas.vocabulary import RUN_DELAY_MS, TIMEFRAME_DURATIONS_S, TIMEFRAMES, Timeframe
from store.failure_log import FailureLog
from store.market_rows import Batch
from store.opening import open_postgres_market
from store.sql.market_store import MarketStore
from store.store_errors import LockTakenError, StoreError
from tests.doubles.scripted_source import (
    ALTERNATING,
    NEVER,
    AcceleratedClock,
    ClockEnded,
    LateHistory,
    ScriptedSource,
    check_store,
    check_store_file,
    list_hours,
    list_stepped_closes,
    load_changes,
    load_commits,
    march_s,
    open_loop,
    run_loop_until,
)
from tests.support.postgres.server import cut_sessions
from tests.support.row_builders import list_changes, list_commits
from tests.support.small_market import (
    drop_commit_details,
    find_longer_close,
    load_content,
    open_store,
)
from tests.support.store_homes import open_and_close

prove = pytest.mark.prove
BEGINS = march_s("00:00", day=2)
ROUND_THE_CLOCK = {"BTC": "24x7", "ETH": "24x7"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


@pytest.fixture
def clock() -> AcceleratedClock:
    return AcceleratedClock(march_s("10:20"))


@pytest.fixture
def source(clock: AcceleratedClock) -> ScriptedSource:
    return script(clock)


def script(clock: AcceleratedClock, *tickers: str, ends_at: int | None = None) -> ScriptedSource:
    sessions = dict.fromkeys(tickers or ROUND_THE_CLOCK, "24x7")
    return ScriptedSource(clock, sessions, BEGINS, ends_at)


Logs = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """The log lines of the loop; if a run fails unexpectedly, the test fails."""
    with capture_logs() as captured:
        yield captured
    assert failures(captured) == []


def failures(logs: Logs) -> list[str]:
    """Remove the failures from the log lines and return their texts."""
    failed = [log for log in logs if log["event"] == "run_failed"]
    logs[:] = [log for log in logs if log["event"] != "run_failed"]
    return [log["failure"] for log in failed]


@pytest.mark.clause("steps")
@pytest.mark.clause("1.26", "1.27", "1.30", "3.2.1", "3.2.9")
@pytest.mark.parametrize("step_s", [1, 7 * 60])
async def test_a_run_follows_every_hour_at_three_minutes_past_or_once_a_sleep_ends(
    tmp_path: Path, step_s: int
):
    clock = AcceleratedClock(march_s("10:20"), step_s)
    source = script(clock)
    await run_loop_until(tmp_path / "m.db", source, clock, march_s("14:02:00"))
    first, *runs = await load_commits(tmp_path / "m.db")
    assert (first.market_time, first.written_at) == (march_s("10:03") * 1000, None)
    nominal = [(hour + 180) * 1000 for hour in list_hours("11:00", "13:00")]
    assert [run.market_time for run in runs] == nominal
    for run in runs:
        assert run.written_at is not None
        assert 0 <= run.written_at - run.market_time < 1000 * step_s
    rows = await check_store_file(tmp_path / "m.db", source, march_s("13:00"))
    for row in rows:
        assert 0 <= row.created_at - (row.close_time + 180) * 1000 < 1000 * step_s
    # A reading that turns every hour is published every hour, but for its first.
    first, *turns = [row for row in rows if (row.ticker, row.timeframe) == ("BTC", "1h")]
    assert (first.before, first.published) == (None, False)
    assert {(row.before, row.after, row.published) for row in turns} == {
        (1, -1, True),
        (-1, 1, True),
    }


@pytest.mark.clause("steps")
@pytest.mark.clause("2.1.18")
async def test_missed_hours_are_caught_up_in_order_and_dated_when_they_were_written(
    path: Path, clock: AcceleratedClock, source: ScriptedSource
):
    await run_loop_until(path, source, clock, march_s("12:30"))
    before = await load_changes(path)
    clock.now = march_s("17:40") * 1000
    await run_loop_until(path, source, clock, march_s("18:30"))
    rows = await check_store_file(path, source, march_s("18:00"))
    assert rows[: len(before)] == before
    later = rows[len(before) :]
    assert (
        list_stepped_closes(later, "BTC")
        == list_stepped_closes(later, "ETH")
        == list_hours("13:00", "18:00")
    )
    order = [(row.close_time, TIMEFRAMES.index(row.timeframe), row.ticker) for row in rows]
    assert order == sorted(order)
    missed = [row.created_at for row in later if row.close_time <= march_s("17:00")]
    assert missed == list(range(march_s("17:40") * 1000, march_s("17:40") * 1000 + len(missed)))
    backfill = [row for row in before if row.close_time <= march_s("10:00")]
    assert all(row.created_at // 1000 == row.close_time + 180 for row in backfill)


@pytest.mark.clause("steps")
@pytest.mark.clause("1.47", "3.2.8")
async def test_late_assets_step_in_the_retries_of_their_hour_or_in_the_next_run(
    tmp_path: Path,
):
    path, due = tmp_path / "m.db", march_s("11:00")
    clock = AcceleratedClock(march_s("10:20"), step_s=5)
    source = script(clock, "BTC", "ETH", "SOL", "XRP", "ADA")
    arrivals = {"ETH": 200, "SOL": 235, "XRP": 300, "ADA": 1500}
    source.delays |= {(ticker, due): delay for ticker, delay in arrivals.items()}
    seen = LateHistory()
    await run_loop_until(path, source, clock, march_s("12:30"), late_history=seen)
    rows = await check_store_file(path, source, march_s("12:00"))
    written = {
        row.ticker: row.created_at // 1000
        for row in rows
        if row.timeframe == "1h" and row.close_time == due
    }
    run = due + 180
    assert written == {
        "BTC": run,
        "ETH": run + 30,
        "SOL": run + 60,
        "XRP": run + 120,
        "ADA": run + HOUR_S,
    }
    said = [late for when, late in seen.late if when > run]
    assert said == [
        ("ADA", "ETH", "SOL", "XRP"),
        ("ADA", "SOL", "XRP"),
        ("ADA", "XRP"),
        ("ADA",),
        (),
    ]
    assert seen.late[-1][0] == run + HOUR_S + 5


@pytest.mark.clause("steps")
@pytest.mark.clause("2.1.18")
async def test_late_bars_of_a_first_start_are_dated_when_they_come(tmp_path: Path):
    path, due = tmp_path / "m.db", march_s("11:00")
    clock = AcceleratedClock(due + 190)
    source = script(clock)
    source.delays["ETH", due] = 200
    await run_loop_until(path, source, clock, march_s("11:30"))
    rows = await check_store_file(path, source, due)
    times = {row.ticker: row.created_at for row in rows if row[3:5] == ("1h", due)}
    assert times == {"BTC": (due + 180) * 1000, "ETH": (due + 210) * 1000}
    written = [row.written_at for row in await load_commits(path)]
    assert (written[0], written[-1]) == (None, (due + 210) * 1000)


@pytest.mark.clause("steps")
async def test_a_retry_that_finds_nothing_commits_nothing(
    path: Path, clock: AcceleratedClock, source: ScriptedSource
):
    source.delays["ETH", march_s("12:00")] = 290
    await run_loop_until(path, source, clock, march_s("12:30"))
    written = [row.written_at for row in (await load_commits(path))[1:]]
    assert written == [march_s(time) * 1000 for time in ("11:03", "12:03", "12:05")]


@pytest.mark.clause("steps")
@pytest.mark.clause("1.28", "1.29", "3.2.8")
@pytest.mark.parametrize(
    ("timeframe", "close", "following"),
    [("4h", march_s("12:00"), march_s("16:00")), ("1d", march_s("00:00", 5), march_s("00:00", 6))],
)
@pytest.mark.prove
async def test_a_late_longer_bar_waits_for_its_own_next_run(
    tmp_path: Path, timeframe: Timeframe, close: int, following: int
):
    path = tmp_path / "m.db"
    clock = AcceleratedClock(close - 90 * 60, step_s=10)
    source = script(clock)
    source.delays["ETH", close] = 90 * 60
    await run_loop_until(path, source, clock, following - HOUR_S)
    rows = await load_changes(path)
    assert list_stepped_closes(rows, "BTC", timeframe)[-1] == close
    assert list_stepped_closes(rows, "ETH", timeframe)[-1] < close
    assert list_stepped_closes(rows, "ETH")[-1] == following - 2 * HOUR_S
    await run_loop_until(path, source, clock, following + HOUR_S)
    rows = await check_store_file(path, source, following)
    (row,) = (r for r in rows if (r.ticker, r.timeframe, r.close_time) == ("ETH", timeframe, close))
    assert row.created_at // 1000 == following + 180


@pytest.mark.clause("steps")
@pytest.mark.clause("3.2.8")
async def test_a_longer_bar_that_comes_within_the_retries_is_stepped_by_them(tmp_path: Path):
    path, midnight = tmp_path / "m.db", march_s("00:00", 5)
    clock = AcceleratedClock(midnight - 90 * 60)
    source = script(clock)
    source.delays["ETH", midnight] = 200
    await run_loop_until(path, source, clock, midnight + 30 * 60)
    rows = await check_store_file(path, source, midnight)
    late = [row for row in rows if row.ticker == "ETH" and row.close_time == midnight]
    assert [row.timeframe for row in late] == ["1h", "4h", "1d"]
    assert {row.created_at // 1000 for row in late} == {midnight + 210}


@pytest.mark.clause("steps")
@pytest.mark.prove
async def test_a_bar_that_never_comes_makes_its_asset_late_for_an_hour(tmp_path: Path):
    path = tmp_path / "m.db"
    clock = AcceleratedClock(march_s("10:20"), step_s=5)
    source = script(clock)
    source.delays["ETH", march_s("12:00")] = NEVER
    seen = LateHistory()
    await run_loop_until(path, source, clock, march_s("16:30"), late_history=seen)
    rows = await check_store_file(path, source, march_s("16:00"))
    assert list_stepped_closes(rows, "ETH")[-5:] == [
        march_s("11:00"),
        *list_hours("13:00", "16:00"),
    ]
    assert seen.late[1:] == [(march_s("12:03:05"), ("ETH",)), (march_s("16:03:05"), ())]
    noon = next(r for r in rows if r[1:5] == ("ETH", "enzo", "4h", march_s("12:00")))
    assert noon.created_at // 1000 == march_s("16:03")  # of three hours; its own run could not know


def find_due_close(source: ScriptedSource, ticker: str, timeframe: Timeframe, at: int) -> int:
    """Return the close of the last candle that has closed by a time and has a bar."""
    boundary = at // TIMEFRAME_DURATIONS_S[timeframe] * TIMEFRAME_DURATIONS_S[timeframe]
    native = source.bars(ticker, boundary - 5 * DAY_S, boundary, boundary).close_time.tolist()
    return find_longer_close(ticker, native[-1], timeframe)


class OldReadings:
    """Polls a store's answers, and collects readings that are older than they seem.

    Every candle of the doubles turns every reading, so its change tells which candle was read last.
    """

    def __init__(self, source: ScriptedSource, clock: AcceleratedClock) -> None:
        self.unnamed: list[tuple[str, Timeframe, int]] = []
        self.named: set[tuple[str, Timeframe]] = set()
        self._source, self._clock = source, clock
        self._version = -1
        self._read: dict[tuple[str, Timeframe], int] = {}

    async def record(self, clock: AcceleratedClock, store: MarketStore) -> None:
        if store.version() != self._version:
            self._version = store.version()
            self._read = {
                (row.ticker, row.timeframe): row.close_time for row in await list_changes(store)
            }
            self._snapshot = await store.snapshot()
        run = ((self._snapshot.market_time or 0) - RUN_DELAY_MS) // 1000
        for (ticker, timeframe), read in self._read.items():
            # A batch of a delayed source comes within a minute of the delay.
            delay_s = self._source.get_delay_s(ticker)
            known = clock.now_s - delay_s - RUN_DELAY_MS // 1000 - 60 if delay_s else run
            if read < find_due_close(self._source, ticker, timeframe, min(run, known)):
                if timeframe in self._snapshot.late.get(ticker, ()):
                    self.named.add((ticker, timeframe))
                else:
                    self.unnamed.append((ticker, timeframe, clock.now_s))


@pytest.mark.clause("steps")
@pytest.mark.clause("2.4.18")
@pytest.mark.parametrize("step_s", [180, pytest.param(60, marks=prove)])
@pytest.mark.prove
async def test_no_reading_is_older_than_its_last_closed_candle_without_being_named(
    path: Path, step_s: int
):
    source_begins = march_s("00:00", day=1)
    clock = AcceleratedClock(march_s("12:20", 5), step_s)
    sessions: dict[str, Session] = {"BTC": "24x7", "ETH": "24x7", "NVDA": "XNAS", "IBM": "XNAS"}
    source = ScriptedSource(clock, sessions, source_begins)
    source.venue_delays |= {"NVDA": 900, "IBM": 900}
    source.delays |= {
        ("ETH", march_s("00:00", 6)): 12 * 60,  # a venue that fails from 00:02 to 00:12
        ("ETH", march_s("08:00", 6)): 3 * HOUR_S,
        ("ETH", march_s("13:00", 7)): NEVER,
        ("BTC", march_s("00:00", 8)): 150 * 60,
        ("IBM", march_s("16:00", 6)): 40 * 60,
    }
    polled = OldReadings(source, clock)

    async def fail_at_the_delayed_batch(ticker: str, until: int) -> None:
        failing = {"IBM": march_s("00:18", 7), "NVDA": march_s("16:18", 6)}
        if abs(clock.now_s - failing.get(ticker, 0)) < 600:
            source.outages[ticker] = clock.now_s + 1

    source.before_fetch = fail_at_the_delayed_batch
    stops = ("00:20", 6), ("09:40", 6), ("00:07", 8), ("02:10", 9)
    for time, day in stops:  # the process is restarted at each
        clock.ends_at = march_s(time, day)
        async with open_loop(path, source, source.universe, clock) as (loop, store):
            clock.watch = partial(polled.record, clock, store)
            with suppress(ClockEnded):
                await loop.run()
    assert polled.unnamed == []
    assert polled.named >= {
        *(("ETH", timeframe) for timeframe in TIMEFRAMES),
        ("BTC", "1d"),
        ("IBM", "1h"),
        ("IBM", "1d"),
        ("NVDA", "1h"),
    }
    rows = await check_store_file(path, source, march_s("02:00", 9))
    nvda = {
        (row.timeframe, row.close_time): row.created_at // 1000
        for row in rows
        if row.ticker == "NVDA"
    }
    for day in (6, 7):  # the candles of Thursday and Friday, hours after the session
        midnight = march_s("00:00", day)
        assert {nvda["4h", midnight], nvda["1d", midnight]} == {midnight + 180 + 900}


@pytest.mark.clause("steps")
@pytest.mark.parametrize(
    ("late_s", "jump", "written", "late_written"),
    [
        pytest.param(
            *(0, ("12:30", "17:10"), ("11:03", "12:03", "17:10", "18:03"), "11:03"), id="forward"
        ),
        pytest.param(
            *(0, ("12:30", "08:30"), ("11:03", "12:03", "13:03", "14:03"), "11:03"), id="back"
        ),
        pytest.param(
            *(290, ("11:03:15", "09:40"), ("11:03", "12:03", "13:03"), "12:03"),
            id="back while a bar is late",
            marks=prove,
        ),
        pytest.param(
            *(0, ("11:03:10", "16:03:10"), ("11:03", "16:03", "17:03"), "11:03"),
            id="a sleep of five hours",
            marks=prove,
        ),
        pytest.param(
            *(290, ("11:03:10", "16:03:10"), ("11:03", "16:03", "17:03"), "16:03"),
            id="a sleep of five hours while a bar is late",
            marks=prove,
        ),
    ],
)
async def test_a_clock_that_jumps_leaves_no_hour_out_and_repeats_none(
    path: Path,
    clock: AcceleratedClock,
    source: ScriptedSource,
    late_s: int,
    jump: tuple[str, str],
    written: tuple[str, ...],
    late_written: str,
):
    source.delays["ETH", march_s("11:00")] = late_s
    clock.jump(march_s(jump[0]), to=march_s(jump[1]))
    last = march_s(written[-1])
    await run_loop_until(path, source, clock, last + 27 * 60)
    rows = await check_store_file(path, source, last // HOUR_S * HOUR_S)
    minutes = [(run.written_at or 0) // 60_000 * 60 for run in (await load_commits(path))[1:]]
    assert minutes == [march_s(time) for time in written]
    (late,) = (r for r in rows if r[1:5] == ("ETH", "enzo", "1h", march_s("11:00")))
    assert late.created_at // 60_000 * 60 == march_s(late_written)


@pytest.mark.clause("steps")
@pytest.mark.parametrize(
    "ticks", [1, 30, 300, 3000, *(pytest.param(n, marks=prove) for n in range(50, 3000, 131))]
)
@pytest.mark.sampled(2)
async def test_a_loop_cancelled_at_any_moment_ends_in_the_same_content(
    tmp_path: Path, ticks: int, monkeypatch: pytest.MonkeyPatch
):
    # Several batches, so that one is committed while the next one steps.
    monkeypatch.setattr(runs_module, "BATCH_S", 20 * HOUR_S)
    contents = []
    for name, cancelled_at in (("whole.db", 0), ("cancelled.db", ticks)):
        path, clock = tmp_path / name, AcceleratedClock(march_s("10:20"), step_s=600)
        # A recording that ends five hours ahead.
        source = script(clock, ends_at=march_s("15:00"))
        if cancelled_at:
            running = asyncio.ensure_future(run_loop_until(path, source, clock, march_s("20:00")))
            for _ in range(cancelled_at):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await run_loop_until(path, source, clock, march_s("20:00"))
        await check_store_file(path, source, march_s("15:00"))
        async with open_store(path) as store:
            contents.append(drop_commit_details(await load_content(store)))
    assert contents[0] == contents[1]


@pytest.mark.clause("steps")
@pytest.mark.parametrize("failure", [SourceError("no answer"), RuntimeError("unforeseen")])
@pytest.mark.parametrize("hour", ["10:00", "12:00"])
@pytest.mark.prove
async def test_a_failing_source_is_retried_and_no_bar_is_lost(
    tmp_path: Path, logs: Logs, failure: Exception, hour: str
):
    clock = AcceleratedClock(march_s("10:20"), step_s=5)
    source = script(clock)
    to_raise = [failure] * 3

    async def fail(ticker: str, until: int) -> None:
        if to_raise and ticker == "ETH" and until == march_s(hour):
            raise to_raise.pop()

    source.before_fetch = fail
    await run_loop_until(tmp_path / "m.db", source, clock, march_s("14:30"))
    rows = await check_store_file(tmp_path / "m.db", source, march_s("14:00"))
    # It fails three times within a minute.
    assert failures(logs) == [f"{type(failure).__name__}: {failure}"]
    if hour == "12:00":
        written = {row.created_at // 1000 for row in rows if row.close_time == march_s(hour)}
        assert written == {march_s("12:03:30")}


class Failing(MarketStore):
    """A store whose third commit fails, before or after it is written."""

    commit_calls = 0
    fails_before = True

    async def commit(self, batch: Batch) -> None:
        type(self).commit_calls += 1
        if self.commit_calls == 3 and self.fails_before:
            raise StoreError("disk full")
        await super().commit(batch)
        if self.commit_calls == 3:
            raise StoreError("no answer")


@pytest.mark.clause("steps")
async def test_a_source_that_is_not_ready_is_retried_and_no_bar_is_lost(tmp_path: Path, logs: Logs):
    clock = AcceleratedClock(march_s("10:30"))
    source = script(clock)
    path = tmp_path / "m.db"
    await run_loop_until(path, source, clock, march_s("11:30"))
    source.refusal = "the clock of this machine is 45 s ahead"
    await run_loop_until(path, source, clock, march_s("13:30"))
    refused = [line for line in logs if line["event"] == "source_not_ready"]
    assert {line["reason"] for line in refused} == {source.refusal}
    assert list_stepped_closes(await load_changes(path), "BTC")[-1] == march_s("11:00")
    async with open_store(path) as store:
        assert (await store.progress()).outage == source.refusal
    source.refusal = None
    await run_loop_until(path, source, clock, march_s("14:30"))
    async with open_store(path) as store:
        assert (await store.progress()).outage is None
    await check_store_file(path, source, march_s("14:00"))


@pytest.mark.clause("steps")
async def test_a_run_whose_source_moved_closes_its_pipeline_and_opens_another(
    path: Path, clock: AcceleratedClock, source: ScriptedSource
):
    closed = list[HourlyPipeline]()

    class Recorded(HourlyPipeline):
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    source.moves, clock.ends_at = 1, march_s("13:30")
    async with open_store(path) as store:
        open_pipeline = partial(Recorded.open, store, source, source.universe, ALTERNATING, clock)
        with suppress(ClockEnded):
            await HourlyLoop(open_pipeline, store, clock, clock.sleep).run()
    assert len({*map(id, closed)}) == 2
    await check_store_file(path, source, march_s("13:00"))


@pytest.mark.clause("steps")
@pytest.mark.parametrize("fails_before", [True, False])
@pytest.mark.prove
async def test_a_store_that_fails_is_reloaded_and_written_once(
    path: Path,
    clock: AcceleratedClock,
    source: ScriptedSource,
    logs: Logs,
    fails_before: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(Failing, "commit_calls", 0)
    monkeypatch.setattr(Failing, "fails_before", fails_before)
    told: list[bool] = []
    end = march_s("14:30")
    await run_loop_until(path, source, clock, end, Failing, on_failing=told.append)
    await check_store_file(path, source, march_s("14:00"))
    assert len(failures(logs)) == 1
    # Each change once.
    assert [one for one in told if one] == [True]
    assert told[-1] is False


@pytest.mark.clause("steps")
async def test_a_loop_whose_lock_another_process_took_reports_no_failing_runs(clock, logs):
    errors = iter([StoreError("the database restarts"), LockTakenError("another computes")])
    told: list[bool] = []

    async def fail() -> HourlyPipeline:
        raise next(errors)

    async def sleep(seconds: float) -> None:
        pass

    loop = HourlyLoop(fail, MarketStore.__new__(MarketStore), clock, sleep, on_failing=told.append)
    with pytest.raises(LockTakenError, match="another computes"):
        await loop.run()
    assert told == [True, False]
    assert len(failures(logs)) == 1


@pytest.mark.clause("steps")
async def test_a_fetch_that_hangs_has_ended_before_its_asset_is_fetched_again(
    path: Path, clock: AcceleratedClock, source: ScriptedSource, logs: Logs
):
    fetch_log: list[str] = []

    async def hang_once(ticker: str, until: int) -> None:
        fetch_log.append(f"{ticker} began")
        if fetch_log == ["BTC began"]:
            try:
                await asyncio.Event().wait()
            finally:
                fetch_log.append("BTC ended")
        elif fetch_log == ["BTC began", "ETH began"]:
            raise SourceError("no answer")

    source.before_fetch = hang_once
    await run_loop_until(path, source, clock, march_s("12:30"))
    await check_store_file(path, source, march_s("12:00"))
    assert fetch_log[:4] == ["BTC began", "ETH began", "BTC ended", "BTC began"]
    assert failures(logs) == ["SourceError: no answer"]


@pytest.mark.clause("steps")
@pytest.mark.parametrize(
    ("restarted_at", "written"),
    [("11:03:40", "11:05"), ("11:05:20", "11:05:20"), ("13:10", "13:10"), ("08:30", "12:03")],
)
@pytest.mark.prove
async def test_a_late_bar_is_still_fetched_after_a_restart_even_on_a_clock_that_was_put_back(
    path: Path, clock: AcceleratedClock, source: ScriptedSource, restarted_at: str, written: str
):
    source.delays["ETH", march_s("11:00")] = 290
    await run_loop_until(path, source, clock, march_s("11:03:10"))
    clock.now = march_s(restarted_at) * 1000
    seen = LateHistory()
    await run_loop_until(path, source, clock, march_s("13:30"), late_history=seen)
    rows = await check_store_file(path, source, march_s("13:00"))
    assert [late for _, late in seen.late][-1] == ()
    (late,) = (r for r in rows if r[1:5] == ("ETH", "enzo", "1h", march_s("11:00")))
    assert late.created_at // 1000 == march_s(written)


@pytest.mark.clause("steps")
@pytest.mark.prove
async def test_late_bars_are_still_fetched_if_a_retry_fails(
    path: Path, clock: AcceleratedClock, source: ScriptedSource, logs: Logs
):
    source.delays["ETH", march_s("11:00")] = 230
    to_raise = [SourceError("no answer")]

    async def fail(ticker: str, until: int) -> None:
        if to_raise and clock.now_s == march_s("11:03:30"):
            raise to_raise.pop()

    source.before_fetch = fail
    await run_loop_until(path, source, clock, march_s("12:30"))
    rows = await check_store_file(path, source, march_s("12:00"))
    (late,) = (r for r in rows if r[1:5] == ("ETH", "enzo", "1h", march_s("11:00")))
    assert late.created_at // 1000 == march_s("11:04")
    assert len(failures(logs)) == 1


@pytest.mark.clause("steps")
async def test_late_assets_are_not_fetched_again_if_their_retry_times_are_past(
    path: Path, clock: AcceleratedClock, source: ScriptedSource
):
    source.delays["ETH", march_s("10:00")] = 1500
    fetched_until: list[tuple[str, int]] = []

    async def note(ticker: str, until: int) -> None:
        fetched_until.append((ticker, until))

    source.before_fetch = note
    await run_loop_until(path, source, clock, march_s("11:30"))
    assert sorted(fetched_until) == [
        (ticker, march_s(hour)) for ticker in ("BTC", "ETH") for hour in ("10:00", "11:00")
    ]
    await check_store_file(path, source, march_s("11:00"))


class Pruning(MarketStore):
    """A store that notes by `clock` when it is pruned, and fails the n-th time."""

    clock: AcceleratedClock
    fails_at = 0
    times: list[int]

    async def prune(self) -> int:
        self.times.append(self.clock.now_s)
        if len(self.times) == self.fails_at:
            raise StoreError("disk full")
        return await super().prune()


@pytest.fixture
def pruning(clock: AcceleratedClock) -> type[Pruning]:
    Pruning.clock, Pruning.times, Pruning.fails_at = clock, [], 0
    return Pruning


async def load_pruned_before(path: Path) -> int:
    async with open_store(path) as store:
        return (await store.progress()).pruned_before


@pytest.mark.clause("steps")
@pytest.mark.clause("1.35")
@pytest.mark.prove
async def test_rows_are_pruned_once_a_day_and_at_the_next_run_if_that_fails(
    path: Path, clock: AcceleratedClock, source: ScriptedSource, logs: Logs, pruning: type[Pruning]
):
    pruning.fails_at = 1
    await run_loop_until(path, source, clock, march_s("12:00", day=7), pruning)
    midnights = [march_s("00:03", day) for day in (5, 6, 7)]
    assert pruning.times == [march_s("10:20"), march_s("11:03"), *midnights]
    assert await load_pruned_before(path) == (midnights[-1] - 365 * DAY_S) * 1000
    assert failures(logs) == ["StoreError: disk full"]


@pytest.mark.clause("steps")
@pytest.mark.clause("1.35")
async def test_a_recording_is_pruned_at_its_end_even_if_that_fails_at_first(
    path: Path, clock: AcceleratedClock, logs: Logs, pruning: type[Pruning]
):
    pruning.fails_at = 2
    source = script(clock, ends_at=march_s("09:00"))
    await run_loop_until(path, source, clock, march_s("20:00"), pruning)
    _, failed_at, repeated_at = pruning.times
    assert repeated_at >= failed_at + 10
    assert await load_pruned_before(path) == (march_s("09:03") - 365 * DAY_S) * 1000
    assert failures(logs) == ["StoreError: disk full"]


@pytest.mark.clause("steps")
@pytest.mark.clause("1.26")
async def test_a_recording_ends_the_loop_which_releases_the_lock(
    path: Path, clock: AcceleratedClock
):
    source = script(clock, ends_at=march_s("09:00"))
    async with open_loop(path, source, source.universe, clock) as (loop, _):
        await loop.run()
        assert clock.now_s < march_s("10:21")
        async with open_loop(path, source, source.universe, clock) as (another, _):
            await another.run()
    await check_store_file(path, source, march_s("09:00"))
    (only,) = await load_commits(path)
    assert (only.market_time, only.written_at) == (march_s("09:03") * 1000, None)


@pytest.mark.clause("steps")
@pytest.mark.clause("1.26", "2.1.18")
@pytest.mark.prove
async def test_a_recording_that_ends_in_the_future_is_played_hour_by_hour(
    path: Path, clock: AcceleratedClock
):
    source = script(clock, ends_at=march_s("14:00"))
    await run_loop_until(path, source, clock, march_s("20:00"))
    assert clock.now_s < march_s("14:04")
    rows = await check_store_file(path, source, march_s("14:00"))
    assert all(row.created_at // 1000 == row.close_time + 180 for row in rows)
    nominal = [run.market_time // 1000 - 180 for run in await load_commits(path)]
    assert nominal == list_hours("10:00", "14:00")


@pytest.mark.clause("steps")
@pytest.mark.clause("monitoring")
@pytest.mark.prove
async def test_the_line_of_a_run_has_its_rows_and_its_late_assets(
    path: Path, clock: AcceleratedClock, logs: Logs
):
    tickers = [f"C{number:02}" for number in range(30)]
    source = script(clock, *tickers)
    for ticker in tickers[:12]:
        source.delays[ticker, march_s("11:00")] = 230
    await run_loop_until(path, source, clock, march_s("11:30"))
    first, run, *runs_late = [line for line in logs if line["event"] in ("run", "run_late")]
    assert (first["hour"], run["hour"]) == (
        "2026-03-04T10:00:00.000Z",
        "2026-03-04T11:00:00.000Z",
    )
    assert first["bars"] == sum(
        len(source.closes(ticker, -1, march_s("10:00"))) for ticker in tickers
    )
    assert [run["event"], *(line["event"] for line in runs_late)] == ["run"] + 2 * ["run_late"]
    assert (run["bars"], run["late"], run["late_assets"]) == (18, 12, tickers[:10])
    assert [(line["bars"], line["late"]) for line in runs_late] == [(0, 12), (12, 0)]
    lines = [first, run, *runs_late]
    changes = await load_changes(path)
    assert sum(line["changes"] for line in lines) == len(changes) > 0
    assert all(line["duration_s"] >= 0 and line["alerts"] == 0 for line in lines)
    (pruned,) = [line for line in logs if line["event"] == "pruned"]
    assert (pruned["rows"], logs.index(pruned) - logs.index(first)) == (0, 1)


@pytest.mark.clause("steps")
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=prove) for n in range(2, 16))])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_every_bar_is_stepped_once_through_random_troubles(
    tmp_path: Path, logs: Logs, seed: int
):
    """Late and missing bars, failures, kills, downtime and clock jumps, all drawn at random."""
    draw, path = Random(seed), tmp_path / "m.db"
    sessions: dict[str, Session] = {"BTC": "24x7", "ETH": "24x7", "NVDA": "XNAS", "XAU": "24x5"}
    clock = AcceleratedClock(march_s("10:00") + draw.randrange(3600), step_s=20)
    source = ScriptedSource(clock, sessions, BEGINS)
    troubled_until = march_s("00:00", day=6)
    for ticker in sessions:
        for close in source.closes(ticker, BEGINS, troubled_until):
            if draw.random() < 0.15:
                source.delays[ticker, close] = draw.choice([200, 250, 290, 900, 4000, 9000, NEVER])

    async def trouble(ticker: str, until: int) -> None:
        if clock.now_s < troubled_until and draw.random() < 0.01:
            raise SourceError("no answer")
        if clock.now_s < troubled_until and draw.random() < 0.01:
            clock.now += draw.randrange(4000) * 1000

    source.before_fetch = trouble
    while clock.now_s < troubled_until:
        if draw.random() < 0.3:
            jump_at = clock.now_s + draw.randrange(4 * HOUR_S)
            clock.jump(jump_at, to=jump_at + draw.randrange(-3 * HOUR_S, 6 * HOUR_S))
        await run_loop_until(path, source, clock, clock.now_s + draw.randrange(8 * HOUR_S))
        clock.now += draw.choice([0, 5, 60, 5000, 20_000]) * 1000
    source.before_fetch = None
    await run_loop_until(path, source, clock, march_s("00:30", day=9))
    await check_store_file(path, source, march_s("00:00", day=9))
    assert set(failures(logs)) <= {"SourceError: no answer"}


@pytest.mark.clause("steps")
def test_a_failed_run_is_logged_with_its_traceback_once_and_then_counted(logs: Logs):
    reports: list[Callable[..., object]] = []

    def call_later(delay: float, callback: Callable[..., object], *args: object, context: Context):
        reports.append(callback)

    failures = FailureLog(call_later)
    for text in ("a", "a", "b", "a"):
        try:
            raise TypeError(text)
        except TypeError as error:
            log_run_failure(failures, error)
    log_run_failure(failures, StoreError("c"))
    for report in reports[:3]:
        report()
    lines = [log for log in logs if log["event"] == "run_failed"]
    assert [line["failure"][-1] for line in lines] == ["a", "b", "c", "a"]
    assert ["traceback" in line for line in lines] == [True, True, False, False]
    assert "test_hourly_loop.py" in lines[0]["traceback"]
    assert lines[3]["repeated"] == 2
    assert lines[3]["where"].startswith("test_hourly_loop.py:")
    logs.clear()


BEHIND_S = 2 * 3600


@asynccontextmanager
async def open_postgres_loop(
    database: str, source: ScriptedSource, clock: AcceleratedClock
) -> AsyncIterator[tuple[HourlyLoop, MarketStore]]:
    """Yield the loop of a separate process over a database; its pipeline is not open yet."""
    async with open_and_close(open_postgres_market(database)) as store:
        opener = partial(HourlyPipeline.open, store, source, source.universe, ALTERNATING, clock)
        yield HourlyLoop(opener, store, clock, clock.sleep), store


@pytest.mark.clause("postgres")
@pytest.mark.prove
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
        async with open_postgres_loop(database, script(behind), behind) as (loop, _):
            with pytest.raises(ClockEnded):
                await loop.run()
            with pytest.raises(LockTakenError, match="is computing on"):
                await first.lock()

    source.before_fetch = taken_over
    async with open_postgres_loop(database, source, clock) as (loop, first):
        with pytest.raises(LockTakenError, match="no longer computing"):
            await loop.run()
        rows = await check_store(first, source, march_s("16:00"))
        commit_rows = await list_commits(first)
    assert [run.market_time // 1000 - 180 for run in commit_rows[1:]] == list_hours(
        "11:00", "16:00"
    )
    hours = [row for row in rows if (row.ticker, row.timeframe) == ("BTC", "1h")]
    times = {row.close_time: row.created_at // 1000 for row in hours}
    assert [times[hour] for hour in list_hours("13:00", "16:00")] == [
        hour + 180 for hour in list_hours("13:00", "16:00")
    ]


@pytest.mark.clause("postgres")
@pytest.mark.prove
async def test_a_leader_cut_off_between_runs_takes_the_lead_again_if_no_other_has(
    clock: AcceleratedClock, source: ScriptedSource, database: str
):

    async def cut() -> None:
        if clock.now_s == march_s("12:30"):
            await cut_sessions(database)

    clock.watch, clock.ends_at = cut, march_s("14:30")
    async with open_postgres_loop(database, source, clock) as (loop, store):
        with pytest.raises(LockTakenError, match="no longer computing"):
            await loop.run()
        assert clock.now_s < march_s("13:03"), "it noticed only when the next run was due"
        with pytest.raises(ClockEnded):
            await loop.run()
        await check_store(store, source, march_s("14:00"))
