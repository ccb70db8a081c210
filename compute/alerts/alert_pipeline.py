"""The alert engines and publishers of all followed sequences, with their carries. Pure.

Backfill, live runs and audit share them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.rules import (
    ACTIONS,
    NEVER,
    PUBLISHER_STRUCT,
    AlertEngine,
    BarWithReading,
    Firing,
    Publisher,
)
from compute.bars import Times
from compute.covered_assets import ALERT_TIMEFRAMES
from compute.indicator_engine import Engine, hash_layout
from compute.indicators.contract import Indicator, Readings
from compute.stepper import Cell, DueBars, SeriesKey
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, Action

ENGINE = AlertEngine()
LAYOUT = f"{hash_layout(ENGINE)}{PUBLISHER_STRUCT.format}"


class Alert(NamedTuple):
    """One published action at a nominal hour; `cell.key` names the engine."""

    hour: int
    close_time: int
    cell: Cell
    action: Action
    price: float


class AlertPipeline:
    """One engine and one publisher for each followed sequence and indicator."""

    def __init__(
        self,
        row_by_series: Mapping[SeriesKey, int],
        universe: Universe,
        indicators: Sequence[Indicator],
    ) -> None:
        """`row_by_series` has the stepper's rows of all sequences, in order."""
        series_keys = [
            (ticker, timeframe)
            for ticker, timeframe in row_by_series
            if timeframe in ALERT_TIMEFRAMES and universe.by_ticker[ticker].alerts
        ]
        self._followed_series: Final = frozenset(series_keys)
        # It changes with the version of either part, because both decide the carry of an engine.
        self.versions: Final[Mapping[str, int]] = {
            ENGINE_KEYS[i.id]: 1000 * ENGINE.version + i.version for i in indicators
        }
        self.cells: Final = tuple(
            Cell(*place, key) for place in series_keys for key in self.versions
        )
        self._number_by_cell: Final = {cell: number for number, cell in enumerate(self.cells)}
        self._first_engine_by_row: Final = {
            row_by_series[place]: at * len(indicators) for at, place in enumerate(series_keys)
        }
        self._indicators: Final = np.arange(len(indicators))
        self._engine: Final = Engine((ENGINE,), len(self.cells))
        self._publishers: Final = [Publisher(cell.timeframe) for cell in self.cells]

    def publish(
        self,
        firings_by_engine: Mapping[int, Sequence[Firing]],
        until: int,
        building: Mapping[str, int] = MappingProxyType({}),
        written_at: int | None = None,
        silent_until: Mapping[str, int] = MappingProxyType({}),
    ) -> list[Alert]:
        """Publish what the engines fired up to the hour `until`, as `step` returned it.

        Held alerts that fall due up to that hour are included, or up to the time that `building`
        has of their asset. Cooldowns are measured as in `Publisher.run`, but up to the hour
        `silent_until` of an asset by nominal hours. Alerts are ordered by hour, bar close,
        timeframe, ticker, indicator.
        """
        out: list[tuple[int, int, int, Firing]] = []
        for number, publisher in enumerate(self._publishers):
            # The bars after the last built one may still replace or drop what is held.
            ticker, firings = self.cells[number].ticker, firings_by_engine.get(number, [])
            last = building.get(ticker, until)
            silent = min(silent_until.get(ticker, NEVER), last)
            early = [firing for firing in firings if firing.hour <= silent]
            published = publisher.run(early, silent)
            if silent < last:
                published += publisher.run(firings[len(early) :], last, written_at)
            out += [(firing.hour, firing.close_time, number, firing) for firing in published]
        return [
            Alert(hour, close_time, self.cells[number], firing.action, firing.price)
            for hour, close_time, number, firing in sorted(out)
        ]

    def is_followed(self, series_key: SeriesKey) -> bool:
        """Return whether alert engines follow a sequence."""
        return series_key in self._followed_series

    def list_due_hours(self) -> list[int]:
        """Return the hours at which held alerts fall due: the first one of each engine."""
        return [due for publisher in self._publishers if (due := publisher.due_hour) is not None]

    def dump_carry(self, cell: Cell) -> bytes:
        """Return the carry of an engine and its publisher as bytes, to be stored."""
        number = self._number_by_cell[cell]
        carry = self._engine.dump_carries(0, np.array([number]))[0]
        return carry + self._publishers[number].pack()

    def restore_carry(self, cell: Cell, data: bytes) -> None:
        """Restore a carry that `dump_carry` returned under the same LAYOUT."""
        number = self._number_by_cell[cell]
        self._engine.restore_carry(0, number, data)
        self._publishers[number].unpack(data[-PUBLISHER_STRUCT.size :])

    def restart_publisher(self, cell: Cell, published: Mapping[Action, int]) -> None:
        """Restart a publisher: it holds nothing and continues the cooldowns of `published`."""
        self._publishers[self._number_by_cell[cell]] = Publisher(cell.timeframe, published)

    def step(self, due: DueBars, readings: Readings) -> dict[int, list[Firing]]:
        """Step due bars with their readings, shape (bars, indicators or more).

        Return the firings of each engine that fired, in order.
        """
        # Readings have a row per bar and a column per indicator, engines a sequence for each of
        # the two, so a sequence's bars are repeated once per indicator.
        steps: list[tuple[Times, Times, Times]] = []
        sequences = due.row.tolist(), due.first_index.tolist(), due.length.tolist()
        for row, first, length in zip(*sequences, strict=True):
            if (engine := self._first_engine_by_row.get(row)) is not None:
                column = np.repeat(self._indicators, length)
                repeated = np.tile(np.arange(first, first + length), len(self._indicators))
                steps.append((engine + column, repeated, column))
        if not steps:
            return {}
        engines, bars, columns = map(np.concatenate, zip(*steps, strict=True))
        numbers, counts = np.unique(engines, return_counts=True)
        prices = due.bar.high[bars], due.bar.low[bars], due.bar.close[bars]
        read = BarWithReading(*prices, readings[bars, columns])
        actions = self._engine.step(numbers, counts, read)[:, 0]
        firings_by_engine: dict[int, list[Firing]] = {}
        for at in np.flatnonzero(actions).tolist():
            hour, close_time = int(due.run[bars[at]]), int(due.close_time[bars[at]])
            firing = Firing(hour, close_time, ACTIONS[int(actions[at])], float(read.close[at]))
            firings_by_engine.setdefault(int(engines[at]), []).append(firing)
        return firings_by_engine
