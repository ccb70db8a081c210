"""Replays the stored bars and compares everything that follows from them with the store.

The bars go, commit by commit, through the steps of the pipeline that published them; tasks over
blocks of assets step them, and this module gives their rows `created_at` as the pipeline does. What
differs is a finding. Rows of another version of an indicator are "not verifiable", never a finding.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.audit.checks import (
    InputsCheck,
    check_beside_chain,
    check_checkpoint,
    check_commits,
    check_epochs,
    check_leaves,
    parse_coverage,
)
from compute.audit.replay import (
    BlockReplay,
    CellIndex,
    CommitPart,
    Replayed,
    ReplayedState,
    Rows,
    StoredRows,
    compare_rows,
    describe_unknown,
    join_rows,
    replay_commits,
    stack_keys,
)
from compute.bars import HOUR_S, Times
from compute.batch_assembler import END_OF_TIME, build_feed_rows, find_silent_hours
from compute.engine_state import FIRST_BAR, build_state
from compute.executor import OpenExecutor, open_local_executor, run_tasks
from compute.indicators.contract import Indicator
from compute.rebuild import build_funding, split_into_blocks
from compute.schedule import find_last_run
from compute.signing.log_signer import LogKey
from compute.stepper import Cell, Changes
from compute.universe import Universe
from schemas.vocabulary import INDICATORS_BY_ENGINE_KEY, TIMEFRAMES, Action, Timeframe
from store.change_table import ChangeTable
from store.codes import ACTIONS_BY_CODE, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.digest import digest_alerts, digest_bars, digest_changes
from store.log_tree import LogStart
from store.market_rows import AlertRow, CommitInputs, CommitRow
from store.sql.audit_reads import StoredMarket
from store.sql.market_store import MarketStore
from store.store_errors import DamagedError

# Commits are read, and stepped, in groups of about as many bars as one batch of a first start has.
BARS_PER_READ = 250_000
MAX_BLOCK_ASSETS = 512
OnProgress = Callable[[int, int], None]


# A commit with each block's part of it, and the places of its stored rows.
LoadedCommit = tuple[CommitRow, list[CommitPart], slice]


@dataclass(slots=True)
class Report:
    """Counts of checked and unverifiable items, and the findings, one line each.

    A finding names the table and the fault.
    """

    checked: Counter[str] = field(default_factory=Counter)
    not_verifiable: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


async def audit_market(
    store: MarketStore,
    universe: Universe,
    indicators: Sequence[Indicator],
    open_executor: OpenExecutor = open_local_executor,
    on_progress: OnProgress = lambda done, end: None,
    log_key: LogKey | None = None,
) -> Report:
    """Audit a whole store; the report has no findings if everything matches.

    `on_progress` is called with the commits replayed and their total. `log_key` is the key of the
    store's log with the tree that it signed last, None if its file is not on this machine.
    """
    report = Report()
    # Workers start while this process reads.
    async with open_executor(len(await store.publish_from())) as (executor, parallelism):
        market = await store.audit_reads.load_market()
        report.findings += [
            *(f"schema: {fault}" for fault in await store.audit_reads.find_schema_faults()),
            *(f"damage: {damage}" for damage in market.damage),
            *check_checkpoint(market.log, log_key),
            *check_commits(market),
            *check_beside_chain(market),
            *check_epochs(market.epochs),
        ]
        audit = Audit(store, market, universe, indicators, report, parallelism)
        await audit.replay(executor, on_progress)
        await asyncio.to_thread(audit.compare_rows)
        await audit.compare_state(executor)
    return report


def merge_changes(parts: Sequence[Changes], cell_numbers: Sequence[Times]) -> Changes:
    """Return the changes of all blocks in order, as those of one.

    `cell_numbers` has for each block the numbers that its cells have among those of all assets.
    """
    numbered = [
        part._replace(cell=numbers[part.cell])
        for part, numbers in zip(parts, cell_numbers, strict=True)
    ]
    merged = Changes._make(map(np.concatenate, zip(*numbered, strict=True)))
    order = np.lexsort((merged.cell, merged.close_time, merged.run))
    return Changes._make(column[order] for column in merged)


def merge_alerts(parts: Iterable[Sequence[Alert]], engine_keys: Sequence[str]) -> list[Alert]:
    """Return the alerts of all blocks in order, as those of one; `engine_keys` are in its order."""

    def rank(alert: Alert) -> tuple[int, int, int, str, int]:
        ticker, timeframe, key = alert.cell
        place = TIMEFRAMES.index(timeframe), ticker, engine_keys.index(key)
        return alert.hour, alert.close_time, *place

    return sorted(chain.from_iterable(parts), key=rank)


class Audit:
    """The replay of one store, and its results so far."""

    def __init__(
        self,
        store: MarketStore,
        market: StoredMarket,
        universe: Universe,
        indicators: Sequence[Indicator],
        report: Report,
        parallelism: int,
    ) -> None:
        """Split the assets of the universe into blocks for at least `parallelism` tasks."""
        self._store: Final = store
        self._market: Final = market
        self._report: Final = report
        coverage = parse_coverage(market)
        is_recorded = coverage is not None and coverage.source == "recorded"
        self._inputs: Final = InputsCheck(market, is_recorded=is_recorded)
        # Those of the others are set with their first bars.
        native: dict[str, Timeframe] = dict.fromkeys(universe.by_ticker, "1h")
        for asset in coverage.assets if coverage else ():
            if asset.timeframes and asset.ticker in native:
                native[asset.ticker] = asset.timeframes[0]
        whole = build_state(universe, indicators, native)
        self._engine_keys: Final = list(whole.alerts.versions)
        self._followed: Final = {cell[:2] for cell in whole.alerts.cells}
        self._index: Final = CellIndex(whole, market.epochs)
        feed = market.feed, market.is_alert
        self._stored: Final = StoredRows(*feed, market.tickers, self._index)
        self._has_foreign: Final = self._index.has_foreign or bool(self._stored.is_foreign.any())
        self._publish_from: Final = {str(row[2]): int(row[3] or 0) for row in market.assets}
        groups = split_into_blocks(sorted(native), MAX_BLOCK_ASSETS, parallelism)
        self._blocks: Sequence[BlockReplay] = [
            BlockReplay(
                build_state(universe, indicators, {ticker: native[ticker] for ticker in group}),
                market.epochs,
            )
            for group in groups
        ]
        self._block_by_ticker: Final = {t: n for n, group in enumerate(groups) for t in group}
        self._cell_numbers: Final[list[Times]] = [
            np.array([self._index.numbers[c] for c in block.state.stepper.cells], dtype=np.int64)
            for block in self._blocks
        ]
        self._restarted: Final = self._list_restarted()
        self._epoch_numbers: Final = {row[1] for row in market.context if row[0] == "epoch"}
        self._is_whole = True
        self._rows: Final[list[Rows]] = []
        self._last_created_at = 0
        self._published_at: Final[dict[Cell, dict[Action, int]]] = {}
        counted = ("commits", "bars", "settlements", "readings", "changes", "alerts", "leaves")
        report.checked.update(dict.fromkeys(counted, 0))

    async def replay(self, executor: Executor, on_progress: OnProgress) -> None:
        """Replay the commits in order, some at a time.

        While tasks step some commits, the next ones are read, and the rows of the last ones built.
        """
        reading = self._read_commits()
        stepped: list[tuple[LoadedCommit, list[Replayed]]] = []
        loaded: list[LoadedCommit] = await anext(reading, [])
        while loaded or stepped:
            building = asyncio.to_thread(self._add_commits, stepped, on_progress)
            replaying = self._replay_parts(executor, [parts for _, parts, _ in loaded])
            replayed, following, _ = await asyncio.gather(replaying, anext(reading, []), building)
            stepped, loaded = list(zip(loaded, replayed, strict=True)), following

    def compare_rows(self) -> None:
        """Compare the stored rows, and the log, with those that the replay gave."""
        report, market, index = self._report, self._market, self._index
        nothing = index.build_rows(ChangeTable.from_rows([]), [])
        rows, last = join_rows([nothing, *self._rows]), self._last_created_at
        self._rows.clear()
        is_alert = self._stored.is_alert
        report.checked.update(changes=int((~is_alert).sum()), alerts=int(is_alert.sum()))
        foreign = np.flatnonzero(self._stored.is_foreign)
        for place in foreign[np.argsort(is_alert[foreign], kind="stable")].tolist():
            report.not_verifiable[self._stored.describe_foreign(place)] += 1
        report.findings += compare_rows(
            *(rows, self._stored, index, market.pruned_before, last), is_whole=self._is_whole
        )
        report.checked["leaves"] += len(market.log.created_at)
        # Rows of another version that retention deleted moved the others, so their times are lost.
        since = max(market.pruned_before) if self._has_foreign else 0
        is_shown = (rows.published != 0) & (rows.cell >= 0) & (rows.created_at >= since)
        shown = [*index.iter_rows(rows.select(is_shown))]
        # Alerts of engines that this code does not follow, and rows of unknown assets.
        strange = self._stored.rows
        is_stray = self._stored.is_foreign & (strange.cell < 0) & (strange.published != 0)
        strays = map(self._stored.build_row, np.flatnonzero(is_stray).tolist())
        shown = sorted([*shown, *strays], key=itemgetter(0))
        known = since, END_OF_TIME if self._is_whole else last
        report.findings += check_leaves(market.log, LogStart.from_facts(market.facts), shown, known)

    async def compare_state(self, executor: Executor) -> None:
        """Compare the stored readings and carries with the state after the last commit."""
        if not self._is_whole:
            return
        states = await run_tasks(executor, [block.dump for block in self._blocks])
        given = {cell: reading for state in states for cell, reading in state.readings.items()}
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row.reading
            for row in self._market.readings
            if row.ticker in self._block_by_ticker
        }
        self._report.findings += [
            f"readings: {'.'.join(cell)} is {stored.get(cell)}, but the bars give {given.get(cell)}"
            for cell in sorted(stored.keys() | given.keys())
            if stored.get(cell) != given.get(cell)
        ]
        self._report.findings += self._compare_carries(states)

    async def _read_commits(self) -> AsyncIterator[list[LoadedCommit]]:
        """Yield the commits, some at a time.

        A damaged commit is the end: a finding names it.
        """
        loaded: list[LoadedCommit] = []
        bars, first, previous_run = 0, 0, -HOUR_S
        for commit in self._market.commits:
            try:
                content = await self._store.commit_inputs(commit.number)
            except DamagedError as error:
                self._report.findings.append(f"damage: {error}: what follows from it is unchecked")
                self._is_whole = False
                break
            checked, bars_read = self._report.checked, sum(map(len, content.bars))
            checked.update(commits=1, bars=bars_read, settlements=len(content.funding))
            inputs = content.bars, content.funding, content.watermarks, content.sources
            if digest_bars(*inputs) != commit.bars_digest:
                self._report.findings.append(
                    f"bars: commit {commit.number} does not hold the bars it was committed with"
                )
            run = find_last_run(commit.market_time)
            # A late commit runs the last hour again.
            start = run if run == previous_run else previous_run + HOUR_S
            self._report.findings += self._inputs.check_commit(commit.number, start, content)
            # Rows do not name their commit: all up to its last `created_at` count as its own.
            times, last = self._stored.rows.created_at, commit.last_created_at or 0
            places = slice(first, max(first, int(np.searchsorted(times, last, side="right"))))
            parts = self._split_content(commit, start, content, places)
            loaded.append((commit, parts, places))
            first, previous_run = places.stop, run
            bars += 1 + bars_read
            if bars >= BARS_PER_READ:
                yield loaded
                loaded, bars = [], 0
        if loaded:
            yield loaded

    def _split_content(
        self, commit: CommitRow, start: int, content: CommitInputs, places: slice
    ) -> list[CommitPart]:
        """Return each block's part of a commit."""
        run = find_last_run(commit.market_time)
        begins_epochs = commit.number in self._epoch_numbers
        parts = [CommitPart(start, run, commit.written_at, begins_epochs) for _ in self._blocks]
        by_ticker = {ticker: parts[at] for ticker, at in self._block_by_ticker.items()}
        for block in content.bars:
            if block.ticker in by_ticker:
                by_ticker[block.ticker].bars.setdefault(block.ticker, []).append(block)
            else:
                self._report.not_verifiable[describe_unknown(block.ticker)] += len(block)
        for ticker, settlements in groupby(content.funding, key=attrgetter("ticker")):
            if ticker in by_ticker:
                by_ticker[ticker].funding[ticker] = build_funding(list(settlements))
        for row in content.watermarks:
            if row.ticker in by_ticker:
                by_ticker[row.ticker].lagging[row.ticker] = row.watermark
                if row.history != "followed":
                    by_ticker[row.ticker].building[row.ticker] = row.get_built_hour(run)
        for part in parts:
            part.silent_until = find_silent_hours(part.building, self._publish_from)
        for cell in self._restarted[commit.number]:
            by_ticker[cell.ticker].restarted.append(cell)
        stored = self._stored
        is_wanted = (stored.is_alert | stored.is_foreign)[places] & (stored.rows.cell[places] >= 0)
        for place in (places.start + np.flatnonzero(is_wanted)).tolist():
            cell, after = self._index.cells[stored.rows.cell[place]], int(stored.rows.after[place])
            if not stored.is_alert[place]:
                by_ticker[cell.ticker].foreign[cell] = max(-1, min(after, 1))
            elif after in ACTIONS_BY_CODE:
                published = cell, ACTIONS_BY_CODE[after], int(stored.rows.created_at[place])
                by_ticker[cell.ticker].published.append(published)
        return parts

    async def _replay_parts(
        self, executor: Executor, commits: Sequence[list[CommitPart]]
    ) -> list[list[Replayed]]:
        """Replay commits in tasks over the blocks; return what each commit gives, by block."""
        if not commits:
            return []
        blocks = zip(self._blocks, zip(*commits, strict=True), strict=True)
        tasks = [partial(replay_commits, block, parts) for block, parts in blocks]
        # Each task holds its parts now; the leader frees its own references to bound the memory.
        for parts in commits:
            parts.clear()
        results = await run_tasks(executor, tasks)
        self._blocks = [block for block, _ in results]
        return [list(parts) for parts in zip(*(replayed for _, replayed in results), strict=True)]

    def _add_commits(
        self, stepped: Sequence[tuple[LoadedCommit, list[Replayed]]], on_progress: OnProgress
    ) -> None:
        for (commit, _, places), replayed in stepped:
            self._add_commit(commit, replayed, places)
            on_progress(commit.number, len(self._market.commits))

    def _add_commit(self, commit: CommitRow, parts: Sequence[Replayed], places: slice) -> None:
        """Build the rows of a commit as the pipeline does; compare their digests and ends."""
        self._report.checked["readings"] += sum(part.reading_count for part in parts)
        epochs = {cell: epoch for part in parts for cell, epoch in part.epochs.items()}
        changes, alerts = build_feed_rows(
            merge_changes([part.changes for part in parts], self._cell_numbers),
            merge_alerts([part.alerts for part in parts], self._engine_keys),
            commit.written_at,
            self._last_created_at,
            self._published_at,
            self._index.cells,
            lambda cell: epochs.get(cell, 0),
            self._publish_from,
            frozenset().union(*(part.built for part in parts)),
        )
        rows = self._index.build_rows(changes, alerts)
        if self._has_foreign:
            rows, changes, alerts = self._add_foreign(rows, changes, alerts, places)
        self._rows.append(rows)
        self._last_created_at = max([self._last_created_at, *rows.created_at[-1:].tolist()])
        digests = digest_changes(changes), digest_alerts(alerts)
        first, last = commit.first_created_at, commit.last_created_at
        committed = commit.changes_digest, commit.alerts_digest
        for tier, before, digest, expected in zip(
            ("changes", "alerts"), self._market.pruned_before, digests, committed, strict=True
        ):
            is_lost = self._has_foreign and first is not None and first < before
            if digest != expected and not is_lost:
                self._report.findings.append(
                    f"{tier}: commit {commit.number} does not hold the rows it was committed with"
                )
        ends = rows.created_at[[0, -1]].tolist() if len(rows.created_at) else [None, None]
        is_lost = self._has_foreign and (first or 0) < max(self._market.pruned_before)
        if ends != [first, last] and not is_lost:
            self._report.findings.append(
                f"commits: {commit.number} has rows from {ends[0]} to {ends[1]}, "
                f"but says from {first} to {last}"
            )

    def _add_foreign(
        self, rows: Rows, changes: ChangeTable, alerts: Sequence[AlertRow], places: slice
    ) -> tuple[Rows, ChangeTable, list[AlertRow]]:
        """Add a commit's stored rows of other versions to those of this code's.

        They move the others by milliseconds, so each row gets the time with which it is stored.
        """
        stored, is_alert = self._stored, rows.cell >= self._index.first_engine
        near = stored.rows.select(places)
        keys = [stack_keys(rows, is_alert), stack_keys(near, stored.is_alert[places])]
        _, which = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)
        found = np.full(which.size, -1, dtype=np.int64)
        own, other = np.split(which.ravel(), [len(is_alert)])
        found[other] = near.created_at
        times = np.where(found[own] < 0, rows.created_at, found[own])
        dated = [*replace(changes, created_at=times[~is_alert])]
        pairs = zip(alerts, times[is_alert].tolist(), strict=True)
        fired = [row._replace(created_at=at) for row, at in pairs]
        foreign = places.start + np.flatnonzero(stored.is_foreign[places])
        for row in map(stored.build_row, foreign.tolist()):
            if isinstance(row, AlertRow):
                fired.append(row)
            else:
                dated.append(row)
        joined = join_rows([rows._replace(created_at=times), stored.rows.select(foreign)])
        return joined, ChangeTable.from_rows(dated), fired

    def _list_restarted(self) -> Mapping[int, list[Cell]]:
        """Return the alert engines that a start rebuilt, by the commit that stored their epoch."""
        restarted: defaultdict[int, list[Cell]] = defaultdict(list)
        for kind, number, *values in self._market.context:
            if kind == "epoch":
                timeframe, key = (int(code or 0) for code in values[1:3])
                names = values[0], TIMEFRAMES_BY_CODE.get(timeframe), KEYS_BY_CODE.get(key)
                cell = Cell(*names)  # type: ignore[arg-type]
                if self._index.numbers.get(cell, -1) >= self._index.first_engine:
                    restarted[int(number or 0)].append(cell)
        return restarted

    def _compare_carries(self, states: Sequence[ReplayedState]) -> Iterator[str]:
        """Yield the stored carries that differ from those after the last commit."""
        given = {Cell(*row[:3]): row for state in states for row in state.carries}
        stored = {Cell(*row[:3]): row for row in self._market.carries}
        newest = {Cell(e.ticker, e.timeframe, e.indicator): e for e in self._market.epochs}
        oldest = {Cell(e.ticker, e.timeframe, e.indicator): e for e in self._market.epochs[::-1]}
        firsts = {key: close for state in states for key, close in state.first_closes.items()}
        revisions = {t: number for state in states for t, number in state.revisions.items()}
        self._report.checked["carries"] += len(stored)
        for cell, row in sorted(given.items()):
            name, epoch, first = ".".join(cell), newest[cell], oldest[cell]
            found = stored.pop(cell, None)
            if found is None:
                yield f"carries: {name} is missing"
                continue
            unknown = self._report.not_verifiable
            is_same = (found.close_time, found.data) == (row.close_time, row.data)
            if found.version != row.version:
                unknown[f"carry of {row.indicator}: v{found.version}"] += 1
            elif found.layout == row.layout and not is_same:
                yield f"carries: {name} does not follow from the bars"
            elif found.layout != row.layout and is_same:
                yield f"carries: {name} has the layout {found.layout} of other data"
            elif found.layout != row.layout:
                unknown[f"carry of {row.indicator}: layout {found.layout}"] += 1
            if (found.epoch, found.version) != (epoch.epoch, epoch.version):
                yield (
                    f"carries: {name} is of epoch {found.epoch}, version {found.version}, but its "
                    f"newest epoch is {epoch.epoch}, version {epoch.version}"
                )
            if epoch.revision != (revision := revisions.get(cell.ticker, 0)):
                yield (
                    f"epochs: {name} is of revision {epoch.revision}, but its bars are of "
                    f"{revision}"
                )
            is_first = first.reason == FIRST_BAR and first.version == row.version
            if is_first and first.from_close_time != (close := firsts[cell[:2]]):
                yield (
                    f"epochs: {name} begins at {first.from_close_time}, but its first bar is at "
                    f"{close}"
                )
        for cell in stored:
            if cell.ticker not in self._block_by_ticker:
                self._report.not_verifiable[describe_unknown(cell.ticker)] += 1
            elif cell.key in INDICATORS_BY_ENGINE_KEY and cell[:2] not in self._followed:
                self._report.not_verifiable[f"carry of {cell.key}: not followed"] += 1
            else:
                yield f"carries: {'.'.join(cell)} belongs to no bar"
