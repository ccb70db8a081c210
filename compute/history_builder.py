"""Fetches the history of assets that were set aside, each on its own, between the hourly runs.

Nothing here waits for a source: finished fetches are handed over in parts of a batch's length.
"""

import asyncio
import traceback
from dataclasses import dataclass
from typing import Final

import structlog

from compute.fetch_tracker import FetchTracker
from compute.sources.source import FetchResult, Source
from schemas.clock import Clock
from store.failure_log import FailureLog

# As many assets at a time as keep the fetched histories in memory below 20 MB. More assets step
# together in about the same time, so fewer would take longer.
MAX_FETCHES = 32
# A venue that has answered again is noticed within a minute, and one that has not gets one request
# a minute for each asset.
FIRST_WAIT_MS, MAX_WAIT_MS = 5_000, 60_000

log = structlog.get_logger("compute")


@dataclass(slots=True)
class _Build:
    """One asset: its running fetch, or fetched rows up to `until`, or the wait after a failure."""

    until: int = -1
    task: asyncio.Task[FetchResult] | None = None
    fetched: FetchResult | None = None
    failed_at: int = 0
    wait_ms: int = 0


class HistoryBuilder:
    """Fetches what the assets of `FetchTracker.building` lack; `clock` is in epoch ms."""

    def __init__(self, source: Source, tracker: FetchTracker, clock: Clock) -> None:
        self._source: Final = source
        self._tracker: Final = tracker
        self._clock: Final = clock
        self._builds: Final[dict[str, _Build]] = {}
        self._failures: Final = FailureLog()

    def start_fetches(self, until: int) -> None:
        """Start to fetch up to an hour the assets that no fetch or wait holds, some at a time."""
        for ticker in sorted(self._tracker.building - self._builds.keys()):
            self._builds[ticker] = _Build()
        free = MAX_FETCHES - sum(
            build.task is not None or build.fetched is not None for build in self._builds.values()
        )
        for ticker in [t for t, build in self._builds.items() if self._is_idle(build)][:free]:
            build = self._builds.pop(ticker)
            # Moved to the end, so that assets that keep failing do not hold up the others.
            self._builds[ticker] = build
            build.until = until
            build.task = asyncio.ensure_future(
                self._source.fetch(ticker, self._tracker.get_watermark(ticker), until)
            )

    def take_parts(self, until: int, length_s: int) -> dict[str, FetchResult]:
        """Return the next rows of each asset that has any, at most `length_s` of history each.

        Parts end on a fixed grid. An asset that has all rows up to `until` is recorded as built.
        """
        parts: dict[str, FetchResult] = {}
        for ticker, build in list(self._builds.items()):
            self._collect(ticker, build)
            if build.fetched is not None:
                part, build.fetched = _split_off(build.fetched, length_s)
                if build.fetched is None and build.until >= until:
                    self._tracker.end_building([ticker])
                    del self._builds[ticker]
                parts[ticker] = part
        return parts

    async def close(self) -> None:
        """Cancel the running fetches and wait until they have ended."""
        tasks = [build.task for build in self._builds.values() if build.task is not None]
        self._builds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_idle(self, build: _Build) -> bool:
        # A clock that was put back ends a wait, which could otherwise take as long again.
        is_waiting = build.failed_at <= self._clock() < build.failed_at + build.wait_ms
        return build.task is None and build.fetched is None and not is_waiting

    def _collect(self, ticker: str, build: _Build) -> None:
        """Take the result of a finished fetch; one without a bar counts as failed."""
        if build.task is None or not build.task.done():
            return
        result, build.task = self._get_result(ticker, build.task), None
        if result is None or result.has_failed or result.watermark < 0:
            build.failed_at = self._clock()
            build.wait_ms = min(max(FIRST_WAIT_MS, 2 * build.wait_ms), MAX_WAIT_MS)
        else:
            build.fetched, build.wait_ms = result, 0

    def _get_result(self, ticker: str, task: asyncio.Task[FetchResult]) -> FetchResult | None:
        """Return the result of a fetch; if it raised, log the error once and return None."""
        try:
            return task.result()
        except Exception as error:
            # It costs this asset alone: the runs of the others go on.
            cause = {"ticker": ticker, "failure": f"{type(error).__name__}: {error}"}
            where = "".join(traceback.format_tb(error.__traceback__))
            self._failures.write(log.error, "history_fetch_failed", cause, where=where)
            return None


def _split_off(fetched: FetchResult, length_s: int) -> tuple[FetchResult, FetchResult | None]:
    """Return the rows of the first part on a grid of `length_s`, and the rest if there is any."""
    bars = fetched.bars
    # A restated history is rebuilt in one step, whatever follows it.
    if fetched.is_restated or not len(bars):
        return fetched, None
    end = (int(bars.close_time[0]) - 1) // length_s * length_s + length_s
    if end >= int(bars.close_time[-1]):
        return fetched, None
    is_first, settlements, missing = bars.close_time <= end, fetched.funding, fetched.missing
    return (
        FetchResult(
            bars.select(is_first),
            settlements.select_between(-1, end),
            end,
            missing=missing[missing <= end],
        ),
        FetchResult(
            bars.select(~is_first),
            settlements.select_between(end, max(end, fetched.watermark)),
            fetched.watermark,
            missing=missing[missing > end],
        ),
    )
