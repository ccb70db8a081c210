"""Consistent copies of SQLite files that are in use, and integrity checks."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from store.errors import StoreError


def copy_database(
    path: Path,
    target: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    pages_per_step: int = 2000,
) -> None:
    """Copy a database file as of now into a new file that only its owner can read.

    `on_progress` is called with the pages copied and their total. Raise FileExistsError if `target`
    exists.
    """
    target.touch(mode=0o600, exist_ok=False)
    with closing(open_read_only(path)) as source, closing(sqlite3.connect(target)) as destination:
        # Without an open read transaction every commit of a writer would restart the backup. SQLite
        # starts the transaction with the first read, not with BEGIN.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        source.backup(
            destination,
            pages=pages_per_step,
            progress=lambda _, remaining, total: on_progress(total - remaining, total),
            sleep=0,
        )
        source.rollback()
        # The copied header says WAL; without this the copy would have a -wal file next to it.
        destination.execute("PRAGMA journal_mode = DELETE").fetchone()


def check_integrity(path: Path, pragma: str = "integrity_check") -> None:
    """Check a whole file; raise StoreError naming the first fault (`quick_check` skips indexes)."""
    try:
        with closing(open_read_only(path)) as connection:
            (found,) = connection.execute(f"PRAGMA {pragma}(1)").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error
    if found != "ok":
        raise StoreError(f"{path} is damaged: {' '.join(str(found).split())}")


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open an existing file read-only; raise sqlite3.OperationalError if it is missing."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    connection.isolation_level = None
    return connection
