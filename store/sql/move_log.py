"""Copies the transparency log into another store, unchanged; an interrupted copy continues."""

from store.log_tree import TileId
from store.sql.database import MarketEngine
from store.sql.lanes import Lane
from store.sql.log_reads import load_checkpoint, load_log_end, load_tiles
from store.sql.log_writes import LEAVES_PER_APPEND, write_checkpoint, write_tiles

# Of 8 KB each; the statement that finds them in the target names each one.
TILES_PER_MOVE = 200


async def move_log(source: MarketEngine, target: MarketEngine) -> None:
    """Copy leaves, tiles and the newest checkpoint, some rows per transaction."""
    while await _move_leaves(source, target):
        pass
    last: TileId | None = TileId(-1, -1)
    while last is not None:
        last = await _move_tiles(source, target, last)
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        checkpoint = await load_checkpoint(source_db)
        if checkpoint.note is not None or checkpoint.refusal is not None:
            await write_checkpoint(db, checkpoint)


async def _move_leaves(source: MarketEngine, target: MarketEngine) -> bool:
    """Copy the leaves after the target's last one; return whether there were any."""
    columns = "created_at, leaf, salt"
    sql = f"SELECT {columns} FROM log_leaves WHERE leaf >= ? ORDER BY leaf LIMIT ?"
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        size, _ = await load_log_end(db)
        leaves = await source_db.execute(sql, size, LEAVES_PER_APPEND)
        await db.insert("log_leaves", columns, leaves)
    return bool(leaves)


async def _move_tiles(source: MarketEngine, target: MarketEngine, last: TileId) -> TileId | None:
    """Copy tiles that follow one, and return the last of them, None if there are no more."""
    sql = (
        "SELECT level, number, hashes FROM log_tiles WHERE (level, number) > (?, ?) "
        "ORDER BY level, number LIMIT ?"
    )
    async with source.begin_read(Lane.BATCH) as source_db, target.begin_compute_write() as db:
        rows = await source_db.execute(sql, *last, TILES_PER_MOVE)
        tiles = {TileId(level, number): hashes for level, number, hashes in rows}
        await write_tiles(db, await load_tiles(db, tiles.keys()), tiles)
    return max(tiles, default=None)
