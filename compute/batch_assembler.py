"""Steps the bars that a source delivered, and builds the rows of the batch to commit."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.alerts.engines import compute_cooldown_ms
from compute.bars import NO_BARS, Funding, Series, Times
from compute.block_step import (
    BlockResult,
    merge_alerts,
    merge_changes,
    merge_rows,
    step_block,
)
from compute.engine_state import EngineState
from compute.executor import run_tasks
from compute.indicators.contract import NO_READING
from compute.late_assets import FetchTracker
from compute.schedule import RUN_DELAY_S, HistoryBounds, find_last_run, to_market_ms
from compute.sources.source import FetchResult
from compute.stepper import Cell, Changes, SeriesKey
from schemas.vocabulary import INDICATORS_BY_ENGINE_KEY, LOGGED_IDS, TIMEFRAMES, Action, Clock
from store.change_table import NO_BEFORE, ChangedCell, ChangeTable
from store.market_rows import AlertRow, BarBlock, Batch, FundingRow, MissingBarsRow

NEVER = np.iinfo(np.int64).max


def keep_cooldowns(
    times: Times,
    alerts: Iterable[tuple[int, Cell, Action]],
    published_at: dict[Cell, dict[Action, int]],
) -> None:
    """Move `created_at` of rows so that no alert, given by its index, is within its cooldown.

    The rows after it move too. `published_at` has each engine's last `created_at` of an action, and
    takes those of the alerts.
    """
    for place, cell, action in alerts:
        last_times = published_at.setdefault(cell, {})
        end = last_times.get(action, -NEVER) + compute_cooldown_ms(cell.timeframe)
        if times[place] < end:
            times[place:] = np.maximum(times[place:], end + np.arange(len(times) - place))
        last_times[action] = int(times[place])


def assign_feed_times(
    changes: Changes,
    alerts: Sequence[Alert],
    earliest: Callable[[int], int],
    last: int,
    published_at: dict[Cell, dict[Action, int]],
) -> tuple[Times, Times]:
    """Return `created_at` of changes and of alerts; an hour's changes come before its alerts.

    `earliest` returns the first time (epoch ms) at which the rows of an hour may be written;
    `published_at` is as for `keep_cooldowns`.
    """
    # The changes come first in the joined columns, and a stable sort by hour keeps that order.
    alert_hours = np.array([alert.hour for alert in alerts], dtype=np.int64)
    hours, which = np.unique(np.concatenate([changes.run, alert_hours]), return_inverse=True)
    order = np.argsort(which, kind="stable")
    times = np.array([earliest(hour) for hour in hours.tolist()], dtype=np.int64)[which]
    # Each is the larger of its earliest time and the time before it + 1. Less their positions,
    # times that are 1 ms apart are equal, so a running maximum will do.
    offsets = np.arange(len(order))
    assigned = np.maximum.accumulate(np.maximum(times[order] - offsets, last + 1)) + offsets
    # The sort by hour keeps the order of the alerts.
    places = np.flatnonzero(order >= len(changes.run)).tolist()
    pairs = zip(places, alerts, strict=True)
    keep_cooldowns(assigned, ((at, a.cell, a.action) for at, a in pairs), published_at)
    times[order] = assigned
    return times[: len(changes.run)], times[len(changes.run) :]


def drop_silent_changes(
    changes: Changes,
    cells: Sequence[Cell],
    building: Container[str],
    publish_from: Mapping[str, int],
) -> Changes:
    """Return changes without those of built histories that closed before `publish_from`.

    The last one of each cell stays: it says since when the first reading of the feed has held.
    """
    # Each row takes a millisecond of `created_at`. Those of a year of all assets would move it
    # minutes ahead of the clock, and neither the feed nor a past board could show them.
    shown_from = [publish_from.get(c.ticker, 0) if c.ticker in building else 0 for c in cells]
    begins = np.array(shown_from, dtype=np.int64)[changes.cell]
    is_kept = to_market_ms(changes.close_time) >= begins
    silent = np.flatnonzero(~is_kept)[::-1]
    is_kept[silent[np.unique(changes.cell[silent], return_index=True)[1]]] = True
    return changes.select(is_kept)


def build_feed_rows(
    changes: Changes,
    alerts: Sequence[Alert],
    written_at: int | None,
    last: int,
    published_at: dict[Cell, dict[Action, int]],
    cells: Sequence[Cell],
    get_epoch: Callable[[Cell], int],
    publish_from: Mapping[str, int],
    building: Container[str],
) -> tuple[ChangeTable, list[AlertRow]]:
    """Return the rows of a batch, without alerts of bars that closed before `publish_from`.

    Of the assets in `building`, whose history it builds, changes are left out too.

    Changes and alerts share one sequence of `created_at`, which continues after `last`. Without
    `written_at` the rows have the nominal times of their runs. `published_at` is as for
    `keep_cooldowns`.
    """
    # The alerts that are not stored follow from the bars; they still start a cooldown.
    changes = drop_silent_changes(changes, cells, building, publish_from)
    shown = [
        alert
        for alert in alerts
        if to_market_ms(alert.close_time) >= publish_from.get(alert.cell.ticker, 0)
    ]
    change_times, alert_times = assign_feed_times(
        changes, shown, lambda run: written_at or to_market_ms(run), last, published_at
    )
    alert_rows = [
        AlertRow(
            at,
            cell.ticker,
            INDICATORS_BY_ENGINE_KEY[cell.key],
            cell.timeframe,
            alert.close_time,
            get_epoch(cell),
            alert.action,
            alert.price,
        )
        for at, alert in zip(alert_times.tolist(), shown, strict=True)
        for cell in [alert.cell]
    ]
    numbers, which = np.unique(changes.cell, return_inverse=True)
    moved = [cells[number] for number in numbers.tolist()]
    # The universe feed shows the changes of logged keys, but no first readings. The bar decides,
    # not the run: the backlog of a new asset steps in a run that is published.
    shown_from = [publish_from.get(c.ticker, 0) if c.key in LOGGED_IDS else NEVER for c in moved]
    is_shown = to_market_ms(changes.close_time) >= np.array(shown_from, dtype=np.int64)[which]
    change_rows = ChangeTable(
        [ChangedCell(c.ticker, c.key, c.timeframe, get_epoch(c)) for c in moved],
        change_times,
        which,
        changes.close_time,
        np.where(changes.before == NO_READING, np.int8(NO_BEFORE), changes.before),
        changes.after,
        changes.price,
        is_shown & (changes.before != NO_READING),
    )
    return change_rows, alert_rows


def find_publish_from(start: int, feed_from_ms: int, *, has_backlog: bool) -> int:
    """Return from when on (epoch ms) the changes of an asset that is new to the store show.

    `start` is the first hour of the batch. No change shows before the feed of a first start begins.
    """
    # Bars older than the batch warm up without publishing: the service did not know the asset when
    # they closed.
    return max(to_market_ms(start) + 1 if has_backlog and start > 0 else 0, feed_from_ms)


def find_silent_hours(building: Iterable[str], publish_from: Mapping[str, int]) -> dict[str, int]:
    """Return the hour up to which the feed shows no row of each asset whose history is built."""
    # These alerts have no `created_at`, so nominal hours decide when they would have gone out.
    return {ticker: find_last_run(publish_from.get(ticker, 0) - 1) for ticker in building}


class BatchAssembler:
    """Advances the engine state batch by batch; it counts each returned batch as committed."""

    def __init__(
        self,
        blocks: Sequence[EngineState],
        tracker: FetchTracker,
        publish_from: Mapping[str, int],
        last_created_at: int,
        published_at: dict[Cell, dict[Action, int]],
        bounds: HistoryBounds,
        market_clock: Clock,
    ) -> None:
        """`publish_from` (epoch ms by ticker) and the times of the last rows are the store's.

        `published_at` has those of each engine and action.
        """
        self.use_blocks(blocks)
        self._tracker: Final = tracker
        self._publish_from_by_ticker: Final = dict(publish_from)
        self._last_created_at = last_created_at
        self._published_at: Final = published_at
        self._feed_from_ms: Final = bounds.feed_from_ms
        self._backfilled_until: int | None = bounds.backfilled_until
        self._market_clock: Final = market_clock

    def use_blocks(self, blocks: Sequence[EngineState]) -> None:
        """Continue with the same state in these blocks of assets."""
        self.blocks = blocks
        cells = [cell for block in blocks for cell in block.stepper.cells]
        # As in one block. The sort keeps the order of the keys.
        self._cells = sorted(cells, key=lambda c: (TIMEFRAMES.index(c.timeframe), c.ticker))
        number_by_cell = {cell: number for number, cell in enumerate(self._cells)}
        self._cell_numbers = [
            np.array([number_by_cell[cell] for cell in block.stepper.cells], dtype=np.int64)
            for block in blocks
        ]

    def get_block(self, ticker: str) -> EngineState:
        """Return the block of an asset."""
        return next(b for b in self.blocks if ticker in b.buffer.native_timeframes)

    def find_pending_closes(self) -> dict[SeriesKey, int]:
        """Return the next close of each sequence that has buffered bars."""
        closes: dict[SeriesKey, int] = {}
        for block in self.blocks:
            closes |= block.buffer.find_pending_closes()
        return closes

    def end_backfill(self) -> None:
        """Date all rows by the market clock from now on, even those of the backfill's last hour."""
        # `created_at` is when a row was written, because a past board must show the readings that
        # were served then. Only the history of a first start has nominal times.
        self._backfilled_until = None

    async def assemble(
        self,
        start: int,
        until: int,
        fetched: Mapping[str, FetchResult],
        executor: Executor | None = None,
    ) -> Batch:
        """Buffer the fetched bars, step those due from `start` to `until`, and build the rows.

        The blocks step one after another in a thread, or in tasks of an executor.
        """
        batch, tasks = await asyncio.to_thread(self._begin, start, until, fetched)
        if executor is None:
            results = [await asyncio.to_thread(task) for task in tasks]
        else:
            results = await run_tasks(executor, tasks)
        return await asyncio.to_thread(self._finish, batch, results)

    def _begin(
        self, start: int, until: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[Batch, list[Callable[[], BlockResult]]]:
        """Record the fetched bars; return a batch without results, and a task for each block."""
        # The market clock is read once, because the cooldowns and `created_at` must go by the same
        # time, which the store records. It is None if the rows get the nominal times of their runs.
        is_nominal = self._backfilled_until is not None and until <= self._backfilled_until
        written_at = None if is_nominal else self._market_clock()
        bars, funding, publish_from = self._build_fetched_rows(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        self._tracker.update_lagging(until)
        batch = Batch(
            market_time=to_market_ms(until),
            bars=bars,
            funding=funding,
            publish_from=publish_from,
            written_at=written_at,
            # The closes that new bars lack, of each block that lacks any.
            missing_bars=[
                MissingBarsRow(
                    block.ticker, block.revision, len(missing), *missing[[0, -1]].tolist()
                )
                for block in bars
                if len(missing := fetched[block.ticker].missing)
            ],
            held_bars=sum(new.is_newly_held for new in fetched.values()),
        )
        building = self._list_built(until)
        silent_until = find_silent_hours(building, self._publish_from_by_ticker)
        tasks: list[Callable[[], BlockResult]] = []
        for block in self.blocks:
            tickers = block.buffer.native_timeframes
            rows = [row for row in self._tracker.lagging if row.ticker in tickers]
            lagging = {row.ticker: row.watermark for row in rows}
            arrived: dict[str, tuple[Series, Funding]] = {}
            for ticker in fetched.keys() & tickers.keys():
                series, settlements = self._tracker.cut_at_removal(ticker, fetched[ticker])
                # If the history was restated, the rebuild has already buffered these bars.
                arrived[ticker] = NO_BARS if fetched[ticker].is_restated else series, settlements
            times = start, until, lagging, building, written_at, silent_until
            tasks.append(partial(step_block, block, arrived, *times))
        return batch, tasks

    def _finish(self, batch: Batch, results: Sequence[BlockResult]) -> Batch:
        """Return the batch with the rows that the tasks gave, one result for each block."""
        until = batch.market_time // 1000 - RUN_DELAY_S
        self.blocks, block_changes, block_alerts, carries, epochs = zip(*results, strict=True)
        now_s = (batch.written_at or batch.market_time) // 1000
        self._tracker.update_late(until, now_s, self.find_pending_closes())
        all_changes = merge_changes(block_changes, self._cell_numbers)
        engine_keys = list(self.blocks[0].alerts.versions)
        alerts = merge_alerts(block_alerts, engine_keys)
        changes, alert_rows = build_feed_rows(
            all_changes,
            alerts,
            batch.written_at,
            self._last_created_at,
            self._published_at,
            self._cells,
            lambda cell: self.get_block(cell.ticker).get_epoch(cell),
            self._publish_from_by_ticker,
            self._list_built(until),
        )
        newest = [*changes.created_at[-1:].tolist(), *(row.created_at for row in alert_rows[-1:])]
        self._last_created_at = max(newest, default=self._last_created_at)
        lagging = self._tracker.lagging
        return replace(
            batch,
            changes=changes,
            carries=merge_rows(carries),
            epochs=merge_rows(epochs),
            # Those of assets with stored bars. They are part of the commit, and so of its digest:
            # an audit has to know which assets this batch did not wait for, because they decide
            # which longer bars could step.
            watermarks=[row for row in lagging if row.ticker in self._publish_from_by_ticker],
            alerts=alert_rows,
        )

    def _list_built(self, until: int) -> dict[str, int]:
        """Return the assets whose history the batch of a run builds, and up to which hour."""
        rows = self._tracker.lagging
        return {r.ticker: r.get_built_hour(until) for r in rows if r.history != "followed"}

    def _build_fetched_rows(
        self, start: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Record the watermarks; return the rows to store and `publish_from` of new assets."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        has_backlog: dict[str, bool] = {}
        for ticker, new in fetched.items():
            self._tracker.watermarks[ticker] = new.watermark
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            if len(series):
                state = self.get_block(ticker)
                columns = series.open, series.high, series.low, series.close, series.volume
                block = BarBlock(
                    ticker,
                    state.buffer.native_timeframes[ticker],
                    series.open_time,
                    np.column_stack(columns),
                    state.revisions[ticker],
                    self._tracker.get_source_name(ticker),
                )
                bars.append(block)
            pairs = zip(settlements.settled_at.tolist(), settlements.rate.tolist(), strict=True)
            funding += [FundingRow(ticker, settled_at, rate) for settled_at, rate in pairs]
            if len(series) or len(settlements.rate):
                has_backlog[ticker] = len(series) > 0 and series.close_time[0] < start
        # That of a history that is built is stored before its first bar, so that a restart knows
        # when it was begun.
        has_backlog |= dict.fromkeys(sorted(self._tracker.building), True)
        publish_from = {
            ticker: find_publish_from(start, self._feed_from_ms, has_backlog=backlog)
            for ticker, backlog in has_backlog.items()
            if ticker not in self._publish_from_by_ticker
        }
        return bars, funding, publish_from
