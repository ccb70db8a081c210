"""The steps of docs/recovery.md on both databases: copy or archive, loss, recovery."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from access.keys import hash_key
from store.access_rows import LoggedCall
from store.postgres.access_store import open_postgres_access
from tests.service.commands.test_cli import only_line, write_bars
from tests.support.example_market import NOON
from tests.support.postgres.server import PostgresServer, SharedServer, build_unprivileged_command
from tests.support.row_builders import make_call_group
from tests.support.signals_command import ROOT, run_signals
from tests.support.store_homes import open_and_close

pytestmark = pytest.mark.clause("operation")

IS_RECOVERING = "SELECT pg_is_in_recovery()"
GUIDE = (ROOT / "docs" / "recovery.md").read_text()
COPY_ACCESS = re.search(r"^sqlite3 (\S+) (\"\.backup .+\")$", GUIDE, re.MULTILINE)
# The servers that the page is written for: their settings and recovery steps, as printed there.
ARCHIVE_SETTINGS = re.findall(r"^(wal_level|archive_\w+) = (.+)$", GUIDE, re.MULTILINE)
RECOVERY_SETTINGS = re.findall(r"^ +(restore_command|recovery_\w+) = (.+)$", GUIDE, re.MULTILINE)


def list_labels(folder: Path, **settings: str) -> list[str]:
    lines = run_signals(folder, "keys", "list", **settings).stdout.splitlines()
    return [line.split("\t")[-1] for line in lines]


def copy_access_file(source: Path, target: Path) -> None:
    """Copy as the page says, by the program that it names if that is installed."""
    assert COPY_ACCESS is not None
    if shutil.which("sqlite3") is not None:
        subprocess.run(["sqlite3", source, f".backup '{target}'"], check=True)
        return
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def test_a_store_is_restored_from_a_backup_and_a_newer_copy_of_its_access_file(tmp_path):
    store, lost = tmp_path / "store", tmp_path / "lost"
    store.mkdir()
    run_signals(store, "replay", "--bars", str(write_bars(store / "bars", count=30)))
    run_signals(store, "keys", "create", "--label", "before the backup")
    backup = Path(only_line(run_signals(store, "backup", str(tmp_path / "nightly")).stdout))
    run_signals(store, "keys", "create", "--label", "before the copy")
    copy_access_file(store / "signals.db-access", tmp_path / "latest-access")
    run_signals(store, "keys", "create", "--label", "after the copy")
    lost.mkdir()
    for file in store.glob("signals.db*"):
        file.rename(lost / file.name)
    (tmp_path / "latest-access").replace(backup / "signals.db-access")
    assert run_signals(store, "restore", str(backup)).returncode == 0
    assert list_labels(store) == ["before the backup", "before the copy"]
    assert run_signals(store, "audit").returncode == 0


@pytest.fixture
def archiving_postgres(postgres: SharedServer, tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that archives its log as the page says."""
    with PostgresServer.start_new(postgres.template) as server:
        server.stop()
        _run("mkdir", server.folder / "archive")
        _append(server.data, ARCHIVE_SETTINGS, server.folder)
        server.start()
        yield server


@pytest.mark.prove
def test_a_postgres_database_is_recovered_to_a_time(
    archiving_postgres: PostgresServer, postgres: SharedServer, tmp_path: Path
) -> None:
    server, programs = archiving_postgres, postgres.template.programs
    url = server.url()
    run_signals(tmp_path, "replay", "--bars", str(write_bars(tmp_path / "bars")), database_url=url)
    run_signals(tmp_path, "keys", "create", "--label", "before the base", database_url=url)
    base = server.folder / "base"
    _run(programs / "pg_basebackup", "-d", url, "-D", base, "-c", "fast", "-X", "none")
    created = run_signals(tmp_path, "keys", "create", "--label", "after the base", database_url=url)
    key_hash = hash_key(created.stdout.strip())
    assert asyncio.run(_count(url, key_hash, 3)) == 3
    time = asyncio.run(_fetch(url, "SELECT now()"))
    run_signals(tmp_path, "keys", "create", "--label", "by mistake", database_url=url)
    asyncio.run(_fetch(url, "SELECT pg_switch_wal()"))
    asyncio.run(_wait_until_archived(url))
    server.stop()
    _run("mv", server.data, server.folder / "lost")
    _run("mv", base, server.data)
    (server.data / "recovery.signal").touch()
    settings = [
        (name, value.replace("2026-11-23 14:05:00+00", str(time)))
        for name, value in RECOVERY_SETTINGS
    ]
    assert settings != RECOVERY_SETTINGS
    _append(server.data, settings, server.folder)
    server.start()
    asyncio.run(_wait_until_promoted(url))
    assert list_labels(tmp_path, database_url=url) == ["before the base", "after the base"]
    assert asyncio.run(_count(url, key_hash, 1)) == 4
    assert run_signals(tmp_path, "audit", database_url=url).returncode == 0


def _run(*command: object) -> None:
    done = subprocess.run(build_unprivileged_command(*command), cwd="/", capture_output=True)
    assert done.returncode == 0, done.stderr


def _append(data: Path, settings: list[tuple[str, str]], folder: Path) -> None:
    """Append settings of the page to a server's file, with its folder for the one of the page."""
    assert settings
    lines = [f"{name} = {value}\n" for name, value in settings]
    text = "".join(lines).replace("/var/lib/postgresql/archive", str(folder / "archive"))
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(text)


async def _fetch(url: str, query: str) -> object:
    session = await asyncpg.connect(url)
    try:
        return await session.fetchval(query)
    finally:
        await session.close()


async def _wait_until_archived(url: str) -> None:
    """Wait until the segment that was just completed is in the archive."""
    done = (
        "SELECT last_archived_wal >= (SELECT pg_walfile_name(pg_current_wal_lsn() - 1)) "
        "FROM pg_stat_archiver"
    )
    async with asyncio.timeout(60):
        while not await _fetch(url, done):  # noqa: ASYNC110 (the server offers no event)
            await asyncio.sleep(0.01)


async def _wait_until_promoted(url: str) -> None:
    async with asyncio.timeout(60):
        while await _fetch(url, IS_RECOVERING):  # noqa: ASYNC110 (the server offers no event)
            await asyncio.sleep(0.01)


async def _count(url: str, key_hash: bytes, calls: int) -> int:
    """Count calls of a key, and log one; return its count."""
    async with open_and_close(open_postgres_access(url)) as access:
        for _ in range(calls):
            (decided,) = await access.count_calls([make_call_group(key_hash, NOON)], None, 10)
        key_id = await access.find_key_id(key_hash)
        assert key_id is not None
        call = LoggedCall(NOON, "id-1", "signals_get_state", "rest", "ok", 200)
        await access.add_calls({key_id: [call]}, 100)
    return decided.used
