"""Appends to the transparency log, as functions over an open write transaction."""

import asyncio
import os
from collections.abc import Sequence

from store.log_leaves import SALT_BYTES, hash_row
from store.log_tree import Tiles, extend_tiles, list_edge
from store.market_rows import CheckpointRow, FeedRow
from store.sql.database import Database
from store.sql.feed import parse_alert, parse_change
from store.sql.log_reads import load_log_end, load_tiles
from store.sql.market_statements import LIST_ALERTS_AFTER, LIST_PUBLISHED_AFTER

# About 15 MB in memory, and a tenth of a second.
LEAVES_PER_APPEND = 20_000


async def append_leaves(db: Database) -> int:
    """Append leaves for the published rows after the last leaf, oldest first; return how many.

    Fewer than LEAVES_PER_APPEND are the last ones.
    """
    size, newest_at = await load_log_end(db)
    rows = await _load_rows_after(db, newest_at)
    if rows:
        salts = _make_salts(len(rows))
        hashes = await asyncio.to_thread(_hash_rows, rows, salts)
        leaves = [
            (row.created_at, size + place, salt)
            for place, (row, salt) in enumerate(zip(rows, salts, strict=True))
        ]
        await db.insert("log_leaves", "created_at, leaf, salt", leaves)
        await _extend_tiles(db, size, hashes)
    return len(rows)


async def write_tiles(db: Database, stored: Tiles, tiles: Tiles) -> None:
    """Write tiles; `stored` are those of them that the database has, perhaps shorter ones."""
    for tile in [tile for tile in stored.keys() & tiles.keys() if stored[tile] != tiles[tile]]:
        await db.execute(
            "UPDATE log_tiles SET hashes = ? WHERE level = ? AND number = ?", tiles[tile], *tile
        )
    new = [(*tile, tiles[tile]) for tile in sorted(tiles.keys() - stored.keys())]
    await db.insert("log_tiles", "level, number, hashes", new)


async def write_checkpoint(db: Database, checkpoint: CheckpointRow) -> None:
    """Replace the newest signed checkpoint."""
    # No upsert: the insert trigger refuses a second row before ON CONFLICT is reached.
    if await db.execute("SELECT 1 FROM log_checkpoint"):
        assignments = "size = ?, note = ?, vkey = ?, refusal = ?"
        await db.execute(f"UPDATE log_checkpoint SET {assignments} WHERE id = 1", *checkpoint)
    else:
        await db.insert("log_checkpoint", "id, size, note, vkey, refusal", [(1, *checkpoint)])


async def _load_rows_after(db: Database, created_at: int) -> list[FeedRow]:
    values = {"after": created_at, "limit": LEAVES_PER_APPEND}
    changes = [parse_change(row) for row in await db.execute_page(LIST_PUBLISHED_AFTER, values)]
    alerts = [parse_alert(row) for row in await db.execute_page(LIST_ALERTS_AFTER, values)]
    rows: list[FeedRow] = [*changes, *alerts]
    return sorted(rows, key=lambda row: row.created_at)[:LEAVES_PER_APPEND]


def _make_salts(count: int) -> list[bytes]:
    salts = os.urandom(SALT_BYTES * count)
    return [salts[at : at + SALT_BYTES] for at in range(0, len(salts), SALT_BYTES)]


def _hash_rows(rows: Sequence[FeedRow], salts: Sequence[bytes]) -> bytes:
    return b"".join(map(hash_row, rows, salts))


async def _extend_tiles(db: Database, size: int, hashes: bytes) -> None:
    edge = await load_tiles(db, list_edge(size))
    await write_tiles(db, edge, extend_tiles(edge, size, hashes))
