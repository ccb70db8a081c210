"""Takes up where a store left off: board, carries, waiting bars; rebuilds what the code outgrew."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compute.alerts.desk import LAYOUT, AlertDesk, engine_version
from compute.bars import DAY_S, HOUR_S, NO_BARS, Funding, Series, Times, built
from compute.engine import Engine, layout
from compute.indicators.contract import Bar, Indicator, Readings
from compute.schedule import last_run
from compute.stepper import Cell, Intake, Place, Stepper
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, PERIOD_S, Action, Timeframe
from store.protocol import MarketStore
from store.rows import AlertRow, BarBlock, CarryRow, EpochRow, FundingRow


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything a run works on, as it stands after the last committed pass.

    `unsaved` are rebuilt carries and `epochs` their epochs, both for the next pass. `generations`
    are those of the assets whose history was told anew.
    """

    stepper: Stepper
    alerts: AlertDesk
    intake: Intake
    carries: dict[Cell, CarryRow] = field(default_factory=dict)
    unsaved: set[Cell] = field(default_factory=set)
    epochs: list[EpochRow] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)

    def carried(self, rows: Times) -> dict[Cell, bytes]:
        """Return what indicators and engines remember of some rows of the stepper, to be stored."""
        stepper = self.stepper
        places: list[Place] = [stepper.places[row] for row in rows.tolist()]
        found = {
            Cell(*place, indicator.id): data
            for column, indicator in enumerate(stepper.indicators)
            for place, data in zip(places, stepper.engine.carries(column, rows), strict=True)
        }
        followed = filter(self.alerts.follows, places)
        cells = [Cell(*place, key) for place in followed for key in self.alerts.versions]
        return found | {cell: self.alerts.carry(cell) for cell in cells}

    def cells(self, place: Place) -> list[tuple[Cell, int]]:
        """Return what remembers something of a sequence, indicators and engines, and versions."""
        own = {i.id: i.version for i in self.stepper.indicators}
        engines = self.alerts.versions if self.alerts.follows(place) else {}
        return [(Cell(*place, key), version) for key, version in (own | engines).items()]

    def generation(self, ticker: str) -> int:
        """Return of which generation an asset's bars are."""
        return self.generations.get(ticker, 0)

    def resume(self, place: Place, stepped_to: int, bars: Series, funding: Funding) -> Series:
        """Put back what a sequence has not stepped of its asset's bars; return what it has."""
        ticker, timeframe = place
        self.intake.resume(ticker, timeframe, bars.where(bars.close_time > stepped_to), funding)
        own = self.intake.native[ticker] == timeframe
        series = bars if own else built(bars, PERIOD_S[timeframe])
        return series.where(series.close_time <= stepped_to)

    def renew(
        self,
        place: Place,
        stepped_to: int,
        bars: Series,
        funding: Funding,
        published: Mapping[Cell, dict[Action, int]],
    ) -> None:
        """Step a sequence's bars, told anew, in silence as far as it was stepped before."""
        past = self.resume(place, stepped_to, bars, funding)
        for column, indicator in enumerate(self.stepper.indicators):
            data, readings = rebuilt(indicator, past, funding)
            self.stepper.engine.restore(column, self.stepper.row[place], data)
            if self.alerts.follows(place):
                cell = Cell(*place, ENGINE_KEYS[indicator.id])
                self.alerts.rebuild(cell, past, readings)
                self.alerts.restart(cell, published.get(cell, {}))


