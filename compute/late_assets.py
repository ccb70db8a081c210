"""Tracks how far each asset has been fetched, which assets lag or are late, and builds histories.

The history of an asset that lacks it is fetched as a whole, between the hourly runs. Nothing here
waits for a source: finished fetches are handed over.
"""

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import structlog

from compute.bars import HOUR_S, Funding, Series
from compute.covered_assets import list_served_timeframes
from compute.sources.source import FetchResult, Source
from compute.stepper import SeriesKey
from compute.universe import Universe
from schemas.longer_bars import compute_close_time
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Clock, Timeframe, compute_midnight_s
from store.failure_log import FailureLog
from store.market_rows import WatermarkRow
from store.sql.market_store import MarketStore


class FetchTracker:
    """Fetches from a source what follows each asset's watermark (epoch seconds)."""

    def __init__(
        self,
        source: Source,
        universe: Universe,
        watermarks: Mapping[str, int],
        lagging: Iterable[WatermarkRow],
        building: Mapping[str, bool],
    ) -> None:
        """`building` maps the assets whose history is built between the runs to whether they are
        late, because they had their whole history before.
        """
        # The times after which the next fetches begin.
        self.watermarks: Final = dict(watermarks)
        # The assets that the last batch's hour found behind with a fetch or late with a candle.
        self.lagging = tuple(lagging)
        self._building: Final = dict(building)
        # The assets whose history the next batch completes.
        self.built: Final[set[str]] = set()
        self._source: Final = source
        self._universe: Final = universe

    @property
    def late(self) -> dict[str, tuple[Timeframe, ...]]:
        """The timeframes of each asset whose due candle the last batch could not step."""
        return {row.ticker: row.late for row in self.lagging if row.late}

    @property
    def building(self) -> frozenset[str]:
        """The assets whose history is built between the runs, which do not fetch them."""
        return frozenset(self._building)

    def get_source_name(self, ticker: str) -> str:
        """Return the source to record with an asset's bars."""
        # Not the source's name: recorded bars are the same bars in another folder.
        return self._source.get_listing(ticker) or self._source.kind

    def list_behind(self, until: int) -> list[str]:
        """Return the followed assets that were not fetched up to `until`."""
        return [ticker for ticker in self.list_followed() if self.watermarks[ticker] < until]

    def list_pending(self, until: int, closes: Mapping[SeriesKey, int]) -> tuple[str, ...]:
        """Return the assets with a candle that another fetch may let the run at `until` step.

        It may be late yet or not. `closes` has the next close of each sequence with buffered bars.
        """
        # A recording has all bars that it will ever have: a candle it does not fill never steps.
        if self._source.ends_at is not None:
            return ()
        # The last bar of a session may be there long before its daily candle closes. That candle
        # waits for a watermark at its close.
        held = {
            ticker
            for (ticker, timeframe), close in closes.items()
            if close <= until and until % TIMEFRAME_DURATIONS_S[timeframe] == 0
        }
        return tuple(
            ticker
            for ticker in self.list_behind(until)
            if ticker in held or self.watermarks[ticker] < self._find_expected_close(ticker, until)
        )

    def list_live(self) -> list[str]:
        """Return the assets that still step: a removed one does until its end."""
        ends = self._universe.end_time_by_ticker
        return [
            t for t, watermark in self.watermarks.items() if t not in ends or watermark < ends[t]
        ]

    def list_followed(self) -> list[str]:
        """Return the live assets that the runs fetch."""
        return [ticker for ticker in self.list_live() if ticker not in self._building]

    async def fetch(self, tickers: Sequence[str], until: int) -> dict[str, FetchResult]:
        """Fetch assets concurrently; if one fails, cancel the others, wait for them and raise."""
        tasks = [
            asyncio.ensure_future(self._source.fetch(ticker, self.watermarks[ticker], until))
            for ticker in tickers
        ]
        try:
            return dict(zip(tickers, await asyncio.gather(*tasks), strict=True))
        except Exception:
            # `gather` leaves the other tasks running. They must not fetch for a pipeline that
            # the caller has given up.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def set_aside(self, fetched: Mapping[str, FetchResult], start: int, until: int) -> list[str]:
        """Set aside the assets whose fetch failed in a batch of several runs (`start` to `until`).

        Their history is built between the runs. Return their tickers.
        """
        tickers = []
        for ticker, new in fetched.items():
            if not new.has_failed or start >= until:
                continue
            # A bar that is missing at the last run alone is late: its retries fetch it soon enough.
            at = until - max(HOUR_S, self._source.get_delay_s(ticker))
            end = self._universe.end_time_by_ticker.get(ticker, at + 1)
            if new.watermark < self._source.find_last_close(ticker, min(at, end - 1)):
                tickers.append(ticker)
                self._building[ticker] = self.watermarks[ticker] >= 0
        return tickers

    def cut_at_removal(self, ticker: str, fetched: FetchResult) -> tuple[Series, Funding]:
        """Return an asset's fetched bars and settlements up to its removal, if it has one."""
        history, removed_on = fetched.history, self._universe.by_ticker[ticker].removed_on
        # A restated history is followed by the new bars.
        series = fetched.bars if history is None else history.concatenate(fetched.bars)
        if removed_on is None:
            return series, fetched.funding
        end = compute_midnight_s(removed_on) - 1
        return series.select(series.close_time <= end), fetched.funding.select_between(-1, end)

    def update_lagging(self, until: int) -> None:
        """Record which assets are not fetched up to `until`, before what they have is stepped."""
        lagging = {t for t in self.list_live() if self.watermarks[t] < until}
        lagging.update(self._building)
        self.lagging = tuple(
            WatermarkRow(
                ticker,
                self.watermarks[ticker],
                history="built"
                if ticker in self.built
                else "building"
                if ticker in self._building
                else "followed",
            )
            for ticker in sorted(lagging)
        )
        for ticker in self.built:
            self._building.pop(ticker, None)
        self.built.clear()

    def update_late(self, until: int, now_s: int, closes: Mapping[SeriesKey, int]) -> None:
        """Record on which timeframes assets are late, now that what they have is stepped.

        `closes` has the next close of each sequence that has buffered bars.
        """
        rows = {row.ticker: row for row in self.lagging}
        for ticker in self.list_live():
            if late := self._find_late(ticker, until, now_s, closes):
                row = rows.get(ticker) or WatermarkRow(ticker, self.watermarks[ticker])
                rows[ticker] = replace(row, late=late)
        self.lagging = tuple(rows[ticker] for ticker in sorted(rows))

    def _find_late(
        self, ticker: str, until: int, now_s: int, closes: Mapping[SeriesKey, int]
    ) -> tuple[Timeframe, ...]:
        """Return the timeframes whose due candle is not stepped.

        Its bars are missing, or they came too late for its run and wait for the next one.
        """
        native = self._source.get_native_timeframe(ticker)
        timeframes = list_served_timeframes(native) if self._source.ends_at is None else ()
        if ticker in self._building:
            return timeframes if self._building[ticker] else ()
        watermark = self.watermarks[ticker]
        due_by = min(until, now_s - self._source.get_delay_s(ticker))
        late = []
        for timeframe in timeframes:
            period_s = TIMEFRAME_DURATIONS_S[timeframe]
            boundary = due_by // period_s * period_s
            is_held = closes.get((ticker, timeframe), until + 1) <= boundary
            if is_held or watermark < self._find_expected_close(ticker, boundary):
                late.append(timeframe)
        return tuple(late)

    def _find_expected_close(self, ticker: str, at: int) -> int:
        """Return the close of the last bar expected by `at`, -1 if the asset is removed by then."""
        end = self._universe.end_time_by_ticker.get(ticker)
        return -1 if end is not None and at >= end else self._source.find_last_close(ticker, at)


