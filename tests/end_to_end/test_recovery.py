"""The steps of docs/recovery.md on both databases: copy or archive, loss, recovery."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
import httpx
import pytest

from access.keys import hash_key
from schemas.vocabulary import format_instant
from store.access_rows import LoggedCall
from store.opening import open_postgres_access
from tests.service.commands.test_cli import only_line, write_bars
from tests.support.example_market import NOON
from tests.support.postgres.server import PostgresServer, SharedServer, build_unprivileged_command
from tests.support.row_builders import make_call_group
from tests.support.signals_command import (
    ROOT,
    build_faketime_variables,
    create_store,
    find_free_port,
    list_rows,
    parse_events,
    run_signals,
    start_signals,
    write_cut_universe,
)
from tests.support.store_homes import open_and_close

IS_PROMOTED = "SELECT NOT pg_is_in_recovery()"
# Whether the segment that was just completed is in the archive.
IS_ARCHIVED = """
SELECT last_archived_wal >= (SELECT pg_walfile_name(pg_current_wal_lsn() - 1))
FROM pg_stat_archiver
"""
GUIDE = (ROOT / "docs" / "recovery.md").read_text()
COPY_ACCESS = re.search(r"^sqlite3 (\S+) (\"\.backup .+\")$", GUIDE, re.MULTILINE)
# The servers that the page is written for: their settings and recovery steps, as printed there.
ARCHIVE_SETTINGS = re.findall(r"^(wal_level|archive_\w+) = (.+)$", GUIDE, re.MULTILINE)
RECOVERY_SETTINGS = re.findall(r"^ +(restore_command|recovery_\w+) = (.+)$", GUIDE, re.MULTILINE)


def list_labels(folder: Path, **settings: str) -> list[str]:
    return [key["label"] for key in list_rows(folder, "keys", "list", **settings)]


def copy_access_file(source: Path, target: Path) -> None:
    """Copy as the page says, by the program that it names if that is installed."""
    assert COPY_ACCESS is not None
    if shutil.which("sqlite3") is not None:
        subprocess.run(["sqlite3", source, f".backup '{target}'"], check=True)
        return
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


@pytest.mark.clause("operation")
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


@pytest.mark.clause("operation")
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
    asyncio.run(_wait_until(url, IS_ARCHIVED))
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
    asyncio.run(_wait_until(url, IS_PROMOTED))
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


async def _wait_until(url: str, query: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await _fetch(url, query):
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


# At 01:00 the bar of OKB is late: it comes nine and a half minutes after its close.
EVENING, MIDNIGHT = "2026-11-14 19:40:00", "2026-11-15T00:00:00+00:00"
LATE, LATE_CLOSE_S, ARRIVES_AFTER_S = "OKB", 3600, 566
TICKERS = {"BTC", "ETH", "NVDA", "XAU", LATE}
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
# Only a machine that makes no progress at all takes so long.
WITHIN_S = 300
MIDNIGHT_MS = int(datetime.fromisoformat(MIDNIGHT).timestamp() * 1000)


@dataclass(frozen=True)
class PassMade:
    market_time: int
    written_at: int
    rows: int
    published: int
    late: frozenset[str]


def commits_after(folder: Path, market_time: int) -> list[PassMade]:
    """Return the commits with a later market time, oldest first."""
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        found = db.execute(
            "SELECT number, market_time, written_at, first_created_at, last_created_at "
            "FROM passes WHERE market_time > ? ORDER BY number",
            (market_time,),
        ).fetchall()
        made = []
        for number, time, written_at, first, last in found:
            counts = (
                "SELECT count(*), total(published) FROM changes WHERE created_at BETWEEN ? AND ?"
            )
            rows, published = db.execute(counts, (first, last)).fetchone()
            late = db.execute(
                "SELECT ticker FROM watermarks JOIN assets ON id = asset_id "
                "WHERE watermarks.pass = ? AND late > 0",
                (number,),
            )
            tickers = frozenset(ticker for (ticker,) in late)
            made.append(PassMade(time, written_at, rows, int(published), tickers))
        return made


def print_table(made: Sequence[PassMade], rate: int) -> None:
    print(f"\nrate x{rate}; lateness is from :03:00 to the time of writing, on the driven clock")
    print("| run | written | lateness s | rows | published | late |")
    print("|---|---|--:|--:|--:|---|")
    for row in made:
        hour, written = format_instant(row.market_time)[:16], format_instant(row.written_at)[11:23]
        lateness = (row.written_at - row.market_time) / 1000
        late = " ".join(sorted(row.late))
        print(f"| {hour} | {written} | {lateness:.1f} | {row.rows} | {row.published} | {late} |")


@pytest.mark.clause("steps", "access")
@pytest.mark.prove
@pytest.mark.long
# The starts leave a busy machine 54 and 39 seconds before the first run after midnight is due.
@pytest.mark.parametrize(
    ("rate", "start", "runs"),
    [(20, "2026-11-14 23:45:00", 2), (90, "2026-11-14 23:04:00", 6)],
)
def test_a_driven_clock_is_followed_over_midnight(tmp_path, rate, start, runs):
    driven = build_faketime_variables(start, rate)
    if not driven:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    universe, port = write_cut_universe(tmp_path, TICKERS), find_free_port()
    with start_signals(
        tmp_path, "compute", clock_variables=build_faketime_variables(EVENING, 1), universe=universe
    ) as process:
        process.wait_for_line("Computing ")
        assert process.stop() == 0
    api_key = run_signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()

    with start_signals(
        tmp_path, "serve", clock_variables=driven, port=port, universe=universe
    ) as process:
        process.wait_for_line("Listening on ")
        for number in range(runs):
            hour = format_instant(MIDNIGHT_MS + number * HOUR_MS)
            process.wait_for_event("run", WITHIN_S + 3600 / rate, hour=hour)
        address = f"http://127.0.0.1:{port}/api/v1/state"
        meta = httpx.get(address, headers={"X-Api-Key": api_key}, timeout=WITHIN_S).json()["meta"]
        assert process.stop() == 0

    made = commits_after(tmp_path, MIDNIGHT_MS - 5 * HOUR_MS + 3 * MINUTE_MS)
    print_table(made, rate)
    caught_up, live = made[0], made[1:]
    assert caught_up.market_time == MIDNIGHT_MS - HOUR_MS + 3 * MINUTE_MS
    assert caught_up.rows > 0
    hours = [(row.market_time - 3 * MINUTE_MS - MIDNIGHT_MS) // HOUR_MS for row in live]
    assert sorted(set(hours)) == list(range(max(hours) + 1))
    assert max(hours) >= runs - 1
    for hour in set(hours):
        first = next(row for row in live if row.market_time >= MIDNIGHT_MS + hour * HOUR_MS)
        assert 0 <= first.written_at - first.market_time < HOUR_MS
    for row in live:
        waits = row.market_time == MIDNIGHT_MS + LATE_CLOSE_S * 1000 + 3 * MINUTE_MS
        arrives = MIDNIGHT_MS + (LATE_CLOSE_S + ARRIVES_AFTER_S) * 1000
        if not waits or row.written_at < arrives:
            # Bars that a run fetched before they arrived may be written after it.
            assert (LATE in row.late) == waits, row
    assert meta["as_of"] >= format_instant(MIDNIGHT_MS + (runs - 1) * HOUR_MS + 3 * MINUTE_MS)
    assert (meta.get("simulated", False), meta.get("stale", False)) == (True, False)
    logged = parse_events(process.printed)
    assert not [event for event in logged if "failed" in event["event"]]
    pruned = [place for place, event in enumerate(logged) if event["event"] == "pruned"]
    assert len(pruned) == 1 + (runs - 1) // 24
    assert logged[pruned[0] - 1]["hour"].endswith("T00:00:00.000Z")
    done = run_signals(tmp_path, "audit", universe=universe)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean"), done.stdout


@pytest.mark.clause("steps", "access")
@pytest.mark.prove
@pytest.mark.long
def test_a_quota_exhausted_before_midnight_is_full_again_after_retry_after(tmp_path):
    rate = 60
    # A start on a busy machine takes some of these 55 seconds.
    driven = build_faketime_variables("2026-11-14 23:05:00", rate)
    if not driven:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    source, port = f"files:{write_bars(tmp_path / 'bars')}", find_free_port()
    create_store(tmp_path)
    api_key = run_signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()
    settings = {"port": port, "source": source, "daily_limit": "2"}
    with start_signals(tmp_path, "serve", clock_variables=driven, **settings) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()

        def called() -> httpx.Response:
            address = f"http://127.0.0.1:{port}/api/v1/state"
            return httpx.get(address, headers={"X-Api-Key": api_key}, timeout=WITHIN_S)

        before = [called() for _ in range(3)]
        assert [answer.status_code for answer in before] == [200, 200, 429]
        assert before[2].headers["x-ratelimit-reset"] == "2026-11-15T00:00:00.000Z"
        retry_after_s = int(before[2].headers["retry-after"])
        assert 0 < retry_after_s <= 3600
        time.sleep(retry_after_s / rate)  # what a client does, on the driven clock
        after = [called() for _ in range(3)]
        assert [answer.status_code for answer in after] == [200, 200, 429]
        assert after[0].headers["x-ratelimit-remaining"] == "1"
        assert after[0].headers["x-ratelimit-reset"] == "2026-11-16T00:00:00.000Z"
        assert process.stop() == 0
    with closing(sqlite3.connect(tmp_path / "signals.db-access")) as db:
        counted = db.execute("SELECT day, used FROM usage ORDER BY day").fetchall()
    days = MIDNIGHT_MS // 86_400_000
    assert counted == [(days - 1, 2), (days, 2)]