class Restorer:
    """Loads a desk from a store, for the assets whose native timeframe is given."""

    def __init__(
        self, store: MarketStore, universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self._store: Final = store
        self._universe: Final = universe
        self._indicators: Final = indicators
        self._layouts: Final = {i.id: layout(i) for i in indicators}
        self._published: dict[Cell, dict[Action, int]] = {}

    async def desk(self, native: Mapping[str, Timeframe]) -> Desk:
        """Return the desk of a store, new or not."""
        stepper = Stepper(list(native), self._universe, self._indicators)
        alerts = AlertDesk(stepper.row, self._universe, self._indicators)
        desk = Desk(stepper, alerts, Intake(native, self._universe.ends))
        self._published = await published_at(self._store)
        desk.generations.update(await self._store.generations())
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

    def carry_row(
        self, cell: Cell, version: int, epoch: int, close_time: int, data: bytes
    ) -> CarryRow:
        """Return what this code's indicator or engine remembers for a cell, to be stored."""
        layout = self._layouts.get(cell.key, LAYOUT)
        return CarryRow(*cell, version, layout, epoch, close_time, data)

    async def renew(self, desk: Desk, ticker: str, bars: Series, why: str) -> None:
        """Rebuild what is remembered of an asset from all its bars, told anew, for the next pass.

        They begin a generation, and each carry an epoch. Every pass so far must be in the store.
        """
        published = await published_at(self._store)
        funding = funding_of(await self._store.funding(ticker))
        desk.generations[ticker] = desk.generation(ticker) + 1
        for timeframe, to in self._stepped_to(desk, ticker).items():
            place = ticker, timeframe
            await asyncio.to_thread(desk.renew, place, to, bars, funding, published)
            for cell, version in desk.cells(place) if to >= 0 else ():
                self._begin_epoch(desk, cell, version, to, why)

    def _stepped_to(self, desk: Desk, ticker: str) -> dict[Timeframe, int]:
        """Return the close of each timeframe's last stepped bar, -1 where there is none."""
        return {
            timeframe: max(
                (desk.carries[cell].close_time for cell in self._known(desk, (ticker, timeframe))),
                default=-1,
            )
            for timeframe in desk.intake.timeframes(ticker)
        }

    async def _restore_asset(self, desk: Desk, ticker: str) -> None:
        stepped_to = self._stepped_to(desk, ticker)
        whole = any(
            to >= 0 and not self._is_current(desk.carries.get(cell), cell, version, to)
            for timeframe, to in stepped_to.items()
            for cell, version in desk.cells((ticker, timeframe))
        )
        since = -1 if whole else min(stepped_to.values())
        stored = await self._store.bars(ticker, since - 2 * HOUR_S)
        bars = series_of(stored, desk.intake.native[ticker])
        funding = funding_of(await self._store.funding(ticker, since - DAY_S))
        for timeframe, to in stepped_to.items():
            past = desk.resume((ticker, timeframe), to, bars, funding)
            if to >= 0:
                self._restore_carries(desk, (ticker, timeframe), to, past, funding)

    def _known(self, desk: Desk, place: Place) -> list[Cell]:
        """Return the indicators' cells of a sequence that have a carry."""
        return [cell for i in self._indicators if (cell := Cell(*place, i.id)) in desk.carries]

    def _restore_carries(
        self, desk: Desk, place: Place, stepped_to: int, past: Series, funding: Funding
    ) -> None:
        """Put back what is current and rebuild the rest from the bars of the past."""
        engine, row = desk.stepper.engine, desk.stepper.row[place]
        for column, indicator in enumerate(self._indicators):
            cell = Cell(*place, indicator.id)
            if self._is_current(desk.carries.get(cell), cell, indicator.version, stepped_to):
                engine.restore(column, row, desk.carries[cell].data)
            else:
                engine.restore(column, row, rebuilt(indicator, past, funding)[0])
                self._begin_epoch(desk, cell, indicator.version, stepped_to)
            if desk.alerts.follows(place):
                self._restore_engine(desk, place, indicator, stepped_to, past, funding)

    def _restore_engine(
        self,
        desk: Desk,
        place: Place,
        indicator: Indicator,
        stepped_to: int,
        past: Series,
        funding: Funding,
    ) -> None:
        """Put an alert engine back; one that is rebuilt publishes from the next bar on."""
        cell, version = Cell(*place, ENGINE_KEYS[indicator.id]), engine_version(indicator)
        if self._is_current(desk.carries.get(cell), cell, version, stepped_to):
            desk.alerts.restore(cell, desk.carries[cell].data)
            return
        desk.alerts.rebuild(cell, past, rebuilt(indicator, past, funding)[1])
        desk.alerts.restart(cell, self._published.get(cell, {}))
        self._begin_epoch(desk, cell, version, stepped_to)

    def _begin_epoch(
        self, desk: Desk, cell: Cell, version: int, stepped_to: int, why: str = ""
    ) -> None:
        """Note a rebuilt carry and the epoch that begins with it, for the next pass."""
        old = desk.carries.get(cell)
        epoch = 0 if old is None else old.epoch + 1
        data = desk.carried(np.array([desk.stepper.row[cell[:2]]]))[cell]
        desk.carries[cell] = self.carry_row(cell, version, epoch, stepped_to, data)
        desk.unsaved.add(cell)
        where = desk.generation(cell.ticker), stepped_to + 1
        desk.epochs.append(EpochRow(*cell, epoch, version, *where, why or _why(old, version)))

    def _is_current(
        self, carry: CarryRow | None, cell: Cell, version: int, stepped_to: int
    ) -> bool:
        """Say whether a carry is of this code and of the last bar stepped.

        That of an engine is not where its asset was not followed for a while.
        """
        wanted = version, self._layouts.get(cell.key, LAYOUT), stepped_to
        return carry is not None and (carry.version, carry.layout, carry.close_time) == wanted


def _why(old: CarryRow | None, version: int) -> str:
    if old is None:
        return "new to this store"
    is_same = old.version == version
    return "was not followed for a while" if is_same else f"replaces version {old.version}"


async def published_at(store: MarketStore) -> dict[Cell, dict[Action, int]]:
    """Return at which hour each engine last published each action, as far as is stored."""
    found: dict[Cell, dict[Action, int]] = {}
    async for row in store.alerts():
        cell = Cell(row.ticker, row.timeframe, ENGINE_KEYS[row.indicator])
        found.setdefault(cell, {})[row.action] = published_hour(row)
    return found


def published_hour(row: AlertRow) -> int:
    """Return the nominal hour of an alert, or a later one where it was written late.

    Alerts go out at runs of their timeframe alone, as bars step and windows end with these.
    """
    period_s = PERIOD_S[row.timeframe]
    return last_run(row.created_at) // period_s * period_s


def rebuilt(indicator: Indicator, bars: Series, funding: Funding) -> tuple[bytes, Readings]:
    """Step one asset's bars of one timeframe from the first on; return carry and readings."""
    engine: Engine[Bar] = Engine((indicator,), 1)
    f = funding.annualised(bars.close_time)
    bar = Bar(bars.open, bars.high, bars.low, bars.close, bars.volume, f)
    readings = engine.step(np.array([0]), np.array([len(bars)]), bar)
    return engine.carry(0, 0), readings[:, 0]


def series_of(blocks: Sequence[BarBlock], native: Timeframe) -> Series:
    """Return one asset's stored bars of its native timeframe as columns."""
    for block in blocks:
        if block.timeframe == native:
            return Series.at(block.open_time, block.values, PERIOD_S[native])
    return NO_BARS


def funding_of(rows: Sequence[FundingRow]) -> Funding:
    """Return one asset's stored settlements as columns."""
    return Funding.of([(row.settled_at, row.funding_rate) for row in rows])
