"""Opens the stores that the settings select; only the module of their database is loaded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog

from service.config.settings import Settings
from store import opening
from store.failure_log import FailureLog
from store.sql.access_store import AccessStore
from store.store_errors import StoreError, UnreachableError

if TYPE_CHECKING:  # Keeps the market's modules out of commands about keys.
    from store.sql.market_store import MarketStore

T = TypeVar("T")
StoreKind = Literal["market", "access"]
RESTORE_HINT = "restore a backup if keys were issued"
IS_ANOTHER = "is not the one that belongs to the market data"
# The names of the notices for the operator in the store of keys.
BACKUP_NOTICE, BACKUP_FAILED_NOTICE = "backup", "backup failed"
WEBHOOK_NOTICE, MAIL_NOTICE, CERTIFICATE_NOTICE = "webhook refused", "mail failed", "certificate"
RECONNECT_S = 2.0
log = structlog.get_logger("service")
ADOPT_HINT = "run `signals keys adopt` to go on without the lost keys and purchases"


async def retry_until_reached(
    attempt: Callable[[], Awaitable[T]],
    cancel_on_request: Callable[[], AbstractContextManager[None]],
    answering: AbstractAsyncContextManager[None] | None = None,
) -> T | None:
    """Attempt until the server of the database accepts sessions; log one line a minute meanwhile.

    `answering` is open while it waits. Return None if a signal ended the wait.
    """
    failures, pause_s = FailureLog(), 0.0
    async with AsyncExitStack() as stack:
        while True:
            is_cancelled = True
            # The attempt too: a server that drops all packets holds it for long.
            with cancel_on_request():
                await asyncio.sleep(pause_s)
                try:
                    return await attempt()
                except UnreachableError as error:
                    failures.write(log.warning, "database_unreachable", {"reason": str(error)})
                is_cancelled, pause_s = False, RECONNECT_S
            if is_cancelled:
                return None
            if answering is not None:
                await stack.enter_async_context(answering)
                answering = None


@asynccontextmanager
async def open_market(settings: Settings) -> "AsyncIterator[MarketStore]":
    """Open the store of market data for the block; create it if it is missing."""
    store = await (
        opening.open_sqlite_market(settings.market_path)
        if settings.is_sqlite
        else opening.open_postgres_market(settings.database_url.get_secret_value())
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_access(settings: Settings) -> AsyncIterator[AccessStore]:
    """Open the store of keys for the block; create it if it is missing."""
    store = await (
        opening.open_sqlite_access(settings.access_path)
        if settings.is_sqlite
        else opening.open_postgres_access(settings.database_url.get_secret_value())
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_both(settings: Settings) -> "AsyncIterator[tuple[MarketStore, AccessStore]]":
    """Open both stores for the block, creating them at a first start.

    Raise StoreError if the store of keys that belongs to the market data was lost (if it is
    missing, or another one is in its place), or if the market data were.
    """
    has_market = await has_store(settings, "market")
    # The store of keys is created first, so market data without keys mean that they were lost.
    if has_market and not await has_store(settings, "access"):
        raise StoreError(describe_lost_keys(settings, "is missing"))
    if not has_market and (trace := find_market_trace(settings)):
        raise StoreError(_describe_lost_market(settings, trace))
    if (warning := describe_remote_file_system(settings)) is not None:
        log.warning("remote_file_system", why=warning)
    async with open_access(settings) as access:
        if not has_market and not has_other_market(settings) and await access.list_keys():
            raise StoreError(_describe_lost_market(settings, "there are keys to read them"))
        async with open_market(settings) as market:
            access_id, known_id = await access.get_id(), await market.find_access_id()
            # A store of an earlier version, or a new one, knows none yet.
            if known_id is None:
                await market.record_access_id(access_id)
            elif known_id != access_id:
                raise StoreError(describe_lost_keys(settings, IS_ANOTHER))
            yield market, access


def describe_remote_file_system(settings: Settings) -> str | None:
    """Say why the database must not lie where it does; None if it may."""
    if not settings.is_sqlite:
        return None
    from store.sqlite.database_files import find_remote_file_system

    folder = settings.market_path.absolute().parent
    kind = find_remote_file_system(folder)
    return kind and (
        f"{folder} is on a file system of another machine or of Windows ({kind}), where SQLite can "
        "lose or damage data: move the database to a disk of this machine, or use PostgreSQL"
    )


def has_other_market(settings: Settings) -> bool:
    """Return whether the keys are those of the other market, the simulated or the live one, too."""
    return settings.other_market_path is not None and settings.other_market_path.exists()


def find_market_trace(settings: Settings) -> str | None:
    """Say which file shows that there were market data; None if none does."""
    if settings.log_key_path.exists():
        return f"{settings.log_key_path} has signed their log"
    # The process that computed on a SQLite file left it there.
    lock_path = Path(f"{settings.market_path}.lock") if settings.is_sqlite else None
    if lock_path is not None and lock_path.exists():
        return f"{lock_path} shows that there were some"
    return None


async def adopt_access(settings: Settings) -> None:
    """Make the present store of keys, or a new empty one, belong to the market data."""
    async with open_access(settings) as access, open_market(settings) as market:
        await market.record_access_id(await access.get_id())


def describe_lost_keys(settings: Settings, fault: str) -> str:
    """Name the fault of the store of keys, and its remedy."""
    return (
        f"the store of keys {fault} ({get_location(settings, 'access')}): restore a backup, or "
        f"{ADOPT_HINT}"
    )


def _describe_lost_market(settings: Settings, trace: str) -> str:
    return (
        f"the market data are missing ({get_location(settings, 'market')}), but {trace}: restore a "
        "backup (`signals restore DIR`), or run `signals log restart` to begin a new history"
    )


async def refuse_wrong_clock(settings: Settings, market: "MarketStore", now: int) -> None:
    """Raise NotReadyError if a clock (epoch ms) by which rows are deleted is far from the runs."""
    from compute.schedule import count_pause_days

    progress = await market.progress()
    # The last run of a recording may be of any time.
    believes_clock = settings.believe_clock or (progress.source or "").startswith("files:")
    count_pause_days(now, progress.last_known_time, believes_clock=believes_clock)


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
    await refuse_missing_keys(settings)


async def refuse_missing_keys(settings: Settings) -> None:
    """Raise StoreError unless there are a store of keys and the market data that they read."""
    if not has_other_market(settings):
        await refuse_missing_market(settings)
    if not await has_store(settings, "access"):
        raise StoreError(
            f"the store of keys is missing: there is no {get_location(settings, 'access')}; "
            f"{RESTORE_HINT}, or {ADOPT_HINT}"
        )


async def refuse_older_schema(settings: Settings) -> None:
    """Raise StoreError if an older version wrote the store of keys; migrate nothing."""
    # Opening the store would migrate it. A service of the older version that still runs on it does
    # not know what the newer one stores.
    if await count_pending_migrations(settings, "access"):
        raise StoreError(
            f"{get_location(settings, 'access')} is in use by an older version of signals: restart "
            "`signals serve` with this version first"
        )


async def count_pending_migrations(settings: Settings, kind: StoreKind) -> int:
    """Return how many migrations a store lacks; StoreError if another version wrote it."""
    if settings.is_sqlite:
        from store.sqlite.schema import (
            ACCESS_MIGRATIONS,
            MARKET_MIGRATIONS,
            list_applied_migrations,
        )

        names = MARKET_MIGRATIONS if kind == "market" else ACCESS_MIGRATIONS
        return len(names) - len(list_applied_migrations(get_path(settings, kind), names))
    from store.postgres.market_engine import count_missing_migrations
    from store.postgres.schema import SCHEMAS

    return await count_missing_migrations(settings.database_url.get_secret_value(), *SCHEMAS[kind])


async def has_store(settings: Settings, kind: StoreKind) -> bool:
    """Return whether a store exists; StoreError if that cannot be found out."""
    if settings.is_sqlite:
        path = get_path(settings, kind)
        # Opening the file could create a write-ahead log next to it.
        try:
            return path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
    from store.postgres.schema import SCHEMAS

    return await count_pending_migrations(settings, kind) < len(SCHEMAS[kind][1])


def get_location(settings: Settings, kind: StoreKind) -> str:
    """Return the absolute path of a store's file, or its schema, for messages."""
    if settings.is_sqlite:
        return str(get_path(settings, kind).absolute())
    from store.postgres.schema import SCHEMAS

    return f"{settings.store_name} ({SCHEMAS[kind][0]})"


def get_path(settings: Settings, kind: StoreKind) -> Path:
    """Return the SQLite file of a store."""
    return settings.market_path if kind == "market" else settings.access_path
