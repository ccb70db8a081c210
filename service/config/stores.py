"""Opens the stores that the settings select; only the module of their database is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from service.config.settings import Settings
from store.errors import StoreError
from store.sql.access_store import AccessStore

if TYPE_CHECKING:  # Keeps the market's modules out of commands about keys.
    from store.sql.market_store import MarketStore

StoreKind = Literal["market", "access"]
RESTORE_HINT = "restore a backup if keys were issued"

log = structlog.get_logger("service")


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


async def create_access(settings: Settings) -> None:
    """Create the store of keys if it is missing, before the store of market data.

    Only commands that begin a service call this. Market data without keys therefore mean that the
    keys were lost, which is logged.
    """
    if await has_store(settings, "access"):
        return
    if await has_store(settings, "market"):
        log.warning("keys_missing", created=get_location(settings, "access"), reason=RESTORE_HINT)
    await (await open_access(settings)).close()


async def refuse_missing_market(settings: Settings) -> None:
    """Raise StoreError if there is no store of market data; create nothing."""
    # In a wrong folder, a command would otherwise create a store and report success: a clean audit,
    # or a key that the running service rejects.
    if not await has_store(settings, "market"):
        keys = get_location(settings, "access")
        found = f" (only its keys, {keys})" if await has_store(settings, "access") else ""
        raise StoreError(
            f"there is no store at {get_location(settings, 'market')}{found}: run the command in "
            "the folder of the service, set SIGNALS_DATABASE_URL, or start `signals serve` first"
        )


async def refuse_missing_store(settings: Settings) -> None:
    """Raise StoreError unless the stores of market data and of keys both exist."""
    await refuse_missing_market(settings)
    if not await has_store(settings, "access"):
        raise StoreError(
            f"the store of keys is missing: there is no {get_location(settings, 'access')}; "
            f"{RESTORE_HINT}, or start `signals serve` to begin without keys"
        )


async def has_store(settings: Settings, kind: StoreKind) -> bool:
    """Return whether a store exists; StoreError if that cannot be found out."""
    if settings.is_sqlite:
        return _has_content(get_path(settings, kind))
    from store.postgres.database_info import has_schema
    from store.postgres.schema import SCHEMAS

    return await has_schema(settings.database_url.get_secret_value(), *SCHEMAS[kind])


def get_location(settings: Settings, kind: StoreKind) -> str:
    """Return the absolute path of a store's file, or its schema, for messages."""
    if settings.is_sqlite:
        return str(get_path(settings, kind).absolute())
    from store.postgres.schema import SCHEMAS

    return f"{settings.store_name} ({SCHEMAS[kind][0]})"


def get_path(settings: Settings, kind: StoreKind) -> Path:
    """Return the SQLite file of a store."""
    return settings.market_path if kind == "market" else settings.access_path


def _has_content(path: Path) -> bool:
    # Opening the file could create a write-ahead log next to it.
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
