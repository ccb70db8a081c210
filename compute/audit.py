"""Recomputes everything published from the stored bars, with the step that published it.

Checks the digest chain, the rows of both tiers both ways, every reading and every carry. What
another version of an indicator read is "not verifiable", never a mismatch. A crew steps the bars in
blocks of assets; what is of all assets, the chain and the sequence of rows, is compared here.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.desk import Alert, engine_version, followed
from compute.audit_blocks import AuditBlock, Carried, Followed, Part, Work, merged, stepped
from compute.audit_rows import Epochs, RowAudit, by_tier, cell_of
from compute.bars import HOUR_S
from compute.crew import Crew, Here, each, in_blocks
from compute.indicators.contract import Indicator
from compute.schedule import last_run
from compute.stepper import Cell, Changes, keys_of, places_of
from compute.universe import Universe
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    ENGINE_KEYS,
    INDICATOR_OF,
    UNIVERSE_RETENTION_MS,
    Timeframe,
)
from store.digest import GENESIS, bars_digest, chain_digest
from store.protocol import DamagedError, MarketStore
from store.rows import AlertRow, CarryRow, FeedRow, PassContent, PassRow, Progress

# As many bars as a first start's passes of all assets: what is read at once, and stepped at once.
BARS_AT_ONCE = 250_000
ASSETS_AT_ONCE = 512

Progressed = Callable[[int, int], None]


@dataclass(slots=True)
class Report:
    """What an audit looked at and what it found wrong, each finding one line."""

    checked: Counter[str] = field(default_factory=Counter)
    not_verifiable: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Held(NamedTuple):
    """A pass, the stored rows of both tiers that are its own, and what each block needs of it."""

    row: PassRow
    rows: list[FeedRow]
    parts: list[Part]


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
        self._generations: Final[dict[str, int]] = {}
        self._damage: DamagedError | None = None

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
            self._find(f"bars: {orphans} bars or settlements belong to no pass")
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

    def _find(self, finding: str) -> None:
        self._report.findings.append(finding)

    def _check_clock(self, progress: Progress) -> None:
        """Hold the clock, by which rows age, against the passes; and pruning against the clock."""
        last = self._passes[-1].market_time if self._passes else None
        if progress.market_time != last:
            self._find(f"clock: is {progress.market_time} where the last pass is at {last}")
        for before, retention in (
            (progress.pruned_before, UNIVERSE_RETENTION_MS),
            (progress.alerts_pruned_before, ALERTS_RETENTION_MS),
        ):
            if before > max((last or 0) - retention, 0):
                self._find(f"clock: pruned before {before}, within the retention")

    async def _walk(self, rows: RowAudit, progressed: Progressed) -> None:
        """Go through the passes in order, with the stored rows of both tiers beside them.

        While some passes are compared, the next ones are stepped.
        """
        stored = _in_one_sequence(self._store)
        passes: list[Held] = []
        follows: list[list[Followed]] = []
        async for read in self._read(stored):
            comparing = asyncio.to_thread(self._compare, rows, passes, follows, progressed)
            follows, _ = await asyncio.gather(self._stepped(read), comparing)
            passes = read
        self._compare(rows, passes, follows, progressed)
        if self._damage is not None:
            raise self._damage
        ownerless = [] if self._waiting is None else [self._waiting]
        rows.finish([*ownerless, *[row async for row in stored]])

    async def _read(self, stored: AsyncIterator[FeedRow]) -> AsyncIterator[list[Held]]:
        """Yield the passes up to the first that is damaged, some at a time, held to the chain."""
        read: list[Held] = []
        previous, before, bars = GENESIS, -HOUR_S, 0
        try:
            self._waiting = await anext(stored, None)
            for row in self._passes:
                own = await self._rows_of(row, stored)
                content = await self._store.pass_content(row.number)
                self._check_chain(previous, row, content)
                parts = await self._parts(before, last_run(row.market_time), content, own)
                read.append(Held(row, own, parts))
                previous, before = row.digest, last_run(row.market_time)
                bars += 1 + sum(map(len, content.bars))
                if bars >= BARS_AT_ONCE:
                    yield read
                    read, bars = [], 0
        except DamagedError as error:
            self._damage = error
        yield read

    async def _rows_of(self, row: PassRow, stored: AsyncIterator[FeedRow]) -> list[FeedRow]:
        """Return the stored rows that a pass wrote, as its times say."""
        own: list[FeedRow] = []
        while self._waiting is not None and self._waiting.created_at <= (row.last_created_at or -1):
            own.append(self._waiting)
            self._waiting = await anext(stored, None)
        return own

    def _check_chain(self, previous: bytes, row: PassRow, held: PassContent) -> None:
        bars = sum(map(len, held.bars))
        self._report.checked.update(passes=1, bars=bars, settlements=len(held.funding))
        if bars_digest(held.bars, held.funding, held.watermarks) != row.bars_digest:
            self._find(f"bars: pass {row.number} does not hold the bars it was committed with")
        parts = row.bars_digest, row.changes_digest, row.alerts_digest
        link = chain_digest(previous, row.market_time, *parts)
        if link != row.digest:
            self._find(f"chain: pass {row.number} does not follow from its predecessor")

    async def _parts(
        self, before: int, run: int, content: PassContent, rows: Sequence[FeedRow]
    ) -> list[Part]:
        """Return what each block needs of a pass."""
        parts = [Part(before, run) for _ in self._blocks]
        part_of = {ticker: parts[at] for ticker, at in self._block_of.items()}
        for bars in content.bars:
            if bars.ticker in part_of:
                part_of[bars.ticker].bars.setdefault(bars.ticker, []).append(bars)
            else:
                self._report.not_verifiable[f"{bars.ticker}: not in the universe"] += len(bars)
        for settlement in content.funding:
            if settlement.ticker in part_of:
                own = part_of[settlement.ticker].funding
                own.setdefault(settlement.ticker, []).append(settlement)
        for watermark in content.watermarks:
            if watermark.ticker in part_of:
                part_of[watermark.ticker].behind[watermark.ticker] = watermark.watermark
        for row in rows:
            if row.ticker in part_of:
                self._hand_out(row, part_of[row.ticker])
        for part in parts:
            await self._add_settled(part)
        return parts

    def _hand_out(self, row: FeedRow, part: Part) -> None:
        """Add a stored row to a part where what follows depends on it."""
        if isinstance(row, AlertRow):
            part.alerts.append(row)
        elif self._epochs.is_mixed(cell_of(row)):
            part.changes.append(row)

    async def _add_settled(self, part: Part) -> None:
        """Add all settlements of assets whose bars are told anew."""
        for ticker, (bars, *_) in part.bars.items():
            if bars.generation != self._generations.get(ticker, 0):
                self._generations[ticker] = bars.generation
                part.settled[ticker] = await self._store.funding(ticker)

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
                self._find(f"readings: {where} is {given} where the bars give {wanted}")

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
                self._find(f"carries: {'.'.join(cell)} belongs to no bar")

    def _compare_carry(self, stored: CarryRow | None, cell: Cell, carried: Carried) -> None:
        where = ".".join(cell)
        if stored is None:
            self._find(f"carries: {where} is missing")
            return
        if (stored.version, stored.layout) != (carried.version, carried.layout):
            self._report.not_verifiable[f"carry of {cell.key}: v{stored.version}"] += 1
        elif (stored.close_time, stored.data) != (carried.close_time, carried.data):
            self._find(f"carries: {where} does not follow from the bars")
        told, own = self._epochs.generation(cell), self._generations.get(cell.ticker, 0)
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
