"""Named forward-only migrations of a SQLite file; all pending ones in one transaction.

No copy is made before migrating: an operator makes a backup before an upgrade.
"""

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from store.migrations import (
    SchemaObjects,
    check_applied,
    describe_failed_migration,
    list_schema_faults,
    log_migrations,
    read_migration,
)
from store.sqlite.database_files import OWNER_ONLY, open_read_only, restrict_to_owner
from store.store_errors import StoreError

MARKET_MIGRATIONS = ("market_0001",)
ACCESS_MIGRATIONS = ("access_0001",)
CREATE_MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"
)
LOCK_TIMEOUT_S, RETRY_PAUSE_S = 5.0, 0.005


def migrate(path: Path, names: Sequence[str]) -> None:
    """Apply pending migrations to a database file, creating it if it does not exist.

    Only its owner may use a new file, or an access file. Raise StoreError if the file is another
    database or was written by another version, or if a migration fails, which then has changed
    nothing.
    """
    try:
        # An existing file is never opened: closing it would release SQLite's locks on it.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        with closing(
            sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        ) as connection:
            done = _list_applied(connection, path, names)
            # Not before it is known that the file is not another program's. Market data have no
            # addresses, so the operator may share an existing file of them.
            if names[0] in ACCESS_MIGRATIONS:
                restrict_to_owner(path)
            if len(done) < len(names):
                _apply_pending(connection, path, names)
            _enable_wal(connection)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open {path}: {error}") from error


def list_applied_migrations(path: Path, names: Sequence[str]) -> list[str]:
    """Return the applied ones of the named migrations without changing the file.

    Raise StoreError if the file is missing, is another database, or was written by another version.
    """
    try:
        with closing(open_read_only(path)) as connection:
            return _list_applied(connection, path, names)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open {path}: {error}") from error


def load_statements(migration: str) -> Iterator[str]:
    """Yield the statements of a named migration."""
    return split_statements(read_migration("store.sqlite", migration))


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger is one statement."""
    # sqlite3's executescript commits the open transaction first, so it cannot run a migration.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    # Text without a final semicolon is executed too, so that none is left out silently.
    if statement.strip():
        yield statement


def _list_applied(connection: sqlite3.Connection, path: Path, names: Sequence[str]) -> list[str]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return []
    if "migrations" not in tables:
        raise StoreError(f"{path} is not a signals database: name another file")
    done = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
    check_applied(str(path), done, names)
    return done


def _apply_pending(connection: sqlite3.Connection, path: Path, names: Sequence[str]) -> None:
    """Apply the pending migrations in one transaction; StoreError names the one that fails."""
    # Closing the connection rolls back what is not committed.
    connection.execute("BEGIN IMMEDIATE")
    # Listed again under the write lock, because two processes may start at the same time.
    done, missing = _list_applied(connection, path, names), names[0]
    try:
        connection.execute(CREATE_MIGRATIONS)
        for missing in names[len(done) :]:
            for statement in load_statements(missing):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations (name) VALUES (?)", (missing,))
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise StoreError(describe_failed_migration(str(path), missing, error)) from error
    log_migrations(str(path), done, names)


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


# The others are SQLite's own.
_LIST_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
_COMMENT = re.compile(r"--[^\n]*")


def find_schema_faults(path: Path, migrations: Sequence[str]) -> list[str]:
    """Describe how the schema of a file differs from the one that the migrations create."""
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
            memory.execute(CREATE_MIGRATIONS)
            for name in migrations:
                for statement in load_statements(name):
                    memory.execute(statement)
            created = _list_objects(memory)
        with closing(open_read_only(path)) as connection:
            stored = _list_objects(connection)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the schema of {path}: {error}") from error
    return list_schema_faults(stored, created)


def _list_objects(connection: sqlite3.Connection) -> SchemaObjects:
    """Return the statement of each object."""
    return {
        (table, f"{kind} {name}"): " ".join(_COMMENT.sub("", sql).replace('"', "").split())
        for kind, name, table, sql in connection.execute(_LIST_OBJECTS)
    }
