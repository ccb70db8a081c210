"""The runs: from a source through the stepper into the store, hour by nominal hour.

Replay, catch-up and live runs are this one code; they differ in how many hours a pass holds.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from compute.bars import HOUR_S, Funding, Series
from compute.coverage import coverage, with_dropped
from compute.indicators.contract import Indicator
from compute.indicators.registry import UNIVERSE_LOGGED
from compute.restore import Restorer
from compute.sources.source import Source
from compute.stepper import ITS_INDICATOR, LEGACY_KEY, RUN_DELAY_S, Cell, Change
from compute.universe import Universe
from schemas.vocabulary import Timeframe, midnight_s
from store.protocol import BarRow, CarryRow, ChangeRow, EpochRow, FundingRow, MarketStore, Pass

PASS_S = 10 * 86_400
Progressed = Callable[[int, int], None]


def market_ms(run: int) -> int:
    """Return the nominal market time (epoch ms) of the run at an hour."""
    return (run + RUN_DELAY_S) * 1000


def last_run(now_ms: int) -> int:
    """Return the hour of the newest run whose market time has come."""
    return (now_ms // 1000 - RUN_DELAY_S) // HOUR_S * HOUR_S


class Runs:
    """Brings a store up to an hour; `prepare` once, then `catch_up` as often as wished."""

    def __init__(
        self,
        store: MarketStore,
        source: Source,
        universe: Universe,
        indicators: Sequence[Indicator],
    ) -> None:
        self._store: Final = store
        self._source: Final = source
        self._universe: Final = universe
        self._indicators: Final = tuple(indicators)
        self._restorer: Final = Restorer(store, universe, self._indicators)

    async def prepare(self, now_ms: int) -> None:
        """Take the lock, adopt the source, publish the coverage, load what the store holds."""
        self._store.lock()
        await self._store.adopt_source(self._source.name)
        await self._publish_coverage(now_ms)
        native = {
            asset.ticker: timeframe
            for asset in self._universe.assets
            if (timeframe := self._source.native(asset.ticker)) is not None
        }
        self._desk = await self._restorer.desk(native)
        progress = await self._store.progress()
        self._last_created_at = progress.last_created_at
        done = -HOUR_S if progress.market_time is None else last_run(progress.market_time)
        self._done = done
        self._publish_from = await self._store.publish_from()
        self._seen = {t: done if t in self._publish_from else -1 for t in native}

    async def _publish_coverage(self, now_ms: int) -> None:
        end = self._source.ends_at
        until = None if end is None else market_ms(end)
        published_at = now_ms if until is None else min(now_ms, until)
        new = coverage(self._universe, self._source, self._indicators, published_at, until)
        snapshot = await self._store.snapshot()
        today = datetime.fromtimestamp((snapshot.market_time or 0) // 1000, UTC).date()
        await self._store.publish_coverage(with_dropped(new, snapshot.coverage, today))

    async def catch_up(self, until: int, progressed: Progressed = lambda done, end: None) -> None:
        """Run every hour up to `until` at which something is due, in passes of ten days.

        The passes lie on a fixed grid, so that a run killed between two of them and started again
        writes what an uninterrupted one would have written. It ends where the source ends.
        """
        end = until if self._source.ends_at is None else min(until, self._source.ends_at)
        while (first := self._next_hour()) is not None and first <= end:
            await self._pass(min((first // PASS_S + 1) * PASS_S - HOUR_S, end))
            progressed(self._done, end)
        if self._done < end:
            await self._store.commit(Pass(market_ms(end), (), (), (), ()))
            self._done = end

    def _next_hour(self) -> int | None:
        """Return the first hour not yet run at which a new bar or a waiting one is due."""
        closes = [self._source.next_close(ticker, seen) for ticker, seen in self._seen.items()]
        hours = [close for close in closes if close is not None]
        hours += self._desk.intake.waiting_for()
        return max(min(hours), self._done + HOUR_S) if hours else None

    async def _pass(self, until: int) -> None:
        """Fetch, step and commit everything due up to an hour, in one transaction."""
        start = self._done + HOUR_S
        bars, funding, publish_from = await self._take_in(start, until)
        self._publish_from.update(publish_from)
        changes: list[ChangeRow] = []
        stepped: dict[tuple[str, Timeframe], tuple[int, int]] = {}
        stepper = self._desk.stepper
        for run, due in self._desk.intake.take(stepper.row, start, until):
            changes += [self._row(change) for change in stepper.run(run, due)]
            for timeframe, ready in due.items():
                for row, close in zip(ready.row.tolist(), ready.close_time.tolist(), strict=True):
                    place = (stepper.tickers[row], timeframe)
                    stepped[place] = (stepped.get(place, (close, close))[0], close)
        carries, epochs = self._carries(stepped)
        work = Pass(market_ms(until), bars, funding, changes, carries, epochs, publish_from)
        await self._store.commit(work)
        self._done = until

    async def _take_in(
        self, start: int, until: int
    ) -> tuple[list[BarRow], list[FundingRow], dict[str, int]]:
        """Fetch what is new of every asset; an asset's backlog from before warms up in silence."""
        bars: list[BarRow] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, native in self._desk.intake.native.items():
            new = await self._source.fetch(ticker, self._seen[ticker], until)
            self._seen[ticker] = new.watermark
            series, settled = self._until_removed(ticker, new.bars, new.funding)
            self._desk.intake.add(ticker, series, settled)
            bars += bar_rows(ticker, native, series)
            funding += funding_rows(ticker, settled)
            if ticker not in self._publish_from and (len(series) or len(settled.rate)):
                backlog = len(series) and series.close_time[0] < start and start > 0
                publish_from[ticker] = market_ms(start) + 1 if backlog else 0
        return bars, funding, publish_from

    def _until_removed(
        self, ticker: str, series: Series, funding: Funding
    ) -> tuple[Series, Funding]:
        removed_on = self._universe.by_ticker[ticker].removed_on
        if removed_on is None:
            return series, funding
        end = midnight_s(removed_on) - 1
        return series.where(series.close_time <= end), funding.between(-1, end)

    def _row(self, change: Change) -> ChangeRow:
        """Give a change its place in the one sequence of rows."""
        cell, now = change.cell, market_ms(change.run)
        self._last_created_at = max(now, self._last_created_at + 1)
        source = ITS_INDICATOR if cell.key == LEGACY_KEY else cell.key
        carry = self._desk.carries.get(Cell(cell.ticker, cell.timeframe, source))
        return ChangeRow(
            created_at=self._last_created_at,
            ticker=cell.ticker,
            indicator=cell.key,
            timeframe=cell.timeframe,
            close_time=change.close_time,
            epoch=0 if carry is None else carry.epoch,
            before=change.before,
            after=change.after,
            price=change.price,
            published=is_published(change, self._publish_from[cell.ticker]),
        )

    def _carries(
        self, stepped: dict[tuple[str, Timeframe], tuple[int, int]]
    ) -> tuple[list[CarryRow], list[EpochRow]]:
        """Return the carries to store, and the epochs that begin with this pass."""
        desk, epochs = self._desk, list(self._desk.epochs)
        rows: dict[Cell, CarryRow] = {cell: desk.carries[cell] for cell in desk.unsaved}
        for (ticker, timeframe), (first, last) in stepped.items():
            for indicator in self._indicators:
                cell = Cell(ticker, timeframe, indicator.id)
                known = desk.carries.get(cell)
                if known is None:
                    epochs.append(EpochRow(*cell, 0, indicator.version, 0, first, "first bar"))
                epoch = 0 if known is None else known.epoch
                rows[cell] = self._restorer.carry_row(desk, cell, last, epoch)
        desk.carries.update(rows)
        desk.unsaved.clear()
        desk.epochs.clear()
        return list(rows.values()), epochs


def is_published(change: Change, publish_from: int) -> bool:
    """Say whether the universe feed shows a change: no first readings, no unlogged keys.

    What counts is when its bar closed: a newcomer's backlog steps in runs that may be published.
    """
    logged = change.cell.key in UNIVERSE_LOGGED
    return logged and change.before is not None and market_ms(change.close_time) >= publish_from


def bar_rows(ticker: str, native: Timeframe, series: Series) -> list[BarRow]:
    """Return one asset's bars as rows to store."""
    columns = (series.open_time, series.open, series.high, series.low, series.close, series.volume)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [BarRow(ticker, native, *row) for row in rows]


def funding_rows(ticker: str, funding: Funding) -> list[FundingRow]:
    """Return one asset's settlements as rows to store."""
    pairs = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
    return [FundingRow(ticker, settled_at, rate) for settled_at, rate in pairs]
