"""The market store, independent of the database engine."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from schemas.coverage import Coverage
from store.bar_blocks import build_blocks
from store.errors import StoreError
from store.lagging import find_building_tickers, find_late
from store.market_rows import (
    AlertRow,
    AssetBars,
    BarBlock,
    Batch,
    CarryRow,
    ChangeRow,
    CommitContent,
    CommitRow,
    EpochRow,
    FundingRow,
    PastKey,
    Progress,
    ReadingRow,
    RecentBars,
    SourceRow,
    StoredSnapshot,
    WatermarkRow,
)
from store.sql import chart_reads as chart
from store.sql import market_reads as reads
from store.sql import market_statements as statements
from store.sql import market_writes as writes
from store.sql import migrate_database as moving
from store.sql.audit_reads import AuditReads
from store.sql.database import Database, MarketEngine, Row, fetch_value
from store.sql.feed_log import FeedLog
from store.sql.lanes import Lane
from store.sql.ledger_reads import LedgerReads
from store.sql.operations import MarketOperations
from store.write_health import TestWrite, WriteKind

ROWS_PER_READ = 1000
# Runs commit once an hour. On SQLite a test write makes other processes read the snapshot again, so
# it must be rare.
MAX_WRITE_AGE_S = 300.0


class MarketStore:
    """Bars, carries, readings, changes, alerts, and the published coverage.

    One process computes at a time: `lock` refuses a second one. Every method raises StoreError if
    the database fails or refuses the operation.
    """

    def __init__(self, engine: MarketEngine) -> None:
        self._engine = engine
        self.operations = MarketOperations(engine)
        self.feed_log = FeedLog(engine)
        self.audit_reads = AuditReads(engine)
        self.ledger_reads = LedgerReads(engine)

    async def close(self) -> None:
        """Close every connection and release the lock; idempotent."""
        await self._engine.close()

    async def lock(self) -> None:
        """Acquire the compute lock until close; raise LockTakenError with its holder if taken."""
        await self._engine.lock()

    def check_lock(self) -> None:
        """Raise LockTakenError if this process has lost its compute lock; never block."""
        self._engine.check_lock()

    async def unlock(self) -> None:
        """Release the compute lock; idempotent."""
        await self._engine.unlock()

    async def adopt_source(self, source: str, started_at: int) -> int:
        """Record the source of the bars and its first start (market clock, epoch ms), once.

        Return the recorded first start. Raise StoreError if the store has bars of another source,
        or if a move into it is unfinished.
        """
        async with self._engine.begin_compute_write() as db:
            if await fetch_value(db, "SELECT 1 FROM facts WHERE key = ?", writes.MOVE_SOURCE_KEY):
                raise StoreError(
                    "a move into this database is not finished: run `signals migrate` again, into "
                    "an empty database"
                )
            facts = [("source", source), ("started_at", str(started_at))]
            await db.insert("facts", "key, value", facts, "ON CONFLICT DO NOTHING")
            stored_facts = await writes.load_facts(db)
        if stored_facts["source"] != source:
            raise StoreError(
                f"{self._engine.name} holds the bars of {stored_facts['source']}: "
                f"use another database for {source}"
            )
        return int(stored_facts["started_at"])

    async def find_access_id(self) -> str | None:
        """Return the id of the access store that belongs to this store, None if none is known."""
        sql = "SELECT value FROM facts WHERE key = ?"
        async with self._engine.acquire_connection() as db:
            found: str | None = await fetch_value(db, sql, writes.ACCESS_ID_KEY)
        return found

    async def record_access_id(self, access_id: str) -> None:
        """Make an access store the one that belongs to this store."""
        on_conflict = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        async with self._engine.begin_write() as db:
            await db.insert("facts", "key, value", [(writes.ACCESS_ID_KEY, access_id)], on_conflict)

    async def check_writes(self) -> None:
        """Raise StoreError if the store is lost, or if this process computes but cannot commit."""
        tests: dict[WriteKind, TestWrite] = {}
        if self._engine.is_locked:
            tests["transaction"] = self._test_write
        await self._engine.check_writes(tests, MAX_WRITE_AGE_S)

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""
        async with self._engine.begin_compute_write() as db:
            await writes.write_coverage(db, coverage)

    async def commit(self, batch: Batch) -> None:
        """Write a batch and its link in the digest chain in one transaction."""
        async with self._engine.begin_compute_write() as db:
            await writes.write_batch(db, batch)

    async def prune(self) -> int:
        """Delete rows older than their retention unless they are still needed; return how many.

        Old copies of the database go too.
        """
        await self._engine.delete_old_copies()
        # The cutoff is committed before the first row goes, so that an audit never requires a row
        # that may be gone. Then many short transactions, so that no other writer waits for long.
        async with self._engine.begin_write() as db:
            cutoffs = await writes.write_prune_cutoffs(db)
        return sum([await self._prune(table, before) for table, before in cutoffs.items()])

    async def move_from(
        self, source: "MarketStore", on_progress: Callable[[int, int], None]
    ) -> None:
        """Copy the content of another store; both are locked from then on.

        `on_progress` is called with the commits copied and their total. Raise StoreError if this
        store is in use. Until `finish_move` no process can compute on it.
        """
        await source.lock()
        await self.lock()
        await moving.begin_move(source._engine, self._engine)
        await moving.move_market(source._engine, self._engine, on_progress)

    async def finish_move(self) -> None:
        """Mark the move as verified, so that a process can compute on this store."""
        await moving.finish_move(self._engine)

    async def progress(self) -> Progress:
        """Return the newest state of the store."""
        async with self._engine.begin_read(Lane.SNAPSHOT) as db:
            facts = await writes.load_facts(db)
            return Progress(
                source=facts.get("source"),
                started_at=int(facts["started_at"]) if "started_at" in facts else None,
                market_time=await reads.load_market_time(db),
                first_market_time=await fetch_value(
                    db, "SELECT market_time FROM passes WHERE number = 1"
                ),
                last_created_at=await reads.load_last_created_at(db),
                commit_count=await fetch_value(db, "SELECT coalesce(max(number), 0) FROM passes"),
                pruned_before=writes.parse_fact_time(facts, "pruned_before"),
                alerts_pruned_before=writes.parse_fact_time(facts, "alerts_pruned_before"),
            )

    async def bars(
        self, ticker: str | None = None, after: int = -1, revision: int | None = None
    ) -> list[BarBlock]:
        """Return bars that open after a time: one block per ticker and timeframe, sorted.

        Without `revision`, the bars of each asset's newest revision are returned.
        """
        rows = await self._read(statements.LIST_BARS, ticker=ticker, after=after, revision=revision)
        return build_blocks(rows, after)

    async def asset_bars(self, ticker: str, after: int) -> AssetBars:
        """Return an asset's bars that open after a time (epoch s), and some older ones."""
        async with self._engine.begin_read(Lane.PAST) as db:
            number = await reads.load_last_number(db)
            blocks = await chart.load_asset_bars(db, ticker, after)
            stepped = await chart.load_stepped_closes(db, ticker)
        return AssetBars(number, {block.timeframe: block for block in blocks}, stepped)

    async def recent_bars(self, span_s: int, after_number: int | None = None) -> RecentBars:
        """Return the bars that open less than `span_s` before their asset's last, and some older.

        With `after_number`, return all bars that later commits wrote.
        """
        async with self._engine.begin_read(Lane.PAST) as db:
            number = await reads.load_last_number(db)
            return RecentBars(number, await chart.load_recent_bars(db, span_s, after_number))

    async def revisions(self) -> dict[str, int]:
        """Return the newest revision of every ticker whose history was restated."""
        rows = await self._read(statements.LIST_REVISIONS)
        return {row["ticker"]: row["revision"] for row in rows if row["revision"]}

    async def sources(self) -> list[SourceRow]:
        """Return the source of each revision that has one, by ticker and revision."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_sources(db)

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return settlements after a time, sorted by ticker and time."""
        rows = await self._read(statements.LIST_FUNDING, ticker=ticker, after=after)
        return [FundingRow(**row) for row in rows]

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry, sorted by ticker, timeframe and indicator."""
        rows = await self._read(statements.LIST_CARRIES)
        return [CarryRow(**reads.decode_cell(row)) for row in rows]

    async def readings(self) -> list[ReadingRow]:
        """Return the current readings, sorted by ticker, indicator and timeframe."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_readings(db)

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets whose bars were incomplete at the last commit, sorted by ticker."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_last_watermarks(db)

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""
        rows = await self._read(statements.LIST_EPOCHS)
        return [EpochRow(**reads.decode_cell(row)) for row in rows]

    async def publish_from(self) -> dict[str, int]:
        """Return the market time (ms) from which each ticker's changes are published."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_publish_from(db)

    async def tickers(self) -> dict[int, str]:
        """Return the ticker of each asset by its id."""
        rows = await self._read("SELECT id, ticker FROM assets")
        return {row["id"]: row["ticker"] for row in rows}

    async def commits(self) -> list[CommitRow]:
        """Return the digest chain, oldest first."""
        return [CommitRow(**row) for row in await self._read(statements.LIST_COMMITS)]

    async def commit_content(self, number: int) -> CommitContent:
        """Return the rows of a commit in the order of its digests.

        Raise StoreError if there is no such commit, DamagedError if its bars are not valid.
        """
        async with self._engine.begin_read(Lane.BATCH) as db:
            found = await db.execute(statements.FIND_COMMIT, number)
            if not found:
                raise StoreError(f"there is no commit {number}")
            ends = found[0]["first_created_at"], found[0]["last_created_at"]
            change_rows = await db.execute(statements.LIST_CHANGES_BETWEEN, *ends)
            alert_rows = await db.execute(statements.LIST_ALERTS_BETWEEN, *ends)
            return replace(
                await _load_inputs(db, number),
                changes=[reads.parse_change(row) for row in change_rows],
                alerts=[reads.parse_alert(row) for row in alert_rows],
            )

    async def commit_inputs(self, number: int) -> CommitContent:
        """Return the bars of a commit and all else of `commit_content` but changes and alerts.

        Raise DamagedError if the bars are not valid.
        """
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await _load_inputs(db, number)

    async def count_unreferenced(self) -> int:
        """Return how many rows of what commits write belong to no commit."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            count: int = await fetch_value(db, statements.COUNT_UNREFERENCED)
        return count

    async def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, published or not, oldest first; no cursor stays open."""
        # Reads pages by key: an open cursor would hold a read transaction while the caller works.
        newest = 0
        while rows := await self._read(
            statements.LIST_CHANGES_AFTER, after=newest, limit=ROWS_PER_READ
        ):
            for row in rows:
                yield reads.parse_change(row)
            newest = rows[-1]["created_at"]

    async def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first; no cursor stays open."""
        newest = 0
        while rows := await self._read(
            statements.LIST_ALERTS_AFTER, after=newest, limit=ROWS_PER_READ
        ):
            for row in rows:
                yield reads.parse_alert(row)
            newest = rows[-1]["created_at"]

    def version(self) -> int:
        """Return a number that changes with every commit; never blocks."""
        return self._engine.version()

    async def snapshot(self, known: StoredSnapshot | None = None) -> StoredSnapshot:
        """Return the latest state, read in one transaction.

        `known` is an earlier result, with which the new one shares the readings that are the same.
        """
        async with self._engine.begin_read(Lane.SNAPSHOT) as db:
            coverage = await reads.load_coverage(db)
            number = await reads.load_last_number(db)
            watermarks = await reads.load_watermarks(db, number)
            market_time = await reads.load_market_time(db)
            published_from = await reads.load_publish_from(db)
            building, unbuilt = find_building_tickers(watermarks, published_from)
            return StoredSnapshot(
                coverage=coverage,
                market_time=market_time,
                last_created_at=await reads.load_last_created_at(db),
                readings=await reads.load_grouped_readings(db, market_time, known),
                late=find_late(watermarks, coverage, published_from),
                building_tickers=building,
                unbuilt_tickers=unbuilt,
                history_starts_at=await reads.load_history_start(db),
                last_closes=await reads.load_last_closes(db, number, market_time or 0),
                missing_bars=await reads.load_missing_bars(db, market_time or 0),
                number=number,
            )

    async def past_key(self, at: int) -> PastKey:
        """Return the key of the state that was the latest at a time (epoch ms)."""
        async with self._engine.begin_read(Lane.PAST) as db:
            return await reads.find_past_key(db, at)

    async def past_snapshot(self, key: PastKey, readings: reads.Readings) -> StoredSnapshot:
        """Return the state of a key, with its readings.

        Only the readings of a key never change; the rest depends on later commits, such as a
        restated history and the published coverage.
        """
        async with self._engine.begin_read(Lane.PAST) as db:
            return await reads.load_past_snapshot(db, key, readings)

    async def closes(self, closed_at: Mapping[int, Iterable[str]]) -> dict[str, float]:
        """Return closes by ticker, of the bars that closed at the given times (epoch s).

        `closed_at` maps each time to tickers.
        """
        closes: dict[str, float] = {}
        async with self._engine.begin_read(Lane.PAST) as db:
            for at, tickers in closed_at.items():
                closes |= await chart.load_closes(db, at, tickers)
        return closes

    async def _prune(self, table: str, before: int) -> int:
        pruned = 0
        while True:
            async with self._engine.begin_write() as db:
                deleted = await writes.prune_rows(db, table, before)
            pruned += deleted
            if not deleted:
                return pruned

    async def _test_write(self) -> None:
        """Commit a write that leaves no trace."""
        async with self._engine.begin_test_write() as db:
            await db.execute("INSERT INTO facts (key, value) VALUES ('test write', '')")
            await db.execute("DELETE FROM facts WHERE key = 'test write'")

    async def _read(self, sql: str, **values: object) -> Sequence[Row]:
        """Return the rows of one statement in a read transaction."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await db.execute_named(sql, values)


async def _load_inputs(db: Database, number: int) -> CommitContent:
    """Return the content of a commit without changes and alerts."""
    funding_rows = await db.execute(statements.LIST_FUNDING_OF_COMMIT, number)
    source_rows = await db.execute(statements.LIST_SOURCES_OF_COMMIT, number)
    return CommitContent(
        bars=build_blocks(await db.execute(statements.LIST_BARS_OF_COMMIT, number)),
        funding=[FundingRow._make(row) for row in funding_rows],
        watermarks=await reads.load_watermarks(db, number),
        changes=[],
        sources=[SourceRow._make(row) for row in source_rows],
    )
