"""The market store, whatever engine holds it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from schemas.coverage import Coverage
from schemas.vocabulary import Tier
from store.errors import StoreError
from store.market_rows import (
    AlertRow,
    BarBlock,
    CarryRow,
    ChangeRow,
    EpochRow,
    FeedQuery,
    FeedRow,
    FundingRow,
    Pass,
    PassContent,
    PassRow,
    Progress,
    ReadingRow,
    Snapshot,
    Statistics,
    WatermarkRow,
)
from store.sql import feed
from store.sql import market_reads as reads
from store.sql import market_writes as writes
from store.sql import migrate_database as moving
from store.sql import past_snapshot as past
from store.sql.database import Database, MarketEngine

ROWS_A_BATCH = 1000

Given = ParamSpec("Given")
Found = TypeVar("Found")


class SqlMarketStore:
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
        async with self._engine.computing() as db:
            known, began = await writes.adopt_source(db, source, started_at)
        if known != source:
            name = self._engine.name
            raise StoreError(f"{name} holds the bars of {known}: use another database for {source}")
        return began

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""
        async with self._engine.computing() as db:
            await writes.write_coverage(db, coverage.model_dump_json())

    async def commit(self, work: Pass) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""
        async with self._engine.computing() as db:
            await writes.write_pass(db, work)

    async def prune(self) -> int:
        """Delete rows beyond retention but those that others build on; return how many.

        Many short transactions, so that nobody waits for long.
        """
        async with self._engine.writing() as db:
            horizons = await writes.prune_horizons(db)
        return sum([await self._prune(table, before) for table, before in horizons.items()])

    async def move_from(
        self, source: "SqlMarketStore", progressed: Callable[[int, int], None]
    ) -> None:
        """Take in all that another store holds, or the rest of it; both are locked meanwhile.

        `progressed` is told the passes done and those there are. StoreError where this one is in
        use. Nobody computes on it until `finish_move`.
        """
        await source.lock()
        await self.lock()
        await moving.begin(source._engine, self._engine)
        await moving.move_market(source._engine, self._engine, progressed)
        await moving.verify(source._engine, self._engine, moving.MARKET)

    async def finish_move(self) -> None:
        """Let this store be used, whose content was verified."""
        await moving.finish(self._engine)

    async def progress(self) -> Progress:
        """Return how far the store has come."""
        return await self._read(reads.progress)

    async def bars(
        self, ticker: str | None = None, after: int = -1, generation: int | None = None
    ) -> list[BarBlock]:
        """Return stored bars that open after a time: a block per ticker and timeframe, sorted.

        They are of each asset's newest generation unless one is asked for.
        """
        return await self._read(reads.bars, ticker, after, generation)

    async def generations(self) -> dict[str, int]:
        """Return the newest generation of bars of every ticker that has more than the first."""
        return await self._read(reads.generations)

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""
        return await self._read(reads.funding, ticker, after)

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""
        return await self._read(reads.carries)

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""
        return await self._read(reads.readings)

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets for which the last pass could not wait, by ticker."""
        return await self._read(reads.last_watermarks)

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""
        return await self._read(reads.epochs)

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""
        return await self._read(reads.publish_from)

    async def passes(self) -> list[PassRow]:
        """Return the digest chain, oldest first."""
        return await self._read(reads.passes)

    async def pass_content(self, number: int) -> PassContent:
        """Return what a pass wrote; StoreError for an unknown pass, DamagedError where it can't."""
        return await self._read(_pass_content, number)

    async def orphans(self) -> int:
        """Return how many bars, settlements and watermarks belong to no pass."""
        return await self._read(reads.orphans)

    async def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(feed.changes_after, newest, ROWS_A_BATCH):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    async def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(feed.alerts_after, newest, ROWS_A_BATCH):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it means nothing elsewhere."""
        return self._engine.version()

    async def snapshot(self) -> Snapshot:
        """Return the latest state, read in one transaction."""
        return await self._read(reads.snapshot)

    async def snapshot_at(self, at: int) -> Snapshot:
        """Return the state that was latest at a time (epoch ms) from `past_from` on."""
        return await self._read(past.snapshot_at, at)

    async def feed(self, query: FeedQuery) -> list[ChangeRow]:
        """Return one page of published rows, in the query's order, read by index."""
        async with self._engine.querying() as db:
            return await feed.feed(db, query)

    async def alerts_feed(self, query: FeedQuery) -> list[AlertRow]:
        """Return one page of alerts, in the query's order, read by index."""
        async with self._engine.querying() as db:
            return await feed.alerts_feed(db, query)

    async def merged_feed(self, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
        """Return one page of both tiers, in one order; `after` bounds the changes alone."""
        async with self._engine.querying() as db:
            return await feed.merged_feed(db, query, alerts_after)

    async def statistics(self, tier: Tier, after: int, until: int, kept_after: int) -> Statistics:
        """Count the published rows of a tier in (`after`, `until`]; all bounds are epoch ms."""
        return await self._read(feed.statistics, tier, after, until, kept_after)

    async def _prune(self, table: str, before: int) -> int:
        pruned = 0
        while True:
            async with self._engine.writing() as db:
                deleted = await writes.prune(db, table, before)
            pruned += deleted
            if not deleted:
                return pruned

    async def _read(
        self,
        read: Callable[Concatenate[Database, Given], Awaitable[Found]],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Found:
        async with self._engine.reading() as db:
            return await read(db, *args, **kwargs)


async def _pass_content(db: Database, number: int) -> PassContent:
    """Return the rows of one pass in the order of its digests; StoreError for an unknown pass."""
    row = await reads.one_pass(db, number)
    ends = row.first_created_at, row.last_created_at
    return PassContent(
        await reads.bars_of_pass(db, number),
        await reads.funding_of_pass(db, number),
        await reads.watermarks(db, number),
        await feed.changes_between(db, *ends),
        await feed.alerts_between(db, *ends),
    )
