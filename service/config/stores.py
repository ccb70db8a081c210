"""Opens the stores that the settings select; only the module of their database is loaded."""

from typing import TYPE_CHECKING, Literal

from service.config.settings import Settings
from store.errors import StoreError
from store.sql.access_store import AccessStore

if TYPE_CHECKING:  # Keeps the market's modules out of commands about keys.
    from store.sql.market_store import MarketStore

StoreKind = Literal["market", "access"]


async def open_market(settings: Settings) -> "MarketStore":
    """Open the store of market data; create it if it is missing."""
    if settings.is_sqlite:
        from store.sqlite.market_store import open_sqlite_market

        return await open_sqlite_market(settings.market_path)
    from store.postgres.market_store import open_postgres_market

    return await open_postgres_market(settings.database_url.get_secret_value())


async def open_access(settings: Settings) -> AccessStore:
    """Open the store of keys; create it if it is missing."""
    if settings.is_sqlite:
        from store.sqlite.access_store import open_sqlite_access

        return await open_sqlite_access(settings.access_path)
    from store.postgres.access_store import open_postgres_access

    return await open_postgres_access(settings.database_url.get_secret_value())


async def open_existing_market(settings: Settings) -> "MarketStore":
    """Open the store of market data; StoreError if it does not exist."""
    # With a wrong SIGNALS_DATABASE_URL, an audit of a new and empty store would report success.
    if not await has_store(settings, "market"):
        raise StoreError(
            f"there is no store at {settings.store_name}: set SIGNALS_DATABASE_URL, "
            "or create a store with `signals replay --bars DIR`"
        )
    return await open_market(settings)


async def has_store(settings: Settings, kind: StoreKind) -> bool:
    """Return whether a store exists."""
    if settings.is_sqlite:
        return {"market": settings.market_path, "access": settings.access_path}[kind].exists()
    from store.postgres.database_info import has_schema
    from store.postgres.schema import SCHEMAS

    return await has_schema(settings.database_url.get_secret_value(), *SCHEMAS[kind])
