"""Loads the engine state from a store, and rebuilds carries: outdated ones, or of restated bars.

A rebuild steps whole sequences. They do not depend on each other, so many of them step in about the
time of one.
"""

import asyncio
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np

from compute.alerts.rules import AlertEngine, BarWithReading
from compute.bars import DAY_S, HOUR_S, NO_BARS, Funding, Prices, Series, Times
from compute.engine_state import EngineState, PublishedTimes, build_state
from compute.executor import OpenExecutor, open_local_executor, run_tasks
from compute.indicator_engine import Columns, Engine, StepFunction
from compute.indicators.contract import Bar, Indicator, Readings
from compute.stepper import Cell, SeriesKey
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, TIMEFRAME_DURATIONS_S, Action, Timeframe
from store.market_rows import BarBlock, FundingRow
from store.sql.market_store import MarketStore

Item = TypeVar("Item")


class SeriesHistory(NamedTuple):
    """The bars that a sequence has stepped, and the keys whose carries are rebuilt from them."""

    series_key: SeriesKey
    bars: Series
    funding: Funding
    stored_keys: Collection[str]


def rebuild_carries(
    indicators: Sequence[Indicator], block: Sequence[SeriesHistory]
) -> dict[Cell, bytes]:
    """Return the carries of a block of sequences; an alert engine's lacks its publisher's part."""
    carries: dict[Cell, bytes] = {}
    for indicator in indicators:
        engine_key = ENGINE_KEYS[indicator.id]
        # An engine steps on readings, so its indicator is stepped even if only the engine's
        # carry is outdated.
        histories = [p for p in block if {indicator.id, engine_key} & set(p.stored_keys)]
        prices = (_collect_column(histories, name) for name in Bar._fields[:-1])
        funding = [past.funding.annualise(past.bars.close_time) for past in histories]
        bars = Bar(*(*prices, np.concatenate([NO_BARS.open, *funding])))
        carry_data, readings = _step_histories(indicator, histories, bars)
        carries |= _select_carries(indicator.id, histories, carry_data)
        engine_histories = [past for past in histories if engine_key in past.stored_keys]
        if engine_histories:
            chosen = np.repeat(
                [engine_key in past.stored_keys for past in histories], _count_bars(histories)
            )
            names = "high", "low", "close"
            high, low, close = (_collect_column(engine_histories, name) for name in names)
            read = BarWithReading(high, low, close, readings[chosen])
            carry_data, _ = _step_histories(AlertEngine(), engine_histories, read)
            carries |= _select_carries(engine_key, engine_histories, carry_data)
    return carries


def _step_histories(
    step_function: StepFunction[Columns], histories: Sequence[SeriesHistory], bars: Columns
) -> tuple[list[bytes], Readings]:
    """Step all bars from the first on; return the carries, and readings of shape (bars,)."""
    rows = np.arange(len(histories))
    engine = Engine((step_function,), len(histories))
    readings = engine.step(rows, _count_bars(histories), bars)[:, 0]
    return engine.dump_carries(0, rows), readings


def _select_carries(
    key: str, histories: Sequence[SeriesHistory], carries: Iterable[bytes]
) -> dict[Cell, bytes]:
    pairs = zip(histories, carries, strict=True)
    return {
        Cell(*history.series_key, key): data
        for history, data in pairs
        if key in history.stored_keys
    }


def _count_bars(histories: Sequence[SeriesHistory]) -> Times:
    return np.array([len(history.bars) for history in histories], dtype=np.int64)


def _collect_column(histories: Sequence[SeriesHistory], name: str) -> Prices:
    return np.concatenate([NO_BARS.open, *(getattr(history.bars, name) for history in histories)])


def rebuild_series(
    state: EngineState,
    series_key: SeriesKey,
    stepped_to: int,
    bars: Series,
    funding: Funding,
    published_at: PublishedTimes,
) -> Container[Cell]:
    """Rebuild a sequence from restated bars up to its last stepped bar, publishing nothing.

    Return the rebuilt cells.
    """
    history = state.buffer.resume_series(series_key, stepped_to, bars, funding)
    keys = [cell.key for cell, _ in state.list_cells(series_key)]
    sequences = [SeriesHistory(series_key, history, funding, keys)]
    carries = rebuild_carries(state.stepper.indicators, sequences)
    state.install_carries(carries, published_at)
    return carries


# Measured: blocks of 64 assets take 1.5 times the processor time; blocks of 256 take a sixth
# less, but 150 MB more memory.
MAX_REBUILD_ASSETS = 128


