"""Consistent copies of SQLite files in use, integrity checks, and room kept on the disk."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from store.errors import StoreError

# A service on a full disk answers every call with 503, so a copy never takes the last room. This
# is a week of commits and calls.
RESERVE_BYTES = 256_000_000

# SQLite writes a log even to delete rows, which a full disk has no room for. `signals prune` needs
# about half of this: 7.7 MB for a store of three million changes.
SPARE_BYTES = 16_000_000


def count_free_bytes(folder: Path) -> int:
    """Return how many bytes a user other than root may still write."""
    return shutil.disk_usage(folder).free


def keep_spare(path: Path, count_free: Callable[[Path], int] = count_free_bytes) -> None:
    """Write the spare file of a database, unless it exists or the disk has no room to spare."""
    spare = _name_spare(path)
    with suppress(OSError):
        # A file of another size was not completed.
        if spare.exists() and spare.stat().st_size == SPARE_BYTES:
            return
        if count_free(spare.parent) >= SPARE_BYTES + RESERVE_BYTES:
            spare.touch(mode=0o600)
            # Random, because a file system that compresses would keep no room for zeros.
            spare.write_bytes(os.urandom(SPARE_BYTES))


def free_spare(path: Path) -> None:
    """Delete the spare file of a database, so that there is room for its log."""
    with suppress(OSError):
        _name_spare(path).unlink()


def _name_spare(path: Path) -> Path:
    # SQLite writes the log next to the file itself, not next to a link to it.
    path = path.resolve()
    return path.with_name(f"{path.name}-spare")


def copy_database(
    path: Path,
    target: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    pages_per_step: int = 2000,
    count_free: Callable[[Path], int] = count_free_bytes,
) -> None:
    """Copy a database file as of now into a new file that only its owner can read.

    `on_progress` is called with the pages copied and their total. Raise FileExistsError if `target`
    exists, StoreError if the copy would leave less than RESERVE_BYTES; a failed copy is deleted.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        with (
            closing(open_read_only(path)) as source,
            closing(sqlite3.connect(target)) as destination,
        ):
            # Without an open read transaction every commit of a writer would restart the backup.
            # SQLite starts the transaction with the first read, not with BEGIN.
            source.execute("BEGIN")
            (page_count,) = source.execute("PRAGMA page_count").fetchone()
            (page_bytes,) = source.execute("PRAGMA page_size").fetchone()

            # Others write meanwhile, so the room is checked before each step.
            def report(status: int, remaining: int, total: int) -> None:
                if count_free(target.parent) < remaining * page_bytes + RESERVE_BYTES:
                    raise StoreError(
                        f"no room for a copy of {path}: it needs {total * page_bytes:,} bytes in "
                        f"{target.parent}, and {RESERVE_BYTES:,} must stay free there"
                    )
                on_progress(total - remaining, total)

            report(0, page_count, page_count)
            source.backup(destination, pages=pages_per_step, progress=report, sleep=0)
            source.rollback()
            # The copied header says WAL; without this the copy would have a -wal file next to it.
            destination.execute("PRAGMA journal_mode = DELETE").fetchone()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


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
