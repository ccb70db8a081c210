"""Reads that only an audit needs: the context of all commits, the whole log, the schema."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.digest import ContextRow
from store.log_tree import TileId
from store.market_rows import CheckpointRow, CommitRow
from store.sql.commit_context import load_context
from store.sql.database import MarketEngine
from store.sql.lanes import Lane
from store.sql.log_reads import load_checkpoint
from store.sql.market_reads import load_last_number
from store.sql.market_statements import LIST_COMMITS
from store.sql.market_writes import load_facts


class CoverageRow(NamedTuple):
    """A stored coverage, with its digest if this version published it."""

    id: int
    document: str
    digest: bytes | None


class StoredContext(NamedTuple):
    """All commits and their context, read in one transaction, and what stands beside the chain.

    `clock` has the id and the market time of each row; there should be one of each table.
    """

    commits: Sequence[CommitRow]
    rows: Sequence[ContextRow]
    facts: dict[str, str]
    coverage: Sequence[CoverageRow]
    clock: Sequence[tuple[int, int]]


class StoredLog(NamedTuple):
    """The transparency log: its leaves in the order of `created_at`, and all tiles.

    `created_at` and `leaf` have shape (leaves,); `salts` is joined.
    """

    created_at: NDArray[np.int64]
    leaf: NDArray[np.int64]
    salts: bytes
    tiles: dict[TileId, bytes]
    checkpoint: CheckpointRow


class AuditReads:
    """The reads of an audit over a market store."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine: Final = engine

    async def find_schema_faults(self) -> list[str]:
        """Describe how the schema differs from the one that the migrations create."""
        return await self._engine.find_schema_faults()

    async def load_log(self) -> StoredLog:
        """Return the transparency log."""
        sql = "SELECT created_at, leaf, salt FROM log_leaves ORDER BY created_at"
        async with self._engine.begin_read(Lane.BATCH) as db:
            leaves = [tuple(row) for row in await db.execute_page(sql, {})]
            tiles = await db.execute("SELECT level, number, hashes FROM log_tiles")
            checkpoint = await load_checkpoint(db)
        created_at, leaf, salts = zip(*leaves, strict=True) if leaves else ((), (), ())
        return StoredLog(
            np.array(created_at, dtype=np.int64),
            np.array(leaf, dtype=np.int64),
            b"".join(salts),
            {TileId(level, number): hashes for level, number, hashes in tiles},
            checkpoint,
        )

    async def load_context(self) -> StoredContext:
        """Return the context of all commits."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            coverage = await db.execute("SELECT id, document, digest FROM coverage ORDER BY id")
            clock = await db.execute("SELECT id, market_time FROM clock ORDER BY id")
            commits = await db.execute(LIST_COMMITS)
            return StoredContext(
                [CommitRow(**row) for row in commits],
                await load_context(db, 0, await load_last_number(db) or 0),
                await load_facts(db),
                [CoverageRow(*row) for row in coverage],
                [(id_, market_time) for id_, market_time in clock],
            )
