"""The transparency log of the feed: leaves, tiles and the newest signed checkpoint."""

import asyncio
import os
import re
from collections.abc import Collection, Sequence
from itertools import chain, count
from typing import Final

from schemas.vocabulary import ACTION_CODES, TIMEFRAME_CODES
from store import log_tree as tree
from store.codes import KEY_CODES
from store.log_tree import (
    SALT_BYTES,
    START_AT,
    LogStart,
    Range,
    TileId,
    TreeError,
    extend_tiles,
    hash_leaf,
    list_edge,
    render_row,
)
from store.market_rows import CheckpointRow, FeedRow, LeafRow, LogHead
from store.sql.database import Database, Lane, MarketEngine
from store.sql.market_reads import parse_alert, parse_change
from store.sql.market_statements import LIST_ALERTS_AFTER, LIST_PUBLISHED_AFTER
from store.store_errors import DamagedError

_NUMBER = r"0|[1-9]\d{0,%d}"
_ROW_ID = re.compile(
    r"(?P<tier>universe|alerts)\.(?P<ticker>[A-Z0-9]+)\.(?P<indicator>[a-z_]+)"
    rf"\.(?P<timeframe>1h|4h|1d)\.(?P<close_time>{_NUMBER % 14})"
    rf"(?:\.(?P<action>[A-Z]+))?\.(?P<epoch>{_NUMBER % 8})"
)
_CODES: dict[str, int] = dict([*KEY_CODES.items(), *TIMEFRAME_CODES.items(), *ACTION_CODES.items()])
_FIND_LEAF = """
SELECT l.leaf, l.created_at, l.salt
FROM {table} r JOIN log_leaves l ON l.created_at = r.created_at
WHERE r.close_time = :close_time AND r.asset_id = (SELECT id FROM assets WHERE ticker = :ticker)
  AND r.indicator = :indicator AND r.timeframe = :timeframe AND r.epoch = :epoch AND {rest}
"""
_FIND_LEAF_BY_TIER = {
    "universe": _FIND_LEAF.format(table="changes", rest="r.published = 1"),
    "alerts": _FIND_LEAF.format(table="alerts", rest="r.action = :action"),
}


class FeedLog:
    """The log over the rows of a market store; every method raises StoreError if that fails."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine: Final = engine

    async def head(self, old: int = 0) -> LogHead:
        """Return the tree that is stored now, and the proof that it begins with `old` leaves.

        DamagedError if tiles are missing or too short.
        """
        async with self._engine.begin_read(Lane.BATCH) as db:
            checkpoint = await load_checkpoint(db)
            size, _ = await load_log_end(db)
            ranges = tree.list_consistency_ranges(old, size) if old < size else []
            whole = [Range(0, size)] if size else []
            tiles = await load_tiles(db, tree.list_tiles([*whole, *ranges]))
        root = self._hash(whole, tiles)[0] if size else tree.EMPTY_ROOT
        return LogHead(checkpoint, size, root, self._hash(ranges, tiles))

    async def checkpoint(self) -> CheckpointRow:
        """Return the newest signed checkpoint."""
        async with self._engine.acquire_connection() as db:
            return await load_checkpoint(db)

    async def save_checkpoint(self, checkpoint: CheckpointRow) -> CheckpointRow:
        """Store the newest signed checkpoint, and return it as it is stored.

        It keeps the cosignatures of the same tree. StoreError if it is smaller than the stored one.
        """
        async with self._engine.begin_compute_write() as db:
            stored = await load_checkpoint(db)
            if checkpoint.note and (stored.size, stored.vkey) == (checkpoint.size, checkpoint.vkey):
                kept = (stored.note or "").partition("\n\n")[2].splitlines(keepends=True)
                new = checkpoint.note.partition("\n\n")[2].splitlines(keepends=True)
                lines = [checkpoint.note, *_drop_replaced(kept, new)]
                checkpoint = checkpoint._replace(note="".join(lines))
            await write_checkpoint(db, checkpoint)
        return checkpoint

    async def add_cosignatures(self, checkpoint: CheckpointRow, lines: Sequence[str]) -> None:
        """Add lines to the note of a checkpoint, unless that of another tree has replaced it.

        A line replaces the earlier one of the same key.
        """
        async with self._engine.begin_compute_write() as db:
            stored = await load_checkpoint(db)
            if lines and (stored.size, stored.vkey) == (checkpoint.size, checkpoint.vkey):
                kept = (stored.note or "").splitlines(keepends=True)
                note = "".join([*_drop_replaced(kept, lines), *lines])
                await write_checkpoint(db, stored._replace(note=note))

    async def tile(self, tile: TileId) -> bytes | None:
        """Return a tile as wide as it is by now, None if it does not exist."""
        async with self._engine.acquire_connection() as db:
            return (await load_tiles(db, [tile])).get(tile)

    async def prove_inclusion(self, leaf: int, size: int) -> list[bytes]:
        """Return the proof of a leaf in the tree of the first `size` leaves.

        DamagedError if the store has fewer.
        """
        return await self._hash_ranges(tree.list_inclusion_ranges(leaf, size))

    async def prove_consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `old` leaves is the beginning of that of `size`."""
        return await self._hash_ranges(tree.list_consistency_ranges(old, size))

    async def find_leaf(self, row_id: str) -> LeafRow | None:
        """Return the leaf of a published row; None if there is no such row, or if it is pruned."""
        named = _ROW_ID.fullmatch(row_id)
        if named is None or (named["action"] is not None) != (named["tier"] == "alerts"):
            return None
        async with self._engine.acquire_connection() as db:
            found = await db.execute(_FIND_LEAF_BY_TIER[named["tier"]], **_encode(named))
        return LeafRow(*found[0]) if found else None

    async def start(self) -> LogStart | None:
        """Return the start of the log, None if its first leaf is that of a row."""
        async with self._engine.acquire_connection() as db:
            is_first = await db.execute("SELECT 1 FROM log_leaves WHERE created_at = ?", START_AT)
            return await load_start(db) if is_first else None

    async def leaves(self, start: int, end: int) -> list[LeafRow]:
        """Return the leaves from `start` on, before `end`."""
        sql = """
            SELECT leaf, created_at, salt FROM log_leaves WHERE leaf >= ? AND leaf < ?
            ORDER BY leaf
        """
        async with self._engine.acquire_connection() as db:
            return [LeafRow(*row) for row in await db.execute(sql, start, end)]

    async def _hash_ranges(self, ranges: list[Range]) -> list[bytes]:
        async with self._engine.acquire_connection() as db:
            tiles = await load_tiles(db, tree.list_tiles(ranges))
        return self._hash(ranges, tiles)

    def _hash(self, ranges: list[Range], tiles: tree.Tiles) -> list[bytes]:
        try:
            return tree.hash_ranges(ranges, tiles)
        except TreeError as error:
            raise DamagedError(f"the log of {self._engine.name} is damaged: {error}") from error


