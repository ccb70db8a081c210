"""Takes up where a store left off: board, carries, waiting bars; rebuilds what the code outgrew."""

import asyncio
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from typing import Final

from compute.alerts.alert_pipeline import LAYOUT, AlertPipeline
from compute.bar_buffer import BarBuffer
from compute.bars import DAY_S, HOUR_S, NO_BARS, Funding, Series
from compute.engine import hash_layout
from compute.engine_state import EngineState, PublishedHours
from compute.executor import Crews, here, in_blocks
from compute.indicators.contract import Indicator
from compute.rebuild import HistoryBlock, SeriesHistory, rebuild_carries
from compute.schedule import find_last_run
from compute.stepper import Cell, SeriesKey, Stepper
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, TIMEFRAME_DURATIONS_S, Action, Timeframe
from store.errors import MarketStore
from store.market_rows import AlertRow, BarBlock, CarryRow, EpochRow, FundingRow

MAX_REBUILD_ASSETS = 128


class StateLoader:
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
        self._layouts: Final = {i.id: hash_layout(i) for i in indicators}
        self._published_hours: PublishedHours = {}

    async def load_state(self, native_timeframes: Mapping[str, Timeframe]) -> EngineState:
        """Return the desk of a store, new or not."""
        stepper = Stepper(list(native_timeframes), self._universe, self._indicators)
        alerts = AlertPipeline(stepper.row_by_series, self._universe, self._indicators)
        state = EngineState(
            stepper, alerts, BarBuffer(native_timeframes, self._universe.end_time_by_ticker)
        )
        self._published_hours = await load_published_hours(self._store)
        state.revisions.update(await self._store.revisions())
        for carry in await self._store.carries():
            if carry.ticker in native_timeframes:
                state.carries[Cell(carry.ticker, carry.timeframe, carry.indicator)] = carry
        for reading in await self._store.readings():
            if reading.ticker in native_timeframes:
                cell = Cell(reading.ticker, reading.timeframe, reading.indicator)
                state.stepper.set_reading(cell, reading.reading)
        outgrown_tickers = []
        for ticker in sorted((await self._store.publish_from()).keys() & native_timeframes.keys()):
            if self._is_outgrown(state, ticker):
                outgrown_tickers.append(ticker)
            else:
                await self._restore_asset(state, ticker)
        if outgrown_tickers:
            await self._rebuild_assets(state, outgrown_tickers)
        return state

    def build_carry_row(
        self, cell: Cell, version: int, epoch: int, close_time: int, data: bytes
    ) -> CarryRow:
        """Return what this code's indicator or engine remembers for a cell, to be stored."""
        layout = self._layouts.get(cell.key, LAYOUT)
        return CarryRow(*cell, version, layout, epoch, close_time, data)

    async def rebuild_asset(
        self, state: EngineState, ticker: str, bars: Series, reason: str
    ) -> None:
        """Rebuild what is remembered of an asset from all its bars, told anew, for the next pass.

        They begin a generation, and each carry an epoch. Every pass so far must be in the store.
        """
        published_hours = await load_published_hours(self._store)
        funding = build_funding(await self._store.funding(ticker))
        state.revisions[ticker] = state.get_revision(ticker) + 1
        for timeframe, to in self._find_stepped_to(state, ticker).items():
            series_key = ticker, timeframe
            await asyncio.to_thread(
                state.rebuild_series, series_key, to, bars, funding, published_hours
            )
            for cell, version in state.list_cells(series_key) if to >= 0 else ():
                self._begin_epoch(state, cell, version, to, reason)

    def _find_stepped_to(self, state: EngineState, ticker: str) -> dict[Timeframe, int]:
        """Return the close of each timeframe's last stepped bar, -1 where there is none."""
        return {
            timeframe: max(
                (
                    state.carries[cell].close_time
                    for cell in self._list_carried_cells(state, (ticker, timeframe))
                ),
                default=-1,
            )
            for timeframe in state.buffer.list_timeframes(ticker)
        }

    async def _restore_asset(self, state: EngineState, ticker: str) -> None:
        """Put back what an asset's indicators and engines remember, all of this code."""
        stepped_to = self._find_stepped_to(state, ticker)
        bars, funding = await self._load_bars_and_funding(state, ticker, min(stepped_to.values()))
        for timeframe, to in stepped_to.items():
            series_key = ticker, timeframe
            state.resume_series(series_key, to, bars, funding)
            for cell, _ in state.list_cells(series_key) if to >= 0 else ():
                state.restore_carry(cell, state.carries[cell].data)

    async def _rebuild_assets(self, state: EngineState, tickers: Sequence[str]) -> None:
        """Rebuild what the code outgrew of some assets, block by block."""
        async with self._crews() as crew:
            blocks = in_blocks(tickers, MAX_REBUILD_ASSETS, crew.hands)
            pending_blocks = iter(blocks)
            async for carries in crew.map(
                rebuild_carries, self._load_history_blocks(state, blocks)
            ):
                state.install_carries(carries, self._published_hours)
                self._begin_epochs(state, next(pending_blocks), carries)

    async def _load_history_blocks(
        self, state: EngineState, blocks: Iterable[Sequence[str]]
    ) -> AsyncIterator[HistoryBlock]:
        """Yield what each block of assets has stepped; put back what is current of it."""
        for block in blocks:
            histories = [
                past for ticker in block for past in await self._load_histories(state, ticker)
            ]
            yield HistoryBlock(self._indicators, histories)

    async def _load_histories(self, state: EngineState, ticker: str) -> list[SeriesHistory]:
        bars, funding = await self._load_bars_and_funding(state, ticker, -1)
        histories = []
        for timeframe, to in self._find_stepped_to(state, ticker).items():
            series_key = ticker, timeframe
            history = state.resume_series(series_key, to, bars, funding)
            outgrown_keys = [
                cell.key for cell, _ in self._list_outgrown_cells(state, series_key, to)
            ]
            for cell, _ in state.list_cells(series_key) if to >= 0 else ():
                if cell.key not in outgrown_keys:
                    state.restore_carry(cell, state.carries[cell].data)
            histories.append(SeriesHistory(series_key, history, funding, outgrown_keys))
        return histories

    async def _load_bars_and_funding(
        self, state: EngineState, ticker: str, since: int
    ) -> tuple[Series, Funding]:
        """Return an asset's stored bars, and the settlements they need, as far as is not stepped.

        All are since -1.
        """
        blocks = await self._store.bars(ticker, since - 2 * HOUR_S)
        funding_rows = await self._store.funding(ticker, since - DAY_S)
        return build_series(blocks, state.buffer.native_timeframes[ticker]), build_funding(
            funding_rows
        )

    def _list_outgrown_cells(
        self, state: EngineState, series_key: SeriesKey, stepped_to: int
    ) -> list[tuple[Cell, int]]:
        """Return the cells of a sequence whose carries are not of this code, and its versions."""
        return [
            (cell, version)
            for cell, version in (state.list_cells(series_key) if stepped_to >= 0 else ())
            if not self._is_current(state.carries.get(cell), cell, version, stepped_to)
        ]

    def _is_outgrown(self, state: EngineState, ticker: str) -> bool:
        return any(
            self._list_outgrown_cells(state, (ticker, timeframe), to)
            for timeframe, to in self._find_stepped_to(state, ticker).items()
        )

    def _list_carried_cells(self, state: EngineState, series_key: SeriesKey) -> list[Cell]:
        """Return the indicators' cells of a sequence that have a carry."""
        return [
            cell for i in self._indicators if (cell := Cell(*series_key, i.id)) in state.carries
        ]

    def _begin_epochs(
        self, state: EngineState, tickers: Sequence[str], rebuilt_cells: Container[Cell]
    ) -> None:
        """Note what was rebuilt of some assets, in the order of their cells."""
        for ticker in tickers:
            for timeframe, to in self._find_stepped_to(state, ticker).items():
                for cell, version in state.list_cells((ticker, timeframe)):
                    if cell in rebuilt_cells:
                        self._begin_epoch(state, cell, version, to)

    def _begin_epoch(
        self, state: EngineState, cell: Cell, version: int, stepped_to: int, reason: str = ""
    ) -> None:
        """Note a rebuilt carry and the epoch that begins with it, for the next pass."""
        old = state.carries.get(cell)
        epoch = 0 if old is None else old.epoch + 1
        state.carries[cell] = self.build_carry_row(
            cell, version, epoch, stepped_to, state.dump_carry(cell)
        )
        state.unsaved_cells.add(cell)
        revision_and_start = state.get_revision(cell.ticker), stepped_to + 1
        state.new_epochs.append(
            EpochRow(
                *cell, epoch, version, *revision_and_start, reason or _describe_reason(old, version)
            )
        )

    def _is_current(
        self, carry: CarryRow | None, cell: Cell, version: int, stepped_to: int
    ) -> bool:
        """Say whether a carry is of this code and of the last bar stepped.

        That of an engine is not where its asset was not followed for a while.
        """
        expected = version, self._layouts.get(cell.key, LAYOUT), stepped_to
        return carry is not None and (carry.version, carry.layout, carry.close_time) == expected


