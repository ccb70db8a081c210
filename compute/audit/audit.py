"""Recomputes everything published from the stored bars, with the step that published it.

It checks the digest chain, that each revision of bars has one source, the rows of both tiers both
ways, every reading and every carry. Rows of another version of an indicator are "not verifiable",
never a mismatch. Tasks over blocks of assets step the bars and match the rows; this module compares
everything that spans all assets.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, Self

from compute.alerts.alert_pipeline import compute_engine_version
from compute.audit.asset_check import AssetCheck
from compute.audit.block_audit import (
    CheckedPart,
    CommitsTask,
    StateFindings,
    StateTask,
    check_commits,
    check_state,
)
from compute.audit.blocks import AuditedAssets, split_assets
from compute.audit.checkpoint_check import check_checkpoint
from compute.audit.epochs import Epochs
from compute.audit.foundation import Foundation, load_foundation
from compute.audit.history import CommitReader, LoadedCommit
from compute.audit.log_check import LogCheck
from compute.audit.report import Report
from compute.audit.row_audit import BlockMatch, RowAudit
from compute.audit.row_matcher import RowMatcher
from compute.audit.source_check import SourceCheck
from compute.executor import LOCAL_EXECUTORS, ExecutorFactory, iterate, map_blocks
from compute.indicators.contract import Indicator
from compute.signing.log_signer import LogKey
from compute.stepper import Cell
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, INDICATORS_BY_ENGINE_KEY
from store.errors import DamagedError
from store.market_rows import AlertRow, CarryRow
from store.sql.audit_reads import StoredLog
from store.sql.market_store import MarketStore

OnProgress = Callable[[int, int], None]


async def audit_market(
    store: MarketStore,
    universe: Universe,
    indicators: Sequence[Indicator],
    executors: ExecutorFactory = LOCAL_EXECUTORS,
    on_progress: OnProgress = lambda done, end: None,
    log_key: LogKey | None = None,
) -> Report:
    """Audit a whole store; the report has no findings if everything matches.

    `on_progress` is called with the commits checked and their total. `log_key` is the key of the
    store's log with the tree that it signed last, None if its file is not on this machine.
    """
    report = Report()
    try:
        audit = await Audit.open(store, universe, indicators, executors, report)
        check_checkpoint(audit.log, log_key, report)
        await audit.run(on_progress)
    except DamagedError as error:
        report.add_finding(f"damage: {error}: what follows from it is unchecked")
    return report


class Audit:
    """One audit of one store as it is now: call `open`, then `run` once."""

    def __init__(
        self,
        store: MarketStore,
        foundation: Foundation,
        assets: AuditedAssets,
        sources: SourceCheck,
        rows: RowAudit,
        stray_matcher: RowMatcher,
        executors: ExecutorFactory,
        parallelism: int,
        report: Report,
    ) -> None:
        """`stray_matcher` matches the rows of assets that are not in the universe."""
        self._store: Final = store
        self._foundation: Final = foundation
        self._blocks = assets.blocks
        self._block_by_ticker: Final = assets.block_by_ticker
        self._followed_series: Final = assets.followed_series
        self._sources: Final = sources
        self._rows: Final = rows
        self._stray_matcher: Final = stray_matcher
        self._executors: Final = executors
        self._parallelism: Final = parallelism
        self._report: Final = report
        self._asset_check: Final = AssetCheck()
        self._log_check: Final = LogCheck(foundation.log)
        self._reader: Final = CommitReader(
            store, foundation.commits, assets, report, (sources, self._asset_check)
        )

    @property
    def log(self) -> StoredLog:
        """The transparency log."""
        return self._foundation.log

    @classmethod
    async def open(
        cls,
        store: MarketStore,
        universe: Universe,
        indicators: Sequence[Indicator],
        executors: ExecutorFactory,
        report: Report,
    ) -> Self:
        """Return an audit that adds to a report; check what needs no bars at once."""
        foundation = await load_foundation(store, report)
        covered = () if foundation.coverage is None else foundation.coverage.assets
        native_timeframes = {
            asset.ticker: asset.timeframes[0] for asset in covered if asset.timeframes
        }
        epochs = Epochs(
            await store.epochs(),
            list_versions(indicators),
            [
                (ticker, "1d")
                for ticker in universe.sunday_joining_tickers
                if native_timeframes.get(ticker) != "1d"
            ],
        )
        report.findings += epochs.list_faults()
        publish_from = await store.publish_from()
        parallelism = executors.choose_parallelism(len(publish_from))
        assets = split_assets(
            universe, indicators, native_timeframes, epochs, publish_from, parallelism
        )
        is_nominal = foundation.is_recorded
        return cls(
            store,
            foundation,
            assets,
            SourceCheck(await store.sources()),
            RowAudit(epochs, assets.engines, foundation.progress, is_nominal=is_nominal),
            RowMatcher({}, {}, epochs, {}),
            executors,
            parallelism,
            report,
        )

    async def run(self, on_progress: OnProgress) -> None:
        """Step all bars again and compare everything that follows from them."""
        async with self._executors.open(self._parallelism) as executor:
            await self._audit_commits(executor, on_progress)
            if self._reader.damage is None:
                await self._finish_commits()
            self._report.findings += self._rows.findings
            if self._reader.damage is not None:
                raise self._reader.damage
            await self._audit_state(executor)
        if unreferenced := await self._store.count_unreferenced():
            self._report.add_finding(
                f"bars: {unreferenced} bars, settlements, sources, assets or epochs belong to no "
                "commit"
            )

    async def _finish_commits(self) -> None:
        """Report what concerns all commits together."""
        self._rows.finish(await self._reader.read_unreferenced_rows())
        self._sources.report_to(self._report)
        feed_from = 0 if self._foundation.is_recorded else None
        self._asset_check.report_to(self._report, self._foundation.assets, feed_from)
        progress = self._foundation.progress
        pruned_before = max(progress.pruned_before, progress.alerts_pruned_before)
        self._log_check.report_to(self._report, pruned_before)

    async def _audit_commits(self, executor: Executor, on_progress: OnProgress) -> None:
        """Audit the commits in order, some at a time.

        While tasks check some commits, the next ones are read and the previous ones compared.
        """
        reading = self._reader.read_commits()
        loaded: list[LoadedCommit] = []
        checked: list[list[CheckedPart]] = []
        unchecked: list[LoadedCommit] = await anext(reading, [])
        while unchecked or loaded:
            comparing = asyncio.to_thread(self._compare_commits, loaded, checked, on_progress)
            checking = self._check_commits(executor, unchecked)
            loaded = unchecked
            checked, unchecked, _ = await asyncio.gather(checking, anext(reading, []), comparing)

    async def _check_commits(
        self, executor: Executor, commits: Sequence[LoadedCommit]
    ) -> list[list[CheckedPart]]:
        """Check commits in tasks over the blocks; return each commit's parts, block by block."""
        if not commits:
            return []
        for commit in commits:
            for part in commit.parts:
                part.wants_all_rows = self._rows.wants_all_rows(commit.stored)
        tasks = [
            CommitsTask(block, [commit.parts[number] for commit in commits])
            for number, block in enumerate(self._blocks)
        ]
        # Each task holds its parts now; the leader frees its own references to bound the memory.
        for commit in commits:
            commit.parts.clear()
        running = map_blocks(executor, self._parallelism, check_commits, iterate(tasks))
        results = [result async for result in running]
        self._blocks = [result.block for result in results]
        return [list(parts) for parts in zip(*(r.checked for r in results), strict=True)]

    def _compare_commits(
        self,
        commits: Sequence[LoadedCommit],
        checked: Sequence[Sequence[CheckedPart]],
        on_progress: OnProgress,
    ) -> None:
        for commit, parts in zip(commits, checked, strict=True):
            self._report.checked["readings"] += sum(part.reading_count for part in parts)
            matches = [
                *map(BlockMatch, commit.places, (part.matched for part in parts)),
                self._match_strays(commit),
            ]
            self._rows.compare(commit.stored, matches)
            self._count_rows(commit, matches)
            self._log_check.add_rows(commit.stored.rows)
            on_progress(commit.stored.commit.number, len(self._foundation.commits))

    def _match_strays(self, commit: LoadedCommit) -> BlockMatch:
        """Match the rows of assets that are not in the universe, which no block holds."""
        rows = [commit.stored.rows[place] for place in commit.stray_places.tolist()]
        return BlockMatch(commit.stray_places, self._stray_matcher.match_strays(rows))

    def _count_rows(self, commit: LoadedCommit, matches: Sequence[BlockMatch]) -> None:
        """Count a commit's rows, and those that only another version can recompute."""
        rows = commit.stored.rows
        self._report.checked.update(changes=len(rows) - len(rows.alerts), alerts=len(rows.alerts))
        notes = [
            (isinstance(rows[place], AlertRow), place, note)
            for match in matches
            for place, note in zip(
                match.places[[*match.matched.foreign]].tolist(),
                match.matched.foreign.values(),
                strict=True,
            )
        ]
        for _, _, note in sorted(notes):
            self._report.not_verifiable[note] += 1

    async def _audit_state(self, executor: Executor) -> None:
        """Compare the stored readings and carries with the blocks' state after the last commit."""
        readings: list[dict[Cell, int]] = [{} for _ in self._blocks]
        for row in await self._store.readings():
            if (number := self._block_by_ticker.get(row.ticker)) is not None:
                readings[number][Cell(row.ticker, row.timeframe, row.indicator)] = row.reading
        carries: list[dict[Cell, CarryRow]] = [{} for _ in self._blocks]
        stored = {Cell(r.ticker, r.timeframe, r.indicator): r for r in await self._store.carries()}
        for cell, carry in stored.items():
            if (number := self._block_by_ticker.get(cell.ticker)) is not None:
                carries[number][cell] = carry
        tasks = list(map(StateTask, self._blocks, readings, carries))
        running = map_blocks(executor, self._parallelism, check_state, iterate(tasks))
        self._report_state(stored, [found async for found in running])

    def _report_state(
        self, stored: Mapping[Cell, CarryRow], found: Sequence[StateFindings]
    ) -> None:
        self._report.checked["carries"] += len(stored)
        for one in found:
            self._report.findings += one.readings
        for one in found:
            self._report.findings += one.carries
            self._report.not_verifiable.update(one.not_verifiable)
        surplus = {cell for one in found for cell in one.surplus_carries}
        for cell in stored:
            is_stray = cell.ticker not in self._block_by_ticker
            if not is_stray and cell not in surplus:
                continue
            if cell.key in INDICATORS_BY_ENGINE_KEY and cell[:2] not in self._followed_series:
                self._report.not_verifiable[f"carry of {cell.key}: not followed"] += 1
            elif not is_stray:
                self._report.add_finding(f"carries: {'.'.join(cell)} belongs to no bar")


def list_versions(indicators: Sequence[Indicator]) -> dict[str, int]:
    """Return the code's own version of every indicator and alert engine."""
    engines = {ENGINE_KEYS[i.id]: compute_engine_version(i) for i in indicators}
    return {i.id: i.version for i in indicators} | engines
