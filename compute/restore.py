"""Takes up where a store left off: board, carries, waiting bars; rebuilds what the code outgrew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compute.bars import DAY_S, HOUR_S, NO_BARS, Funding, Series, built
from compute.engine import Engine, layout
from compute.indicators.contract import Bar, Indicator
from compute.stepper import Cell, Intake, Stepper
from compute.universe import Universe
from schemas.vocabulary import PERIOD_S, Timeframe
from store.protocol import MarketStore
from store.rows import BarBlock, CarryRow, EpochRow, FundingRow


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything a run works on, as it stands after the last committed pass.

    `unsaved` are rebuilt carries and `epochs` their epochs, both for the next pass.
    """

    stepper: Stepper
    intake: Intake
    carries: dict[Cell, CarryRow] = field(default_factory=dict)
    unsaved: set[Cell] = field(default_factory=set)
    epochs: list[EpochRow] = field(default_factory=list)


class Restorer:
    """Loads a desk from a store, for the assets whose native timeframe is given."""

    def __init__(
        self, store: MarketStore, universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self._store: Final = store
        self._universe: Final = universe
        self._indicators: Final = indicators
        self._layouts: Final = {i.id: layout(i) for i in indicators}

    async def desk(self, native: Mapping[str, Timeframe]) -> Desk:
        """Return the desk of a store, new or not."""
        desk = Desk(
            Stepper(list(native), self._universe, self._indicators),
            Intake(native, self._universe.ends),
        )
        for carry in await self._store.carries():
            if carry.ticker in native:
                desk.carries[Cell(carry.ticker, carry.timeframe, carry.indicator)] = carry
        for reading in await self._store.readings():
            if reading.ticker in native:
                cell = Cell(reading.ticker, reading.timeframe, reading.indicator)
                desk.stepper.place(cell, reading.reading)
        for ticker in sorted((await self._store.publish_from()).keys() & native.keys()):
            await self._restore_asset(desk, ticker)
        return desk

    def carry_row(self, desk: Desk, cell: Cell, close_time: int, epoch: int) -> CarryRow:
        """Return the carry that an engine holds for a cell, to be stored."""
        column = desk.stepper.keys.index(cell.key)
        data = desk.stepper.engine.carry(column, desk.stepper.row[cell[:2]])
        version = self._indicators[column].version
        return CarryRow(*cell, version, self._layouts[cell.key], epoch, close_time, data)

    async def _restore_asset(self, desk: Desk, ticker: str) -> None:
        stepped_to = {
            timeframe: max(
                (carry.close_time for cell, carry in desk.carries.items() if cell[:2] == place),
                default=-1,
            )
            for timeframe in desk.intake.timeframes(ticker)
            for place in [(ticker, timeframe)]
        }
        whole = any(
            to >= 0 and not self._is_current(desk.carries.get(Cell(ticker, timeframe, i.id)), i)
            for timeframe, to in stepped_to.items()
            for i in self._indicators
        )
        since = -1 if whole else min(stepped_to.values())
        stored = await self._store.bars(ticker, since - 2 * HOUR_S)
        bars = series_of(stored, desk.intake.native[ticker])
        funding = funding_of(await self._store.funding(ticker, since - DAY_S))
        for timeframe, to in stepped_to.items():
            waiting = bars.where(bars.close_time > to)
            desk.intake.resume(ticker, timeframe, waiting, funding)
            if to >= 0:
                self._restore_carries(desk, ticker, timeframe, to, bars, funding)

    def _restore_carries(
        self,
        desk: Desk,
        ticker: str,
        timeframe: Timeframe,
        stepped_to: int,
        bars: Series,
        funding: Funding,
    ) -> None:
        engine, row = desk.stepper.engine, desk.stepper.row[ticker, timeframe]
        own = desk.intake.native[ticker] == timeframe
        for column, indicator in enumerate(self._indicators):
            cell = Cell(ticker, timeframe, indicator.id)
            carry = desk.carries.get(cell)
            if carry is not None and self._is_current(carry, indicator):
                engine.restore(column, row, carry.data)
                continue
            series = bars if own else built(bars, PERIOD_S[timeframe])
            series = series.where(series.close_time <= stepped_to)
            engine.restore(column, row, rebuilt(indicator, series, funding))
            epoch = 0 if carry is None else carry.epoch + 1
            desk.carries[cell] = self.carry_row(desk, cell, stepped_to, epoch)
            desk.unsaved.add(cell)
            reason = "new to this store" if carry is None else f"replaces version {carry.version}"
            desk.epochs.append(EpochRow(*cell, epoch, indicator.version, 0, stepped_to + 1, reason))

    def _is_current(self, carry: CarryRow | None, indicator: Indicator) -> bool:
        return carry is not None and (carry.version, carry.layout) == (
            indicator.version,
            self._layouts[indicator.id],
        )


def rebuilt(indicator: Indicator, bars: Series, funding: Funding) -> bytes:
    """Step one asset's bars of one timeframe from the first on; return the carry."""
    engine = Engine((indicator,), 1)
    f = funding.annualised(bars.close_time)
    bar = Bar(bars.open, bars.high, bars.low, bars.close, bars.volume, f)
    engine.step(np.array([0]), np.array([len(bars)]), bar)
    return engine.carry(0, 0)


def series_of(blocks: Sequence[BarBlock], native: Timeframe) -> Series:
    """Return one asset's stored bars of its native timeframe as columns."""
    for block in blocks:
        if block.timeframe == native:
            return Series.at(block.open_time, block.values, PERIOD_S[native])
    return NO_BARS


def funding_of(rows: Sequence[FundingRow]) -> Funding:
    """Return one asset's stored settlements as columns."""
    return Funding.of([(row.settled_at, row.funding_rate) for row in rows])
