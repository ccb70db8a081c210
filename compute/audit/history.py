"""The passes of a store as an audit reads them: held to the chain, parted for who steps them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from compute.audit.recompute import Part
from compute.audit.report import Report
from compute.audit.row_audit import Epochs, cell_of
from compute.bars import HOUR_S
from compute.schedule import last_run
from store.digest import GENESIS, bars_digest, chain_digest
from store.errors import DamagedError, MarketStore
from store.market_rows import AlertRow, FeedRow, PassContent, PassRow

# As many bars as a first start's passes of all assets: what is read at once, and stepped at once.
BARS_AT_ONCE = 250_000


class Held(NamedTuple):
    """A pass, the stored rows of both tiers that are its own, and what each block needs of it."""

    row: PassRow
    rows: list[FeedRow]
    parts: list[Part]


class PassReader:
    """Reads passes in order, with the stored rows of both tiers beside them; `read` once.

    `generations` are those of the assets whose bars were told anew, as far as it has read;
    `damage` is what ended it early.
    """

    def __init__(
        self,
        store: MarketStore,
        passes: Sequence[PassRow],
        epochs: Epochs,
        block_of: Mapping[str, int],
        blocks: int,
        report: Report,
    ) -> None:
        """`block_of` says of each asset which of so many blocks it is stepped with."""
        self._store: Final = store
        self._passes: Final = passes
        self._epochs: Final = epochs
        self._block_of: Final = block_of
        self._blocks: Final = blocks
        self._report: Final = report
        self._rows: Final = _in_one_sequence(store)
        self._waiting: FeedRow | None = None
        self.generations: Final[dict[str, int]] = {}
        self.damage: DamagedError | None = None

    async def read(self) -> AsyncIterator[list[Held]]:
        """Yield the passes up to the first that is damaged, some at a time, held to the chain."""
        read: list[Held] = []
        previous, before, bars = GENESIS, -HOUR_S, 0
        try:
            self._waiting = await anext(self._rows, None)
            for row in self._passes:
                own = await self._rows_of(row)
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
            self.damage = error
        yield read

    async def ownerless(self) -> list[FeedRow]:
        """Return the stored rows that are of no pass."""
        first = [] if self._waiting is None else [self._waiting]
        return [*first, *[row async for row in self._rows]]

    async def _rows_of(self, row: PassRow) -> list[FeedRow]:
        """Return the stored rows that a pass wrote, as its times say."""
        own: list[FeedRow] = []
        while self._waiting is not None and self._waiting.created_at <= (row.last_created_at or -1):
            own.append(self._waiting)
            self._waiting = await anext(self._rows, None)
        return own

    def _check_chain(self, previous: bytes, row: PassRow, held: PassContent) -> None:
        bars = sum(map(len, held.bars))
        self._report.checked.update(passes=1, bars=bars, settlements=len(held.funding))
        if bars_digest(held.bars, held.funding, held.watermarks) != row.bars_digest:
            self._report.find(
                f"bars: pass {row.number} does not hold the bars it was committed with"
            )
        parts = row.bars_digest, row.changes_digest, row.alerts_digest
        link = chain_digest(previous, row.market_time, *parts)
        if link != row.digest:
            self._report.find(f"chain: pass {row.number} does not follow from its predecessor")

    async def _parts(
        self, before: int, run: int, content: PassContent, rows: Sequence[FeedRow]
    ) -> list[Part]:
        """Return what each block needs of a pass."""
        parts = [Part(before, run) for _ in range(self._blocks)]
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
            if bars.generation != self.generations.get(ticker, 0):
                self.generations[ticker] = bars.generation
                part.settled[ticker] = await self._store.funding(ticker)


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
