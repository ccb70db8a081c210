"""Named forward-only migrations of a SQLite file, each in its own transaction.

Before a migration changes a file that is not new, the file is copied to FILE.before-MIGRATION. The
copies are deleted by the daily prune once they are COPY_RETENTION_DAYS old.
"""

import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import structlog

from store.errors import StoreError
from store.migrations import (
    SchemaObjects,
    check_applied,
    describe_failed_migration,
    describe_statement,
    list_schema_faults,
    read_migration,
)
from store.sqlite.copies import copy_database, open_read_only
from store.sqlite.files import create_private_file, restrict_to_owner

MARKET_MIGRATIONS = ("market_0001",)
ACCESS_MIGRATIONS = ("access_0001",)
CREATE_MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"
)
LOCK_TIMEOUT_S, RETRY_PAUSE_S = 5.0, 0.005
# A copy of the access file has the hashes of keys and the addresses of buyers, so it must not stay.
COPY_RETENTION_DAYS = 30
UNFINISHED = ".unfinished"

log = structlog.get_logger("store")


def migrate(path: Path, names: Sequence[str]) -> None:
    """Apply pending migrations to a database file, creating it if it does not exist.

    Only its owner may use a new file, or an access file. Raise StoreError if the file is another
    database or was written by another version, or if a migration fails, which then has changed
    nothing.
    """
    try:
        create_private_file(path)
        with closing(
            sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        ) as connection:
            is_new = not _list_applied(connection, path, names)
            # Not before it is known that the file is not another program's. Market data have no
            # addresses, so the operator may share an existing file of them.
            if names[0] in ACCESS_MIGRATIONS:
                restrict_to_owner(path)
            while len(_list_applied(connection, path, names)) < len(names):
                _apply_next(connection, path, names, is_new)
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


def delete_old_copies(path: Path, names: Sequence[str]) -> None:
    """Delete the copies that the named migrations made long ago; log each."""
    for copy in (_name_copy(path, name + end) for name in names for end in ("", UNFINISHED)):
        try:
            status = copy.lstat()
            days = int((time.time() - status.st_mtime) // 86_400)
            if stat.S_ISREG(status.st_mode) and days >= COPY_RETENTION_DAYS:
                copy.unlink()
                log.info("copy_deleted", copy=str(copy), age_days=days)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("copy_not_deleted", copy=str(copy), reason=error.strerror)


def _list_applied(connection: sqlite3.Connection, path: Path, names: Sequence[str]) -> list[str]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return []
    if "migrations" not in tables:
        raise StoreError(f"{path} is not a signals database: name another file")
    done = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
    check_applied(str(path), done, names)
    return done


def _apply_next(
    connection: sqlite3.Connection, path: Path, names: Sequence[str], is_new: bool
) -> None:
    """Apply the first pending migration; do nothing if another process has applied it meanwhile."""
    began = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    try:
        # List again under the write lock, because two processes may start at the same time.
        done = _list_applied(connection, path, names)
        if len(done) == len(names):
            connection.rollback()
            return
        name = names[len(done)]
        copy = None if is_new else _back_up(path, name)
        _apply(connection, path, name, copy)
    except BaseException:
        # Closing the connection rolls back too, if this fails.
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    if copy is not None:
        seconds = round(time.perf_counter() - began, 3)
        log.info("migrated", database=str(path), migration=name, seconds=seconds, copy=str(copy))


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


def _apply(connection: sqlite3.Connection, path: Path, name: str, copy: Path | None) -> None:
    """Run and commit a migration in the open transaction; StoreError names the step that fails."""
    step = "its beginning"
    try:
        connection.execute(CREATE_MIGRATIONS)
        for number, statement in enumerate(load_statements(name), 1):
            step = describe_statement(number, statement)
            connection.execute(statement)
        step = "its end"
        connection.execute("INSERT INTO migrations (name) VALUES (?)", (name,))
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        found = "The database is new, so there is no copy" if copy is None else f"A copy is {copy}"
        remedy = f"{found}: fix the cause and start again"
        raise StoreError(describe_failed_migration(str(path), name, step, error, remedy)) from error


def _back_up(path: Path, name: str) -> Path:
    """Copy the file before a migration; a copy under its final name is complete."""
    copy, unfinished = _name_copy(path, name), _name_copy(path, name + UNFINISHED)
    try:
        # A killed process can have left these.
        for left in (unfinished, unfinished.with_name(f"{unfinished.name}-journal")):
            left.unlink(missing_ok=True)
        copy_database(path, unfinished)
        os.replace(unfinished, copy)
    except (sqlite3.Error, OSError, StoreError) as error:
        remedy = "No copy was made: free disk space, or fix the cause, and start again"
        step = f"its copy {copy}"
        raise StoreError(describe_failed_migration(str(path), name, step, error, remedy)) from error
    return copy


def _name_copy(path: Path, name: str) -> Path:
    return path.absolute().with_name(f"{path.name}.before-{name}")


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
    # Of a table that no migration creates, its parts say nothing more.
    tables = {name for kind, name, _ in created if kind == "table"}
    told = {key: sql for key, sql in stored.items() if key[2] in {*tables, key[1]}}
    return list_schema_faults(_name_objects(told), _name_objects(created))


def _list_objects(connection: sqlite3.Connection) -> dict[tuple[str, str, str], str]:
    """Return the statement of each object by its type, name and table."""
    return {
        (kind, name, table): " ".join(_COMMENT.sub("", sql).replace('"', "").split())
        for kind, name, table, sql in connection.execute(_LIST_OBJECTS)
    }


def _name_objects(objects: dict[tuple[str, str, str], str]) -> SchemaObjects:
    return {f"{kind} {name}": sql for (kind, name, _), sql in objects.items()}
