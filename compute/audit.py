"""Recomputes everything published from the stored bars, with the step that published it.

Checks the digest chain, the rows of both tiers both ways, every reading and every carry. What
another version of an indicator read is "not verifiable", never a mismatch.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute.alerts.desk import LAYOUT, Alert, AlertDesk
from compute.audit_rows import Epochs, RowAudit, by_tier, cell_of
from compute.bars import HOUR_S, NO_BARS, Series
from compute.engine import layout
from compute.indicators.contract import NO_READING, Indicator
from compute.restore import Desk, funding_of, published_hour, series_of
from compute.schedule import last_run
from compute.stepper import Cell, Changes, Intake, Place, Stepper
from compute.universe import Universe
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    INDICATOR_OF,
    UNIVERSE_RETENTION_MS,
    Action,
    Timeframe,
)
from store.digest import GENESIS, bars_digest, chain_digest
from store.protocol import DamagedError, MarketStore
from store.rows import (
    AlertRow,
    BarBlock,
    CarryRow,
    ChangeRow,
    FeedRow,
    FundingRow,
    PassContent,
    PassRow,
    Progress,
)

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
        self._alerts: Final = AlertDesk(self._stepper.row, universe, indicators)
        self._intake: Final = Intake({}, universe.ends)
        self._desk: Final = Desk(self._stepper, self._alerts, self._intake)
        self._report: Final = Report()
        self._stepped_to: Final[dict[tuple[str, Timeframe], int]] = {}
        self._settled_to: Final[dict[str, int]] = {}
        self._shown: Final[dict[Cell, int]] = {}
        self._published: Final[dict[Cell, dict[Action, int]]] = {}

    async def run(self, progressed: Progressed = lambda done, end: None) -> Report:
        """Audit the whole store; the report has no findings where all is well."""
        coverage = (await self._store.snapshot()).coverage
        for asset in () if coverage is None else coverage.assets:
            if asset.timeframes:
                self._intake.native[asset.ticker] = asset.timeframes[0]
        versions = {i.id: i.version for i in self._indicators} | self._alerts.versions
        self._epochs = Epochs(await self._store.epochs(), versions)
        self._starts = {c: at for c, at in self._epochs.starts().items() if c.key in INDICATOR_OF}
        progress = await self._store.progress()
        rows = RowAudit(
            self._stepper.cells,
            self._alerts.cells,
            self._epochs,
            await self._store.publish_from(),
            progress,
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
        for before, retention in (
            (progress.pruned_before, UNIVERSE_RETENTION_MS),
            (progress.alerts_pruned_before, ALERTS_RETENTION_MS),
        ):
            if before > max((last or 0) - retention, 0):
                self._find(f"clock: pruned before {before}, within the retention")

    async def _walk(self, rows: RowAudit, progressed: Progressed) -> None:
        """Go through the passes in order, with the stored rows of both tiers beside them."""
        stored = _in_one_sequence(self._store)
        waiting = await anext(stored, None)
        passes = await self._store.passes()
        previous, run = GENESIS, -HOUR_S
        for row in passes:
            own: list[FeedRow] = []
            while waiting is not None and waiting.created_at <= (row.last_created_at or -1):
                own.append(waiting)
                waiting = await anext(stored, None)
            held = await self._store.pass_content(row.number)
            self._check_chain(previous, row, held)
            before, run = run, last_run(row.market_time)
            await self._take_in(held)
            rows.compare(row, *self._recompute(held, before, run), own)
            changes, alerts = by_tier(own)
            self._report.checked.update(changes=len(changes), alerts=len(alerts))
            self._keep_foreign(changes)
            self._note(alerts, rows)
            previous = row.digest
            progressed(row.number, len(passes))
        ownerless = [] if waiting is None else [waiting]
        rows.finish([*ownerless, *[row async for row in stored]])

    def _check_chain(self, previous: bytes, row: PassRow, held: PassContent) -> None:
        bars = sum(map(len, held.bars))
        self._report.checked.update(passes=1, bars=bars, settlements=len(held.funding))
        if bars_digest(held.bars, held.funding, held.watermarks) != row.bars_digest:
            self._find(f"bars: pass {row.number} does not hold the bars it was committed with")
        parts = row.bars_digest, row.changes_digest, row.alerts_digest
        link = chain_digest(previous, row.market_time, *parts)
        if link != row.digest:
            self._find(f"chain: pass {row.number} does not follow from its predecessor")

    def _recompute(self, held: PassContent, before: int, run: int) -> tuple[Changes, list[Alert]]:
        """Step a pass's bars; return the changes and alerts that follow, in their order."""
        start = run if run == before else before + HOUR_S
        behind = {row.ticker: row.watermark for row in held.watermarks}
        due = self._intake.take(self._stepper.row, start, run, behind)
        self._report.checked["readings"] += len(due.run) * len(self._indicators)
        closes = due.close_time[due.last].tolist()
        self._stepped_to.update(
            zip((self._stepper.places[row] for row in due.row.tolist()), closes, strict=True)
        )
        changes, readings = self._stepper.run(due)
        self._restart_engines()
        return changes, self._alerts.run(due, readings, run)

    def _restart_engines(self) -> None:
        """Begin publishers anew where their epochs do, as a start of the service does."""
        for cell, starts in self._starts.items():
            while starts and starts[0] <= self._stepped_to.get(cell[:2], -1):
                self._restart(cell)
                starts.pop(0)

    def _restart(self, cell: Cell) -> None:
        if self._alerts.follows(cell[:2]):
            self._alerts.restart(cell, self._published.get(cell, {}))

    def _note(self, alerts: Sequence[AlertRow], rows: RowAudit) -> None:
        """Keep when alerts went out: a rebuilt engine's cooldown goes on from there."""
        for row in alerts:
            cell = cell_of(row)
            self._published.setdefault(cell, {})[row.action] = published_hour(row)
            if rows.is_foreign(row):
                self._report.not_verifiable[f"alerts of {row.indicator}: another version's"] += 1

    async def _take_in(self, held: PassContent) -> None:
        own: dict[str, tuple[list[BarBlock], list[FundingRow]]] = {}
        for block in held.bars:
            own.setdefault(block.ticker, ([], []))[0].append(block)
        for settlement in held.funding:
            own.setdefault(settlement.ticker, ([], []))[1].append(settlement)
        for ticker, (bars, funding) in own.items():
            if ticker in self._stepper.tickers:
                await self._take_in_asset(ticker, bars, funding)
            else:
                self._report.not_verifiable[f"{ticker}: not in the universe"] += sum(map(len, bars))

    async def _take_in_asset(
        self, ticker: str, bars: list[BarBlock], funding: list[FundingRow]
    ) -> None:
        if bars:
            self._intake.native[ticker] = bars[0].timeframe
        if ticker not in self._intake.native:
            return
        series, settled = series_of(bars, self._intake.native[ticker]), funding_of(funding)
        if bars and bars[0].generation != self._desk.generation(ticker):
            self._desk.generations[ticker] = bars[0].generation
            await self._renew(ticker, series)
            series = NO_BARS
        self._intake.add(ticker, series, settled)
        if funding:
            self._settled_to[ticker] = funding[-1].settled_at

    async def _renew(self, ticker: str, series: Series) -> None:
        """Begin anew with the bars of another generation, as the run did that took them in."""
        funding = funding_of(await self._store.funding(ticker))
        earlier = funding.between(-1, self._settled_to.get(ticker, -1))
        for timeframe in self._intake.timeframes(ticker):
            place = ticker, timeframe
            to = self._stepped_to.get(place, -1)
            self._desk.renew(place, to, series, earlier, self._published)

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
        for cell in [cell for cell, starts in self._starts.items() if starts]:
            self._restart(cell)
        stored = {
            Cell(row.ticker, row.timeframe, row.indicator): row
            for row in await self._store.carries()
        }
        self._report.checked["carries"] += len(stored)
        for place, close in self._stepped_to.items():
            for cell, version, shape, data in self._carries(place):
                self._compare_carry(stored.pop(cell, None), cell, version, shape, close, data)
        for cell in stored:
            if cell.key in INDICATOR_OF and not self._alerts.follows(cell[:2]):
                self._report.not_verifiable[f"carry of {cell.key}: not followed"] += 1
            elif cell.ticker in self._stepper.tickers:
                self._find(f"carries: {'.'.join(cell)} belongs to no bar")

    def _carries(self, place: Place) -> Iterator[tuple[Cell, int, str, bytes]]:
        """Yield cell, version, layout and data of all that remembers something of a sequence."""
        row = self._stepper.row[place]
        for column, indicator in enumerate(self._indicators):
            data = self._stepper.engine.carry(column, row)
            yield Cell(*place, indicator.id), indicator.version, layout(indicator), data
        for key, version in self._alerts.versions.items():
            cell = Cell(*place, key)
            if self._alerts.follows(place) and self._epochs.knows(cell):
                yield cell, version, LAYOUT, self._alerts.carry(cell)

    def _compare_carry(
        self, stored: CarryRow | None, cell: Cell, version: int, shape: str, close: int, data: bytes
    ) -> None:
        where = ".".join(cell)
        if stored is None:
            self._find(f"carries: {where} is missing")
        elif (stored.version, stored.layout) != (version, shape):
            self._report.not_verifiable[f"carry of {cell.key}: v{stored.version}"] += 1
        elif (stored.close_time, stored.data) != (close, data):
            self._find(f"carries: {where} does not follow from the bars")
        if stored is not None:
            told, own = self._epochs.generation(cell), self._desk.generation(cell.ticker)
            if told != own:
                self._find(f"epochs: {where} is of generation {told} where its bars are of {own}")


async def _in_one_sequence(store: MarketStore) -> AsyncIterator[FeedRow]:
    """Yield the stored rows of both tiers, oldest first."""
    changes, alerts = store.changes(), store.alerts()
    change, alert = await anext(changes, None), await anext(alerts, None)
    while change is not None or alert is not None:
        if alert is None or (change is not None and change.created_at < alert.created_at):
            assert change is not None
            yield change
            change = await anext(changes, None)
        else:
            yield alert
            alert = await anext(alerts, None)
