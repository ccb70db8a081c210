"""Stores written when codes were positions in lists; see tests/store/data/README.md."""

import json
import lzma
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg

from store.postgres.schema import SCHEMAS
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from store.sqlite.access_store import open_sqlite_access
from tests.support.store_homes import PostgresHome, SqliteHome, StoreHome, run_sql

DATA = Path(__file__).parents[1] / "store" / "data"

Rows = dict[str, list[list[Any]]]


@cache
def load_expected() -> dict[str, Any]:
    """Return the content of the stores as reported by the version that wrote them."""
    expected: dict[str, Any] = json.loads(_unpack("expected.json"))
    return expected


async def restore_old_stores(home: StoreHome, bars: Path) -> None:
    """Restore the old market and access stores into a home, as computed from a folder of bars."""
    if isinstance(home, SqliteHome):
        (home.folder / "market.db").write_bytes(_unpack("market.sqlite"))
        _access_path(home).write_bytes(_unpack("access.sqlite"))
    elif isinstance(home, PostgresHome):
        await _restore_dump(home.url, _unpack("postgres.sql").decode())
    await run_sql(home, "UPDATE facts SET value = ? WHERE key = 'source'", f"files:{bars}")


def build_database_url(home: StoreHome) -> str:
    """Return the database URL of the restored stores."""
    if isinstance(home, SqliteHome):
        return f"sqlite:///{home.folder / 'market.db'}"
    return home.address


async def open_old_access(home: StoreHome) -> AccessStore:
    """Open the restored access store."""
    if isinstance(home, SqliteHome):
        return await open_sqlite_access(_access_path(home))
    return await home.open_access()


async def load_rows(store: MarketStore) -> Rows:
    """Return the rows of a market store in the form of `load_expected`, with hashes of carries."""
    rows = {
        "changes": [tuple(row) async for row in store.changes()],
        "alerts": [tuple(row) async for row in store.alerts()],
        "readings": [astuple(row) for row in await store.readings()],
        "epochs": sorted(astuple(row) for row in await store.epochs()),
        "carries": [(*row[:-1], sha256(row.data).hexdigest()) for row in await store.carries()],
        "digest": [[row.digest.hex()] for row in await store.commits()],
    }
    return {name: [list(row) for row in table] for name, table in rows.items()}


def _access_path(home: SqliteHome) -> Path:
    return home.folder / "market.db-access"


async def _restore_dump(url: str, dump: str) -> None:
    session = await asyncpg.connect(url)
    try:
        for schema, _ in SCHEMAS.values():
            await session.execute(f"DROP SCHEMA {schema} CASCADE")
        await session.execute(dump)
    finally:
        await session.close()


def _unpack(name: str) -> bytes:
    return lzma.decompress((DATA / f"{name}.xz").read_bytes())
