"""Whole copies of SQLite files in use, and whether a file is whole."""

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
    """Copy a file as it is at this moment into a new one that its owner alone can read.

    One read transaction spans the copy, so writers neither wait nor make it begin again. The copy
    keeps no log beside it. `progressed` is told the pages done and those there are.
    """
    target.touch(mode=0o600, exist_ok=False)
    with closing(open_read_only(path)) as source, closing(sqlite3.connect(target)) as destination:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        source.backup(
            destination,
            pages=pages_per_step,
            progress=lambda _, remaining, total: on_progress(total - remaining, total),
            sleep=0,
        )
        source.rollback()
        destination.execute("PRAGMA journal_mode = DELETE").fetchone()


def check_integrity(path: Path, pragma: str = "integrity_check") -> None:
    """Read a file through; StoreError names the first fault (`quick_check` leaves indexes out)."""
    try:
        with closing(open_read_only(path)) as connection:
            (found,) = connection.execute(f"PRAGMA {pragma}(1)").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error
    if found != "ok":
        raise StoreError(f"{path} is damaged: {' '.join(str(found).split())}")


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a file that must be there; nothing is written to it."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    connection.isolation_level = None
    return connection
