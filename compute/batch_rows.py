"""Makes the rows of a pass: bars, settlements, changes, alerts, carries and their epochs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.bars import Funding, Series, Times
from compute.engine_state import Desk
from compute.indicators.contract import NO_READING
from compute.indicators.registry import UNIVERSE_LOGGED
from compute.schedule import market_ms
from compute.state_loader import Restorer
from compute.stepper import Cell, Changes, Due
from schemas.vocabulary import INDICATOR_OF
from store.market_rows import AlertRow, BarBlock, CarryRow, ChangeRow, EpochRow, FundingRow

NEVER = np.iinfo(np.int64).max


def bar_block(desk: Desk, ticker: str, series: Series) -> BarBlock:
    """Return one asset's bars as a block to store."""
    columns = (series.open, series.high, series.low, series.close, series.volume)
    own = desk.intake.native[ticker], series.open_time, np.column_stack(columns)
    return BarBlock(ticker, *own, desk.generation(ticker))


def funding_rows(ticker: str, funding: Funding) -> list[FundingRow]:
    """Return one asset's settlements as rows to store."""
    pairs = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
    return [FundingRow(ticker, settled_at, rate) for settled_at, rate in pairs]


def sequence_of_times(earliest: Times, last: int) -> Times:
    """Return `created_at` of rows in order: the earliest each may have, 1 ms apart, after `last`.

    So each is max(its earliest, the one before + 1).
    """
    place = np.arange(len(earliest))
    return np.maximum.accumulate(np.maximum(earliest - place, last + 1)) + place


def times_in_one_sequence(
    changes: Changes, alerts: Sequence[Alert], earliest: Callable[[int], int], last: int
) -> tuple[Times, Times]:
    """Return `created_at` of changes and of alerts: hour by hour, an hour's changes come first.

    `earliest` says when (epoch ms) the rows of an hour may be written.
    """
    own = np.array([alert.hour for alert in alerts], dtype=np.int64)
    hours, which = np.unique(np.concatenate([changes.run, own]), return_inverse=True)
    order = np.argsort(which, kind="stable")
    times = np.array([earliest(hour) for hour in hours.tolist()], dtype=np.int64)[which]
    times[order] = sequence_of_times(times[order], last)
    return times[: len(changes.run)], times[len(changes.run) :]


def shown_alerts(alerts: Sequence[Alert], publish_from: Mapping[str, int]) -> list[Alert]:
    """Return the alerts whose bar closed late enough; the others were published in silence."""
    return [
        alert
        for alert in alerts
        if market_ms(alert.close_time) >= publish_from.get(alert.cell.ticker, 0)
    ]


def alert_rows(
    alerts: Sequence[Alert], created_at: Times, epoch_of: Callable[[Cell], int]
) -> list[AlertRow]:
    """Return alerts as rows to store, with their times."""
    return [
        AlertRow(
            at,
            cell.ticker,
            INDICATOR_OF[cell.key],
            cell.timeframe,
            alert.close_time,
            epoch_of(cell),
            alert.action,
            alert.price,
        )
        for at, alert in zip(created_at.tolist(), alerts, strict=True)
        for cell in [alert.cell]
    ]


def change_rows(
    changes: Changes,
    cells: Sequence[Cell],
    created_at: Times,
    epoch_of: Callable[[Cell], int],
    publish_from: Mapping[str, int],
) -> list[ChangeRow]:
    """Return changes as rows to store, one for each, with their times.

    The universe feed shows no first readings and no unlogged keys, and of the others those whose
    bar closed late enough: a newcomer's backlog steps in runs that may be published.
    """
    numbers, which = np.unique(changes.cell, return_inverse=True)
    moved = [cells[number] for number in numbers.tolist()]
    shown_from = [
        publish_from.get(cell.ticker, 0) if cell.key in UNIVERSE_LOGGED else NEVER for cell in moved
    ]
    is_first = changes.before == NO_READING
    is_late = market_ms(changes.close_time) >= np.array(shown_from, dtype=np.int64)[which]
    constant = [(c.ticker, c.key, c.timeframe, epoch_of(c)) for c in moved]
    columns = (
        created_at.tolist(),
        [constant[number] for number in which.tolist()],
        changes.close_time.tolist(),
        [None if before == NO_READING else before for before in changes.before.tolist()],
        changes.after.tolist(),
        changes.price.tolist(),
        (is_late & ~is_first).tolist(),
    )
    return [
        ChangeRow(at, ticker, key, timeframe, close, epoch, before, after, price, published)
        for at, (ticker, key, timeframe, epoch), close, before, after, price, published in zip(
            *columns, strict=True
        )
    ]


def carry_rows(
    desk: Desk, restorer: Restorer, due: Due, alerts: Sequence[Alert]
) -> tuple[list[CarryRow], list[EpochRow]]:
    """Return the carries to store after a pass, and the epochs that begin with it."""
    epochs = list(desk.epochs)
    rows: dict[Cell, CarryRow] = {cell: desk.carries[cell] for cell in desk.unsaved}
    for cell in {alert.cell for alert in alerts}:
        held = desk.carries.get(cell)
        if held is not None:
            rows[cell] = held._replace(data=desk.alerts.carry(cell))
    firsts, lasts = due.close_time[due.first].tolist(), due.close_time[due.last].tolist()
    carried = desk.carried(due.row)
    for row, first, last in zip(due.row.tolist(), firsts, lasts, strict=True):
        for cell, version in desk.cells(desk.stepper.places[row]):
            known = desk.carries.get(cell)
            if known is None:
                epochs.append(
                    EpochRow(*cell, 0, version, desk.generation(cell.ticker), first, "first bar")
                )
            epoch = 0 if known is None else known.epoch
            rows[cell] = restorer.carry_row(cell, version, epoch, last, carried[cell])
    desk.carries.update(rows)
    desk.unsaved.clear()
    desk.epochs.clear()
    return list(rows.values()), epochs