def _encode(named: re.Match[str]) -> dict[str, object]:
    """Return the parts of a row's id as parameters; a name without a code becomes -1."""
    names = ("indicator", "timeframe", "action")
    return {
        "ticker": named["ticker"],
        "close_time": int(named["close_time"]),
        "epoch": int(named["epoch"]),
        **{name: _CODES.get(named[name] or "", -1) for name in names},
    }


async def load_log_end(db: Database) -> tuple[int, int]:
    """Return the number of leaves, and `created_at` of the last one, both 0 if there is none."""
    sql = "SELECT leaf + 1, created_at FROM log_leaves ORDER BY created_at DESC LIMIT 1"
    rows = await db.execute(sql)
    size, newest_at = rows[0] if rows else (0, 0)
    return size, newest_at


async def load_start(db: Database) -> LogStart | None:
    """Return the start that the store remembers, None if it has none yet."""
    facts = await db.execute("SELECT key, value FROM facts")
    return LogStart.from_facts({row["key"]: row["value"] for row in facts})


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


# About 15 MB in memory, and a tenth of a second.
LEAVES_PER_APPEND = 20_000


async def append_leaves(db: Database) -> int:
    """Append leaves for the published rows after the last leaf, oldest first; return how many.

    Fewer than LEAVES_PER_APPEND are the last ones.
    """
    size, newest_at = await load_log_end(db)
    values = {"after": newest_at, "limit": LEAVES_PER_APPEND}
    changes = [parse_change(row) for row in await db.execute_page(LIST_PUBLISHED_AFTER, values)]
    alerts = [parse_alert(row) for row in await db.execute_page(LIST_ALERTS_AFTER, values)]
    feed: list[FeedRow] = [*changes, *alerts]
    rows = sorted(feed, key=lambda row: row.created_at)[:LEAVES_PER_APPEND]
    if not rows:
        return 0
    start = await load_start(db) if size == 0 else None
    times = [*([START_AT] if start else []), *(row.created_at for row in rows)]
    salts = [os.urandom(SALT_BYTES) for _ in times]

    def hash_all() -> bytes:
        texts = chain([start.render()] if start else [], map(render_row, rows))
        return b"".join(hash_leaf(salt + text) for salt, text in zip(salts, texts, strict=True))

    hashes = await asyncio.to_thread(hash_all)
    leaves = list(zip(times, count(size), salts, strict=False))
    await db.insert("log_leaves", "created_at, leaf, salt", leaves)
    edge = await load_tiles(db, list_edge(size))
    tiles = extend_tiles(edge, size, hashes)
    for tile in [tile for tile in edge.keys() & tiles.keys() if edge[tile] != tiles[tile]]:
        await db.execute(
            "UPDATE log_tiles SET hashes = ? WHERE level = ? AND number = ?", tiles[tile], *tile
        )
    new = [(*tile, tiles[tile]) for tile in sorted(tiles.keys() - edge.keys())]
    await db.insert("log_tiles", "level, number, hashes", new)
    return len(rows)


def _drop_replaced(kept: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the kept lines of a note except those of keys that have a new one."""
    # A key's lines begin with its name and its id, which are the same each time.
    replaced = {line[: line.rindex(" ") + 6] for line in new}
    return [line for line in kept if line[: line.rfind(" ") + 6] not in replaced]


async def write_checkpoint(db: Database, checkpoint: CheckpointRow) -> None:
    """Replace the newest signed checkpoint."""
    # No upsert: the insert trigger refuses a second row before ON CONFLICT is reached.
    if await db.execute("SELECT 1 FROM log_checkpoint"):
        assignments = "size = ?, note = ?, vkey = ?, refusal = ?"
        await db.execute(f"UPDATE log_checkpoint SET {assignments} WHERE id = 1", *checkpoint)
    else:
        await db.insert("log_checkpoint", "id, size, note, vkey, refusal", [(1, *checkpoint)])
