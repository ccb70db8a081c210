"""Reads of the transparency log, as functions over an open transaction."""

from collections.abc import Collection

from store.log_tree import TileId
from store.market_rows import CheckpointRow
from store.sql.database import Database


async def load_log_end(db: Database) -> tuple[int, int]:
    """Return the number of leaves, and `created_at` of the last one, both 0 if there is none."""
    sql = "SELECT leaf + 1, created_at FROM log_leaves ORDER BY created_at DESC LIMIT 1"
    rows = await db.execute(sql)
    size, newest_at = rows[0] if rows else (0, 0)
    return size, newest_at


async def load_tiles(db: Database, tiles: Collection[TileId]) -> dict[TileId, bytes]:
    """Return those of the named tiles that are stored, as wide as they are."""
    if not tiles:
        return {}
    condition = " OR ".join(["(level = ? AND number = ?)"] * len(tiles))
    sql = f"SELECT level, number, hashes FROM log_tiles WHERE {condition}"
    values = [value for tile in tiles for value in tile]
    return {
        TileId(level, number): hashes for level, number, hashes in await db.execute(sql, *values)
    }


async def load_checkpoint(db: Database) -> CheckpointRow:
    """Return the newest signed checkpoint."""
    rows = await db.execute("SELECT size, note, vkey, refusal FROM log_checkpoint WHERE id = 1")
    return CheckpointRow(*rows[0]) if rows else CheckpointRow()
