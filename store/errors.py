"""What a market store must do, verb by verb, and how stores fail. Times as in store/market_rows.py.

Access has a Protocol of its own (store/access_protocol.py): the two never share a transaction.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from schemas.coverage import Coverage
from schemas.operator_error import OperatorError
from schemas.vocabulary import Tier
from store.market_rows import (
    AlertRow,
    BarBlock,
    Batch,
    CarryRow,
    ChangeRow,
    CommitContent,
    CommitRow,
    EpochRow,
    FeedQuery,
    FeedRow,
    FundingRow,
    Progress,
    ReadingRow,
    Statistics,
    StoredSnapshot,
    WatermarkRow,
)


class StoreError(OperatorError):
    """An operator's mistake about the store, told in one line."""


class LockTakenError(StoreError):
    """Another process computes on this store, or may since this one's session with it ended."""


class DamagedError(StoreError):
    """The store holds what no commit wrote."""


class MarketStore(Protocol):
    """Bars, carries, readings, changes and what the compute job says of itself.

    One writer at a time: `lock` refuses a second one. Every verb raises StoreError for what the
    operator can mend.
    """

    async def close(self) -> None:
        """Close every connection; idempotent."""

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""

    async def adopt_source(self, source: str, started_at: int) -> int:
        """Remember where the bars come from and when that began (market clock, epoch ms).

        Return when it began; StoreError where the store knows another source.
        """

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""

    async def progress(self) -> Progress:
        """Return how far the store has come."""

    async def commit(self, batch: Batch) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""

    async def bars(
        self, ticker: str | None = None, after: int = -1, revision: int | None = None
    ) -> list[BarBlock]:
        """Return stored bars that open after a time: a block per ticker and timeframe, sorted.

        They are of each asset's newest generation unless one is asked for.
        """

    async def revisions(self) -> dict[str, int]:
        """Return the newest generation of bars of every ticker that has more than the first."""

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets for which the last pass could not wait, by ticker."""

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""

    async def commits(self) -> list[CommitRow]:
        """Return the digest chain, oldest first."""

    async def commit_content(self, number: int) -> CommitContent:
        """Return what a pass wrote; StoreError for an unknown pass, DamagedError where it can't."""

    async def count_unreferenced(self) -> int:
        """Return how many bars, settlements and watermarks belong to no pass."""

    def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, published or not, oldest first."""

    def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first."""

    async def prune(self) -> int:
        """Delete rows beyond retention, each tier's own; return how many.

        Each cell's newest old change stays, and each engine's newest old alert of an action and
        epoch: what is younger builds on them.

        Many short transactions, so that nobody waits for long.
        """

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it waits for nothing."""

    async def snapshot(self) -> StoredSnapshot:
        """Return the latest state, read in one transaction."""

    async def snapshot_at(self, at: int) -> StoredSnapshot:
        """Return the state that was latest at a time (epoch ms) from `past_from` on.

        It is that of the passes written by then, each a whole; of a pass that was written at
        nominal times, that of its hourly runs by then.
        """

    async def changes_feed(self, query: FeedQuery) -> list[ChangeRow]:
        """Return one page of published changes, in the query's order, read by index."""

    async def alerts_feed(self, query: FeedQuery) -> list[AlertRow]:
        """Return one page of alerts, in the query's order, read by index."""

    async def merged_feed(self, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
        """Return one page of both tiers, in one order; `after` bounds the changes alone."""

    async def statistics(
        self, tier: Tier, after: int, until: int, visible_after: int
    ) -> Statistics:
        """Count the published rows of a tier in (`after`, `until`]; all bounds are epoch ms.

        `oldest` is that of (`kept_after`, `until`].
        """
