"""The files of a SQLite database: on which file systems they may lie."""

from pathlib import Path

import pytest

from store.sqlite import files

pytestmark = pytest.mark.clause("store")

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
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "mountinfo")
    assert files.find_remote_file_system(Path(folder)) is None
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert files.find_remote_file_system(Path(folder)) == kind
