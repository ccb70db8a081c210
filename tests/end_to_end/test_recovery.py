"""The steps of docs/recovery.md on both databases, and the log that a stranger verifies."""

import asyncio
import json
import math
import re
import sqlite3
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import asyncpg
import httpx
import pytest
import rfc8785
from tlog_scales.backend import HttpBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey
from tlog_scales.tiles import leaf_hash
from tlog_scales.tlog import Checkpoint

from access.keys_and_quota import hash_key
from compute.bars import DAY_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from schemas.vocabulary import DAY_MS, HOUR_MS, find_latest_run, format_instant
from store.access_rows import LoggedCall
from store.market_rows import CommitRow
from store.opening import open_postgres_access
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded
from tests.rest_shim.test_log import COVERED, parse_proof
from tests.service.commands.test_cli import HEADER, only_line, write_bars
from tests.service.commands.test_serve import served_process
from tests.support.example_market import NOON
from tests.support.postgres.server import (
    PostgresServer,
    SharedServer,
    build_unprivileged_command,
    make_private_folder,
)
from tests.support.row_builders import list_commits, make_call_group
from tests.support.running_service import ManualClock, RunningService, run_service
from tests.support.signals_command import (
    ROOT,
    build_faketime_variables,
    create_key,
    create_store,
    find_free_port,
    list_rows,
    parse_events,
    run_signals,
    start_signals,
    write_cut_universe,
)
from tests.support.small_market import open_store
from tests.support.store_homes import StoreHome, build_database_url, open_and_close

IS_PROMOTED = "SELECT NOT pg_is_in_recovery()"
# Whether the segment that was just completed is in the archive.
IS_ARCHIVED = """
SELECT last_archived_wal >= (SELECT pg_walfile_name(pg_current_wal_lsn() - 1))
FROM pg_stat_archiver
"""
GUIDE = (ROOT / "docs" / "recovery.md").read_text()
# The servers that the page is written for: their settings and recovery steps, as printed there.
ARCHIVE_SETTINGS = re.findall(r"^(wal_level|archive_\w+) = (.+)$", GUIDE, re.MULTILINE)
RECOVERY_SETTINGS = re.findall(r"^ +(restore_command|recovery_\w+) = (.+)$", GUIDE, re.MULTILINE)


def list_labels(folder: Path, **settings: str) -> list[str]:
    return [key["label"] for key in list_rows(folder, "keys", "list", **settings)]


@pytest.mark.clause("operation")
def test_a_store_is_restored_from_a_backup_and_a_newer_copy_of_its_access_file(tmp_path):
    store, lost = tmp_path / "store", tmp_path / "lost"
    store.mkdir()
    run_signals(store, "replay", "--bars", str(write_bars(store / "bars", count=30)))
    run_signals(store, "keys", "create", "--label", "before the backup")
    backup = Path(only_line(run_signals(store, "backup", str(tmp_path / "nightly")).stdout))
    run_signals(store, "keys", "create", "--label", "before the copy")
    # As the page does with the program `sqlite3`.
    assert re.search(r"^sqlite3 \S+ \"\.backup .+\"$", GUIDE, re.MULTILINE)
    with (
        closing(sqlite3.connect(store / "signals.db-access")) as live,
        closing(sqlite3.connect(tmp_path / "latest-access")) as copy,
    ):
        live.backup(copy)
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
    key_hash = hash_key(create_key(tmp_path, "after the base", database_url=url))
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
    async with open_and_close(asyncpg.connect(url)) as session:
        return await session.fetchval(query)


