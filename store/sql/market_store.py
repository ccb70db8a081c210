"""The market store, independent of the database engine."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from schemas.coverage import Coverage
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    HOUR_MS,
    TIMEFRAME_DURATIONS_S,
    UNIVERSE_RETENTION_MS,
    find_latest_run,
)
from store.bar_blocks import build_blocks, build_packed_block, find_close
from store.codes import KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.digest import digest_coverage
from store.market_rows import (
    AlertRow,
    AssetBars,
    BarBlock,
    Batch,
    CarryRow,
    CommitInputs,
    FundingRow,
    PastKey,
    Progress,
    ReadingRow,
    RecentBars,
    SourceRow,
    StoredSnapshot,
    WatermarkRow,
)
from store.sql import (
    market_reads as reads,
    market_statements as statements,
    market_writes as writes,
    migrate_database as moving,
)
from store.sql.audit_reads import AuditReads
from store.sql.database import Database, Lane, MarketEngine, Row, fetch_value
from store.sql.ledger_reads import LedgerReads
from store.sql.operations_figures import MarketOperations
from store.sql.transparency_log import FeedLog
from store.store_errors import StoreError
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
        # MarketEngine documents these.
        self.lock = engine.lock
        self.check_lock = engine.check_lock
        self.unlock = engine.unlock

    async def close(self) -> None:
        """Close every connection and release the lock; idempotent."""
        await self._engine.close()

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
        return writes.parse_fact_time(stored_facts, "started_at")

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

    async def record_outage(self, reason: str | None) -> None:
        """Store why the source cannot be read at the moment, None if it can."""
        async with self._engine.begin_compute_write() as db:
            await db.execute("DELETE FROM facts WHERE key = 'outage'")
            if reason is not None:
                await db.insert("facts", "key, value", [("outage", reason)])

    async def check_writes(self) -> None:
        """Raise StoreError if the store is lost, or if this process computes but cannot commit."""
        tests: dict[WriteKind, TestWrite] = {}
        if self._engine.is_locked:
            tests["transaction"] = self._test_write
        await self._engine.check_writes(tests, MAX_WRITE_AGE_S)

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage; its digest follows that of the last commit."""
        document = coverage.model_dump_json()
        on_conflict = (
            "ON CONFLICT (id) DO UPDATE SET document = excluded.document, digest = excluded.digest"
        )
        async with self._engine.begin_compute_write() as db:
            _, last_digest = await writes.load_chain_end(db)
            (digest,) = digest_coverage(document, [last_digest])
            row = 1, document, digest
            await db.insert("coverage", "id, document, digest", [row], on_conflict)

    async def commit(self, batch: Batch) -> None:
        """Write a batch and its link in the digest chain in one transaction."""
        async with self._engine.begin_compute_write() as db:
            await writes.write_batch(db, batch)

    async def prune(self) -> int:
        """Delete rows older than their retention unless they are still needed; return how many."""
        # The cutoff is committed before the first row goes, so that an audit never requires a row
        # that may be gone. Then many short transactions, so that no other writer waits for long.
        async with self._engine.begin_write() as db:
            if (now := await reads.load_market_time(db)) is None:
                return 0
            cutoffs = {"changes": now - UNIVERSE_RETENTION_MS, "alerts": now - ALERTS_RETENTION_MS}
            facts = [(writes.PRUNE_CUTOFF_KEYS[table], str(at)) for table, at in cutoffs.items()]
            on_conflict = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            await db.insert("facts", "key, value", facts, on_conflict)
        pruned = 0
        for table, before in cutoffs.items():
            sql = f"""
                DELETE FROM {table} WHERE created_at IN (
                  SELECT created_at FROM {table} WHERE created_at < :before AND created_at NOT IN (
                    SELECT max(created_at) FROM {table} WHERE created_at < :before
                    GROUP BY {writes.RETAINED_GROUPS[table]}
                  )
                  ORDER BY created_at LIMIT :limit
                ) RETURNING 1
            """
            deleted = 1
            while deleted:
                async with self._engine.begin_write() as db:
                    rows = await db.execute(sql, before=before, limit=writes.ROWS_PER_PRUNE)
                    deleted = len(rows)
                pruned += deleted
        return pruned

    async def move_from(
        self, source: "MarketStore", on_progress: Callable[[int, int], None]
    ) -> None:
        """Copy the content of another store; both are locked from then on.

        `on_progress` is called with the commits copied and their total. Raise StoreError if this
        store is in use. Until `finish_move` no process can compute on it.
        """
        await source.lock()
        await self.lock()
        await moving.move_market(source._engine, self._engine, on_progress)

    async def finish_move(self) -> None:
        """Mark the move as verified, so that a process can compute on this store."""
        async with self._engine.begin_compute_write() as db:
            await db.execute("DELETE FROM facts WHERE key = ?", writes.MOVE_SOURCE_KEY)

    async def progress(self) -> Progress:
        """Return the newest state of the store."""
        async with self._engine.begin_read(Lane.SNAPSHOT) as db:
            facts = await writes.load_facts(db)
            return Progress(
                source=facts.get("source"),
                started_at=(
                    writes.parse_fact_time(facts, "started_at") if "started_at" in facts else None
                ),
                market_time=await reads.load_market_time(db),
                first_market_time=await fetch_value(
                    db, "SELECT market_time FROM passes WHERE number = 1"
                ),
                last_created_at=await reads.load_last_created_at(db),
                commit_count=await fetch_value(db, "SELECT coalesce(max(number), 0) FROM passes"),
                pruned_before=writes.parse_fact_time(facts, "pruned_before"),
                alerts_pruned_before=writes.parse_fact_time(facts, "alerts_pruned_before"),
                outage=facts.get("outage"),
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
            blocks = await _load_packed(db, statements.BARS_OF_ASSET, ticker, after)
            stepped = await db.execute(statements.LIST_STEPPED_CLOSES, ticker)
        return AssetBars(
            number,
            {block.timeframe: block for block in blocks},
            {TIMEFRAMES_BY_CODE[code]: close_time for code, close_time in stepped},
        )

    async def recent_bars(self, span_s: int, after_number: int | None = None) -> RecentBars:
        """Return the bars that open less than `span_s` before their asset's last, and some older.

        With `after_number`, return all bars that later commits wrote.
        """
        async with self._engine.begin_read(Lane.PAST) as db:
            number = await reads.load_last_number(db)
            if after_number is None:
                blocks = await _load_packed(db, statements.RECENT_BARS, span_s)
            else:
                blocks = await _load_packed(db, statements.BARS_OF_LATER_COMMITS, after_number)
        return RecentBars(number, blocks)

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
        order = "ORDER BY a.ticker, r.indicator, r.timeframe"
        return [
            ReadingRow(ticker, TIMEFRAMES_BY_CODE[timeframe], KEYS_BY_CODE[indicator], reading)
            for ticker, timeframe, indicator, reading in await self._read(
                f"{reads.SELECT_READINGS} {order}"
            )
        ]

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets whose bars were incomplete at the last commit, sorted by ticker."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_watermarks(db, await reads.load_last_number(db))

    async def publish_from(self) -> dict[str, int]:
        """Return the market time (ms) from which each ticker's changes are published."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await reads.load_publish_from(db)

    async def commit_inputs(self, number: int) -> CommitInputs:
        """Return the inputs of a commit, in the order of its digest.

        Raise DamagedError if the bars are not valid.
        """
        async with self._engine.begin_read(Lane.BATCH) as db:
            bars = await db.execute(statements.LIST_BARS_OF_COMMIT, number)
            funding = await db.execute(statements.LIST_FUNDING_OF_COMMIT, number)
            sources = await db.execute(statements.LIST_SOURCES_OF_COMMIT, number)
            return CommitInputs(
                bars=build_blocks(bars),
                funding=[FundingRow._make(row) for row in funding],
                watermarks=await reads.load_watermarks(db, number),
                sources=[SourceRow._make(row) for row in sources],
            )

    async def alerts(self) -> AsyncIterator[AlertRow]:
        """Yield every stored alert, oldest first; no cursor stays open."""
        # Reads pages by key: an open cursor would hold a read transaction while the caller works.
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

    async def snapshot(self) -> StoredSnapshot:
        """Return the latest state, read in one transaction."""
        async with self._engine.begin_read(Lane.SNAPSHOT) as db:
            number = await reads.load_last_number(db)
            market_time = await reads.load_market_time(db)
            last_created_at = await reads.load_last_created_at(db)
            readings = await reads.load_grouped_readings(db)
            latest = await reads.load_snapshot(db, number, market_time, last_created_at, readings)
            return replace(latest, number=number)

    async def past_key(self, at: int) -> PastKey:
        """Return the key of the state that was the latest at a time (epoch ms)."""
        async with self._engine.begin_read(Lane.PAST) as db:
            found = await db.execute(reads.LATEST_COMMIT_AT, at)
            number, market_time = 0, 0
            if found:
                number, market_time = found[0]
            # A commit without written_at (backfill, replay) spans many hourly runs with nominal
            # times. If the next commit is one, `at` may lie inside it: the snapshot is that of the
            # last run by then.
            run = find_latest_run(at)
            if await fetch_value(db, reads.IS_NOMINAL, number + 1) and run > market_time:
                return PastKey(None, run, run + HOUR_MS - 1)
            last = await fetch_value(db, reads.LAST_CREATED_AT, number) or 0
            return PastKey(number, market_time, last)

    async def past_snapshot(self, key: PastKey, readings: reads.Readings) -> StoredSnapshot:
        """Return the state of a key, with its readings.

        Only the readings of a key never change; the rest depends on later commits, such as a
        restated history and the published coverage.
        """
        async with self._engine.begin_read(Lane.PAST) as db:
            return await reads.load_snapshot(db, *key, readings)

    async def closes(self, closed_at: Mapping[int, Iterable[str]]) -> dict[str, float]:
        """Return closes by ticker, of the bars that closed at the given times (epoch s).

        `closed_at` maps each time to tickers.
        """
        closes: dict[str, float] = {}
        async with self._engine.begin_read(Lane.PAST) as db:
            for at, tickers in closed_at.items():
                values = {"closed_at": at, "tickers": f",{','.join(tickers)},"}
                for ticker, code, data in await db.execute_page(statements.LIST_BLOCKS_AT, values):
                    period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[code]]
                    # An asset has bars of one timeframe; if it has two, the shorter ones count.
                    if (close := find_close(bytes(data), at - period_s)) is not None:
                        closes[ticker] = close
        return closes

    async def _test_write(self) -> None:
        """Commit a write that leaves no trace."""
        async with self._engine.begin_test_write() as db:
            await db.execute("INSERT INTO facts (key, value) VALUES ('test write', '')")
            await db.execute("DELETE FROM facts WHERE key = 'test write'")

    async def _read(self, sql: str, **values: object) -> Sequence[Row]:
        """Return the rows of one statement in a read transaction."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await db.execute(sql, **values)


async def _load_packed(db: Database, sql: str, *values: object) -> list[BarBlock]:
    """Return the blocks of a query for packed bars, some of which may open before its limit."""
    # After weeks of hourly commits there are 48,000 blocks, and fetching each would compete with
    # the event loop.
    sql = sql.replace("{packed_bars}", db.packed_bars)
    columns = "ticker, generation, timeframe, bars"
    return [
        build_packed_block(ticker, revision, code, bytes.fromhex(packed))
        for ticker, revision, code, packed in await db.fetch_packed(columns, sql, *values)
    ]