async def open_tracker(
    store: MarketStore,
    source: Source,
    universe: Universe,
    native_timeframes: Mapping[str, Timeframe],
    done_hour: int,
    stored_tickers: Collection[str],
    covered_before: Collection[str],
) -> FetchTracker:
    """Return a tracker of the assets with a native timeframe, resumed from a store.

    A stored asset continues at its stored watermark, or at `done_hour` if none is stored. If it was
    not covered for a while, it continues at its last stored bar. A new asset begins at -1; its
    history is built between the runs, unless the source has ended, or shows what its first start
    builds.
    """
    # A batch stores only the watermarks of lagging assets; all others stand at its hour.
    lagging = await store.watermarks()
    watermarks = {t: done_hour if t in stored_tickers else -1 for t in native_timeframes}
    watermarks |= {row.ticker: row.watermark for row in lagging if row.ticker in native_timeframes}
    for ticker, native in native_timeframes.items():
        if ticker in stored_tickers and ticker not in covered_before:
            blocks = await store.bars(ticker)
            watermarks[ticker] = -1
            if blocks:
                opens = np.array([max(block.open_time[-1] for block in blocks)])
                closes = compute_close_time(opens, TIMEFRAME_DURATIONS_S[native])
                watermarks[ticker] = int(closes[0])
    building = {ticker: False for ticker, at in watermarks.items() if at < 0}
    # Rows that the feed or a past board shows have the nominal times of their runs, so they come in
    # the order of time, and all assets together.
    if source.ends_at is not None or (done_hour < 0 and source.shown_history_s):
        building = {}
    resumed = (row for row in lagging if row.history == "building" and row.ticker in watermarks)
    building |= {row.ticker: bool(row.late) for row in resumed}
    return FetchTracker(source, universe, watermarks, lagging, building)


