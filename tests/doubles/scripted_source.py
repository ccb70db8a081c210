"""A Source that follows a script, and a fast clock, for tests of the hourly loop.

Its indicator changes on every bar, so a lost, repeated or misplaced bar shows in the readings.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S, NO_BARS, NO_FUNDING, RawBar, Series
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Bar, Carry, Readings, Values
from compute.indicators.windows import count_bars
from compute.sources.source import FetchResult, NotReadyError, Source
from compute.sources.venue import VenueError
from compute.trading_sessions import (
    find_last_close,
    find_next_close,
    find_session_watermark,
    list_expected_bars,
)
from compute.universe import Asset, Session, Universe
from schemas.vocabulary import TIMEFRAMES, Clock, SourceKind, Timeframe
from store.market_rows import ChangeRow, CommitRow
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.doubles.venues.market import make_bar
from tests.support.row_builders import list_changes, list_commits
from tests.support.small_market import find_longer_close
from tests.support.store_homes import open_and_close, open_market_as

NEVER = None
YEAR, MONTH, DAY = 2026, 3, 4  # a Wednesday


def march_s(time: str, day: int = DAY) -> int:
    """Return a time of day in March 2026 in epoch seconds, such as march_s("12:03:30")."""
    hour, minute, *second = map(int, time.split(":"))
    return int(datetime(YEAR, MONTH, day, hour, minute, *second, tzinfo=UTC).timestamp())


def list_hours(first: str, last: str, day: int = DAY) -> list[int]:
    """Return the full hours from one to another, inclusive."""
    return list(range(march_s(first, day), march_s(last, day) + 1, HOUR_S))


class AlternatingIndicator:
    """Bullish on an asset's first bar; changes side on every bar after it."""

    id = "enzo"  # a name for which a store has a code
    name = "Metronome"
    version = 1
    note = "Turns on every bar."

    def start(self, assets: int) -> Carry:
        return {"bars": np.zeros(assets, dtype=np.int64)}

    def advance(self, carry: Carry, bars: Bar) -> Values:
        return {}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        return carry, (2 * (count_bars(carry, len(bars.close)) % 2) - 1).astype(np.int8)


ALTERNATING = (AlternatingIndicator(),)


class ClockEnded(BaseException):
    """The clock has reached the time at which the test stops the loop."""


