"""The reads of an audit: all that a store holds but its bars, in one transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from store.change_table import ChangeColumns, build_columns, concatenate
from store.digest import ContextRow
from store.log_tree import TileId
from store.market_rows import CarryRow, CheckpointRow, CommitRow, EpochRow, ReadingRow
from store.sql import market_statements as statements
from store.sql.database import Database, Lane, MarketEngine, Row, fetch_value
from store.sql.market_reads import SELECT_READINGS, decode_cell, load_last_number
from store.sql.market_writes import load_context, load_facts, parse_fact_time
from store.sql.transparency_log import load_checkpoint
from store.store_errors import DamagedError

ROWS_PER_READ = 20_000
# In the columns of changes: the reading after is the code of the action.
LIST_ALERT_COLUMNS = """
SELECT created_at, asset_id, indicator, timeframe, close_time, epoch, NULL, action, price, 1
FROM alerts WHERE created_at > :after ORDER BY created_at LIMIT :limit
"""
StoredRow = TypeVar("StoredRow", CarryRow, EpochRow, ReadingRow)


class CoverageRow(NamedTuple):
    """A stored coverage with its digest."""

    id: int
    document: str
    digest: bytes


class StoredLog(NamedTuple):
    """The transparency log: its leaves in the order of `created_at`, and all tiles.

    `created_at` and `leaf` have shape (leaves,); `salts` is joined.
    """

    created_at: NDArray[np.int64]
    leaf: NDArray[np.int64]
    salts: bytes
    tiles: dict[TileId, bytes]
    checkpoint: CheckpointRow


class StoredMarket(NamedTuple):
    """The content of a store at one version, without bars, which stay as they are.

    `context` has the context of all commits. `clock` has the id and the market time of each row;
    there should be one of each table. Changes and alerts from before `pruned_before` (epoch ms) may
    have been pruned. `feed` has both in order of `created_at`; the reading after of an alert is the
    code of its action. `unreferenced` counts rows that belong to no commit. `damage` names the rows
    that cannot be read, which are missing.
    """

    commits: Sequence[CommitRow]
    context: Sequence[ContextRow]
    facts: dict[str, str]
    pruned_before: tuple[int, int]
    coverage: Sequence[CoverageRow]
    clock: Sequence[tuple[int, int]]
    log: StoredLog
    tickers: Mapping[int, str]
    epochs: Sequence[EpochRow]
    carries: Sequence[CarryRow]
    readings: Sequence[ReadingRow]
    feed: ChangeColumns
    is_alert: NDArray[np.bool_]
    unreferenced: int
    damage: Sequence[str]

    @property
    def assets(self) -> list[ContextRow]:
        """Each asset's kind of row, commit, ticker and `publish_from`."""
        return [row for row in self.context if row[0] == "asset"]


class AuditReads:
    """The reads of an audit over a market store."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine: Final = engine

    async def find_schema_faults(self) -> list[str]:
        """Describe how the schema differs from the one that the migrations create."""
        return await self._engine.find_schema_faults()

    async def load_market(self) -> StoredMarket:
        """Return the content of the store; a process that writes meanwhile does not change it."""
        damage: list[str] = []
        async with self._engine.begin_read(Lane.BATCH) as db:
            commits = await db.execute(statements.LIST_COMMITS)
            coverage = await db.execute("SELECT id, document, digest FROM coverage ORDER BY id")
            clock = await db.execute("SELECT id, market_time FROM clock ORDER BY id")
            assets = await db.execute("SELECT id, ticker FROM assets")
            facts = await load_facts(db)
            try:
                keys = "pruned_before", "alerts_pruned_before"
                cutoffs = [parse_fact_time(facts, key) for key in keys]
            except DamagedError as error:
                damage.append(str(error))
                cutoffs = [0, 0]
            sql = "SELECT created_at, leaf, salt FROM log_leaves ORDER BY created_at"
            leaves = [tuple(row) for row in await db.execute_page(sql, {})]
            tiles = await db.execute("SELECT level, number, hashes FROM log_tiles")
            logged_at, leaf, salts = zip(*leaves, strict=True) if leaves else ((), (), ())
            # Of equal times, which only altered rows have, the alert is first.
            alerts = await _load_columns(db, LIST_ALERT_COLUMNS)
            feed = concatenate([alerts, await _load_columns(db, statements.LIST_CHANGE_COLUMNS)])
            order = np.argsort(feed.created_at, kind="stable")
            return StoredMarket(
                [CommitRow(**row) for row in commits],
                await load_context(db, 0, await load_last_number(db) or 0),
                facts,
                (cutoffs[0], cutoffs[1]),
                [CoverageRow(*row) for row in coverage],
                [(id_, market_time) for id_, market_time in clock],
                StoredLog(
                    np.array(logged_at, dtype=np.int64),
                    np.array(leaf, dtype=np.int64),
                    b"".join(salts),
                    {TileId(level, number): hashes for level, number, hashes in tiles},
                    await load_checkpoint(db),
                ),
                {row["id"]: row["ticker"] for row in assets},
                _decode(EpochRow, await db.execute(statements.LIST_EPOCHS), damage),
                _decode(CarryRow, await db.execute(statements.LIST_CARRIES), damage),
                _decode(ReadingRow, await db.execute(SELECT_READINGS), damage),
                feed.select(order),
                order < len(alerts.created_at),
                await fetch_value(db, statements.COUNT_UNREFERENCED),
                damage,
            )


async def _load_columns(db: Database, sql: str) -> ChangeColumns:
    """Return all rows of a tier; they are read page by page, because rows take more memory."""
    pages = [build_columns([])]
    after = np.iinfo(np.int64).min
    while rows := list(await db.execute_page(sql, {"after": after, "limit": ROWS_PER_READ})):
        pages.append(build_columns(rows))
        after = int(pages[-1].created_at[-1])
    return concatenate(pages)


def _decode(kind: type[StoredRow], rows: Iterable[Row], damage: list[str]) -> list[StoredRow]:
    """Return rows whose codes have a meaning; describe the others in `damage`."""
    found = []
    for row in rows:
        try:
            values: dict[str, Any] = decode_cell(row)
        except DamagedError as error:
            damage.append(
                f"{kind.__name__.removesuffix('Row').lower()} of {row['ticker']}: {error}"
            )
        else:
            found.append(kind(**values))
    return found