def _describe_reason(old: CarryRow | None, version: int) -> str:
    if old is None:
        return "new to this store"
    is_same = old.version == version
    return "was not followed for a while" if is_same else f"replaces version {old.version}"


async def load_published_hours(store: MarketStore) -> dict[Cell, dict[Action, int]]:
    """Return at which hour each engine last published each action, as far as is stored."""
    found: dict[Cell, dict[Action, int]] = {}
    async for row in store.alerts():
        cell = Cell(row.ticker, row.timeframe, ENGINE_KEYS[row.indicator])
        found.setdefault(cell, {})[row.action] = find_published_hour(row)
    return found


def find_published_hour(row: AlertRow) -> int:
    """Return the nominal hour of an alert, or a later one where it was written late.

    Alerts go out at runs of their timeframe alone, as bars step and windows end with these.
    """
    period_s = TIMEFRAME_DURATIONS_S[row.timeframe]
    return find_last_run(row.created_at) // period_s * period_s


def build_series(blocks: Sequence[BarBlock], native: Timeframe) -> Series:
    """Return one asset's stored bars of its native timeframe as columns."""
    for block in blocks:
        if block.timeframe == native:
            return Series.from_columns(block.open_time, block.values, TIMEFRAME_DURATIONS_S[native])
    return NO_BARS


def build_funding(rows: Sequence[FundingRow]) -> Funding:
    """Return one asset's stored settlements as columns."""
    return Funding.from_pairs([(row.settled_at, row.funding_rate) for row in rows])
