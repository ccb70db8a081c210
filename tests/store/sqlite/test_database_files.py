"""Copies of files in use are consistent, complete and readable only by their owner.

The files of a SQLite database: on which file systems they may lie.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from store.sqlite.database_files import (
    RESERVE_BYTES,
    SPARE_BYTES,
    check_integrity,
    copy_database,
    find_remote_file_system,
    free_spare,
    keep_spare,
)
from store.store_errors import StoreError
from tests.support.row_builders import run_sql

pytestmark = pytest.mark.clause("store")

ROWS = 400


@pytest.fixture
def used(path: Path) -> Iterator[sqlite3.Connection]:
    """A writer on a file in use; both tables always have the same number of rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        for table in ("a", "b"):
            writer.execute(f"CREATE TABLE {table} (text)")
        for _ in range(ROWS):
            write(writer)
        yield writer


def write(writer: sqlite3.Connection) -> None:
    writer.execute("BEGIN")
    for table in ("a", "b"):
        writer.execute(f"INSERT INTO {table} VALUES (zeroblob(2000))")
    writer.execute("COMMIT")


def count(path: Path) -> tuple[int, int]:
    rows = run_sql(path, "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)")
    return rows[0][0], rows[0][1]


def test_a_copy_is_of_one_moment_however_much_is_written_meanwhile(
    used: sqlite3.Connection, path: Path, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []

    def progressed(done: int, total: int) -> None:
        steps.append((done, total))
        assert len(steps) < 100, "it begins again with every write"
        write(used)

    copy_database(path, tmp_path / "copy.db", progressed, pages_per_step=50)
    assert len(steps) > 5
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]
    assert count(path) == (ROWS + len(steps),) * 2
    assert count(tmp_path / "copy.db") == (ROWS, ROWS)


@pytest.mark.usefixtures("used")
def test_a_copy_is_one_file_that_only_its_owner_can_read(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    copy_database(path, folder / "copy.db")
    assert count(folder / "copy.db") == (ROWS, ROWS)
    assert [file.name for file in folder.iterdir()] == ["copy.db"]
    assert stat.S_IMODE((folder / "copy.db").stat().st_mode) == 0o600


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("checks", [0, 2])
def test_a_copy_that_would_leave_too_little_room_is_deleted(
    path: Path, tmp_path: Path, checks: int
) -> None:
    # Another program fills the disk after some steps.
    size = path.stat().st_size + path.with_name(f"{path.name}-wal").stat().st_size
    room = [*[10 * RESERVE_BYTES] * checks, RESERVE_BYTES + 1]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(StoreError, match=r"no room for a copy of .* 256,000,000 must stay free"):
        copy_database(path, folder / "copy.db", pages_per_step=50, count_free=lambda _: room.pop(0))
    assert (list(folder.iterdir()), room) == ([], [])
    copy_database(path, folder / "copy.db", count_free=lambda _: RESERVE_BYTES + size)
    assert count(folder / "copy.db") == (ROWS, ROWS)


def test_the_spare_file_never_takes_the_reserve_and_an_incomplete_one_is_written_again(
    tmp_path: Path,
) -> None:
    # SQLite writes its log next to the file that a link points to.
    path, spare = tmp_path / "link.db", tmp_path / "used.db-spare"
    path.symlink_to("used.db")
    keep_spare(path, lambda _: SPARE_BYTES + RESERVE_BYTES - 1)
    assert not spare.exists()
    spare.write_text("incomplete")
    keep_spare(path, lambda _: SPARE_BYTES + RESERVE_BYTES)
    content = spare.read_bytes()
    assert len(content) == SPARE_BYTES
    keep_spare(path, lambda _: SPARE_BYTES + RESERVE_BYTES)
    assert spare.read_bytes() == content
    free_spare(path)
    free_spare(path)
    assert not spare.exists()


@pytest.mark.usefixtures("used")
def test_no_file_is_overwritten(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_database(path, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open"):
        check_integrity(tmp_path / "missing.db")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pragma", ["integrity_check", "quick_check"])
@pytest.mark.parametrize("damage", ["cut", "zeroed"])
def test_a_damaged_file_is_reported_in_one_line(
    used: sqlite3.Connection, path: Path, pragma: str, damage: str
) -> None:
    used.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    check_integrity(path, pragma)
    size = path.stat().st_size
    if damage == "cut":
        os.truncate(path, size // 2 // 4096 * 4096)
    else:
        with path.open("r+b") as file:
            file.seek(size // 2 // 4096 * 4096)
            file.write(bytes(8192))
    with pytest.raises(StoreError, match=r"damaged|malformed") as refusal:
        check_integrity(path, pragma)
    assert "\n" not in str(refusal.value)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:27 / /mnt/c rw,noatime - 9p drvfs rw,aname=drvfs;path=C:
31 22 0:31 / /srv rw - nfs4 server:/export rw,vers=4.2
32 31 0:32 / /srv/local rw - ext4 /dev/sdb1 rw
33 22 0:33 / /mnt/with\\040space rw - cifs //server/share rw
34 22 8:2 / /twice rw - ext4 /dev/sdc1 rw
35 34 0:35 / /twice rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/signals", None),
        ("/mnt/c/Users/me", "9p"),
        ("/srv", "nfs4"),
        ("/srvdata", None),
        ("/srv/local/signals", None),
        ("/mnt/with space", "cifs"),
        ("/twice/here", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: str | None
) -> None:
    monkeypatch.setattr("store.sqlite.database_files.MOUNTS", tmp_path / "mountinfo")
    assert find_remote_file_system(Path(folder)) is None
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert find_remote_file_system(Path(folder)) == kind