class AcceleratedClock:
    """A wall clock in epoch ms. A sleep advances it by at least its duration, to a full step."""

    def __init__(self, now_s: int, step_s: int = 15) -> None:
        self.now = now_s * 1000
        self.ends_at: int | None = None
        self.watch: Callable[[], Awaitable[None]] | None = None
        self._step_s = step_s
        self._jumps: list[tuple[int, int]] = []

    def __call__(self) -> int:
        return self.now

    @property
    def now_s(self) -> int:
        return self.now // 1000

    def jump(self, when: int, to: int) -> None:
        """Set the clock to a time once it reaches another; both in epoch seconds."""
        self._jumps.append((when, to))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now = -(-(self.now_s + int(seconds)) // self._step_s) * self._step_s * 1000
        if self._jumps and self.now_s >= self._jumps[0][0]:
            self.now = self._jumps.pop(0)[1] * 1000
        if self.watch is not None:
            await self.watch()
        if self.ends_at is not None and self.now_s >= self.ends_at and not self._jumps:
            raise ClockEnded


class ScriptedSource(Source):
    """Delivers a bar at every close of an asset's session, at once or after its delay in `delays`.

    A bar that never comes counts as missing an hour after its close. `before_fetch` is awaited at
    the start of every fetch and may raise or wait. `splits` maps an asset to a divisor of its
    prices and the close from which it applies; the source then restates the history. `outages` maps
    an asset to the time up to which its fetches fail.
    """

    shown_history_s = 30 * DAY_S
    ends_at: int | None = None

    def __init__(
        self,
        clock: Clock,
        sessions: Mapping[str, Session],
        begins_at: int,
        ends_at: int | None = None,
    ) -> None:
        self.kind: SourceKind = "live" if ends_at is None else "recorded"
        self.name = f"scripted:{begins_at}"
        self.ends_at = ends_at
        self.universe = make_universe(sessions)
        self.delays: dict[tuple[str, int], int | None] = {}
        self.before_fetch: Callable[[str, int], Awaitable[None]] | None = None
        self.begins_at = begins_at
        self.venue_delays: dict[str, int] = {}
        self.outages: dict[str, int] = {}
        self.refusal: str | None = None
        self.moves = 0
        self.splits: dict[str, list[tuple[int, int]]] = {}
        self._clock = clock
        self._sessions = dict(sessions)

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        return "1h" if ticker in self._sessions else None

    def get_delay_s(self, ticker: str) -> int:
        return self.venue_delays.get(ticker, 0)

    async def has_moved(self) -> bool:
        self.moves -= 1
        return self.moves >= 0

    async def check_ready(self) -> None:
        if self.refusal is not None:
            raise NotReadyError(self.refusal)

    def find_next_close(self, ticker: str, after: int) -> int | None:
        close = find_next_close(self._sessions[ticker], max(after, self.begins_at))
        return None if self.ends_at is not None and close > self.ends_at else close

    def find_last_close(self, ticker: str, at: int) -> int:
        return find_last_close(self._sessions[ticker], at) if self.ends_at is None else -1

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        if self.before_fetch is not None:
            await self.before_fetch(ticker, until)
        now, session = self._clock() // 1000, self._sessions[ticker]
        if now < self.outages.get(ticker, 0):
            return FetchResult(NO_BARS, NO_FUNDING, after, has_failed=True)
        closes = self.closes(ticker, after, min(until, now))
        pending = [close for close in closes if close + self._known_after(ticker, close) > now]
        # A venue that is behind does not know yet that a session which has closed brought no more.
        quiet_until = now - self.get_delay_s(ticker)
        known = find_session_watermark(session, pending[0] - 1 if pending else quiet_until)
        watermark = max(after, min(until, known))
        bars = self.bars(ticker, after, watermark, watermark)
        ratios = [ratio for when, ratio in self.splits.get(ticker, ()) if after < when <= watermark]
        if not ratios:
            return FetchResult(bars, NO_FUNDING, watermark)
        why = ", ".join(f"split {ratio}:1" for ratio in ratios)
        return FetchResult(
            bars, NO_FUNDING, watermark, self.bars(ticker, -1, after, watermark), why
        )

    def bars(self, ticker: str, after: int, until: int, known_at: int) -> Series:
        """Return the bars in (after, until], with the splits known at a time applied."""
        closes = self.closes(ticker, after, until)
        there = [c for c in closes if self.delays.get((ticker, c), 0) is not None]
        ratios = [ratio for when, ratio in self.splits.get(ticker, ()) if when <= known_at]
        return _make_bars(there, prod(ratios))

    def closes(self, ticker: str, after: int, until: int) -> list[int]:
        """Return the closes of an asset's session in (after, until]."""
        first = max(after, self.begins_at)
        last = until if self.ends_at is None else min(until, self.ends_at)
        closes: list[int] = list_expected_bars(
            self._sessions[ticker], first, last
        ).close_time.tolist()
        return closes

    def _known_after(self, ticker: str, close: int) -> int:
        delay = self.delays.get((ticker, close), self.get_delay_s(ticker))
        return HOUR_S if delay is None else delay


def _make_bars(closes: list[int], ratio: int) -> Series:
    close_time = np.array(closes, dtype=np.int64)
    price = (100.0 + close_time // HOUR_S * 7919 % 100) / ratio
    return Series(close_time - HOUR_S, close_time, price, price, price, price, np.ones(len(closes)))


def make_universe(sessions: Mapping[str, Session]) -> Universe:
    """Return a universe of these assets, renamed before the first bar, so without `dexter`."""
    assets = tuple(
        Asset(
            ticker=ticker,
            name=ticker,
            asset_class="crypto" if session == "24x7" else "stock",
            session=session,
            symbol=ticker,
            venue="made up",
            added_on=date(2024, 1, 1),
        )
        for ticker, session in sessions.items()
    )
    return Universe(assets=assets, renamed_on=date(2025, 1, 1))


@asynccontextmanager
async def open_loop(
    path: Path,
    source: Source,
    universe: Universe,
    clock: AcceleratedClock,
    store_class: type[MarketStore] = MarketStore,
    on_failing: Callable[[bool], None] = lambda are_failing: None,
) -> AsyncIterator[tuple[HourlyLoop, MarketStore]]:
    """Open a store and yield a loop over it, with its pipeline not yet open."""
    async with open_and_close(open_market_as(store_class, path)) as store:
        open_pipeline = partial(HourlyPipeline.open, store, source, universe, ALTERNATING, clock)
        yield HourlyLoop(open_pipeline, store, clock, clock.sleep, on_failing=on_failing), store


async def run_loop_until(
    path: Path,
    source: ScriptedSource,
    clock: AcceleratedClock,
    until: int,
    store_class: type[MarketStore] = MarketStore,
    late_history: "LateHistory | None" = None,
    on_failing: Callable[[bool], None] = lambda are_failing: None,
) -> None:
    """Run the loop until the clock reaches a time or the loop ends by itself."""
    clock.ends_at = until
    opening = open_loop(path, source, source.universe, clock, store_class, on_failing)
    async with opening as (loop, store):
        clock.watch = None if late_history is None else partial(late_history.record, clock, store)
        with suppress(ClockEnded):
            await loop.run()


class LateHistory:
    """The building and the late assets of a store's snapshots at each change (epoch seconds)."""

    def __init__(self) -> None:
        self.states: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
        self._version = -1

    @property
    def late(self) -> list[tuple[int, tuple[str, ...]]]:
        """The late assets, whenever they change."""
        before = [None, *(late for _, _, late in self.states)]
        states = zip(before, self.states, strict=False)
        return [(at, late) for last, (at, _, late) in states if late != last]

    async def record(self, clock: AcceleratedClock, store: MarketStore) -> None:
        """Record the assets of a store between two sleeps."""
        if store.version() == self._version:
            return
        self._version = store.version()
        snapshot = await store.snapshot()
        state = snapshot.building_tickers, tuple(snapshot.late)
        if not self.states or self.states[-1][1:] != state:
            self.states.append((clock.now_s, *state))


async def load_changes(path: Path) -> list[ChangeRow]:
    """Return every stored change, oldest first."""
    async with open_and_close(open_sqlite_market(path)) as store:
        return await list_changes(store)


async def load_commits(path: Path) -> list[CommitRow]:
    """Return the commits of a store, oldest first."""
    async with open_and_close(open_sqlite_market(path)) as store:
        return await list_commits(store)


def list_stepped_closes(
    rows: list[ChangeRow], ticker: str, timeframe: Timeframe = "1h"
) -> list[int]:
    """Return the closes at which an asset was stepped."""
    return [row.close_time for row in rows if (row.ticker, row.timeframe) == (ticker, timeframe)]


async def check_store_file(path: Path, source: ScriptedSource, until: int) -> list[ChangeRow]:
    """Assert that a store file has the script's rows up to an hour; return its changes."""
    async with open_and_close(open_sqlite_market(path)) as store:
        return await check_store(store, source, until)


async def check_store(store: MarketStore, source: ScriptedSource, until: int) -> list[ChangeRow]:
    """Compare an open store to the script up to an hour; return its changes.

    Assert that every bar was stepped once, on every timeframe and in order, and that the audit is
    clean.
    """
    report = await audit_market(store, source.universe, ALTERNATING)
    rows = await list_changes(store)
    assert report.findings == []
    created = [row.created_at for row in rows]
    assert created == sorted(set(created))
    for ticker in source.universe.by_ticker:
        closes = [
            close
            for close in source.closes(ticker, -1, until)
            if source.delays.get((ticker, close), 0) is not NEVER
        ]
        for timeframe in TIMEFRAMES:
            ends = sorted({find_longer_close(ticker, close, timeframe) for close in closes})
            expected = [end for end in ends if end <= until]
            assert list_stepped_closes(rows, ticker, timeframe) == expected, (ticker, timeframe)
    return rows


BARS = [make_bar(0)]
Answered = TypeVar("Answered")


async def yield_to_loop(count: int = 20) -> None:
    """Let all that can go on do so; a sleep takes twenty turns."""
    for _ in range(count):
        await asyncio.sleep(0)


class SleepClock:
    """A clock in epoch ms that goes on by each sleep, in which other tasks have their turn.

    Sleeps at the same time are one.
    """

    def __init__(self) -> None:
        self.now = 1_000_000
        self.waits: list[float] = []

    def __call__(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        until = self.now + int(1000 * seconds)
        await yield_to_loop()
        self.now = max(self.now, until)


class ScriptedVenue:
    """Fails as `failures` say, one a call, then answers; what is held lasts until it is let go."""

    name = "scripted"
    delay_s = 900

    def __init__(self, clock: SleepClock) -> None:
        self.failures = deque[VenueError | None]()
        self.requests: list[tuple[str, int]] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.in_flight = self.max_in_flight = 0
        self.is_closed = False
        self._clock = clock

    async def fetch_symbols(self) -> frozenset[str]:
        return await self._answer("listed", frozenset({"X"}))

    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        return await self._answer(symbol, BARS)

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        return await self._answer(symbol, [(until, 0.0001)])

    async def fetch_time_ms(self) -> int:
        return await self._answer("clock", self._clock())

    async def close(self) -> None:
        self.is_closed = True

    def hold(self, *symbols: str) -> None:
        self.holds = {symbol: asyncio.Event() for symbol in symbols}

    def release(self) -> None:
        for held in self.holds.values():
            held.set()

    async def _answer(self, what: str, answer: Answered) -> Answered:
        self.requests.append((what, self._clock()))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            if held := self.holds.get(what):
                await held.wait()
        finally:
            self.in_flight -= 1
        if self.failures and (failure := self.failures.popleft()):
            raise failure
        return answer
