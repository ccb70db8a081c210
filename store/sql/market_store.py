"""The market store, whatever engine holds it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from schemas.coverage import Coverage
from schemas.vocabulary import Tier
from store.errors import StoreError
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
from store.sql import feed
from store.sql import market_reads as reads
from store.sql import market_writes as writes
from store.sql import migrate_database as moving
from store.sql import past_snapshot as past
from store.sql.database import Database, MarketEngine

ROWS_PER_READ = 1000

Params = ParamSpec("Params")
Result = TypeVar("Result")


class MarketStore:
    """A MarketStore on a database engine."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine = engine

    async def close(self) -> None:
        """Close every connection and let go of the lock; idempotent."""
        await self._engine.close()

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""
        await self._engine.lock()

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""
        await self._engine.unlock()

    async def adopt_source(self, source: str, started_at: int) -> int:
        """Remember where the bars come from and when that began (market clock, epoch ms).

        Return when it began; StoreError where the store knows another source.
        """
        async with self._engine.begin_compute_write() as db:
            stored_source, stored_started_at = await writes.adopt_source(db, source, started_at)
        if stored_source != source:
            name = self._engine.name
            raise StoreError(
                f"{name} holds the bars of {stored_source}: use another database for {source}"
            )
        return stored_started_at

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""
        async with self._engine.begin_compute_write() as db:
            await writes.write_coverage(db, coverage.model_dump_json())

    async def commit(self, batch: Batch) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""
        async with self._engine.begin_compute_write() as db:
            await writes.write_batch(db, batch)

    async def prune(self) -> int:
        """Delete rows beyond retention but those that others build on; return how many.

        Many short transactions, so that nobody waits for long.
        """
        async with self._engine.begin_write() as db:
            cutoffs = await writes.write_prune_cutoffs(db)
        return sum([await self._prune(table, before) for table, before in cutoffs.items()])

    async def move_from(
        self, source: "MarketStore", on_progress: Callable[[int, int], None]
    ) -> None:
        """Take in all that another store holds, or the rest of it; both are locked meanwhile.

        `progressed` is told the passes done and those there are. StoreError where this one is in
        use. Nobody computes on it until `finish_move`.
        """
        await source.lock()
        await self.lock()
        await moving.begin_move(source._engine, self._engine)
        await moving.move_market(source._engine, self._engine, on_progress)
        await moving.verify_row_counts(source._engine, self._engine, moving.MARKET_TABLES)

    async def finish_move(self) -> None:
        """Let this store be used, whose content was verified."""
        await moving.finish_move(self._engine)

    async def progress(self) -> Progress:
        """Return how far the store has come."""
        return await self._read(reads.load_progress)

    async def bars(
        self, ticker: str | None = None, after: int = -1, revision: int | None = None
    ) -> list[BarBlock]:
        """Return stored bars that open after a time: a block per ticker and timeframe, sorted.

        They are of each asset's newest generation unless one is asked for.
        """
        return await self._read(reads.load_bars, ticker, after, revision)

    async def revisions(self) -> dict[str, int]:
        """Return the newest generation of bars of every ticker that has more than the first."""
        return await self._read(reads.load_revisions)

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""
        return await self._read(reads.load_funding, ticker, after)

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""
        return await self._read(reads.load_carries)

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""
        return await self._read(reads.load_readings)

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets for which the last pass could not wait, by ticker."""
        return await self._read(reads.load_last_watermarks)

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""
        return await self._read(reads.load_epochs)

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""
        return await self._read(reads.load_publish_from)

    async def commits(self) -> list[CommitRow]:
        """Return the digest chain, oldest first."""
        return await self._read(reads.load_commits)

    async def commit_content(self, number: int) -> CommitContent:
        """Return what a pass wrote; StoreError for an unknown pass, DamagedError where it can't."""
        return await self._read(_load_commit_content, number)

    async def count_unreferenced(self) -> int:
        """Return how many bars, settlements and watermarks belong to no pass."""
        return await self._read(reads.count_unreferenced)

    async def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(feed.load_changes_after, newest, ROWS_PER_READ):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    async def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(feed.load_alerts_after, newest, ROWS_PER_READ):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it means nothing elsewhere."""
        return self._engine.version()

    async def snapshot(self) -> StoredSnapshot:
        """Return the latest state, read in one transaction."""
        return await self._read(reads.load_snapshot)

    async def snapshot_at(self, at: int) -> StoredSnapshot:
        """Return the state that was latest at a time (epoch ms) from `past_from` on."""
        return await self._read(past.load_snapshot_at, at)

    async def changes_feed(self, query: FeedQuery) -> list[ChangeRow]:
        """Return one page of published rows, in the query's order, read by index."""
        async with self._engine.acquire_connection() as db:
            return await feed.load_changes_feed(db, query)

    async def alerts_feed(self, query: FeedQuery) -> list[AlertRow]:
        """Return one page of alerts, in the query's order, read by index."""
        async with self._engine.acquire_connection() as db:
            return await feed.load_alerts_feed(db, query)

    async def merged_feed(self, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
        """Return one page of both tiers, in one order; `after` bounds the changes alone."""
        async with self._engine.acquire_connection() as db:
            return await feed.load_merged_feed(db, query, alerts_after)

    async def statistics(
        self, tier: Tier, after: int, until: int, visible_after: int
    ) -> Statistics:
        """Count the published rows of a tier in (`after`, `until`]; all bounds are epoch ms."""
        return await self._read(feed.load_statistics, tier, after, until, visible_after)

    async def _prune(self, table: str, before: int) -> int:
        pruned = 0
        while True:
            async with self._engine.begin_write() as db:
                deleted = await writes.prune_rows(db, table, before)
            pruned += deleted
            if not deleted:
                return pruned

    async def _read(
        self,
        read: Callable[Concatenate[Database, Params], Awaitable[Result]],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        async with self._engine.begin_read() as db:
            return await read(db, *args, **kwargs)


async def _load_commit_content(db: Database, number: int) -> CommitContent:
    """Return the rows of one pass in the order of its digests; StoreError for an unknown pass."""
    row = await reads.load_commit(db, number)
    ends = row.first_created_at, row.last_created_at
    return CommitContent(
        await reads.load_bars_of_commit(db, number),
        await reads.load_funding_of_commit(db, number),
        await reads.load_watermarks(db, number),
        await feed.load_changes_between(db, *ends),
        await feed.load_alerts_between(db, *ends),
    )
