"""The interface between stores and database engines: transactions, statements, locks, lanes.

What the methods of both engines do is documented here; an engine documents what is its own.

Both engines take the same statements: `?` and `:name` are placeholders, and an engine without index
hints (NOT INDEXED, INDEXED BY) removes them. No `?` has a number, because Python 3.12.0 to 3.12.3
takes it for a name, with a warning.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from store.store_errors import StoreError
from store.write_health import TestWrite, WriteKind


class Lane(StrEnum):
    """The kinds of reads, from those that everybody waits for to those that may take long.

    A read waits only for reads of its own lane: engines give each lane connections of its own, or a
    share of their sessions.
    """

    SNAPSHOT = "snapshot"
    PAGES = "pages"
    PAST = "past"
    # Reads of the compute process, audits and moves.
    BATCH = "batch"


# The slowest read of a call takes less than a second on ten million rows. A batch may read every
# stored bar.
READ_LIMITS_S = {Lane.SNAPSHOT: 10.0, Lane.PAGES: 10.0, Lane.PAST: 10.0, Lane.BATCH: 600.0}


@asynccontextmanager
async def limit_seconds(lane: Lane, database: str, activity: str) -> AsyncIterator[None]:
    """Raise StoreError if the block takes longer than a read of the lane may."""
    limit_s = READ_LIMITS_S[lane]
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StoreError(f"{database}: {activity} took longer than {limit_s:g} s") from error


class Row(Protocol):
    """One row: a mapping of column names to values; iteration yields the values in order."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the values in the order of the columns."""

    def keys(self) -> Iterable[str]:
        """Return the names of the columns."""


class Database(Protocol):
    """One open transaction."""

    packed_bars: str
    """The aggregate that joins the data of blocks `b` of bars as hexadecimal text, in any order."""

    async def execute(self, sql: str, *values: object, **named: object) -> Sequence[Row]:
        """Return every row of a statement with parameters of one kind; no cursor stays open."""

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Iterable[Iterable[Any]]:
        """Return every row of a statement; columns can be read by position only."""

    async def fetch_packed(self, columns: str, sql: str, *values: object) -> list[list[Any]]:
        """Return columns of every row of a query, which the database packs into one value.

        For thousands of rows: their thread would compete with the event loop at each row.
        """

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows in order; `conflict` is an ON CONFLICT clause."""

    async def advance_id_sequence(self, table: str) -> None:
        """Make the next generated id follow the highest id of the table."""

    async def acquire_named_lock(self, *names: str) -> None:
        """Take an exclusive lock on the names until the end of the transaction, waiting for it."""


Transaction = AbstractAsyncContextManager[Database]
Folded = TypeVar("Folded")


class Engine(Protocol):
    """An open database; it raises only StoreError, and no message contains a secret."""

    @property
    def name(self) -> str:
        """The path or credential-free address of the database, for messages and logs."""

    async def close(self) -> None:
        """Close every connection; idempotent."""

    async def check_writes(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        """Raise StoreError if the files are lost or the last write of any kind failed.

        The writes in `tests` are made first if the last ones failed or are older than `max_age_s`.
        """

    async def measure(self) -> tuple[str, int]:
        """Return the database software with its version, and the bytes that the store takes."""

    def begin_write(self, *, is_durable: bool = False) -> Transaction:
        """Hold a write transaction: committed at the end, rolled back on any exception.

        If it `is_durable`, it is on the disk once it is committed.
        """

    async def count(self, sql: str, *values: object) -> Sequence[Row]:
        """Run a short statement about counted calls, a transaction by itself; return its rows.

        On SQLite it survives a crash of the process, but not a power cut.
        """

    def acquire_writer(self) -> Transaction:
        """Hold a connection for writes of which each statement is a transaction by itself."""

    def begin_read(self, lane: Lane = Lane.PAGES) -> Transaction:
        """Hold a read transaction: every statement in it sees the same version.

        Raise StoreError if the lane is busy, or the transaction (on PostgreSQL a statement of it)
        takes, for longer than its limit.
        """

    async def fold_rows(
        self,
        sql: str,
        values: Mapping[str, object],
        fold: Callable[[Iterable[tuple[Any, ...]]], Folded],
    ) -> Folded:
        """Return what `fold`, called in a thread, makes of the rows of a query.

        For thousands of rows: a list of them would take several times as long, and memory.
        """

    def acquire_connection(self) -> Transaction:
        """Hold a connection for one statement, which is a transaction by itself."""


class MarketEngine(Engine, Protocol):
    """An engine that admits one compute process at a time and reports new commits."""

    @property
    def is_locked(self) -> bool:
        """True if this process holds the compute lock."""

    def begin_test_write(self) -> Transaction:
        """Hold a write transaction that makes no reader read again, if the engine can do that."""

    async def find_schema_faults(self) -> list[str]:
        """Describe how the schema differs from the one that the migrations create."""

    async def lock(self) -> None:
        """Acquire the compute lock until close; raise LockTakenError with its holder if taken."""

    def check_lock(self) -> None:
        """Raise LockTakenError if this process has lost its compute lock; never block."""

    async def unlock(self) -> None:
        """Release the compute lock; idempotent."""

    def begin_compute_write(self) -> Transaction:
        """Hold a write transaction of the compute process.

        Raise LockTakenError if another process holds the lock, or held it since this one took it.
        """

    def version(self) -> int:
        """Return a number that changes with every commit; never blocks."""


async def fetch_value(db: Database, sql: str, *values: object) -> Any:
    """Return the first column of the first row, or None if there is no row."""
    rows = await db.execute(sql, *values)
    return next(iter(rows[0])) if rows else None
