"""Homes for the stores of a test: SQLite files in a folder, or a PostgreSQL database.

A test that uses the fixture `home`, or a store opened in it, runs on every engine.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from store.opening import open_postgres_market, open_sqlite_market
from store.postgres.engine import PostgresEngine, convert_placeholders
from store.postgres.schema import SCHEMAS
from store.sql.access_store import AccessStore
from store.sql.database import MarketEngine
from store.sql.ledger_reads import FeedRows, LedgerReads
from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS
from store.store_errors import LockTakenError
from tests.support.postgres.server import copy_database, create_database
from tests.support.row_builders import TABLES

# Runs one statement in its own transaction and returns its rows.
RunSql = Callable[..., Awaitable[list[tuple[Any, ...]]]]

AnyStore = TypeVar("AnyStore", bound=MarketStore | AccessStore)

# By server URL: the migrated database that homes are copied from.
MIGRATED_DATABASES: dict[str, str] = {}

# An upper bound for waits that should end within moments.
DEADLINE_S = 30

# Errors of a plain session if a trigger or constraint refuses a row.
REFUSED = (sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)


@dataclass(frozen=True)
class SqliteHome:
    """Two files in a folder."""

    folder: Path
    # How a row is inserted that may overwrite others, and what relaxes the checks of a session.
    insert_sql = "INSERT OR REPLACE INTO"
    relaxing_sql = (
        "PRAGMA recursive_triggers = OFF",
        "PRAGMA ignore_check_constraints = ON",
        "PRAGMA foreign_keys = OFF",
    )

    @property
    def address(self) -> str:
        """The address for `open_home` in another process."""
        return str(self.folder)

    async def open_market(self) -> MarketStore:
        return await open_sqlite_market(self.folder / "market.db")

    async def open_access(self, store_class: type[AccessStore] = AccessStore) -> AccessStore:
        return await open_access_as(store_class, self.folder / "access.db")

    @asynccontextmanager
    async def open_plain(self, *before: str) -> AsyncIterator[RunSql]:
        """Open both stores by plain SQL, as another program would, after some statements."""
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
    insert_sql = "INSERT INTO"
    relaxing_sql = ("SET session_replication_role = replica",)

    @property
    def address(self) -> str:
        return self.url

    async def open_market(self) -> MarketStore:
        return await open_postgres_market(self.url)

    async def open_access(self, store_class: type[AccessStore] = AccessStore) -> AccessStore:
        engine = await PostgresEngine.open(self.url, *SCHEMAS["access"])
        return store_class(engine)

    @asynccontextmanager
    async def open_plain(self, *before: str) -> AsyncIterator[RunSql]:
        path = {"search_path": ", ".join(schema for schema, _ in SCHEMAS.values())}
        session = await asyncpg.connect(self.url, server_settings=path)

        async def run(sql: str, *values: object) -> list[tuple[Any, ...]]:
            return [
                tuple(row) for row in await session.fetch(convert_placeholders(sql)[0], *values)
            ]

        try:
            for sql in before:
                await run(sql)
            yield run
        finally:
            await session.close()


# A place for one market store and one access store, which can be opened repeatedly.
StoreHome = SqliteHome | PostgresHome
# Returns a new home on each call.
HomeFactory = Callable[[], AbstractAsyncContextManager[StoreHome]]


@asynccontextmanager
async def make_sqlite_home(folder: Path) -> AsyncIterator[SqliteHome]:
    yield SqliteHome(Path(tempfile.mkdtemp(dir=folder)))


@asynccontextmanager
async def make_postgres_home(server: str) -> AsyncIterator[PostgresHome]:
    if server not in MIGRATED_DATABASES:
        # Copying a migrated database is faster than migrating.
        home = PostgresHome(await create_database(server, "template1"))
        for store in (await home.open_market(), await home.open_access()):
            await store.close()
        MIGRATED_DATABASES[server] = home.url.rpartition("/")[2]
    async with copy_database(server, MIGRATED_DATABASES[server]) as url:
        yield PostgresHome(url)


def open_home(address: str) -> StoreHome:
    is_postgres = address.startswith("postgresql://")
    return PostgresHome(address) if is_postgres else SqliteHome(Path(address))


def build_database_url(home: StoreHome) -> str:
    return f"sqlite:///{home.folder}/market.db" if isinstance(home, SqliteHome) else home.address


async def run_sql(home: StoreHome, sql: str, *values: object) -> list[tuple[Any, ...]]:
    async with home.open_plain() as run:
        return await run(sql, *values)


async def read_tables(home: StoreHome) -> dict[str, list[tuple[Any, ...]]]:
    async with home.open_plain() as run:
        return {table: await run(f"SELECT * FROM {table}") for table in TABLES}


@asynccontextmanager
async def open_and_close(opening: Awaitable[AnyStore]) -> AsyncIterator[AnyStore]:
    store = await opening
    try:
        yield store
    finally:
        await store.close()


class GatedReads(LedgerReads):
    """Reads of the feed, each of which awaits `before` first if that is set."""

    before: Callable[[], Awaitable[object]] | None = None

    async def load_rows(self, after: int, until: int) -> AsyncIterator[FeedRows]:
        if self.before is not None:
            await self.before()
        async for part in super().load_rows(after, until):
            yield part


class GatedMarket(MarketStore):
    def __init__(self, engine: MarketEngine) -> None:
        super().__init__(engine)
        self.ledger_reads = self.gated_reads = GatedReads(engine)


async def open_market_as(store_class: Callable[[SqliteEngine], AnyStore], path: Path) -> AnyStore:
    return store_class(await SqliteEngine.open(path, MARKET_MIGRATIONS))


async def open_access_as(store_class: Callable[[SqliteEngine], AnyStore], path: Path) -> AnyStore:
    return store_class(await SqliteEngine.open(path, ACCESS_MIGRATIONS))


async def wait_for_version(store: MarketStore, seen: int) -> int:
    async with asyncio.timeout(DEADLINE_S):
        while store.version() == seen:
            await asyncio.sleep(0.005)
    return store.version()


async def take_lock_when_free(store: MarketStore) -> None:
    """Wait until the compute lock of an ended process is released, and acquire it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await store.lock()
            except LockTakenError:
                await asyncio.sleep(0.005)


CALL = """
import asyncio, importlib, json, sys
from tests.support.store_homes import open_home

async def main(address, module, name, *arguments):
    store = await open_home(address).open_access()
    try:
        function = getattr(importlib.import_module(module), name)
        print(json.dumps(await function(store, *map(int, arguments))))
    finally:
        await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def call_elsewhere(
    home: StoreHome, function: Callable[..., Awaitable[object]], *arguments: int
) -> Any:
    """Call a function of a test module on the access store in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CALL, home.address, function.__module__, function.__name__),
        *map(str, arguments),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)
