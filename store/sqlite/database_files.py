"""The files of a SQLite database: their rights, their loss, copies and checks, room on the disk."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import structlog

from store.store_errors import LostStoreError, StoreError

OWNER_ONLY = 0o600
OTHERS = stat.S_IRWXG | stat.S_IRWXO
CHECK_INTERVAL_S = 1.0
MOUNTS = Path("/proc/self/mountinfo")
# Their clients do not share memory or locks, which SQLite's log needs. WSL mounts the disks of
# Windows as 9p or drvfs.
REMOTE_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "afs",
        "ceph",
        "cifs",
        "drvfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb2",
        "smb3",
        "smbfs",
    ]
)

log = structlog.get_logger("store")


def sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def restrict_to_owner(path: Path) -> None:
    """Take a database file and its log from the group and all others; log a change."""
    # SQLite gives the files of its log the mode of the database file. The access file and its log
    # have e-mail addresses and the hashes of keys.
    path, changed_modes = path.resolve(), list[int]()
    try:
        for file in (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")):
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(file.stat().st_mode)
                if mode & OTHERS:
                    file.chmod(mode & ~OTHERS)
                    changed_modes.append(mode)
    except PermissionError:
        log.warning("file_not_private", file=str(path), reason="it belongs to another user")
        return
    if changed_modes:
        log.warning("file_made_private", file=str(path), mode=f"{changed_modes[0]:04o}")


def find_remote_file_system(path: Path) -> str | None:
    """Return the type of the file system of a path if SQLite's log does not work there, else None.

    Without a table of mounts, which only Linux has, it is not known.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    folders, found = [path.resolve(), *path.resolve().parents], (0, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        # A space of a name is written as \040.
        mounted_at = Path(before.split()[4].replace("\\040", " "))
        # The last one covers those before it.
        if mounted_at in folders and len(mounted_at.parts) >= found[0]:
            found = len(mounted_at.parts), after.split()[0]
    return found[1] if found[1] in REMOTE_FILE_SYSTEMS else None


class FileGuard:
    """Notices that an open database file, or its log, was deleted, replaced or truncated.

    SQLite itself would continue with the deleted file, and all that it writes would be lost.
    """

    def __init__(self, path: Path) -> None:
        """Remember the files at `path` as they are now."""
        self._path = path
        self._log_path = path.resolve().with_name(f"{path.resolve().name}-wal")
        self._next_check_at = 0.0
        self._fault: str | None = None
        self._log_file: tuple[int, int] | None = None
        try:
            status = os.stat(path)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
        self._file, self._size = (status.st_dev, status.st_ino), status.st_size

    def check_often(self, count_bytes: Callable[[], int]) -> None:
        """Check at most once a second, which costs a call less than a microsecond."""
        now = time.monotonic()
        if now >= self._next_check_at:
            self._next_check_at = now + CHECK_INTERVAL_S
            self._fault = self._find_fault(count_bytes)
        if self._fault is not None:
            raise LostStoreError(
                f"{self._fault} while in use: stop the service, put the file back or restore a "
                "backup (`signals restore`), then start the service"
            )

    def check(self, count_bytes: Callable[[], int]) -> None:
        """Raise LostStoreError if the files are not those that were opened.

        `count_bytes` returns how large SQLite takes the database to be.
        """
        self._next_check_at = 0.0
        self.check_often(count_bytes)

    def _find_fault(self, count_bytes: Callable[[], int]) -> str | None:
        try:
            status = os.stat(self._path)
            log_status = os.stat(self._log_path)
        except FileNotFoundError as error:
            return f"{error.filename} was deleted or moved"
        except OSError as error:
            return f"{self._path} is not accessible ({error.strerror})"
        log_file = (log_status.st_dev, log_status.st_ino)
        # SQLite creates the log with the first transaction after opening.
        self._log_file = self._log_file or log_file
        if (status.st_dev, status.st_ino) != self._file:
            return f"{self._path} was replaced"
        if log_file != self._log_file:
            return f"{self._log_path} was replaced"
        # The operator may have run VACUUM, after which SQLite knows of fewer pages.
        if not status.st_size or self._size > status.st_size < count_bytes():
            return f"{self._path} was truncated"
        self._size = status.st_size
        return None


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
