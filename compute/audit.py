"""Recomputes everything published from the stored bars, with the step that published it.

Checks the digest chain, the row set both ways, every reading and every carry. What another version
of an indicator read is "not verifiable", never a mismatch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute.audit_rows import Epochs, RowAudit
from compute.bars import HOUR_S
from compute.engine import layout
from compute.indicators.contract import NO_READING, Indicator
from compute.restore import funding_of, series_of
from compute.runs import last_run
from compute.stepper import Cell, Changes, Intake, Stepper
from compute.universe import Universe
from schemas.vocabulary import UNIVERSE_RETENTION_MS, Timeframe
from store.digest import GENESIS, bars_digest, chain_digest
from store.protocol import DamagedError, MarketStore
from store.rows import BarBlock, ChangeRow, FundingRow, PassContent, PassRow, Progress

Progressed = Callable[[int, int], None]


@dataclass(slots=True)
class Report:
    """What an audit looked at and what it found wrong, each finding one line."""

    checked: Counter[str] = field(default_factory=Counter)
    not_verifiable: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Audit:
    """One audit of one store; `run` once."""

    def __init__(
        self, store: MarketStore, universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self._store: Final = store
        self._indicators: Final = tuple(indicators)
        self._stepper: Final = Stepper(list(universe.by_ticker), universe, indicators)
        self._intake: Final = Intake({}, universe.ends)
        self._report: Final = Report()
        self._stepped_to: Final[dict[tuple[str, Timeframe], int]] = {}
        self._shown: Final[dict[Cell, int]] = {}

    async def run(self, progressed: Progressed = lambda done, end: None) -> Report:
        """Audit the whole store; the report has no findings where all is well."""
        coverage = (await self._store.snapshot()).coverage
        for asset in () if coverage is None else coverage.assets:
            if asset.timeframes:
                self._intake.native[asset.ticker] = asset.timeframes[0]
        self._epochs = Epochs(await self._store.epochs(), self._indicators)
        progress = await self._store.progress()
        rows = RowAudit(
            self._stepper.cells,
            self._epochs,
            await self._store.publish_from(),
            progress.pruned_before,
            is_nominal=coverage is not None and coverage.source == "recorded",
        )
        self._check_clock(progress, await self._store.passes())
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
            self._find(f"bars: {orphans} bars or settlements belong to no pass")
        return self._report

    def _find(self, finding: str) -> None:
        self._report.findings.append(finding)

    def _check_clock(self, progress: Progress, passes: Sequence[PassRow]) -> None:
        """Hold the clock, by which rows age, against the passes; and pruning against the clock."""
        last = passes[-1].market_time if passes else None
        if progress.market_time != last:
            self._find(f"clock: is {progress.market_time} where the last pass is at {last}")
        if progress.pruned_before > max((last or 0) - UNIVERSE_RETENTION_MS, 0):
            self._find(f"clock: pruned before {progress.pruned_before}, within the retention")

    async def _walk(self, rows: RowAudit, progressed: Progressed) -> None:
        """Go through the passes in order, with the stored changes beside them."""
        stored = self._store.changes()
        waiting = await anext(stored, None)
        passes = await self._store.passes()
        previous, run = GENESIS, -HOUR_S
        for row in passes:
            changes: list[ChangeRow] = []
            while waiting is not None and waiting.created_at <= (row.last_created_at or -1):
                changes.append(waiting)
                waiting = await anext(stored, None)
            held = await self._store.pass_content(row.number)
            self._check_chain(previous, row, held)
            before, run = run, last_run(row.market_time)
            rows.compare(row, self._recompute(held, before, run), changes)
            self._report.checked["changes"] += len(changes)
            self._keep_foreign(changes)
            previous = row.digest
            progressed(row.number, len(passes))
        ownerless = [] if waiting is None else [waiting]
        rows.finish([*ownerless, *[row async for row in stored]])

    def _check_chain(self, previous: bytes, row: PassRow, held: PassContent) -> None:
        bars = sum(map(len, held.bars))
        self._report.checked.update(passes=1, bars=bars, settlements=len(held.funding))
        if bars_digest(held.bars, held.funding, held.watermarks) != row.bars_digest:
            self._find(f"bars: pass {row.number} does not hold the bars it was committed with")
        link = chain_digest(previous, row.market_time, row.bars_digest, row.changes_digest)
        if link != row.digest:
            self._find(f"chain: pass {row.number} does not follow from its predecessor")

    def _recompute(self, held: PassContent, before: int, run: int) -> Changes:
        """Step a pass's bars; return the changes that follow from them, in their order."""
        own: dict[str, tuple[list[BarBlock], list[FundingRow]]] = {}
        for block in held.bars:
            own.setdefault(block.ticker, ([], []))[0].append(block)
        for settlement in held.funding:
            own.setdefault(settlement.ticker, ([], []))[1].append(settlement)
        for ticker, (its_bars, its_funding) in own.items():
            self._take_in(ticker, its_bars, its_funding)
        start = run if run == before else before + HOUR_S
        behind = {row.ticker: row.watermark for row in held.watermarks}
        due = self._intake.take(self._stepper.row, start, run, behind)
        self._report.checked["readings"] += len(due.run) * len(self._indicators)
        closes = due.close_time[due.last].tolist()
        self._stepped_to.update(
            zip((self._stepper.places[row] for row in due.row.tolist()), closes, strict=True)
        )
        return self._stepper.run(due)

    def _take_in(self, ticker: str, bars: list[BarBlock], funding: list[FundingRow]) -> None:
        if ticker not in self._stepper.tickers:
            self._report.not_verifiable[f"{ticker}: not in the universe"] += sum(map(len, bars))
            return
        if bars:
            self._intake.native[ticker] = bars[0].timeframe
        if ticker in self._intake.native:
            series = series_of(bars, self._intake.native[ticker])
            self._intake.add(ticker, series, funding_of(funding))

    def _keep_foreign(self, stored: Sequence[ChangeRow]) -> None:
        """Leave on the board what another version read: the next change starts from there."""
        for row in stored:
            cell = Cell(row.ticker, row.timeframe, row.indicator)
            self._shown[cell] = row.after
            version = self._epochs.foreign_version(cell, row.close_time)
            if version is not None:
                self._report.not_verifiable[f"{row.indicator}: version {version}"] += 1
        for cell, after in self._shown.items():
            closed = self._stepped_to.get(cell[:2], 0)
            if self._epochs.foreign_version(cell, closed) is not None:
                self._stepper.place(cell, after)

    async def _compare_readings(self) -> None:
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row.reading
            for row in await self._store.readings()
        }
        computed = {
            cell: reading
            for cell, reading in zip(
                self._stepper.cells, self._stepper.board.ravel().tolist(), strict=True
            )
            if reading != NO_READING
        }
        for cell in sorted(stored.keys() | computed.keys()):
            given, wanted = stored.get(cell), computed.get(cell)
            if given != wanted and cell.ticker in self._stepper.tickers:
                where = ".".join(cell)
                self._find(f"readings: {where} is {given} where the bars give {wanted}")

    async def _compare_carries(self) -> None:
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row
            for row in await self._store.carries()
        }
        self._report.checked["carries"] += len(stored)
        for (ticker, timeframe), close in self._stepped_to.items():
            row = self._stepper.row[ticker, timeframe]
            for column, indicator in enumerate(self._indicators):
                cell = Cell(ticker, timeframe, indicator.id)
                carry = stored.pop(cell, None)
                where = ".".join(cell)
                if carry is None:
                    self._find(f"carries: {where} is missing")
                elif (carry.version, carry.layout) != (indicator.version, layout(indicator)):
                    self._report.not_verifiable[f"carry of {cell.key}: v{carry.version}"] += 1
                elif (carry.close_time, carry.data) != (
                    close,
                    self._stepper.engine.carry(column, row),
                ):
                    self._find(f"carries: {where} does not follow from the bars")
        for cell in stored:
            if cell.ticker in self._stepper.tickers:
                self._find(f"carries: {'.'.join(cell)} belongs to no bar")
