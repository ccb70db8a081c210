"""Steps the bars that a source delivered, and builds the rows of the batch to commit."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.alerts.rules import compute_cooldown_ms
from compute.bars import NO_BARS, Times
from compute.engine_state import EngineState
from compute.indicators.contract import NO_READING
from compute.late_assets import FetchTracker
from compute.schedule import HistoryBounds, find_last_run, to_market_ms
from compute.sources.source import FetchResult
from compute.stepper import Cell, Changes
from schemas.vocabulary import INDICATORS_BY_ENGINE_KEY, LOGGED_IDS, Action, Clock
from store.change_table import NO_BEFORE, ChangedCell, ChangeTable
from store.market_rows import (
    AlertRow,
    BarBlock,
    Batch,
    CarryRow,
    EpochRow,
    FundingRow,
    MissingBarsRow,
)

END_OF_TIME = np.iinfo(np.int64).max


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
        end = last_times.get(action, -END_OF_TIME) + compute_cooldown_ms(cell.timeframe)
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
    shown_from = [
        publish_from.get(c.ticker, 0) if c.key in LOGGED_IDS else END_OF_TIME for c in moved
    ]
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
        state: EngineState,
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
        self.state: Final = state
        self._tracker: Final = tracker
        self._publish_from_by_ticker: Final = dict(publish_from)
        self._last_created_at = last_created_at
        self._published_at: Final = published_at
        self._feed_from_ms: Final = bounds.feed_from_ms
        self._backfilled_until: int | None = bounds.backfilled_until
        self._market_clock: Final = market_clock

    def end_backfill(self) -> None:
        """Date all rows by the market clock from now on, even those of the backfill's last hour."""
        # `created_at` is when a row was written, because a past board must show the readings that
        # were served then. Only the history of a first start has nominal times.
        self._backfilled_until = None

    def assemble(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Buffer the fetched bars, step those due from `start` to `until`, and build the rows."""
        # The market clock is read once, because the cooldowns and `created_at` must go by the same
        # time, which the store records. It is None if the rows get the nominal times of their runs.
        is_nominal = self._backfilled_until is not None and until <= self._backfilled_until
        written_at = None if is_nominal else self._market_clock()
        bars, funding, publish_from = self._build_fetched_rows(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        self._tracker.update_lagging(until)
        # The assets whose history this batch builds, and up to which hour.
        rows = self._tracker.lagging
        building = {r.ticker: r.get_built_hour(until) for r in rows if r.history != "followed"}
        all_changes, alerts, carries, epochs = self._step(
            start, until, fetched, building, written_at
        )
        now_s = (written_at or to_market_ms(until)) // 1000
        self._tracker.update_late(until, now_s, self.state.buffer.find_pending_closes())
        changes, alert_rows = build_feed_rows(
            all_changes,
            alerts,
            written_at,
            self._last_created_at,
            self._published_at,
            self.state.stepper.cells,
            self.state.get_epoch,
            self._publish_from_by_ticker,
            building,
        )
        newest = [*changes.created_at[-1:].tolist(), *(row.created_at for row in alert_rows[-1:])]
        self._last_created_at = max(newest, default=self._last_created_at)
        return Batch(
            market_time=to_market_ms(until),
            bars=bars,
            funding=funding,
            changes=changes,
            carries=carries,
            epochs=epochs,
            publish_from=publish_from,
            # Those of assets with stored bars. They are part of the commit, and so of its digest:
            # an audit has to know which assets this batch did not wait for, because they decide
            # which longer bars could step.
            watermarks=[
                row for row in self._tracker.lagging if row.ticker in self._publish_from_by_ticker
            ],
            written_at=written_at,
            alerts=alert_rows,
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

    def _step(
        self,
        start: int,
        until: int,
        fetched: Mapping[str, FetchResult],
        building: Mapping[str, int],
        written_at: int | None,
    ) -> tuple[Changes, list[Alert], list[CarryRow], list[EpochRow]]:
        """Buffer the fetched bars, and step and publish what is due from `start` to `until`."""
        state = self.state
        for ticker, new in fetched.items():
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            # If the history was restated, the rebuild has already buffered these bars.
            state.buffer.add(ticker, NO_BARS if new.is_restated else series, settlements)
        lagging = {row.ticker: row.watermark for row in self._tracker.lagging}
        due = state.buffer.take_due(state.stepper.row_by_series, start, until, lagging, building)
        changes, readings = state.stepper.step(due)
        firings = state.alerts.step(due, readings)
        silent_until = find_silent_hours(building, self._publish_from_by_ticker)
        alerts = state.alerts.publish(firings, until, building, written_at, silent_until)
        return changes, alerts, *state.take_carry_rows(due, alerts)

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
                columns = series.open, series.high, series.low, series.close, series.volume
                block = BarBlock(
                    ticker,
                    self.state.buffer.native_timeframes[ticker],
                    series.open_time,
                    np.column_stack(columns),
                    self.state.revisions[ticker],
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
