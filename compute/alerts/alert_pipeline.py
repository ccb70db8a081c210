"""All alert engines of the followed sequences: what they publish in a pass, and their carries.

What backfill, live runs and audit share. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.engines import ACTIONS, AlertEngine, ReadBar
from compute.alerts.publisher import Firing, Publisher
from compute.bars import Times
from compute.coverage import ALERT_TIMEFRAMES
from compute.engine import Engine, layout
from compute.indicators.contract import Indicator, Readings
from compute.stepper import Cell, Due, Place
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, Action

ENGINE = AlertEngine()
LAYOUT = f"{layout(ENGINE)}{Publisher.layout}"


class Alert(NamedTuple):
    """One publication at a nominal hour; `cell.key` names the engine."""

    hour: int
    close_time: int
    cell: Cell
    action: Action
    price: float


def followed(places: Iterable[Place], universe: Universe) -> list[Place]:
    """Return the sequences that alert engines follow, in their order."""
    return [
        (ticker, timeframe)
        for ticker, timeframe in places
        if timeframe in ALERT_TIMEFRAMES and universe.by_ticker[ticker].alerts
    ]


def engine_version(indicator: Indicator) -> int:
    """Return the version of an indicator's alert engines: it moves with either part's."""
    return 1000 * ENGINE.version + indicator.version


class AlertDesk:
    """One engine and one publisher for each followed sequence and indicator."""

    def __init__(
        self, rows: Mapping[Place, int], universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        """Take the rows of the stepper's sequences, in their order."""
        places = followed(rows, universe)
        self._places: Final = frozenset(places)
        self.versions: Final = {ENGINE_KEYS[i.id]: engine_version(i) for i in indicators}
        self.cells: Final = tuple(Cell(*place, key) for place in places for key in self.versions)
        self._number: Final = {cell: number for number, cell in enumerate(self.cells)}
        self._first_engine: Final = {
            rows[place]: at * len(indicators) for at, place in enumerate(places)
        }
        self._indicators: Final = np.arange(len(indicators))
        self._engine: Final = Engine((ENGINE,), len(self.cells))
        self._publishers: Final = [Publisher(cell.timeframe) for cell in self.cells]

    def run(self, due: Due, readings: Readings, until: int) -> list[Alert]:
        """Step due bars with their readings, shape (bars, indicators or more), up to an hour.

        Return what goes out, in order: hour, bar, timeframe, ticker, indicator.
        """
        fired = self._fired(due, readings)
        out: list[tuple[int, int, int, Firing]] = []
        for number, publisher in enumerate(self._publishers):
            for firing in publisher.run(fired.get(number, ()), until):
                out.append((firing.hour, firing.close_time, number, firing))
        return [
            Alert(hour, close_time, self.cells[number], firing.action, firing.price)
            for hour, close_time, number, firing in sorted(out)
        ]

    def follows(self, place: Place) -> bool:
        """Say whether engines follow a sequence."""
        return place in self._places

    def waiting_for(self) -> list[int]:
        """Return the hours at which held alerts fall due, the first of each engine."""
        return [due for publisher in self._publishers if (due := publisher.due) is not None]

    def carry(self, cell: Cell) -> bytes:
        """Return what an engine and its publisher remember, to be stored."""
        number = self._number[cell]
        return self._engine.carry(0, number) + self._publishers[number].pack()

    def restore(self, cell: Cell, data: bytes) -> None:
        """Put back what `carry` returned under the same LAYOUT."""
        number = self._number[cell]
        size = len(data) - len(self._publishers[number].pack())
        self._engine.restore(0, number, data[:size])
        self._publishers[number].unpack(data[size:])

    def renew(self, cell: Cell, data: bytes, published: Mapping[Action, int]) -> None:
        """Put one engine's rebuilt carry in place; its publisher begins anew."""
        self._engine.restore(0, self._number[cell], data)
        self.restart(cell, published)

    def restart(self, cell: Cell, published: Mapping[Action, int]) -> None:
        """Hold nothing; the cooldown goes on from when actions were last published (hours)."""
        self._publishers[self._number[cell]] = Publisher(cell.timeframe, published)

    def _fired(self, due: Due, readings: Readings) -> dict[int, list[Firing]]:
        """Step the engines; return the firings of each that fired, in order."""
        rows, bars, columns = self._stretched(due)
        if not len(rows):
            return {}
        count = np.bincount(np.unique(rows, return_inverse=True)[1])
        bar = ReadBar(
            due.bar.high[bars], due.bar.low[bars], due.bar.close[bars], readings[bars, columns]
        )
        actions = self._engine.step(np.unique(rows), count, bar)[:, 0]
        fired: dict[int, list[Firing]] = {}
        for at in np.flatnonzero(actions).tolist():
            bar_at = bars[at]
            firing = Firing(
                int(due.run[bar_at]),
                int(due.close_time[bar_at]),
                ACTIONS[int(actions[at])],
                float(due.bar.close[bar_at]),
            )
            fired.setdefault(int(rows[at]), []).append(firing)
        return fired

    def _stretched(self, due: Due) -> tuple[Times, Times, Times]:
        """Return engine, bar and indicator of every step, engine by engine."""
        places = zip(due.row.tolist(), due.first.tolist(), due.length.tolist(), strict=True)
        parts = [
            (self._first_engine[row], first, length)
            for row, first, length in places
            if row in self._first_engine
        ]
        nothing = np.empty(0, dtype=np.int64)
        engines, bars, columns = [nothing], [nothing], [nothing]
        for engine, first, length in parts:
            column = np.repeat(self._indicators, length)
            engines.append(engine + column)
            bars.append(np.tile(np.arange(first, first + length), len(self._indicators)))
            columns.append(column)
        return np.concatenate(engines), np.concatenate(bars), np.concatenate(columns)
