"""Where the stores of a test are: SQLite files in a folder, or a PostgreSQL database.

A body that asks for `home`, or for a store that is opened there, runs over every engine.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg

from store.errors import LockTakenError, MarketStore
from store.postgres.access_store import PostgresAccessStore
from store.postgres.market_store import PostgresMarketStore
from store.postgres.schema import SCHEMAS
from store.postgres.transaction import put
from store.sql.access_store import SqlAccessStore
from store.sql.market_store import SqlMarketStore
from store.sqlite.access_store import SqliteAccessStore
from store.sqlite.market_store import SqliteMarketStore
from tests.postgres.databases import copied_database, made_database
from tests.store.rows import TABLES

# Run one statement, each in a transaction of its own, and return its rows.
Run = Callable[..., Awaitable[list[tuple[Any, ...]]]]

Opened = TypeVar("Opened", SqlMarketStore, SqlAccessStore)

# A way to make homes, each of its own.
NewHome = Callable[[], AbstractAsyncContextManager["Home"]]

# By server: the database that homes on it are copies of.
MIGRATED: dict[str, str] = {}

# How long anything is waited for that should come within a moment.
DEADLINE_S = 30

# What a plain session is told where a trigger or a constraint refuses a row.
REFUSED = (sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)


class Home(Protocol):
    """A place for one market store and one access store, however often they are opened."""

    @property
    def address(self) -> str:
        """Where it is, as `home_at` takes it in another process."""

    async def open_market(self, *kinds: type) -> SqlMarketStore:
        """Open the market store, with what `kinds` do otherwise."""

    async def open_access(self, *kinds: type) -> SqlAccessStore:
        """Open the access store, with what `kinds` do otherwise."""

    inserting: str
    """How a row is inserted that may overwrite others."""

    loosening: tuple[str, ...]
    """What a session may say of itself to be held less."""

    def plain(self, *before: str) -> AbstractAsyncContextManager[Run]:
        """Look into both stores as any other program would, after some statements."""


@dataclass(frozen=True)
class SqliteHome:
    """Two files in a folder."""

    folder: Path
    inserting = "INSERT OR REPLACE INTO"
    loosening = (
        "PRAGMA recursive_triggers = OFF",
        "PRAGMA ignore_check_constraints = ON",
        "PRAGMA foreign_keys = OFF",
    )

    @property
    def address(self) -> str:
        return str(self.folder)

    async def open_market(self, *kinds: type) -> SqlMarketStore:
        return await _of(SqliteMarketStore, kinds).open(self.folder / "market.db")

    async def open_access(self, *kinds: type) -> SqlAccessStore:
        return await _of(SqliteAccessStore, kinds).open(self.folder / "access.db")

    @asynccontextmanager
    async def plain(self, *before: str) -> AsyncIterator[Run]:
        with closing(sqlite3.connect(self.folder / "market.db", isolation_level=None)) as session:
            session.execute("ATTACH ? AS access", [str(self.folder / "access.db")])

            async def run(sql: str, *values: object) -> list[tuple[Any, ...]]:
                return session.execute(sql, values).fetchall()

            for sql in before:
                await run(sql)
            yield run


@dataclass(frozen=True)
class PostgresHome:
    """Two schemas in a database."""

    url: str
    inserting = "INSERT INTO"
    loosening = ("SET session_replication_role = replica",)

    @property
    def address(self) -> str:
        return self.url

    async def open_market(self, *kinds: type) -> SqlMarketStore:
        return await _of(PostgresMarketStore, kinds).open(self.url)

    async def open_access(self, *kinds: type) -> SqlAccessStore:
        return await _of(PostgresAccessStore, kinds).open(self.url)

    @asynccontextmanager
    async def plain(self, *before: str) -> AsyncIterator[Run]:
        path = {"search_path": ", ".join(schema for schema, _ in SCHEMAS.values())}
        session = await asyncpg.connect(self.url, server_settings=path)

        async def run(sql: str, *values: object) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in await session.fetch(put(sql)[0], *values)]

        try:
            for sql in before:
                await run(sql)
            yield run
        finally:
            await session.close()


@asynccontextmanager
async def sqlite_home(folder: Path) -> AsyncIterator[SqliteHome]:
    """Make a home of its own in a folder."""
    yield SqliteHome(Path(tempfile.mkdtemp(dir=folder)))


@asynccontextmanager
async def postgres_home(server: str) -> AsyncIterator[PostgresHome]:
    """Make a database on a server in which both stores are, until the block ends."""
    if server not in MIGRATED:
        MIGRATED[server] = await _migrated(server)
    async with copied_database(server, MIGRATED[server]) as url:
        yield PostgresHome(url)


async def _migrated(server: str) -> str:
    """Make a database to copy, for copies cost less than migrations; return its name."""
    url = await made_database(server, "template1")
    home = PostgresHome(url)
    for store in (await home.open_market(), await home.open_access()):
        await store.close()
    return url.rpartition("/")[2]


def home_at(address: str) -> Home:
    """Return the home at an address."""
    is_postgres = address.startswith("postgresql://")
    return PostgresHome(address) if is_postgres else SqliteHome(Path(address))


async def plainly(home: Home, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement as any other program would."""
    async with home.plain() as run:
        return await run(sql, *values)


async def content(home: Home) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of the market store."""
    async with home.plain() as run:
        return {table: await run(f"SELECT * FROM {table}") for table in TABLES}


@asynccontextmanager
async def closing_store(opening: Awaitable[Opened]) -> AsyncIterator[Opened]:
    """Close a store at the end of the block that is opened for it."""
    store = await opening
    try:
        yield store
    finally:
        await store.close()


async def moved(store: MarketStore, seen: int) -> int:
    """Wait until the version of a store is another one, and return it."""
    async with asyncio.timeout(DEADLINE_S):
        while store.version() == seen:  # noqa: ASYNC110 (the store offers no event)
            await asyncio.sleep(0.005)
    return store.version()


async def free_lock(store: MarketStore) -> None:
    """Wait until the compute lock of a process that is gone has been let go, and take it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await store.lock()
            except LockTakenError:
                await asyncio.sleep(0.005)


def _of(store: Any, kinds: tuple[type, ...]) -> Any:
    return type(store.__name__, (*kinds, store), {}) if kinds else store
