"""Recomputes everything published from the stored bars, with the step that published it.

Checks the digest chain, the rows of both tiers both ways, every reading and every carry. What
another version of an indicator read is "not verifiable", never a mismatch. A crew steps the bars in
blocks of assets; what is of all assets, the chain and the sequence of rows, is compared here.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert, engine_version, followed
from compute.audit.history import Held, PassReader
from compute.audit.recompute import AuditBlock, Carried, Followed, Work, merged, stepped
from compute.audit.report import Report
from compute.audit.row_audit import Epochs, RowAudit, by_tier, cell_of
from compute.executor import Crew, Here, each, in_blocks
from compute.indicators.contract import Indicator
from compute.stepper import Cell, Changes, keys_of, places_of
from compute.universe import Universe
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    ENGINE_KEYS,
    INDICATOR_OF,
    UNIVERSE_RETENTION_MS,
    Timeframe,
)
from store.errors import DamagedError, MarketStore
from store.market_rows import CarryRow, FeedRow, Progress

ASSETS_AT_ONCE = 512

Progressed = Callable[[int, int], None]


class Audit:
    """One audit of one store; `run` once."""

    def __init__(
        self,
        store: MarketStore,
        universe: Universe,
        indicators: Sequence[Indicator],
        crew: Crew | None = None,
    ) -> None:
        """Without a crew this process does all."""
        self._store: Final = store
        self._universe: Final = universe
        self._indicators: Final = tuple(indicators)
        self._crew: Final = Here() if crew is None else crew
        self._report: Final = Report()

    async def run(self, progressed: Progressed = lambda done, end: None) -> Report:
        """Audit the whole store; the report has no findings where all is well."""
        coverage = (await self._store.snapshot()).coverage
        assets = () if coverage is None else coverage.assets
        self._epochs = Epochs(await self._store.epochs(), self._versions())
        self._split({asset.ticker: asset.timeframes[0] for asset in assets if asset.timeframes})
        progress = await self._store.progress()
        rows = RowAudit(
            self._cells,
            tuple(self._engines),
            self._epochs,
            await self._store.publish_from(),
            progress,
            is_nominal=coverage is not None and coverage.source == "recorded",
        )
        self._passes = await self._store.passes()
        self._reader = PassReader(
            self._store, self._passes, self._epochs, self._block_of, len(self._blocks), self._report
        )
        self._check_clock(progress)
        try:
            await self._walk(rows, progressed)
        except DamagedError as error:
            rows.findings.append(f"bars: {error}: nothing from there on was checked")
            self._report.findings += rows.findings
            return self._report
        self._report.findings += rows.findings
        await self._compare_readings()
        await self._compare_carries()
        if orphans := await self._store.orphans():
            self._report.find(f"bars: {orphans} bars or settlements belong to no pass")
        return self._report

    def _versions(self) -> dict[str, int]:
        engines = {ENGINE_KEYS[i.id]: engine_version(i) for i in self._indicators}
        return {i.id: i.version for i in self._indicators} | engines

    def _split(self, native: dict[str, Timeframe]) -> None:
        """Split the assets into blocks, and number the cells of all in the order of rows."""
        tickers = sorted(self._universe.by_ticker)
        parted = in_blocks(tickers, ASSETS_AT_ONCE, self._crew.hands)
        given = self._universe, self._indicators, native, self._epochs
        self._blocks = [AuditBlock(*given, own) for own in parted]
        self._block_of = {ticker: at for at, own in enumerate(parted) for ticker in own}
        places = places_of(tickers)
        self._cells = [Cell(*place, key) for place in places for key in keys_of(self._indicators)]
        number = {cell: at for at, cell in enumerate(self._cells)}
        self._numbers = [np.array([number[cell] for cell in b.cells]) for b in self._blocks]
        acting = followed(places, self._universe)
        self._acting = frozenset(acting)
        engines = (Cell(*place, ENGINE_KEYS[i.id]) for place in acting for i in self._indicators)
        self._engines = {cell: at for at, cell in enumerate(engines)}

    def _check_clock(self, progress: Progress) -> None:
        """Hold the clock, by which rows age, against the passes; and pruning against the clock."""
        last = self._passes[-1].market_time if self._passes else None
        if progress.market_time != last:
            self._report.find(f"clock: is {progress.market_time} where the last pass is at {last}")
        for before, retention in (
            (progress.pruned_before, UNIVERSE_RETENTION_MS),
            (progress.alerts_pruned_before, ALERTS_RETENTION_MS),
        ):
            if before > max((last or 0) - retention, 0):
                self._report.find(f"clock: pruned before {before}, within the retention")

    async def _walk(self, rows: RowAudit, progressed: Progressed) -> None:
        """Go through the passes in order, with the stored rows of both tiers beside them.

        While some passes are compared, the next ones are stepped.
        """
        passes: list[Held] = []
        follows: list[list[Followed]] = []
        async for read in self._reader.read():
            comparing = asyncio.to_thread(self._compare, rows, passes, follows, progressed)
            follows, _ = await asyncio.gather(self._stepped(read), comparing)
            passes = read
        self._compare(rows, passes, follows, progressed)
        if self._reader.damage is not None:
            raise self._reader.damage
        rows.finish(await self._reader.ownerless())

    async def _stepped(self, read: Sequence[Held]) -> list[list[Followed]]:
        """Have the passes stepped; return what follows from each, block by block."""
        works = [
            Work(block, [held.parts[at] for held in read]) for at, block in enumerate(self._blocks)
        ]
        for held in read:
            held.parts.clear()
        done = [one async for one in self._crew.map(stepped, each(works))]
        self._blocks = [one.block for one in done]
        return [list(parts) for parts in zip(*(one.followed for one in done), strict=True)]

    def _compare(
        self,
        rows: RowAudit,
        passes: Sequence[Held],
        follows: Sequence[Sequence[Followed]],
        progressed: Progressed,
    ) -> None:
        for held, parts in zip(passes, follows, strict=True):
            rows.compare(held.row, *self._in_order(parts), held.rows)
            self._count(held.rows, rows)
            progressed(held.row.number, len(self._passes))

    def _in_order(self, parts: Sequence[Followed]) -> tuple[Changes, list[Alert]]:
        """Return what follows of all blocks, in the order that one step gives it."""
        self._report.checked["readings"] += sum(part.readings for part in parts)
        changes = merged([part.changes for part in parts], self._numbers)
        alerts = [alert for part in parts for alert in part.alerts]
        alerts.sort(key=lambda alert: (alert.hour, alert.close_time, self._engines[alert.cell]))
        return changes, alerts

    def _count(self, stored: Sequence[FeedRow], rows: RowAudit) -> None:
        """Count a pass's rows, and those that another version's bars gave."""
        changes, alerts = by_tier(stored)
        self._report.checked.update(changes=len(changes), alerts=len(alerts))
        for change in changes:
            version = self._epochs.foreign_version(cell_of(change), change.close_time)
            if version is not None:
                self._report.not_verifiable[f"{change.indicator}: version {version}"] += 1
        for alert in alerts:
            if rows.is_foreign(alert):
                self._report.not_verifiable[f"alerts of {alert.indicator}: another version's"] += 1

    async def _compare_readings(self) -> None:
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row.reading
            for row in await self._store.readings()
        }
        computed = {c: reading for block in self._blocks for c, reading in block.readings().items()}
        for cell in sorted(stored.keys() | computed.keys()):
            given, wanted = stored.get(cell), computed.get(cell)
            if given != wanted and cell.ticker in self._block_of:
                where = ".".join(cell)
                self._report.find(f"readings: {where} is {given} where the bars give {wanted}")

    async def _compare_carries(self) -> None:
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row
            for row in await self._store.carries()
        }
        self._report.checked["carries"] += len(stored)
        computed = {cell: one for block in self._blocks for cell, one in block.carries().items()}
        for cell in sorted(computed):
            self._compare_carry(stored.pop(cell, None), cell, computed[cell])
        for cell in stored:
            if cell.key in INDICATOR_OF and cell[:2] not in self._acting:
                self._report.not_verifiable[f"carry of {cell.key}: not followed"] += 1
            elif cell.ticker in self._block_of:
                self._report.find(f"carries: {'.'.join(cell)} belongs to no bar")

    def _compare_carry(self, stored: CarryRow | None, cell: Cell, carried: Carried) -> None:
        where = ".".join(cell)
        if stored is None:
            self._report.find(f"carries: {where} is missing")
            return
        if (stored.version, stored.layout) != (carried.version, carried.layout):
            self._report.not_verifiable[f"carry of {cell.key}: v{stored.version}"] += 1
        elif (stored.close_time, stored.data) != (carried.close_time, carried.data):
            self._report.find(f"carries: {where} does not follow from the bars")
        told, own = self._epochs.generation(cell), self._reader.generations.get(cell.ticker, 0)
        if told != own:
            self._report.find(
                f"epochs: {where} is of generation {told} where its bars are of {own}"
            )
