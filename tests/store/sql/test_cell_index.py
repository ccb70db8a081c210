"""The index of changes by cell, which a first start builds after all commits but its last."""

import pytest

from store.sql.market_store import MarketStore
from tests.support.row_builders import make_full_batch
from tests.support.store_homes import SqliteHome, StoreHome, run_sql

pytestmark = pytest.mark.clause("store")


async def read_definition(home: StoreHome) -> str | None:
    """Return the statement that would create the index, None if there is no index."""
    sql = (
        "SELECT sql FROM sqlite_schema WHERE name = 'cell'"
        if isinstance(home, SqliteHome)
        else "SELECT indexdef FROM pg_indexes WHERE indexname = 'cell'"
    )
    rows = await run_sql(home, sql)
    return str(rows[0][0]) if rows else None


async def test_an_index_that_is_built_later_is_the_one_of_the_migrations(
    home: StoreHome, market: MarketStore
) -> None:
    migrated = await read_definition(home)
    await market.defer_cell_index()
    assert await read_definition(home) is None
    await market.build_cell_index()
    assert await read_definition(home) == migrated is not None


async def test_a_store_with_changes_keeps_its_index(home: StoreHome, market: MarketStore) -> None:
    await market.commit(make_full_batch())
    migrated = await read_definition(home)
    await market.defer_cell_index()
    assert await read_definition(home) == migrated is not None
    await market.build_cell_index()
    assert await read_definition(home) == migrated
