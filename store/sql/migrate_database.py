"""Copies a store into an empty one, on the same or another engine.

The databases name the columns. Commits are copied with their rows, one market day per transaction.
Until the move is verified, a fact in the target prevents every process from computing on it.
"""

from collections.abc import Callable, Mapping
from itertools import groupby

from schemas.vocabulary import DAY_MS
from store.log_tree import START_AT
from store.sql.database import Database, Engine, Lane, MarketEngine, Row, fetch_value
from store.sql.market_reads import load_market_time
from store.sql.market_writes import ACCESS_ID_KEY, MOVE_SOURCE_KEY, load_facts, write_clock
from store.store_errors import StoreError

OnProgress = Callable[[int, int], None]

# By table, the columns that sort its rows as triggers and references require.
TABLES_OF_COMMITS: Mapping[str, str] = {
    "bars": "asset_id, generation, timeframe, last_open",
    "funding": "asset_id, settled_at",
    "watermarks": "pass, asset_id",
    "sources": "asset_id, generation",
    "missing_bars": "pass, asset_id",
}
OTHER_MARKET_TABLES: Mapping[str, str] = {
    "epochs": "id",
    "coverage": "id",
    "readings": "asset_id, timeframe, indicator",
    "carries": "asset_id, timeframe, indicator",
    "log_tiles": "level, number",
    "log_checkpoint": "id",
}
# Referenced tables come first: foreign keys are checked when rows are inserted.
ACCESS_TABLES: Mapping[str, str] = {
    "memberships": "id",
    "keys": "id",
    "usage": "key_id, day",
    "tool_usage": "key_id, day, tool",
    "oauth_clients": "client_id",
    "oauth_requests": "id_hash",
    "oauth_connections": "key_id",
    "oauth_grants": "grant_hash",
    "oauth_access_tokens": "token_hash",
    "calls": "id",
    "claims": "id",
    "sandbox_sessions": "id",
    "events": "id",
    "attempts": "kind, address, at",
    "access_requests": "contact_email",
    "notices": "name",
    "sign_in_links": "token_hash",
    "sessions": "token_hash",
    "watchlist": "holder, ticker",
    # The moved store keeps its id, which the moved market store knows.
    "store_id": "id",
}
# The database generates the ids of their rows.
NUMBERED_TABLES = ("assets", "epochs", "memberships", "keys", "calls")


async def move_market(source: MarketEngine, target: MarketEngine, on_progress: OnProgress) -> None:
    """Copy a market store; `on_progress` is called with the commits copied and their total.

    Raise StoreError if the target is in use. It is marked as receiving a move until that is
    verified.
    """
    async with target.begin_compute_write() as db:
        facts = await load_facts(db)
        if MOVE_SOURCE_KEY in facts:
            raise StoreError(
                f"{target.name} holds a part of {facts[MOVE_SOURCE_KEY]}: name an empty database"
            )
        if facts.keys() - {ACCESS_ID_KEY}:
            raise StoreError(f"{target.name} is in use: name a database that holds nothing")
        await db.insert("facts", "key, value", [(MOVE_SOURCE_KEY, source.name)])
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        sql = "SELECT number, market_time FROM passes ORDER BY number"
        commits = [*await source_db.execute(sql)]
        # Bars, changes and alerts reference assets, so these come first.
        await _copy_table(source_db, db, "assets", "id")
        # The first leaf is of no row.
        await _copy_table(source_db, db, "log_leaves", "leaf", "WHERE created_at = ?", START_AT)
    on_progress(0, len(commits))
    for _, day in groupby(commits, key=lambda row: row["market_time"] // DAY_MS):
        first, *others = [row["number"] for row in day]
        last = others[-1] if others else first
        async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
            await _copy_commits(source_db, db, first, last)
        on_progress(last, len(commits))
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        for table, order in OTHER_MARKET_TABLES.items():
            await _copy_table(source_db, db, table, order)
        source_facts = await source_db.execute("SELECT key, value FROM facts")
        on_conflict = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        await db.insert("facts", "key, value", source_facts, on_conflict)
        if (now := await load_market_time(source_db)) is not None:
            await write_clock(db, None, now)


async def move_access(source: Engine, target: Engine) -> None:
    """Replace the content of an access store in one transaction; raise StoreError if in use."""
    async with (
        source.begin_read(Lane.BATCH) as source_db,
        target.begin_write(is_durable=True) as db,
    ):
        if await fetch_value(db, "SELECT count(*) FROM keys"):
            raise StoreError(f"{target.name} holds keys of its own: name an empty database")
        for table in reversed([*ACCESS_TABLES]):
            await db.execute(f"DELETE FROM {table}")
        for table, order in ACCESS_TABLES.items():
            await _copy_table(source_db, db, table, order)


async def _copy_commits(source_db: Database, db: Database, first: int, last: int) -> None:
    """Copy the commits from `first` to `last` and their rows."""
    numbers = "WHERE pass BETWEEN ? AND ?", first, last
    for table, order in TABLES_OF_COMMITS.items():
        await _copy_table(source_db, db, table, order, *numbers)
    ends = await source_db.execute(
        "SELECT min(first_created_at) AS first, max(last_created_at) AS last FROM passes "
        "WHERE number BETWEEN ? AND ?",
        first,
        last,
    )
    times = "WHERE created_at BETWEEN ? AND ?", ends[0]["first"], ends[0]["last"]
    # Triggers require the common order of `created_at` of both tiers.
    rows = [
        (table, row)
        for table in ("changes", "alerts")
        for row in await source_db.execute(f"SELECT * FROM {table} {times[0]}", *times[1:])
    ]
    rows.sort(key=lambda pair: pair[1]["created_at"])
    for table, pairs in groupby(rows, key=lambda pair: pair[0]):
        await _insert_rows(db, table, [row for _, row in pairs])
    await _copy_table(source_db, db, "log_leaves", "leaf", *times)
    await _copy_table(
        source_db, db, "passes", "number", "WHERE number BETWEEN ? AND ?", first, last
    )


async def _copy_table(
    source_db: Database, db: Database, table: str, order: str, where: str = "", *values: object
) -> None:
    """Copy those rows of a table that match a condition."""
    sql = f"SELECT * FROM {table} {where} ORDER BY {order}"
    await _insert_rows(db, table, [*await source_db.execute(sql, *values)])
    if table in NUMBERED_TABLES:
        await db.advance_id_sequence(table)


async def _insert_rows(db: Database, table: str, rows: list[Row]) -> None:
    if rows:
        # Some columns have the names of keywords.
        columns = [f'"{name}"' for name in dict(rows[0])]
        await db.insert(table, ", ".join(columns), rows)
