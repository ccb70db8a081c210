"""The runs: from a source through the stepper into the store, hour by nominal hour.

Replay, catch-up and live runs are this one code; they differ in how many hours a pass holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.bars import DAY_S, HOUR_S, NO_BARS, compute_close_time
from compute.batch_rows import (
    assign_feed_times,
    build_alert_rows,
    build_bar_block,
    build_change_rows,
    build_funding_rows,
    filter_shown_alerts,
)
from compute.coverage import add_dropped_assets, build_coverage
from compute.executor import Crews, here
from compute.fetch_tracker import FetchTracker
from compute.indicators.contract import Indicator
from compute.schedule import find_last_run, to_market_ms
from compute.sources.source import FetchResult, Source
from compute.state_loader import StateLoader
from compute.stepper import Changes
from compute.universe import Universe
from schemas.clock import Clock
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe
from store.errors import MarketStore
from store.market_rows import AlertRow, BarBlock, Batch, ChangeRow, FundingRow, WatermarkRow

BATCH_S = 40 * DAY_S
OnProgress = Callable[[int, int], None]


class HourlyPipeline:
    """Brings a store up to an hour; `prepare` once, then `catch_up` as often as wished.

    After an error it must be prepared anew: what it holds may be ahead of the store.
    """

    def __init__(
        self,
        store: MarketStore,
        source: Source,
        universe: Universe,
        indicators: Sequence[Indicator],
        clock: Clock,
        crews: Crews = here,
        on_commit: Callable[[Batch], None] = lambda work: None,
    ) -> None:
        """`clock` tells the wall clock (epoch ms), which the market clock of a source follows.

        What the code outgrew is rebuilt by one of `crews`; `written` hears of each pass committed.
        """
        self._store: Final = store
        self._source: Final = source
        self._universe: Final = universe
        self._indicators: Final = tuple(indicators)
        self._loader: Final = StateLoader(store, universe, self._indicators, crews)
        self._wall_clock: Final = clock
        self._on_commit: Final = on_commit
        self._commit_task: asyncio.Future[None] | None = None

    @property
    def done_hour(self) -> int:
        """The hour of the last run, one before the epoch where there was none."""
        return self._done_hour

    @property
    def due_hour(self) -> int:
        """The hour of the newest run whose market time has come."""
        return find_last_run(self._get_market_ms())

    @property
    def is_finished(self) -> bool:
        """Whether a recording has been played to its end, so that no run will follow."""
        return self._source.ends_at is not None and self._done_hour >= self._source.ends_at

    @property
    def late_tickers(self) -> tuple[str, ...]:
        """The assets whose bars were due at the last pass and had not come."""
        return self._tracker.late_tickers

    @property
    def has_snapshot(self) -> bool:
        """Whether the store holds what can be served: of live markets no history half built."""
        return self._done_hour >= 0 and to_market_ms(self._done_hour) >= (self._served_from or 0)

    @property
    def pending_tickers(self) -> tuple[str, ...]:
        """The assets of which a bar that closed by the last run has not come, late or not yet."""
        return self._tracker.list_pending(self._done_hour)

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) after which bars of some assets come, each once, sorted."""
        return self._tracker.delays

    async def prepare(self) -> None:
        """Take the lock, adopt the source, publish the coverage, load what the store holds."""
        await self._store.lock()
        started_at = await self._store.adopt_source(self._source.name, self._get_market_ms())
        is_recorded = self._source.ends_at is not None
        shown_ms = 1000 * self._source.shown_history_s
        self._feed_from_ms = 0 if is_recorded else max(0, started_at - shown_ms)
        self._backfilled_until = self._source.ends_at if is_recorded else find_last_run(started_at)
        is_shown = is_recorded or shown_ms > 0
        self._served_from = None if is_shown else to_market_ms(find_last_run(started_at))
        covered_before = await self._publish_coverage()
        native_timeframes = {
            asset.ticker: timeframe
            for asset in self._universe.assets
            if (timeframe := self._source.get_native_timeframe(asset.ticker)) is not None
        }
        self._state = await self._loader.load_state(native_timeframes)
        progress = await self._store.progress()
        self._last_created_at = progress.last_created_at
        done = -HOUR_S if progress.market_time is None else find_last_run(progress.market_time)
        self._done_hour = done
        self._publish_from_by_ticker = await self._store.publish_from()
        lagging = await self._store.watermarks()
        watermarks = {
            t: done if t in self._publish_from_by_ticker else -1 for t in native_timeframes
        }
        watermarks |= {
            row.ticker: row.watermark for row in lagging if row.ticker in native_timeframes
        }
        for ticker in (
            self._publish_from_by_ticker.keys() & native_timeframes.keys() - covered_before
        ):
            watermarks[ticker] = await self._load_last_close(ticker, native_timeframes[ticker])
        self._tracker = FetchTracker(self._source, self._universe, watermarks, lagging)

    def _get_market_ms(self) -> int:
        """Return the market clock (epoch ms): that of a recording ends with it."""
        end = self._source.ends_at
        return self._wall_clock() if end is None else min(self._wall_clock(), to_market_ms(end))

    def _find_written_at(self, run: int) -> int | None:
        """Return the market clock, None where rows of a run are written at their nominal time."""
        is_nominal = self._backfilled_until is not None and run <= self._backfilled_until
        return None if is_nominal else self._get_market_ms()

    async def _load_last_close(self, ticker: str, native: Timeframe) -> int:
        """Return where the stored bars of an asset end that was not covered for a while."""
        blocks = await self._store.bars(ticker)
        opens = np.array([max((block.open_time[-1] for block in blocks), default=-1)])
        return int(compute_close_time(opens, TIMEFRAME_DURATIONS_S[native])[0])

    async def _publish_coverage(self) -> set[str]:
        """Publish what is covered from now on; return the assets that were covered before."""
        end = self._source.ends_at
        until = None if end is None else to_market_ms(end)
        new_coverage = build_coverage(
            self._universe,
            self._source,
            self._indicators,
            self._get_market_ms(),
            until,
            served_from=self._served_from,
        )
        snapshot = await self._store.snapshot()
        old_coverage = None if snapshot.market_time is None else snapshot.coverage
        today = datetime.fromtimestamp((snapshot.market_time or 0) // 1000, UTC).date()
        await self._store.publish_coverage(add_dropped_assets(new_coverage, old_coverage, today))
        return {
            asset.ticker
            for asset in (old_coverage.assets if old_coverage else ())
            if asset.timeframes
        }

    async def run_until(self, until: int, on_progress: OnProgress = lambda done, end: None) -> None:
        """Run every hour up to `until` at which something is due, in passes of forty days.

        The passes lie on a fixed grid, so that a run killed between two of them and started again
        writes what an uninterrupted one would have written. It ends where the source ends. One
        pass is committed while the next one steps. NotReadyError where the source is not.
        """
        await self._source.check_ready()
        end = until if self._source.ends_at is None else min(until, self._source.ends_at)
        batch: Batch | None = None
        on_progress(self._find_start_hour(), end)
        while (first := self._find_next_hour()) is not None and first <= end:
            pass_end = min((first // BATCH_S + 1) * BATCH_S - HOUR_S, end)
            stepping = self._fetch_and_step(
                self._done_hour + HOUR_S, pass_end, self._tracker.list_live()
            )
            batch = await self._commit_while_stepping(batch, stepping)
            on_progress(self._done_hour, end)
        if batch is not None:
            await self._commit(batch)
        if self._done_hour < end:
            empty = Batch(
                to_market_ms(end),
                watermarks=self._list_watermarks(),
                written_at=self._find_written_at(end),
            )
            await self._commit(empty)
            self._done_hour = end

    def _find_start_hour(self) -> int:
        """Return the hour from which a catch-up is measured."""
        first = self._find_next_hour()
        return self._done_hour if first is None else max(self._done_hour, first - HOUR_S)

    async def run_late(self) -> None:
        """Run the last hour once more for the assets that were behind, if anything came.

        It is written when it comes, after the last hour of a backfill too.
        """
        self._backfilled_until = None
        tickers = [row.ticker for row in self._tracker.lagging]
        batch = await self._fetch_and_step(self._done_hour, self._done_hour, tickers)
        if batch.bars or batch.funding or batch.carries:
            await self._commit(batch)

    def _find_next_hour(self) -> int | None:
        """Return the first hour not yet run at which a bar, new or waiting, or an alert is due."""
        hours = self._tracker.list_next_closes()
        hours += self._state.buffer.list_pending_closes() + self._state.alerts.list_due_hours()
        return max(min(hours), self._done_hour + HOUR_S) if hours else None

    async def _commit(self, batch: Batch) -> None:
        await self._store.commit(batch)
        self._on_commit(batch)

    async def _commit_while_stepping(
        self, batch: Batch | None, stepping: Awaitable[Batch]
    ) -> Batch:
        """Commit a pass while the next one steps; both have ended when either fails."""
        if batch is None:
            return await stepping
        self._commit_task = asyncio.ensure_future(self._commit(batch))
        try:
            return await stepping
        finally:
            await self._commit_task

    async def _fetch_and_step(self, start: int, until: int, tickers: Sequence[str]) -> Batch:
        """Fetch from some assets and step all that is due from `start` to `until`."""
        fetched = await self._tracker.fetch(tickers, until)
        restated = {ticker: new for ticker, new in fetched.items() if new.is_restated}
        if restated:
            await self._rebuild_restated(restated)
        batch = await asyncio.to_thread(self._step_batch, start, until, fetched)
        self._done_hour = until
        return batch

    async def _rebuild_restated(self, fetched: Mapping[str, FetchResult]) -> None:
        """Rebuild what is remembered of assets whose history is told anew, for the pass to come.

        All that was settled and published before is in the store by then.
        """
        if self._commit_task is not None:
            await asyncio.wait([self._commit_task])
        for ticker, new in fetched.items():
            series, _ = self._tracker.cut_at_removal(ticker, new)
            await self._loader.rebuild_asset(self._state, ticker, series, new.reason)

    def _step_batch(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Take in what was fetched and step what is due from `start` to `until`."""
        bars, funding, publish_from = self._add_to_buffer(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        now_s = (self._find_written_at(until) or to_market_ms(until)) // 1000
        self._tracker.update_lagging(until, now_s)
        stepper = self._state.stepper
        lagging = {row.ticker: row.watermark for row in self._tracker.lagging}
        due = self._state.buffer.take_due(stepper.row_by_series, start, until, lagging)
        all_changes, readings = stepper.step(due)
        alerts = self._state.alerts.run(due, readings, until)
        changes, alert_rows = self._build_feed_rows(
            all_changes, filter_shown_alerts(alerts, self._publish_from_by_ticker)
        )
        carries, epochs = self._state.take_carry_rows(due, alerts)
        return Batch(
            market_time=to_market_ms(until),
            bars=bars,
            funding=funding,
            changes=changes,
            carries=carries,
            epochs=epochs,
            publish_from=publish_from,
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
            alerts=alert_rows,
        )

    def _list_watermarks(self) -> list[WatermarkRow]:
        """Return what is behind as far as the store knows it: who has no bars yet is not in it."""
        return [row for row in self._tracker.lagging if row.ticker in self._publish_from_by_ticker]

    def _add_to_buffer(
        self, start: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Take in what is new of some assets; a backlog from before warms up in silence."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, new in fetched.items():
            self._tracker.watermarks[ticker] = new.watermark
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            self._state.buffer.add(ticker, NO_BARS if new.is_restated else series, settlements)
            if len(series):
                bars.append(build_bar_block(self._state, ticker, series))
            funding += build_funding_rows(ticker, settlements)
            if ticker not in self._publish_from_by_ticker and (
                len(series) or len(settlements.rate)
            ):
                backlog = len(series) and series.close_time[0] < start and start > 0
                starts_at = to_market_ms(start) + 1 if backlog else 0
                publish_from[ticker] = max(starts_at, self._feed_from_ms)
        return bars, funding, publish_from

    def _build_feed_rows(
        self, changes: Changes, alerts: Sequence[Alert]
    ) -> tuple[list[ChangeRow], list[AlertRow]]:
        """Give changes and alerts their places in the one sequence of rows."""
        cells, publish_from = self._state.stepper.cells, self._publish_from_by_ticker
        change_times, alert_times = assign_feed_times(
            changes,
            alerts,
            lambda run: self._find_written_at(run) or to_market_ms(run),
            self._last_created_at,
        )
        newest = [times[-1] for times in (change_times, alert_times) if len(times)]
        self._last_created_at = int(max(newest, default=self._last_created_at))
        return (
            build_change_rows(changes, cells, change_times, self._state.get_epoch, publish_from),
            build_alert_rows(alerts, alert_times, self._state.get_epoch),
        )
