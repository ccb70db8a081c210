"""Recomputes everything published from the stored bars, with the step that published it.

Checks the digest chain, the rows of both tiers both ways, every reading and every carry. What
another version of an indicator read is "not verifiable", never a mismatch. A crew steps the bars in
blocks of assets; what is of all assets, the chain and the sequence of rows, is compared here.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert, compute_engine_version, list_followed_series
from compute.audit.history import CommitReader, LoadedBatch
from compute.audit.recompute import (
    AuditBlock,
    BlockTask,
    ComputedCarry,
    Recomputed,
    merge_changes,
    run_task,
)
from compute.audit.report import Report
from compute.audit.row_audit import Epochs, RowAudit, get_cell, split_by_tier
from compute.executor import Crew, Here, each, in_blocks
from compute.indicators.contract import Indicator
from compute.stepper import Cell, Changes, list_series_keys, list_stored_keys
from compute.universe import Universe
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    ENGINE_KEYS,
    INDICATORS_BY_ENGINE_KEY,
    UNIVERSE_RETENTION_MS,
    Timeframe,
)
from store.errors import DamagedError, MarketStore
from store.market_rows import CarryRow, FeedRow, Progress

MAX_BLOCK_ASSETS = 512

OnProgress = Callable[[int, int], None]


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

    async def run(self, on_progress: OnProgress = lambda done, end: None) -> Report:
        """Audit the whole store; the report has no findings where all is well."""
        coverage = (await self._store.snapshot()).coverage
        assets = () if coverage is None else coverage.assets
        self._epochs = Epochs(await self._store.epochs(), self._list_versions())
        self._split_assets(
            {asset.ticker: asset.timeframes[0] for asset in assets if asset.timeframes}
        )
        progress = await self._store.progress()
        rows = RowAudit(
            self._cells,
            tuple(self._engine_numbers),
            self._epochs,
            await self._store.publish_from(),
            progress,
            is_nominal=coverage is not None and coverage.source == "recorded",
        )
        self._commits = await self._store.commits()
        self._reader = CommitReader(
            self._store,
            self._commits,
            self._epochs,
            self._block_by_ticker,
            len(self._blocks),
            self._report,
        )
        self._check_clock(progress)
        try:
            await self._audit_commits(rows, on_progress)
        except DamagedError as error:
            rows.findings.append(f"bars: {error}: nothing from there on was checked")
            self._report.findings += rows.findings
            return self._report
        self._report.findings += rows.findings
        await self._compare_readings()
        await self._compare_carries()
        if unreferenced := await self._store.count_unreferenced():
            self._report.add_finding(f"bars: {unreferenced} bars or settlements belong to no pass")
        return self._report

    def _list_versions(self) -> dict[str, int]:
        engines = {ENGINE_KEYS[i.id]: compute_engine_version(i) for i in self._indicators}
        return {i.id: i.version for i in self._indicators} | engines

    def _split_assets(self, native_timeframes: dict[str, Timeframe]) -> None:
        """Split the assets into blocks, and number the cells of all in the order of rows."""
        tickers = sorted(self._universe.by_ticker)
        ticker_blocks = in_blocks(tickers, MAX_BLOCK_ASSETS, self._crew.hands)
        shared_arguments = self._universe, self._indicators, native_timeframes, self._epochs
        self._blocks = [AuditBlock(*shared_arguments, own) for own in ticker_blocks]
        self._block_by_ticker = {
            ticker: at for at, own in enumerate(ticker_blocks) for ticker in own
        }
        series_keys = list_series_keys(tickers)
        self._cells = [
            Cell(*place, key) for place in series_keys for key in list_stored_keys(self._indicators)
        ]
        number = {cell: at for at, cell in enumerate(self._cells)}
        self._cell_numbers = [np.array([number[cell] for cell in b.cells]) for b in self._blocks]
        followed_series = list_followed_series(series_keys, self._universe)
        self._followed_series = frozenset(followed_series)
        engines = (
            Cell(*place, ENGINE_KEYS[i.id]) for place in followed_series for i in self._indicators
        )
        self._engine_numbers = {cell: at for at, cell in enumerate(engines)}

    def _check_clock(self, progress: Progress) -> None:
        """Hold the clock, by which rows age, against the passes; and pruning against the clock."""
        last = self._commits[-1].market_time if self._commits else None
        if progress.market_time != last:
            self._report.add_finding(
                f"clock: is {progress.market_time} where the last pass is at {last}"
            )
        for before, retention in (
            (progress.pruned_before, UNIVERSE_RETENTION_MS),
            (progress.alerts_pruned_before, ALERTS_RETENTION_MS),
        ):
            if before > max((last or 0) - retention, 0):
                self._report.add_finding(f"clock: pruned before {before}, within the retention")

    async def _audit_commits(self, rows: RowAudit, on_progress: OnProgress) -> None:
        """Go through the passes in order, with the stored rows of both tiers beside them.

        While some passes are compared, the next ones are stepped.
        """
        batches: list[LoadedBatch] = []
        recomputed: list[list[Recomputed]] = []
        async for next_batches in self._reader.read_batches():
            comparing = asyncio.to_thread(
                self._compare_batches, rows, batches, recomputed, on_progress
            )
            recomputed, _ = await asyncio.gather(self._step_batches(next_batches), comparing)
            batches = next_batches
        self._compare_batches(rows, batches, recomputed, on_progress)
        if self._reader.damage is not None:
            raise self._reader.damage
        rows.finish(await self._reader.read_unreferenced_rows())

    async def _step_batches(self, batches: Sequence[LoadedBatch]) -> list[list[Recomputed]]:
        """Have the passes stepped; return what follows from each, block by block."""
        tasks = [
            BlockTask(block, [batch.parts[at] for batch in batches])
            for at, block in enumerate(self._blocks)
        ]
        for batch in batches:
            batch.parts.clear()
        results = [one async for one in self._crew.map(run_task, each(tasks))]
        self._blocks = [one.block for one in results]
        return [list(parts) for parts in zip(*(one.recomputed for one in results), strict=True)]

    def _compare_batches(
        self,
        rows: RowAudit,
        batches: Sequence[LoadedBatch],
        recomputed: Sequence[Sequence[Recomputed]],
        on_progress: OnProgress,
    ) -> None:
        for batch, parts in zip(batches, recomputed, strict=True):
            rows.compare(batch.commit, *self._merge_parts(parts), batch.feed_rows)
            self._count_rows(batch.feed_rows, rows)
            on_progress(batch.commit.number, len(self._commits))

    def _merge_parts(self, parts: Sequence[Recomputed]) -> tuple[Changes, list[Alert]]:
        """Return what follows of all blocks, in the order that one step gives it."""
        self._report.checked["readings"] += sum(part.reading_count for part in parts)
        changes = merge_changes([part.changes for part in parts], self._cell_numbers)
        alerts = [alert for part in parts for alert in part.alerts]
        alerts.sort(
            key=lambda alert: (alert.hour, alert.close_time, self._engine_numbers[alert.cell])
        )
        return changes, alerts

    def _count_rows(self, stored: Sequence[FeedRow], rows: RowAudit) -> None:
        """Count a pass's rows, and those that another version's bars gave."""
        changes, alerts = split_by_tier(stored)
        self._report.checked.update(changes=len(changes), alerts=len(alerts))
        for change in changes:
            version = self._epochs.find_foreign_version(get_cell(change), change.close_time)
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
        computed = {
            c: reading for block in self._blocks for c, reading in block.get_readings().items()
        }
        for cell in sorted(stored.keys() | computed.keys()):
            stored_reading, computed_reading = stored.get(cell), computed.get(cell)
            if stored_reading != computed_reading and cell.ticker in self._block_by_ticker:
                where = ".".join(cell)
                self._report.add_finding(
                    f"readings: {where} is {stored_reading} where the bars give {computed_reading}"
                )

    async def _compare_carries(self) -> None:
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row
            for row in await self._store.carries()
        }
        self._report.checked["carries"] += len(stored)
        computed = {
            cell: one for block in self._blocks for cell, one in block.dump_carries().items()
        }
        for cell in sorted(computed):
            self._compare_carry(stored.pop(cell, None), cell, computed[cell])
        for cell in stored:
            if cell.key in INDICATORS_BY_ENGINE_KEY and cell[:2] not in self._followed_series:
                self._report.not_verifiable[f"carry of {cell.key}: not followed"] += 1
            elif cell.ticker in self._block_by_ticker:
                self._report.add_finding(f"carries: {'.'.join(cell)} belongs to no bar")

    def _compare_carry(self, stored: CarryRow | None, cell: Cell, computed: ComputedCarry) -> None:
        where = ".".join(cell)
        if stored is None:
            self._report.add_finding(f"carries: {where} is missing")
            return
        if (stored.version, stored.layout) != (computed.version, computed.layout):
            self._report.not_verifiable[f"carry of {cell.key}: v{stored.version}"] += 1
        elif (stored.close_time, stored.data) != (computed.close_time, computed.data):
            self._report.add_finding(f"carries: {where} does not follow from the bars")
        epoch_revision, bar_revision = (
            self._epochs.find_revision(cell),
            self._reader.revisions.get(cell.ticker, 0),
        )
        if epoch_revision != bar_revision:
            self._report.add_finding(
                f"epochs: {where} is of generation {epoch_revision} where its bars are of {bar_revision}"
            )
