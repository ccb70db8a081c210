"""Takes up where a store left off: board, carries, waiting bars; rebuilds what the code outgrew."""

import asyncio
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from typing import Final

from compute.alerts.alert_pipeline import LAYOUT, AlertDesk
from compute.bar_buffer import Intake
from compute.bars import DAY_S, HOUR_S, NO_BARS, Funding, Series
from compute.engine import layout
from compute.engine_state import Desk, Published
from compute.executor import Crews, here, in_blocks
from compute.indicators.contract import Indicator
from compute.rebuild import Past, Pasts, rebuilt
from compute.schedule import last_run
from compute.stepper import Cell, Place, Stepper
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, PERIOD_S, Action, Timeframe
from store.errors import MarketStore
from store.market_rows import AlertRow, BarBlock, CarryRow, EpochRow, FundingRow

REBUILT_AT_ONCE = 128


class Restorer:
    """Loads a desk from a store, for the assets whose native timeframe is given."""

    def __init__(
        self,
        store: MarketStore,
        universe: Universe,
        indicators: Sequence[Indicator],
        crews: Crews = here,
    ) -> None:
        """What the code outgrew is rebuilt by one of `crews`."""
        self._crews: Final = crews
        self._store: Final = store
        self._universe: Final = universe
        self._indicators: Final = indicators
        self._layouts: Final = {i.id: layout(i) for i in indicators}
        self._published: Published = {}

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
        outgrown = []
        for ticker in sorted((await self._store.publish_from()).keys() & native.keys()):
            if self._is_outgrown(desk, ticker):
                outgrown.append(ticker)
            else:
                await self._restore_asset(desk, ticker)
        if outgrown:
            await self._rebuild(desk, outgrown)
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
        """Put back what an asset's indicators and engines remember, all of this code."""
        stepped_to = self._stepped_to(desk, ticker)
        bars, funding = await self._stored(desk, ticker, min(stepped_to.values()))
        for timeframe, to in stepped_to.items():
            place = ticker, timeframe
            desk.resume(place, to, bars, funding)
            for cell, _ in desk.cells(place) if to >= 0 else ():
                desk.restore(cell, desk.carries[cell].data)

    async def _rebuild(self, desk: Desk, tickers: Sequence[str]) -> None:
        """Rebuild what the code outgrew of some assets, block by block."""
        async with self._crews() as crew:
            blocks = in_blocks(tickers, REBUILT_AT_ONCE, crew.hands)
            waiting = iter(blocks)
            async for carries in crew.map(rebuilt, self._pasts(desk, blocks)):
                desk.put(carries, self._published)
                self._begin_epochs(desk, next(waiting), carries)

    async def _pasts(self, desk: Desk, blocks: Iterable[Sequence[str]]) -> AsyncIterator[Pasts]:
        """Yield what each block of assets has stepped; put back what is current of it."""
        for block in blocks:
            found = [past for ticker in block for past in await self._pasts_of(desk, ticker)]
            yield Pasts(self._indicators, found)

    async def _pasts_of(self, desk: Desk, ticker: str) -> list[Past]:
        bars, funding = await self._stored(desk, ticker, -1)
        pasts = []
        for timeframe, to in self._stepped_to(desk, ticker).items():
            place = ticker, timeframe
            past = desk.resume(place, to, bars, funding)
            outgrown = [cell.key for cell, _ in self._outgrown(desk, place, to)]
            for cell, _ in desk.cells(place) if to >= 0 else ():
                if cell.key not in outgrown:
                    desk.restore(cell, desk.carries[cell].data)
            pasts.append(Past(place, past, funding, outgrown))
        return pasts

    async def _stored(self, desk: Desk, ticker: str, since: int) -> tuple[Series, Funding]:
        """Return an asset's stored bars, and the settlements they need, as far as is not stepped.

        All are since -1.
        """
        stored = await self._store.bars(ticker, since - 2 * HOUR_S)
        settled = await self._store.funding(ticker, since - DAY_S)
        return series_of(stored, desk.intake.native[ticker]), funding_of(settled)

    def _outgrown(self, desk: Desk, place: Place, stepped_to: int) -> list[tuple[Cell, int]]:
        """Return the cells of a sequence whose carries are not of this code, and its versions."""
        return [
            (cell, version)
            for cell, version in (desk.cells(place) if stepped_to >= 0 else ())
            if not self._is_current(desk.carries.get(cell), cell, version, stepped_to)
        ]

    def _is_outgrown(self, desk: Desk, ticker: str) -> bool:
        return any(
            self._outgrown(desk, (ticker, timeframe), to)
            for timeframe, to in self._stepped_to(desk, ticker).items()
        )

    def _known(self, desk: Desk, place: Place) -> list[Cell]:
        """Return the indicators' cells of a sequence that have a carry."""
        return [cell for i in self._indicators if (cell := Cell(*place, i.id)) in desk.carries]

    def _begin_epochs(self, desk: Desk, tickers: Sequence[str], rebuilt: Container[Cell]) -> None:
        """Note what was rebuilt of some assets, in the order of their cells."""
        for ticker in tickers:
            for timeframe, to in self._stepped_to(desk, ticker).items():
                for cell, version in desk.cells((ticker, timeframe)):
                    if cell in rebuilt:
                        self._begin_epoch(desk, cell, version, to)

    def _begin_epoch(
        self, desk: Desk, cell: Cell, version: int, stepped_to: int, why: str = ""
    ) -> None:
        """Note a rebuilt carry and the epoch that begins with it, for the next pass."""
        old = desk.carries.get(cell)
        epoch = 0 if old is None else old.epoch + 1
        desk.carries[cell] = self.carry_row(cell, version, epoch, stepped_to, desk.carry(cell))
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


def series_of(blocks: Sequence[BarBlock], native: Timeframe) -> Series:
    """Return one asset's stored bars of its native timeframe as columns."""
    for block in blocks:
        if block.timeframe == native:
            return Series.at(block.open_time, block.values, PERIOD_S[native])
    return NO_BARS


def funding_of(rows: Sequence[FundingRow]) -> Funding:
    """Return one asset's stored settlements as columns."""
    return Funding.of([(row.settled_at, row.funding_rate) for row in rows])
