"""What the stores ask of a database engine: transactions, statements, exclusion.

Statements are written once for every engine: `?`, `?1` and `:name` stand for values, and hints
about indexes are left out where an engine has none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from store.sql.feed_pages import FeedStatements


class Row(Protocol):
    """One row: values by column name, and in the order of its columns when iterated."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the values in the order of the columns."""

    def keys(self) -> Iterable[str]:
        """Return the names of the columns."""


class Database(Protocol):
    """One open transaction."""

    feed_statements: FeedStatements

    async def execute(self, sql: str, *values: object) -> Sequence[Row]:
        """Return every row of a statement; no cursor stays open."""

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> Sequence[Row]:
        """Return every row of a statement whose values are named."""

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Iterable[Iterable[Any]]:
        """Return the rows of a page of the feed, to be read by position only."""

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows in their order; `conflict` is an ON CONFLICT clause."""

    async def advance_id_sequence(self, table: str) -> None:
        """Give rows to come ids after the highest, which was not given by the database."""

    async def acquire_named_lock(self, *names: str) -> None:
        """Wait for the transactions that were alone by the same names, and keep others waiting."""


Transaction = AbstractAsyncContextManager[Database]


class Engine(Protocol):
    """A database, open: what it raises is StoreError, and names no secret."""

    @property
    def name(self) -> str:
        """Where it is, as an operator may read it."""

    async def close(self) -> None:
        """Close every connection; idempotent."""

    def begin_write(self) -> Transaction:
        """Hold a write transaction: committed at the end, rolled back on any exception."""

    def begin_durable_write(self) -> Transaction:
        """Hold a write transaction that is on the disk once it is committed."""

    def begin_read(self) -> Transaction:
        """Hold a read transaction: all that is read in it is of one version."""

    def acquire_connection(self) -> Transaction:
        """Hold a connection for one statement, which is a transaction by itself."""


class MarketEngine(Engine, Protocol):
    """An engine that keeps one process computing, and says when anything moved."""

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""

    def begin_compute_write(self) -> Transaction:
        """Hold a write transaction of the process that computes.

        LockTakenError where that is another one, or has been since this one took the lock.
        """

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it waits for nothing."""


async def fetch_value(db: Database, sql: str, *values: object) -> Any:
    """Return the first column of the first row, or None."""
    rows = await db.execute(sql, *values)
    return next(iter(rows[0])) if rows else None