class StateLoader:
    """Loads engine states from a store and rebuilds the carries of single assets."""

    def __init__(
        self,
        store: MarketStore,
        universe: Universe,
        indicators: Sequence[Indicator],
        native_timeframes: Mapping[str, Timeframe],
        open_executor: OpenExecutor = open_local_executor,
    ) -> None:
        """If stored carries are outdated, an executor runs their rebuild."""
        self._open_executor: Final = open_executor
        self._store: Final = store
        self._universe: Final = universe
        self._indicators: Final = indicators
        self._native_timeframes: Final = native_timeframes

    async def load_state(self) -> EngineState:
        """Return the stored state of the assets whose native timeframe is given.

        An empty store gives an empty state. If a carry is outdated (`list_outdated_cells`), it is
        rebuilt from the stored bars and begins an epoch.
        """
        native_timeframes = self._native_timeframes
        state = build_state(
            self._universe,
            self._indicators,
            native_timeframes,
            await self._store.carries(),
            await self._store.revisions(),
        )
        for reading in await self._store.readings():
            if reading.ticker in native_timeframes:
                cell = Cell(reading.ticker, reading.timeframe, reading.indicator)
                state.stepper.set_reading(cell, reading.reading)
        outdated_tickers = []
        for ticker in sorted((await self._store.publish_from()).keys() & native_timeframes.keys()):
            stepped_to = state.find_stepped_to(ticker)
            series_keys = [(ticker, timeframe) for timeframe in stepped_to]
            if any(map(state.list_outdated_cells, series_keys)):
                outdated_tickers.append(ticker)
                continue
            # 1d steps last, so the bars after its end include all that 1h and 4h still need.
            since = min(stepped_to.values())
            bars, funding = await self._load_bars_and_funding(state, ticker, since)
            for series_key, to in zip(series_keys, stepped_to.values(), strict=True):
                state.buffer.resume_series(series_key, to, bars, funding)
                state.restore_carries(series_key)
        if outdated_tickers:
            await self._rebuild_assets(state, outdated_tickers)
        return state

    async def rebuild_asset(
        self, state: EngineState, ticker: str, bars: Series, reason: str
    ) -> None:
        """Rebuild an asset's carries from its restated bars; the next batch stores them.

        The bars begin a revision, and each carry begins an epoch. All earlier batches must be
        committed, because the rebuild reads settlements and alerts from the store.
        """
        published_at = await load_published_times(self._store)
        funding = build_funding(await self._store.funding(ticker))
        state.revisions[ticker] += 1
        for timeframe, to in state.find_stepped_to(ticker).items():
            series_key = ticker, timeframe
            rebuilt_cells = await asyncio.to_thread(
                rebuild_series, state, series_key, to, bars, funding, published_at
            )
            state.begin_epochs(series_key, rebuilt_cells, reason)

    async def _rebuild_assets(self, state: EngineState, tickers: Sequence[str]) -> None:
        """Rebuild the outdated carries of some assets, block by block."""
        published_at = await load_published_times(self._store)
        async with self._open_executor(len(tickers)) as (executor, parallelism):
            blocks = split_into_blocks(tickers, MAX_REBUILD_ASSETS, parallelism)
            # So many blocks are in memory at a time.
            for group in split_into_blocks(blocks, parallelism):
                tasks = []
                for block in group:
                    loaded = [await self._load_histories(state, ticker) for ticker in block]
                    histories = list(chain.from_iterable(loaded))
                    tasks.append(partial(rebuild_carries, self._indicators, histories))
                rebuilt = await run_tasks(executor, tasks)
                for block, carries in zip(group, rebuilt, strict=True):
                    state.install_carries(carries, published_at)
                    for ticker in block:
                        for timeframe in state.buffer.list_timeframes(ticker):
                            state.begin_epochs((ticker, timeframe), carries)

    async def _load_histories(self, state: EngineState, ticker: str) -> list[SeriesHistory]:
        bars, funding = await self._load_bars_and_funding(state, ticker, -1)
        histories = []
        for timeframe, to in state.find_stepped_to(ticker).items():
            series_key = ticker, timeframe
            history = state.buffer.resume_series(series_key, to, bars, funding)
            outdated_keys = [cell.key for cell in state.list_outdated_cells(series_key)]
            state.restore_carries(series_key)
            histories.append(SeriesHistory(series_key, history, funding, outdated_keys))
        return histories

    async def _load_bars_and_funding(
        self, state: EngineState, ticker: str, since: int
    ) -> tuple[Series, Funding]:
        """Return the stored bars that close after `since` (epoch seconds), and their settlements.

        Some earlier ones may come too; if `since` is -1, everything comes.
        """
        # A bar that opens off its boundary closes up to two hours after it opens, the hours of a
        # Sunday may still wait for Monday's daily bar, and annualised funding sums 24 hours.
        blocks = await self._store.bars(ticker, since - DAY_S - 2 * HOUR_S)
        funding = build_funding(await self._store.funding(ticker, since - DAY_S))
        return build_series(blocks, state.buffer.native_timeframes[ticker]), funding


async def load_published_times(store: MarketStore) -> dict[Cell, dict[Action, int]]:
    """Return the `created_at` of the last stored alert of each engine and action."""
    found: dict[Cell, dict[Action, int]] = {}
    async for row in store.alerts():
        cell = Cell(row.ticker, row.timeframe, ENGINE_KEYS[row.indicator])
        found.setdefault(cell, {})[row.action] = row.created_at
    return found


def build_series(blocks: Sequence[BarBlock], native: Timeframe) -> Series:
    """Return one asset's stored bars of its native timeframe as columns."""
    for block in blocks:
        if block.timeframe == native:
            return Series.from_columns(block.open_time, block.values, TIMEFRAME_DURATIONS_S[native])
    return NO_BARS


def build_funding(rows: Sequence[FundingRow]) -> Funding:
    """Return one asset's stored settlements as columns."""
    return Funding.from_pairs([(row.settled_at, row.funding_rate) for row in rows])


def split_into_blocks(
    items: Sequence[Item], max_size: int, min_count: int = 1
) -> list[Sequence[Item]]:
    """Split items into blocks of similar size: `min_count` or more, each of `max_size` or less."""
    count = min(max(min_count, -(-len(items) // max_size)), len(items))
    edges = [len(items) * number // count for number in range(count + 1)] if count else []
    return [items[first:last] for first, last in pairwise(edges)]
