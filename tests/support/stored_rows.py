"""Rows of a market store that no command reads by themselves, for tests to compare."""

from store.market_rows import ChangeRow, CommitRow, EpochRow
from store.sql import market_statements as statements
from store.sql.database import Lane
from store.sql.market_reads import decode_cell, parse_change
from store.sql.market_store import MarketStore

ALL = 2**62


async def list_changes(store: MarketStore) -> list[ChangeRow]:
    """Return every stored change, published or not, oldest first."""
    async with store._engine.begin_read(Lane.BATCH) as db:
        values = {"after": 0, "limit": ALL}
        rows = await db.execute_named(statements.LIST_CHANGES_AFTER, values)
    return [parse_change(row) for row in rows]


async def list_commits(store: MarketStore) -> list[CommitRow]:
    """Return the digest chain, oldest first."""
    async with store._engine.begin_read(Lane.BATCH) as db:
        return [CommitRow(**row) for row in await db.execute(statements.LIST_COMMITS)]


async def list_epochs(store: MarketStore) -> list[EpochRow]:
    """Return every epoch, oldest first."""
    async with store._engine.begin_read(Lane.BATCH) as db:
        rows = await db.execute(statements.LIST_EPOCHS)
    return [EpochRow(**decode_cell(row)) for row in rows]
