"""The files of a SQLite database: only their owner may use them, and none may go while in use."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from store.errors import LostStoreError, StoreError

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


def create_private_file(path: Path) -> None:
    """Create an empty file that only its owner may use; do nothing if the file exists."""
    # An existing file is never opened: closing it would release SQLite's locks on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))


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
    path = path.resolve()
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    try:
        if changed_modes := [mode for mode in map(_restrict, files) if mode is not None]:
            log.warning("file_made_private", file=str(path), mode=f"{changed_modes[0]:04o}")
    except PermissionError:
        log.warning("file_not_private", file=str(path), reason="it belongs to another user")


def _restrict(path: Path) -> int | None:
    """Keep only the owner's rights; return the previous mode if it had others, else None."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & OTHERS:
            return None
        path.chmod(mode & ~OTHERS)
    except FileNotFoundError:
        return None
    return mode


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

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember the files at `path` as they are now; `clock` returns seconds."""
        self._path = path
        self._log_path = path.resolve().with_name(f"{path.resolve().name}-wal")
        self._clock = clock
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
        if self._clock() >= self._next_check_at:
            self.check(count_bytes)
        elif self._fault is not None:
            raise self._build_error(self._fault)

    def check(self, count_bytes: Callable[[], int]) -> None:
        """Raise LostStoreError if the files are not those that were opened.

        `count_bytes` returns how large SQLite takes the database to be.
        """
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        self._fault = self._find_fault(count_bytes)
        if self._fault is not None:
            raise self._build_error(self._fault)

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

    def _build_error(self, fault: str) -> LostStoreError:
        return LostStoreError(
            f"{fault} while in use: stop the service, put the file back or restore a backup "
            "(`signals restore`), then start the service"
        )
