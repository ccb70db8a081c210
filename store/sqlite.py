"""The market store on SQLite: one file, one writing and one reading connection a process."""

import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from aiosqlite import Connection

from schemas.coverage import Coverage
from schemas.vocabulary import Tier
from store import sqlite_feed, sqlite_past, sqlite_reads, sqlite_writes
from store.migrations import MARKET_MIGRATIONS
from store.protocol import LockTakenError, StoreError
from store.rows import (
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
from store.sqlite_connections import Connections

ROWS_A_BATCH = 1000

Given = ParamSpec("Given")
Found = TypeVar("Found")


class SqliteMarketStore:
    """A MarketStore on one SQLite file."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock_file: int | None = None

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        return cls(await Connections.open(path, MARKET_MIGRATIONS))

    async def close(self) -> None:
        """Close every connection and let go of the lock; idempotent."""
        await self._connections.close()
        self.unlock()

    def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""
        if self._lock_file is None:
            self._lock_file = _lock(self._connections.path)

    async def adopt_source(self, source: str, started_at: int) -> int:
        """Remember where the bars come from and when that began (market clock, epoch ms).

        Return when it began; StoreError where the store knows another source.
        """
        path = self._connections.path
        async with self._connections.writing() as db:
            known, began = await sqlite_writes.adopt_source(db, source, started_at)
        if known != source:
            raise StoreError(f"{path} holds the bars of {known}: use another database for {source}")
        return began

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""
        async with self._connections.writing() as db:
            await sqlite_writes.write_coverage(db, coverage.model_dump_json())

    async def commit(self, work: Pass) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""
        async with self._connections.writing() as db:
            await sqlite_writes.write_pass(db, work)

    async def prune(self) -> int:
        """Delete rows beyond retention but those that others build on; return how many.

        Many short transactions, so that nobody waits for long.
        """
        async with self._connections.writing() as db:
            horizons = await sqlite_writes.prune_horizons(db)
        return sum([await self._prune(table, before) for table, before in horizons.items()])

    async def progress(self) -> Progress:
        """Return how far the store has come."""
        return await self._read(sqlite_reads.progress)

    async def bars(
        self, ticker: str | None = None, after: int = -1, generation: int | None = None
    ) -> list[BarBlock]:
        """Return stored bars that open after a time: a block per ticker and timeframe, sorted.

        They are of each asset's newest generation unless one is asked for.
        """
        return await self._read(sqlite_reads.bars, ticker, after, generation)

    async def generations(self) -> dict[str, int]:
        """Return the newest generation of bars of every ticker that has more than the first."""
        return await self._read(sqlite_reads.generations)

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""
        return await self._read(sqlite_reads.funding, ticker, after)

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""
        return await self._read(sqlite_reads.carries)

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""
        return await self._read(sqlite_reads.readings)

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets for which the last pass could not wait, by ticker."""
        return await self._read(sqlite_reads.last_watermarks)

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""
        return await self._read(sqlite_reads.epochs)

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""
        return await self._read(sqlite_reads.publish_from)

    async def passes(self) -> list[PassRow]:
        """Return the digest chain, oldest first."""
        return await self._read(sqlite_reads.passes)

    async def pass_content(self, number: int) -> PassContent:
        """Return what a pass wrote; StoreError for an unknown pass, DamagedError where it can't."""
        return await self._read(_pass_content, number)

    async def orphans(self) -> int:
        """Return how many bars, settlements and watermarks belong to no pass."""
        return await self._read(sqlite_reads.orphans)

    async def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(sqlite_feed.changes_after, newest, ROWS_A_BATCH):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    async def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first; between batches nothing is held open."""
        newest = 0
        while batch := await self._read(sqlite_feed.alerts_after, newest, ROWS_A_BATCH):
            for row in batch:
                yield row
            newest = batch[-1].created_at

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it means nothing elsewhere."""
        return self._connections.version()

    async def snapshot(self) -> Snapshot:
        """Return the latest state, read in one transaction."""
        return await self._read(sqlite_reads.snapshot)

    async def snapshot_at(self, at: int) -> Snapshot:
        """Return the state that was latest at a time (epoch ms) from `past_from` on."""
        return await self._read(sqlite_past.snapshot_at, at)

    async def feed(self, query: FeedQuery) -> list[ChangeRow]:
        """Return one page of published rows, in the query's order, read by index."""
        async with self._connections.querying() as db:
            return await sqlite_feed.feed(db, query)

    async def alerts_feed(self, query: FeedQuery) -> list[AlertRow]:
        """Return one page of alerts, in the query's order, read by index."""
        async with self._connections.querying() as db:
            return await sqlite_feed.alerts_feed(db, query)

    async def merged_feed(self, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
        """Return one page of both tiers, in one order; `after` bounds the changes alone."""
        async with self._connections.querying() as db:
            return await sqlite_feed.merged_feed(db, query, alerts_after)

    async def statistics(self, tier: Tier, after: int, until: int, kept_after: int) -> Statistics:
        """Count the published rows of a tier in (`after`, `until`]; all bounds are epoch ms."""
        return await self._read(sqlite_feed.statistics, tier, after, until, kept_after)

    async def _prune(self, table: str, before: int) -> int:
        pruned = 0
        while True:
            async with self._connections.writing() as db:
                deleted = await sqlite_writes.prune(db, table, before)
            pruned += deleted
            if not deleted:
                return pruned

    async def _read(
        self,
        read: Callable[Concatenate[Connection, Given], Awaitable[Found]],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Found:
        async with self._connections.reading() as db:
            return await read(db, *args, **kwargs)


async def _pass_content(db: Connection, number: int) -> PassContent:
    """Return the rows of one pass in the order of its digests; StoreError for an unknown pass."""
    row = await sqlite_reads.one_pass(db, number)
    ends = row.first_created_at, row.last_created_at
    return PassContent(
        await sqlite_reads.bars_of_pass(db, number),
        await sqlite_reads.funding_of_pass(db, number),
        await sqlite_reads.watermarks(db, number),
        await sqlite_feed.changes_between(db, *ends),
        await sqlite_feed.alerts_between(db, *ends),
    )


def _lock(path: Path) -> int:
    """Lock the file beside the database and write our pid into it; return its descriptor."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot lock {path}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        message = f"another signals process (pid {holder}) is computing on {path}"
        raise LockTakenError(message) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