# The first assets of a venue are complete early if the others wait for them. More at a time would
# not be faster, because a venue limits its calls.
MAX_FETCHES_PER_VENUE = 8
# A venue that has answered again is noticed within a minute, and one that has not gets one request
# a minute for each asset.
FIRST_WAIT_MS, MAX_WAIT_MS = 5_000, 60_000

log = structlog.get_logger("compute")


@dataclass(slots=True)
class _Build:
    """One asset: its running fetch up to `until`, or the wait after a failure."""

    until: int = -1
    task: asyncio.Task[FetchResult] | None = None
    failed_at: int = 0
    wait_ms: int = 0


class HistoryBuilder:
    """Fetches what the assets of `FetchTracker.building` lack, coins first; `clock` is in epoch ms.

    Coins need the fewest requests, and most calls are about them.
    """

    def __init__(
        self, source: Source, tracker: FetchTracker, universe: Universe, clock: Clock
    ) -> None:
        self._source: Final = source
        self._tracker: Final = tracker
        first = sorted(universe.assets, key=lambda a: (a.asset_class != "crypto", not a.alerts))
        self._places: Final = {asset.ticker: at for at, asset in enumerate(first)}
        self._clock: Final = clock
        self._builds: Final[dict[str, _Build]] = {}
        self._failures: Final = FailureLog()
        self._slots: Final = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(MAX_FETCHES_PER_VENUE)
        )

    @property
    def untried_tickers(self) -> frozenset[str]:
        """The building assets of which no fetch has failed yet."""
        return self._tracker.building - {t for t, b in self._builds.items() if b.wait_ms}

    def start_fetches(self, until: int) -> None:
        """Start to fetch up to an hour the assets that no fetch or wait holds."""
        missing = self._tracker.building - self._builds.keys()
        for ticker in sorted(missing, key=self._places.__getitem__):
            self._builds[ticker] = _Build()
        now = self._clock()
        for ticker, build in self._builds.items():
            # A clock that was put back ends a wait, which could otherwise take as long again.
            is_waiting = build.failed_at <= now < build.failed_at + build.wait_ms
            if build.task is None and not is_waiting:
                build.until = until
                build.task = asyncio.ensure_future(self._fetch(ticker, until))

    async def _fetch(self, ticker: str, until: int) -> FetchResult:
        """Fetch an asset when its turn at its venue has come."""
        venue = self._tracker.get_source_name(ticker).partition(" ")[0]
        async with self._slots[venue]:
            return await self._source.fetch(ticker, self._tracker.watermarks[ticker], until)

    def take_fetched(self, until: int) -> dict[str, FetchResult]:
        """Return the new rows of each asset whose fetch has ended; one without a bar has failed.

        An asset that has all rows up to `until` is recorded as built.
        """
        fetched: dict[str, FetchResult] = {}
        for ticker, build in list(self._builds.items()):
            if build.task is None or not build.task.done():
                continue
            task, build.task, result = build.task, None, None
            try:
                result = task.result()
            except Exception as error:
                # It costs this asset alone: the runs of the others go on.
                cause = {"ticker": ticker, "failure": f"{type(error).__name__}: {error}"}
                where = "".join(traceback.format_tb(error.__traceback__))
                self._failures.write(log.error, "history_fetch_failed", cause, where=where)
            if result is None or result.has_failed or result.watermark < 0:
                build.failed_at = self._clock()
                build.wait_ms = min(max(FIRST_WAIT_MS, 2 * build.wait_ms), MAX_WAIT_MS)
                continue
            fetched[ticker], build.wait_ms = result, 0
            if build.until >= until:
                self._tracker.built.add(ticker)
                del self._builds[ticker]
        return fetched

    async def close(self) -> None:
        """Cancel the running fetches and wait until they have ended."""
        tasks = [build.task for build in self._builds.values() if build.task is not None]
        self._builds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
