"""Named forward-only migrations of a SQLite file, each in its own transaction.

Before a migration changes a file that is not new, the file is copied to FILE.before-MIGRATION.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from store.errors import StoreError
from store.sqlite.copies import copy_database, open_read_only

MARKET_MIGRATIONS = (
    "market_0001",
    "market_0002",
    "market_0003",
    "market_0004",
    "market_0005",
)
ACCESS_MIGRATIONS = ("access_0001", "access_0002", "access_0003")
LOCK_TIMEOUT_S, RETRY_PAUSE_S = 5.0, 0.005


def migrate(path: Path, names: Sequence[str]) -> None:
    """Apply pending migrations to a database file, creating it if it does not exist.

    Raise StoreError if the file is another database or was written by a newer version.
    """
    try:
        with closing(
            sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        ) as connection:
            is_new = not _list_applied(connection, path, names)
            while len(_list_applied(connection, path, names)) < len(names):
                _apply_next(connection, path, names, is_new)
            _enable_wal(connection)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open {path}: {error}") from error


def list_applied_migrations(path: Path, names: Sequence[str]) -> list[str]:
    """Return the applied ones of the named migrations without changing the file.

    Raise StoreError if the file is missing, is another database, or was written by a newer version.
    """
    try:
        with closing(open_read_only(path)) as connection:
            return _list_applied(connection, path, names)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open {path}: {error}") from error


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger is one statement."""
    # sqlite3's executescript commits the open transaction first, so it cannot run a migration.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _list_applied(connection: sqlite3.Connection, path: Path, names: Sequence[str]) -> list[str]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return []
    if "migrations" not in tables:
        raise StoreError(f"{path} is not a signals database: name another file")
    done = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
    if done != list(names[: len(done)]):
        unknown = ", ".join(sorted(set(done) - set(names))) or "gaps"
        raise StoreError(
            f"{path} was written by a newer version of signals (migrations: {unknown}): upgrade"
        )
    return done


def _apply_next(
    connection: sqlite3.Connection, path: Path, names: Sequence[str], is_new: bool
) -> None:
    """Apply the first pending migration; do nothing if another process has applied it meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # List again under the write lock, because two processes may start at the same time.
        done = _list_applied(connection, path, names)
        if len(done) < len(names):
            name = names[len(done)]
            if not is_new:
                _back_up(path, name)
            _apply(connection, name)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, which is stored in the file."""
    # SQLite applies no busy timeout to this switch, which needs the file exclusively. This loop
    # retries while other processes have the file open for reading.
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def _apply(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"
    )
    script = files("store.sqlite").joinpath("migrations", f"{name}.sql").read_text(encoding="utf-8")
    for statement in split_statements(script):
        connection.execute(statement)
    connection.execute("INSERT INTO migrations (name) VALUES (?)", (name,))


def _back_up(path: Path, name: str) -> None:
    """Copy the file before a migration; a copy under its final name is complete."""
    unfinished = path.with_name(f"{path.name}.before-{name}.unfinished")
    unfinished.unlink(missing_ok=True)
    copy_database(path, unfinished)
    os.replace(unfinished, path.with_name(f"{path.name}.before-{name}"))
