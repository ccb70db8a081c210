"""Opens the stores of a SQLite file or a PostgreSQL database, migrated and created if missing.

Each function raises StoreError on failure, and loads what it needs: commands about keys start
without NumPy, and those on SQLite without the driver of PostgreSQL.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from store.sql.access_store import AccessStore

if TYPE_CHECKING:
    from store.sql.market_store import MarketStore


async def open_sqlite_market(path: Path) -> "MarketStore":
    """Open the market store in a file."""
    from store.sql.market_store import MarketStore
    from store.sqlite.engine import SqliteEngine
    from store.sqlite.schema import MARKET_MIGRATIONS

    return MarketStore(await SqliteEngine.open(path, MARKET_MIGRATIONS))


async def open_postgres_market(url: str) -> "MarketStore":
    """Open the market store in a schema of a database."""
    from store.postgres.market_engine import PostgresMarketEngine
    from store.postgres.schema import SCHEMAS
    from store.sql.market_store import MarketStore

    return MarketStore(await PostgresMarketEngine.open(url, *SCHEMAS["market"]))


async def open_sqlite_access(path: Path) -> AccessStore:
    """Open the access store in a file."""
    from store.sqlite.engine import SqliteEngine
    from store.sqlite.schema import ACCESS_MIGRATIONS

    return AccessStore(await SqliteEngine.open(path, ACCESS_MIGRATIONS))


async def open_postgres_access(url: str) -> AccessStore:
    """Open the access store in a schema of a database."""
    from store.postgres.engine import PostgresEngine
    from store.postgres.schema import SCHEMAS

    return AccessStore(await PostgresEngine.open(url, *SCHEMAS["access"]))
