"""A backup is complete or missing, and a restored store equals the original."""

import asyncio
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.commands.test_cli import refused, write_bars
from tests.support.example_market import make_coverage
from tests.support.row_builders import run_sql
from tests.support.running_service import RunningService, fetch, run_service
from tests.support.signals_command import list_rows, run_signals

pytestmark = pytest.mark.clause("operation")

NAMES = ["signals.db", "signals.db-access"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A folder with bars, a store of them, and a key."""
    folder = tmp_path_factory.mktemp("filled")
    run_signals(folder, "replay", "--bars", str(write_bars(folder / "bars", count=30)))
    run_signals(folder, "keys", "create", "--label", "me")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def elsewhere(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'other.db'}"


def test_a_restored_backup_passes_the_audit_and_has_the_same_keys(filled, tmp_path):
    backed = run_signals(filled, "backup", str(tmp_path / "backup"))
    assert (backed.returncode, backed.stdout) == (0, f"{tmp_path / 'backup'}\n")
    url = elsewhere(tmp_path / "other")
    restored = run_signals(filled, "restore", str(tmp_path / "backup"), database_url=url)
    assert (restored.returncode, restored.stdout) == (0, "")
    # The backup is a store too.
    for store in (url, f"sqlite:///{tmp_path / 'backup' / 'signals.db'}"):
        audited = run_signals(filled, "audit", database_url=store)
        assert (audited.returncode, audited.stdout.splitlines()[-1]) == (0, "clean")
    listed = [
        run_signals(filled, "keys", "list", **at).stdout for at in ({}, {"database_url": url})
    ]
    assert listed[0] == listed[1] != ""


def test_a_backup_is_next_to_the_store_named_by_time_and_private(filled):
    (line,) = run_signals(filled, "backup").stdout.splitlines()
    folder = Path(line)
    assert folder.parent == filled
    assert folder.match("signals.db.backup-20??????T??????Z")
    assert files(folder) == NAMES
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *sorted(folder.iterdir()))]
    assert modes == [0o700, 0o600, 0o600]


def test_an_empty_folder_is_accepted_and_a_used_one_refused(filled, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run_signals(filled, "backup", str(tmp_path / "empty")).returncode == 0
    before = {file: file.read_bytes() for file in (tmp_path / "empty").iterdir()}
    line = refused(filled, "backup", str(tmp_path / "empty"), status=2)
    assert line.endswith("/empty exists and is not an empty folder: choose another path")
    assert {file: file.read_bytes() for file in (tmp_path / "empty").iterdir()} == before


def test_a_file_and_a_missing_folder_are_refused_in_one_line(filled, tmp_path):
    (tmp_path / "file").touch()
    for used in (".", "..", "/", str(tmp_path / "file")):
        assert " exists and is not an empty folder" in refused(filled, "backup", used, status=2)
    assert "cannot back up" in refused(filled, "backup", str(tmp_path / "missing" / "copy"))
    assert files(tmp_path) == ["file"]


@pytest.mark.parametrize("there", ["copy.unfinished", "copy.unfinished-old"])
def test_a_backup_removes_no_folder_that_it_did_not_make(filled, tmp_path, there):
    (tmp_path / there).mkdir()
    (tmp_path / there / "signals.db").write_text("mine")
    assert run_signals(filled, "backup", str(tmp_path / "copy")).returncode == 0
    assert files(tmp_path) == ["copy", there]
    assert (tmp_path / there / "signals.db").read_text() == "mine"


def test_a_backup_that_fails_leaves_nothing(filled, tmp_path):
    folder = Path(shutil.copytree(filled, tmp_path / "store"))
    (folder / "signals.db").write_bytes(b"not a database, but long enough for a header" * 100)
    refused(folder, "backup", str(tmp_path / "copy"))
    assert files(tmp_path) == ["store"]


# What a kill leaves after each step of a restore: the files in place, and those that are not yet.
@pytest.mark.parametrize(
    ("in_place", "copied"),
    [
        ((), ()),
        ((), ("-access",)),
        ((), ("-access", "")),
        (("-access",), ("",)),
    ],
)
@pytest.mark.prove
def test_a_restore_that_was_killed_ends_right_when_it_runs_again(
    filled, tmp_path, in_place, copied
):
    run_signals(filled, "backup", str(tmp_path / "backup"))
    url = elsewhere(tmp_path / "other")
    for suffix in in_place:
        shutil.copy(
            tmp_path / "backup" / f"signals.db{suffix}", tmp_path / f"other/other.db{suffix}"
        )
    for suffix in copied:
        (tmp_path / "other" / f"other.db{suffix}.unfinished").write_text("half")
        (tmp_path / "other" / f"other.db{suffix}.unfinished-journal").write_text("half")
    if in_place:
        line = refused(filled, "replay", "--bars", str(filled / "bars"), database_url=url)
        assert "restore a backup (`signals restore DIR`)" in line
    for _ in copied:
        run_signals(filled, "restore", str(tmp_path / "backup"), database_url=url)
    run_signals(filled, "restore", str(tmp_path / "backup"), database_url=url)
    assert run_signals(filled, "audit", database_url=url).returncode == 0
    assert len(list_rows(filled, "keys", "list", database_url=url)) == 1
    assert [name for name in files(tmp_path / "other") if "unfinished" in name] == []


@pytest.mark.prove
def test_lost_market_data_are_restored_and_the_keys_of_since_stay(filled, tmp_path):
    folder = Path(shutil.copytree(filled, tmp_path / "store"))
    run_signals(folder, "backup", str(tmp_path / "backup"))
    run_signals(folder, "keys", "create", "--label", "since")
    for file in folder.glob("signals.db*"):
        if file.name in {"signals.db", "signals.db-wal", "signals.db-shm"}:
            file.unlink()
    done = run_signals(folder, "restore", str(tmp_path / "backup"))
    assert "signals.db-access is the store of keys of this backup: it stays" in done.stderr
    assert run_signals(folder, "audit").returncode == 0
    assert "since" in run_signals(folder, "keys", "list").stdout


@pytest.mark.parametrize("there", ["", "-wal", "-shm", "-access", "-access-wal"])
def test_a_restore_overwrites_no_file(filled, tmp_path, there):
    run_signals(filled, "backup", str(tmp_path / "backup"))
    url = elsewhere(tmp_path / "other")
    (tmp_path / "other" / f"other.db{there}").write_text("mine")
    line = refused(filled, "restore", str(tmp_path / "backup"), database_url=url)
    assert f"/other.db{there} already exists" in line
    assert files(tmp_path / "other") == [f"other.db{there}"]
    assert (tmp_path / "other" / f"other.db{there}").read_text() == "mine"


def swapped(backup: Path) -> None:
    (backup / "signals.db").replace(backup / "signals.db-access")
    (backup / "signals.db").write_bytes((backup / "signals.db-access").read_bytes())


def foreign(backup: Path) -> None:
    (backup / "signals.db").unlink()
    run_sql(backup / "signals.db", "CREATE TABLE other (id INTEGER)")


def damaged(backup: Path) -> None:
    """Overwrite the page of a table; opening the file does not notice it."""
    path = backup / "signals.db"
    (page,) = run_sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'carries'")[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


NEWER = "INSERT INTO migrations VALUES ('access_9999')"
# Whether the error says that something is missing.
HARMS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "no file": (lambda backup: [path.unlink() for path in backup.iterdir()], True),
    "no keys": (lambda backup: (backup / "signals.db-access").unlink(), True),
    "empty": (lambda backup: (backup / "signals.db").write_bytes(b""), True),
    "newer": (lambda backup: run_sql(backup / "signals.db-access", NEWER), False),
    "swapped": (swapped, False),
    "foreign": (foreign, False),
    "damaged": (damaged, False),
}


@pytest.mark.parametrize(("harm", "is_missing"), HARMS.values(), ids=HARMS)
def test_a_damaged_backup_is_not_restored(filled, tmp_path, harm, is_missing):
    run_signals(filled, "backup", str(tmp_path / "backup"))
    harm(tmp_path / "backup")
    line = refused(
        filled, "restore", str(tmp_path / "backup"), database_url=elsewhere(tmp_path / "other")
    )
    assert ("is not a complete backup" in line) is is_missing
    assert files(tmp_path / "other") == []


async def paid(served: RunningService) -> str:
    """Start and pay a checkout; return its claim token."""
    body = {"contact_email": "agent@example.com"}
    begun = (await served.client.post("/api/v1/access/checkout", json=body)).json()
    page = await served.client.post(begun["checkout_url"], data={"action": "pay"})
    assert page.status_code == 200
    return str(begun["claim_token"])


async def claimed(served: RunningService, token: str) -> dict[str, Any]:
    answer = await served.client.post("/api/v1/access/claim", json={"claim_token": token})
    assert answer.status_code == 200, answer.text
    claim: dict[str, Any] = answer.json()
    return claim


@pytest.mark.prove
async def test_a_checkout_that_was_paid_just_before_the_backup_is_claimed_after(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (f"sqlite:///{tmp_path / name / 'market.db'}" for name in ("first", "second"))
    async with run_service(tmp_path / "first", make_coverage()) as served:
        token = await paid(served)
        backed = await asyncio.to_thread(
            run_signals, tmp_path, "backup", "copy", database_url=first
        )
        assert backed.returncode == 0, backed.stderr
        late = await paid(served)
        lost_key = (await claimed(served, token))["api_key"]
    restored = await asyncio.to_thread(
        run_signals, tmp_path, "restore", "copy", database_url=second
    )
    assert restored.returncode == 0, restored.stderr
    async with run_service(tmp_path / "second") as served:
        assert (await served.get_api("/usage", x_api_key=lost_key)).status_code == 401
        claim = await claimed(served, token)
        usage = await served.client.get(
            "/api/v1/usage", headers={"Authorization": f"Bearer {claim['api_key']}"}
        )
        assert (usage.status_code, usage.json()["quota"]["used_today"]) == (200, 1)
        await fetch(served.client, "POST", "/api/v1/access/claim", 404, json={"claim_token": late})