async def _wait_until(url: str, query: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await _fetch(url, query):
            await asyncio.sleep(0.01)


async def _count(url: str, key_hash: bytes, calls: int) -> int:
    """Count calls of a key, and log one; return its count."""
    async with open_and_close(open_postgres_access(url)) as access:
        for _ in range(calls):
            (decided,) = await access.count_calls([make_call_group(key_hash, NOON)], None, 10)
        call = LoggedCall(NOON, "id-1", "signals_get_state", "rest", "ok", 200)
        await access.add_calls({await access.find_key_id(key_hash): [call]}, 100)
    return decided.used


# At 01:00 the bar of OKB is late: it comes nine and a half minutes after its close.
EVENING, MIDNIGHT = "2026-11-14 19:40:00", "2026-11-15T00:00:00+00:00"
LATE, LATE_CLOSE_S, ARRIVES_AFTER_S = "OKB", 3600, 566
TICKERS = {"BTC", "ETH", "NVDA", "XAU", LATE}
MINUTE_MS = 60_000
# Only a machine that makes no progress at all takes so long.
WITHIN_S = 300
MIDNIGHT_MS = int(datetime.fromisoformat(MIDNIGHT).timestamp() * 1000)


def commits_after(folder: Path, market_time: int) -> list[tuple[int, int, int, set[str]]]:
    """Return market time, time of writing, rows and late tickers of each later commit in order."""
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        passes = db.execute(
            "SELECT number, market_time, written_at, (SELECT count(*) FROM changes"
            " WHERE created_at BETWEEN first_created_at AND last_created_at)"
            " FROM passes WHERE market_time > ? ORDER BY number",
            (market_time,),
        )
        late = (
            "SELECT ticker FROM watermarks JOIN assets ON id = asset_id"
            " WHERE watermarks.pass = ? AND late > 0"
        )
        return [
            (*times_and_rows, {ticker for (ticker,) in db.execute(late, (number,))})
            for number, *times_and_rows in passes.fetchall()
        ]


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
    api_key = create_key(tmp_path)

    with start_signals(
        tmp_path, "serve", clock_variables=driven, port=port, universe=universe
    ) as process:
        process.wait_for_line("Listening on ")
        for number in range(runs):
            hour = format_instant(MIDNIGHT_MS + number * HOUR_MS)
            process.wait_for_event("run", WITHIN_S + 3600 / rate, hour=hour)
        address = f"http://127.0.0.1:{port}/api/v1/state"
        headers = {"X-Api-Key": api_key}
        # A second of this clock may be 11 ms, in which a busy machine answers as a busy service.
        answers = (httpx.get(address, headers=headers, timeout=WITHIN_S) for _ in range(100))
        meta = next(answer for answer in answers if answer.status_code != 503).json()["meta"]
        assert process.stop() == 0

    made = commits_after(tmp_path, MIDNIGHT_MS - 5 * HOUR_MS + 3 * MINUTE_MS)
    (caught_up_to, _, rows, _), *live = made
    assert caught_up_to == MIDNIGHT_MS - HOUR_MS + 3 * MINUTE_MS
    assert rows > 0
    first_written_at: dict[int, int] = {}
    for market_time, written_at, _, late in live:
        first_written_at.setdefault(market_time, written_at)
        waits = market_time == MIDNIGHT_MS + LATE_CLOSE_S * 1000 + 3 * MINUTE_MS
        if not waits or written_at < MIDNIGHT_MS + (LATE_CLOSE_S + ARRIVES_AFTER_S) * 1000:
            # Bars that a run fetched before they arrived may be written after it.
            assert (LATE in late) == waits, made
    last = max(first_written_at)
    runs_due = range(MIDNIGHT_MS + 3 * MINUTE_MS, last + 1, HOUR_MS)
    assert list(first_written_at) == list(runs_due)
    assert len(runs_due) >= runs
    for market_time, written_at in first_written_at.items():
        assert 0 <= written_at - market_time < HOUR_MS
    assert meta["as_of"] >= format_instant(MIDNIGHT_MS + (runs - 1) * HOUR_MS + 3 * MINUTE_MS)
    assert (meta.get("simulated", False), meta.get("stale", False)) == (True, False)
    logged = parse_events(process.printed)
    failed = [event for event in logged if "failed" in event["event"]]
    # Five seconds of waiting for a lock are 55 ms here, which a busy machine can exceed.
    assert [event for event in failed if event.get("failure") != "StoreError"] == []
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
    api_key = create_key(tmp_path)
    settings = {"port": port, "source": source, "daily_limit": "2"}
    with start_signals(tmp_path, "serve", clock_variables=driven, **settings) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()
        # On a busy machine, the first read may take longer than a sixtieth of its limit.
        catalog = f"http://127.0.0.1:{port}/api/v1/catalog"
        assert any(httpx.get(catalog, timeout=WITHIN_S).status_code == 200 for _ in range(20))
        call = partial(
            httpx.get,
            f"http://127.0.0.1:{port}/api/v1/state",
            headers={"X-Api-Key": api_key},
            timeout=WITHIN_S,
        )
        before = [call() for _ in range(3)]
        assert [answer.status_code for answer in before] == [200, 200, 429]
        assert before[2].headers["x-ratelimit-reset"] == "2026-11-15T00:00:00.000Z"
        retry_after_s = int(before[2].headers["retry-after"])
        assert 0 < retry_after_s <= 3600
        time.sleep(retry_after_s / rate)  # what a client does, on the driven clock
        after = [call() for _ in range(3)]
        assert [answer.status_code for answer in after] == [200, 200, 429]
        assert after[0].headers["x-ratelimit-remaining"] == "1"
        assert after[0].headers["x-ratelimit-reset"] == "2026-11-16T00:00:00.000Z"
        assert process.stop() == 0
    with closing(sqlite3.connect(tmp_path / "signals.db-access")) as db:
        counted = db.execute("SELECT day, used FROM usage ORDER BY day").fetchall()
    days = MIDNIGHT_MS // 86_400_000
    assert counted == [(days - 1, 2), (days, 2)]


KEY_FILE = "log-key.json"


def compute(folder: Path, count: int, **settings: str) -> None:
    """Compute so many hours of recorded bars, whose trend turns so that readings change."""
    (bars := folder / "bars").mkdir(exist_ok=True)
    closes = [100 + 20 * math.sin(hour / 15) for hour in range(count)]
    lines = [
        f"{1_735_689_600 + 3600 * hour},{close},{close + 1},{close - 1},{close},1"
        for hour, close in enumerate(closes)
    ]
    (bars / "BTC_1h.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    done = run_signals(folder, "replay", "--bars", str(bars), **settings)
    assert done.returncode == 0, done.stderr


def read_log(address: str) -> tuple[Checkpoint, TilesReader]:
    """Return the verified checkpoint of a service, and a reader of its tiles."""
    reader = TilesReader(HttpBackend(f"{address}/api/v1/log"))
    checkpoint = reader.get_checkpoint()
    checkpoint.verify(Vkey.from_string(httpx.get(f"{address}/api/v1/log/key").text.strip()))
    assert reader.calculate_root_hash() == checkpoint.root_hash
    return checkpoint, reader


@pytest.mark.clause("proof", "21.1", "21.2", "21.7", "21.8")
@pytest.mark.sampled(2)
@pytest.mark.prove
def test_a_stranger_verifies_rows_and_growth(home: StoreHome, tmp_path: Path) -> None:
    settings = {"database_url": build_database_url(home), "log_key_file": KEY_FILE}
    compute(tmp_path, 300, **settings)
    api_key = create_key(tmp_path, **settings)
    with served_process(tmp_path, "--no-compute", **settings) as (address, _):
        before, _ = read_log(address)
        compute(tmp_path, 400, **settings)
        after, reader = read_log(address)
        proof = reader.get_consistency_proof(before.size, after.size)
        proof.check(before.root_hash, after.root_hash)
        assert 0 < before.size < after.size
        with httpx.Client(
            base_url=f"{address}/api/v1", headers={"X-Api-Key": api_key}, verify=False
        ) as client:
            rows = client.get("/signals?tier=all&order=oldest&since=2020-01-01").json()["signals"]
            assert len(rows) > 3
            for row in rows[:3]:
                shown = client.get("/log/proof", params={"id": row["id"]})
                salt, inclusion, signed = parse_proof(shown.text)
                assert signed == after
                text = rfc8785.dumps({name: row[name] for name in COVERED})
                inclusion.check(leaf_hash(salt + text), after.root_hash)


@pytest.mark.clause("proof", "operation")
@pytest.mark.prove
def test_a_failover_to_a_standby_without_the_last_runs_ends_the_log(
    postgres: SharedServer, private_postgres: PostgresServer, tmp_path: Path
) -> None:
    primary, programs = private_postgres, postgres.template.programs
    with make_private_folder(postgres.template.data.parent) as folder:
        standby = PostgresServer(programs, folder)
        before, after = (
            {"log_key_file": KEY_FILE, "database_url": server.url()}
            for server in (primary, standby)
        )
        compute(tmp_path, 300, **before)
        run_signals(tmp_path, "keys", "create", "--label", "replicated", **before)
        base_backup = programs / "pg_basebackup"
        _run(base_backup, "-d", primary.url(), "-D", standby.data, "-R", "-c", "fast")
        standby.start()
        try:
            # It receives no more.
            asyncio.run(_fetch(standby.url(), "ALTER SYSTEM SET primary_conninfo = ''"))
            asyncio.run(_fetch(standby.url(), "SELECT pg_reload_conf()"))
            compute(tmp_path, 400, **before)
            signed = json.loads((tmp_path / KEY_FILE).read_text())["size"]
            primary.stop()
            assert asyncio.run(_fetch(standby.url(), "SELECT pg_promote()"))
            compute(tmp_path, 400, **after)
            assert json.loads((tmp_path / KEY_FILE).read_text())["size"] == signed
            doctor = run_signals(tmp_path, "doctor", **after)
            assert "fix  log: no new rows are signed: " in doctor.stdout
            with served_process(tmp_path, "--no-compute", **after) as (address, _):
                answer = httpx.get(f"{address}/api/v1/log/checkpoint")
                assert answer.status_code == 503
                assert f"the first {signed} leaves are not those that were signed" in answer.text
            assert run_signals(tmp_path, "log", "restart", **after).returncode == 0
            assert run_signals(tmp_path, "audit", **after).stdout.endswith("clean\n")
            with served_process(tmp_path, "--no-compute", **after) as (address, _):
                checkpoint, _ = read_log(address)
                assert checkpoint.origin.endswith("/api/v1/log/2")
            assert list_labels(tmp_path, **after) == ["replicated"]
        finally:
            standby.stop()


RENAMED_ON = date(2026, 9, 26)
# ZK, at the first start too, AXL, BTC, TON, ADA and ALT come late in these days; MATIC is removed
# as the 27th begins.
SOME = ("ADA", "ALT", "AXL", "BTC", "MATIC", "NVDA", "TON", "XAU", "ZK")
EVERY = tuple(load_universe().by_ticker)
HISTORY_S = 100 * DAY_S


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


BEGINS, STOPS = at("2026-09-25T09:03:15"), at("2026-09-26T23:40")
RESUMES, ENDS = at("2026-09-27T04:25"), at("2026-09-27T09:00")


def universe_of(tickers: Collection[str]) -> Universe:
    """Return some assets, renamed within the days that are recorded; ALT came after that."""
    assets = {asset.ticker: asset for asset in load_universe().assets if asset.ticker in tickers}
    assets["ALT"] = assets["ALT"].model_copy(update={"added_on": RENAMED_ON})
    return Universe(assets=tuple(assets.values()), renamed_on=RENAMED_ON)


def random_instants(draw: Random, count: int) -> list[int]:
    """Draw instants: half of them at any time, half within the minutes of a run.

    The first is while the first start still waits for an asset.
    """
    anywhere = [draw.randrange(BEGINS, ENDS) for _ in range(count // 2)]
    runs = [find_latest_run(draw.randrange(BEGINS + HOUR_MS, ENDS)) for _ in range(count // 2)]
    near = [run + draw.choice((0, 30_000, 60_000, 120_000)) for run in runs]
    return sorted(
        {BEGINS + 20_000, *anywhere, *(time + draw.randrange(-20_000, 20_000) for time in near)}
    )


@dataclass
class Recorder:
    """A client that records the answers at given instants of the clock."""

    service: RunningService
    instants: list[int]
    draw: Random
    recorded: dict[int, tuple[dict[str, str], str]] = field(default_factory=dict)

    async def until(self, now: int) -> None:
        """Record the answers at every instant before a time, up to which they do not change."""
        while self.instants and self.instants[0] < now:
            moment = self.instants.pop(0)
            query = {
                "timeframe": self.draw.choice(("1h", "4h", "1d")),
                "direction": self.draw.choice(("bullish", "bearish")),
                "min_agree": str(self.draw.randint(1, 3)),
            }
            self.recorded[moment] = query, await answers(self.service, moment, query)


async def answers(service: RunningService, now: int, query: dict[str, str], **as_of: str) -> str:
    """Return the answers of state and confluence at a time, without the fields about the future."""
    state = await service.get_at(now, "/state", **as_of)
    confluence = await service.get_at(now, "/confluence", **query, **as_of)
    said = [state["as_of"], state["assets"], state["counts"], confluence["results"]]
    said += [
        answer["meta"].get(name)
        for answer in (state, confluence)
        for name in ("as_of", "late_assets", "removed_assets", "stale", "legacy_keys")
    ]
    return json.dumps(said)


async def live(
    folder: Path, universe: Universe, recorder: Recorder, begins: int, ends: int
) -> list[CommitRow]:
    """Compute from one time to another, recording in every pause; return the number of commits."""
    clock = AcceleratedClock(begins // 1000, step_s=15)
    clock.ends_at = ends // 1000

    async def look() -> None:
        await recorder.until(clock.now)

    clock.watch = look
    source = SimulatedSource(universe, (BEGINS // 1000 - HISTORY_S) // DAY_S * DAY_S, clock)
    async with open_store(folder / "market.db") as store:
        open_pipeline = partial(HourlyPipeline.open, store, source, universe, INDICATORS, clock)
        with pytest.raises(ClockEnded):
            await HourlyLoop(open_pipeline, store, clock, clock.sleep).run()
        return await list_commits(store)


@pytest.mark.clause("answers")
@pytest.mark.parametrize(
    ("count", "tickers"),
    [(8, SOME), (30, EVERY)],
    ids=["some", "every"],
)
@pytest.mark.prove
async def test_past_snapshots_are_served_as_they_were_then(
    tmp_path: Path, count: int, tickers: Collection[str]
):
    draw, universe = Random(count), universe_of(tickers)
    instants = random_instants(draw, count)
    async with run_service(tmp_path, clock=ManualClock(BEGINS)) as service:
        recorder = Recorder(service, list(instants), draw)
        await live(tmp_path, universe, recorder, BEGINS, STOPS)
        await recorder.until(RESUMES)
        commit_rows = await live(tmp_path, universe, recorder, RESUMES, ENDS)
        assert list(recorder.recorded) == instants
        for moment, (query, then) in recorder.recorded.items():
            past_answers = await answers(
                service, ENDS + DAY_MS, query, as_of=format_instant(moment)
            )
            assert past_answers == then, format_instant(moment)
    assert len({then for _, then in recorder.recorded.values()}) > count // 2
    written = [row.market_time for row in commit_rows if row.written_at is not None]
    assert len(set(written)) < len(written)  # there were passes for late assets
    assert max(after - before for before, after in pairwise(written)) == 5 * HOUR_MS
