"""Copies a store into another one, on the same or another engine.

Commits are copied with their rows, one market day per transaction, so an interrupted move continues
after the last copied day. Tables whose rows change are replaced at the end. Until the move is
verified, a fact in the target prevents every process from computing on it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from schemas.vocabulary import DAY_MS
from store.errors import StoreError
from store.sql.database import Database, Engine, MarketEngine, Row, fetch_value
from store.sql.lanes import Lane
from store.sql.market_reads import load_market_time
from store.sql.market_writes import ACCESS_ID_KEY, MOVE_SOURCE_KEY, load_facts, write_clock
from store.sql.move_log import move_log

OnProgress = Callable[[int, int], None]


class Table(NamedTuple):
    """A table that exists in both engines, its columns, and the columns that sort its rows.

    `is_numbered` is true if the database generates the ids of its rows.
    """

    name: str
    columns: str
    order: str
    is_numbered: bool = False


COMMITS_TABLE = Table(
    "passes",
    "number, market_time, written_at, first_created_at, last_created_at, bars_digest, "
    "changes_digest, alerts_digest, digest, context_digest",
    "number",
)
COMMIT_CONTENT_TABLES = (
    Table(
        "bars",
        "asset_id, generation, timeframe, pass, first_open, last_open, count, data",
        "pass, asset_id, generation, timeframe, last_open",
    ),
    Table("funding", "asset_id, settled_at, funding_rate, pass", "pass, asset_id, settled_at"),
    Table("watermarks", "pass, asset_id, watermark, late, history", "pass, asset_id"),
    Table("sources", "asset_id, generation, listing, pass", "pass, asset_id, generation"),
    Table(
        "missing_bars",
        "pass, asset_id, generation, count, first_close, last_close",
        "pass, asset_id",
    ),
)
FEED_TABLES = (
    Table(
        "changes",
        'created_at, asset_id, indicator, timeframe, close_time, epoch, "before", "after", price, '
        "published",
        "created_at",
    ),
    Table(
        "alerts",
        "created_at, asset_id, indicator, timeframe, close_time, epoch, action, price",
        "created_at",
    ),
)
NUMBERED_TABLES = (
    Table("assets", "id, ticker, publish_from, pass", "id", is_numbered=True),
    Table(
        "epochs",
        "id, asset_id, timeframe, indicator, epoch, version, generation, from_close_time, reason, "
        "pass",
        "id",
        is_numbered=True,
    ),
)
REPLACED_TABLES = (
    Table("coverage", "id, document, digest", "id"),
    Table("readings", "asset_id, timeframe, indicator, reading", "asset_id, timeframe, indicator"),
    Table(
        "carries",
        "asset_id, timeframe, indicator, version, layout, epoch, close_time, data",
        "asset_id, timeframe, indicator",
    ),
)
LOG_TABLES = (
    Table("log_leaves", "created_at, leaf, salt", "leaf"),
    Table("log_tiles", "level, number, hashes", "level, number"),
    Table("log_checkpoint", "id, size, note, vkey, refusal", "id"),
)
FACTS_TABLE = Table("facts", "key, value", "key")
# Referenced tables come first: foreign keys are checked when rows are inserted.
ACCESS_TABLES = (
    Table(
        "memberships",
        "id, provider, mode, subscription, customer, contact_email, billing, created_at, ended_at, "
        "ended_why, closed_at",
        "id",
        is_numbered=True,
    ),
    Table(
        "keys",
        "id, key_hash, label, created_at, revoked_at, mode, membership_id, expires_at, replaces",
        "id",
        is_numbered=True,
    ),
    Table("usage", "key_id, day, used, last_at", "key_id, day"),
    Table("tool_usage", "key_id, day, tool, used", "key_id, day, tool"),
    Table("oauth_clients", "client_id, name, redirect_uris, created_at, used_at", "client_id"),
    Table(
        "oauth_requests",
        "id_hash, client_id, client_name, redirect_uri, state, resource, code_challenge, "
        "created_at, code_hash, approved_at, membership_id",
        "id_hash",
    ),
    Table(
        "oauth_connections",
        "key_id, client_id, resource, code_hash, family_hash, refresh_hash",
        "key_id",
    ),
    Table("oauth_access_tokens", "token_hash, key_id, expires_at", "token_hash"),
    Table(
        "calls",
        "id, key_id, at, request_id, tool, transport, outcome, status",
        "id",
        is_numbered=True,
    ),
    Table(
        "claims",
        "id, token_hash, provider, mode, session, contact_email, billing, agent_name, created_at, "
        "expires_at, redeemed_at, key_id, checkout_url",
        "id",
    ),
    Table(
        "sandbox_sessions",
        "id, claim_id, contact_email, billing, amount_usd, status, expires_at",
        "id",
    ),
    Table("events", "id, handled_at", "id"),
    Table("attempts", "kind, address, at", "kind, address, at"),
    Table(
        "access_requests",
        "contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at",
        "contact_email",
    ),
    Table("notices", "name, detail, at", "name"),
    Table(
        "sign_in_links", "token_hash, contact_email, expires_at, used_at, is_owner", "token_hash"
    ),
    Table("sessions", "token_hash, contact_email, expires_at, is_owner", "token_hash"),
    Table("watchlist", "holder, ticker, added_at", "holder, ticker"),
    # The moved store keeps its id, which the moved market store knows.
    Table("store_id", "id, value", "id"),
)


async def begin_move(source: MarketEngine, target: MarketEngine) -> None:
    """Mark the target as receiving a move; raise StoreError if it is in use."""
    # The mark names the source, so an interrupted move can only continue with the same one.
    async with target.begin_compute_write() as db:
        facts = await load_facts(db)
        unfinished_source = facts.get(MOVE_SOURCE_KEY)
        if unfinished_source is not None and unfinished_source != source.name:
            raise StoreError(
                f"{target.name} holds a part of {unfinished_source}: finish that move first"
            )
        if facts.keys() - {ACCESS_ID_KEY} and unfinished_source is None:
            raise StoreError(f"{target.name} is in use: name a database that holds nothing")
        await db.insert(
            "facts", FACTS_TABLE.columns, [(MOVE_SOURCE_KEY, source.name)], "ON CONFLICT DO NOTHING"
        )


async def move_market(source: MarketEngine, target: MarketEngine, on_progress: OnProgress) -> None:
    """Copy a market store; `on_progress` is called with the commits copied and their total."""
    async with target.begin_read(Lane.BATCH) as db:
        done = await fetch_value(db, "SELECT coalesce(max(number), 0) FROM passes")
    async with source.begin_read(Lane.BATCH) as db:
        sql = "SELECT number, market_time FROM passes WHERE number > ? ORDER BY number"
        missing = await db.execute(sql, done)
    # Bars, changes and alerts reference assets, so these come first.
    await _copy_numbered_table(source, target, NUMBERED_TABLES[0])
    total = done + len(missing)
    on_progress(done, total)
    for _, day in groupby(missing, key=lambda row: row["market_time"] // DAY_MS):
        first, *others = [row["number"] for row in day]
        last = others[-1] if others else first
        # Sources that an upgrade recorded belong to no commit: their number is 0.
        await _move_commits(source, target, 0 if first == 1 else first, last)
        on_progress(last, total)
    await _copy_numbered_table(source, target, NUMBERED_TABLES[1])
    await move_log(source, target)
    await _replace_tables(source, target)


async def move_access(source: Engine, target: Engine) -> None:
    """Replace the content of an access store in one transaction; raise StoreError if in use."""
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_durable_write() as db:
        target_keys, source_keys = [
            {row["key_hash"] for row in await each.execute("SELECT key_hash FROM keys")}
            for each in (db, source_db)
        ]
        # A target with the same keys is that of an earlier move and can be replaced again.
        if target_keys - source_keys:
            raise StoreError(f"{target.name} holds keys of its own: name an empty database")
        for table in reversed(ACCESS_TABLES):
            await db.execute(f"DELETE FROM {table.name}")
        for table in ACCESS_TABLES:
            await db.insert(table.name, table.columns, await _select_all(source_db, table))
            if table.is_numbered:
                await db.advance_id_sequence(table.name)


async def verify_row_counts(source: Engine, target: Engine, tables: Iterable[Table]) -> None:
    """Compare the row counts of two stores; raise StoreError naming the first difference."""
    for table in tables:
        counts = []
        for engine in (source, target):
            async with engine.begin_read(Lane.BATCH) as db:
                counts.append(await fetch_value(db, f"SELECT count(*) FROM {table.name}"))
        if counts[0] != counts[1]:
            raise StoreError(
                f"{target.name} holds {counts[1]} rows of {table.name}, {source.name} holds "
                f"{counts[0]}: start again with an empty database"
            )


async def finish_move(target: MarketEngine) -> None:
    """Remove the mark of a verified move, so that a process can compute on the target."""
    async with target.begin_compute_write() as db:
        await db.execute("DELETE FROM facts WHERE key = ?", MOVE_SOURCE_KEY)


MARKET_TABLES = (
    COMMITS_TABLE,
    *COMMIT_CONTENT_TABLES,
    *FEED_TABLES,
    *NUMBERED_TABLES,
    *REPLACED_TABLES,
    *LOG_TABLES,
)


async def _move_commits(source: MarketEngine, target: MarketEngine, first: int, last: int) -> None:
    """Copy the commits from `first` to `last` and their rows in one transaction."""
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        for table in COMMIT_CONTENT_TABLES:
            await db.insert(
                table.name,
                table.columns,
                await _select_between(source_db, table, "pass", first, last),
            )
        created_range = await source_db.execute(
            "SELECT min(first_created_at) AS first, max(last_created_at) AS last FROM passes "
            "WHERE number BETWEEN ? AND ?",
            first,
            last,
        )
        bounds = created_range[0]
        await _copy_feed_rows(source_db, db, bounds["first"], bounds["last"])
        commit_rows = await _select_between(source_db, COMMITS_TABLE, "number", first, last)
        await db.insert(COMMITS_TABLE.name, COMMITS_TABLE.columns, commit_rows)


async def _copy_feed_rows(
    source_db: Database, db: Database, first: int | None, last: int | None
) -> None:
    """Copy the rows of both tiers in the common order of `created_at`, as triggers require."""
    rows = [
        (table, row)
        for table in FEED_TABLES
        for row in await _select_between(source_db, table, "created_at", first, last)
    ]
    rows.sort(key=lambda pair: pair[1]["created_at"])
    for table, pairs in groupby(rows, key=lambda pair: pair[0]):
        await db.insert(table.name, table.columns, [row for _, row in pairs])


async def _copy_numbered_table(source: MarketEngine, target: MarketEngine, table: Table) -> None:
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        newest = await fetch_value(db, f"SELECT coalesce(max(id), 0) FROM {table.name}")
        sql = f"SELECT {table.columns} FROM {table.name} WHERE id > ? ORDER BY id"
        await db.insert(table.name, table.columns, await source_db.execute(sql, newest))
        await db.advance_id_sequence(table.name)


async def _replace_tables(source: MarketEngine, target: MarketEngine) -> None:
    """Replace the tables whose rows change, and set the market clock."""
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        for table in REPLACED_TABLES:
            await db.execute(f"DELETE FROM {table.name}")
            await db.insert(table.name, table.columns, await _select_all(source_db, table))
        facts = await _select_all(source_db, FACTS_TABLE)
        on_conflict = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        await db.insert("facts", FACTS_TABLE.columns, facts, on_conflict)
        if (now := await load_market_time(source_db)) is not None:
            await write_clock(db, await load_market_time(db), now)


async def _select_all(source_db: Database, table: Table) -> Sequence[Row]:
    return await source_db.execute(
        f"SELECT {table.columns} FROM {table.name} ORDER BY {table.order}"
    )


async def _select_between(
    source_db: Database, table: Table, column: str, first: int | None, last: int | None
) -> Sequence[Row]:
    sql = (
        f"SELECT {table.columns} FROM {table.name} WHERE {column} BETWEEN ? AND ? "
        f"ORDER BY {table.order}"
    )
    return await source_db.execute(sql, first, last)
