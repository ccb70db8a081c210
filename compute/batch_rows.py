"""Builds the rows of a batch: bars, settlements, changes and alerts."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compute.alerts.alert_pipeline import Alert
from compute.alerts.engines import compute_cooldown_ms
from compute.bars import Funding, Series, Times
from compute.engine_state import EngineState
from compute.indicators.contract import NO_READING
from compute.schedule import find_last_run, to_market_ms
from compute.stepper import Cell, Changes
from schemas.vocabulary import INDICATORS_BY_ENGINE_KEY, LOGGED_IDS, Action
from store.change_table import NO_BEFORE, ChangedCell, ChangeTable
from store.market_rows import AlertRow, BarBlock, FundingRow, MissingBarsRow

NEVER = np.iinfo(np.int64).max


def build_bar_block(state: EngineState, ticker: str, series: Series, source: str) -> BarBlock:
    """Return one asset's bars, which come from `source`, as a block to store."""
    columns = (series.open, series.high, series.low, series.close, series.volume)
    timeframe_and_values = (
        state.buffer.native_timeframes[ticker],
        series.open_time,
        np.column_stack(columns),
    )
    return BarBlock(ticker, *timeframe_and_values, state.get_revision(ticker), source)


def build_missing_bars_row(block: BarBlock, missing: Times) -> MissingBarsRow:
    """Return the closes that a block of new bars lacks, at least one, as a row to store."""
    closes = int(missing[0]), int(missing[-1])
    return MissingBarsRow(block.ticker, block.revision, len(missing), *closes)


def build_funding_rows(ticker: str, funding: Funding) -> list[FundingRow]:
    """Return one asset's settlements as rows to store."""
    pairs = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
    return [FundingRow(ticker, settled_at, rate) for settled_at, rate in pairs]


def assign_times(earliest: Times, last: int) -> Times:
    """Return `created_at` (epoch ms) of rows in order, each later than the one before and `last`.

    Each is the larger of its earliest time and the time before it + 1.
    """
    # Less their positions, times that are 1 ms apart are equal, so a running maximum will do.
    offsets = np.arange(len(earliest))
    return np.maximum.accumulate(np.maximum(earliest - offsets, last + 1)) + offsets


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
    assigned = assign_times(times[order], last)
    # The sort by hour keeps the order of the alerts.
    places = np.flatnonzero(order >= len(changes.run)).tolist()
    pairs = zip(places, alerts, strict=True)
    keep_cooldowns(assigned, ((at, a.cell, a.action) for at, a in pairs), published_at)
    times[order] = assigned
    return times[: len(changes.run)], times[len(changes.run) :]


def build_feed_rows(
    changes: Changes,
    alerts: Sequence[Alert],
    written_at: int | None,
    last: int,
    published_at: dict[Cell, dict[Action, int]],
    cells: Sequence[Cell],
    get_epoch: Callable[[Cell], int],
    publish_from: Mapping[str, int],
) -> tuple[ChangeTable, list[AlertRow]]:
    """Return the rows of a batch, without alerts of bars that closed before `publish_from`.

    Changes and alerts share one sequence of `created_at`, which continues after `last`. Without
    `written_at` the rows have the nominal times of their runs. `published_at` is as for
    `keep_cooldowns`.
    """
    # The alerts that are not stored follow from the bars; they still start a cooldown.
    shown = [
        alert
        for alert in alerts
        if to_market_ms(alert.close_time) >= publish_from.get(alert.cell.ticker, 0)
    ]
    change_times, alert_times = assign_feed_times(
        changes, shown, lambda run: written_at or to_market_ms(run), last, published_at
    )
    return (
        build_change_rows(changes, cells, change_times, get_epoch, publish_from),
        build_alert_rows(shown, alert_times, get_epoch),
    )


def find_publish_from(start: int, *, has_backlog: bool) -> int:
    """Return from when on (epoch ms) the changes of an asset that is new to the store show.

    `start` is the first hour of the batch. No change shows before the feed of a first start begins.
    """
    # Bars older than the batch warm up without publishing: the service did not know the asset when
    # they closed.
    return to_market_ms(start) + 1 if has_backlog and start > 0 else 0


def find_silent_hours(building: Iterable[str], publish_from: Mapping[str, int]) -> dict[str, int]:
    """Return the hour up to which the feed shows no row of each asset whose history is built."""
    # These alerts have no `created_at`, so nominal hours decide when they would have gone out.
    return {ticker: find_last_run(publish_from.get(ticker, 0) - 1) for ticker in building}


def build_alert_rows(
    alerts: Sequence[Alert], created_at: Times, get_epoch: Callable[[Cell], int]
) -> list[AlertRow]:
    """Return alerts as rows to store, dated by `created_at`."""
    return [
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
        for at, alert in zip(created_at.tolist(), alerts, strict=True)
        for cell in [alert.cell]
    ]


def build_change_rows(
    changes: Changes,
    cells: Sequence[Cell],
    created_at: Times,
    get_epoch: Callable[[Cell], int],
    publish_from: Mapping[str, int],
) -> ChangeTable:
    """Return changes as rows to store, dated by `created_at`."""
    numbers, which = np.unique(changes.cell, return_inverse=True)
    moved = [cells[number] for number in numbers.tolist()]
    return ChangeTable(
        [ChangedCell(c.ticker, c.key, c.timeframe, get_epoch(c)) for c in moved],
        created_at,
        which,
        changes.close_time,
        np.where(changes.before == NO_READING, np.int8(NO_BEFORE), changes.before),
        changes.after,
        changes.price,
        mark_published(changes, cells, publish_from),
    )


def mark_published(
    changes: Changes, cells: Sequence[Cell], publish_from: Mapping[str, int]
) -> NDArray[np.bool_]:
    """Return which changes the universe feed shows.

    It shows a change if its key is logged, it is not a first reading, and its bar closed at or
    after the asset's `publish_from`.
    """
    # The bar decides, not the run: the backlog of a new asset steps in a run that is published.
    numbers, which = np.unique(changes.cell, return_inverse=True)
    shown_from = [
        publish_from.get(cell.ticker, 0) if cell.key in LOGGED_IDS else NEVER
        for cell in (cells[number] for number in numbers.tolist())
    ]
    is_late = to_market_ms(changes.close_time) >= np.array(shown_from, dtype=np.int64)[which]
    is_first = changes.before == NO_READING
    is_published: NDArray[np.bool_] = is_late & ~is_first
    return is_published
