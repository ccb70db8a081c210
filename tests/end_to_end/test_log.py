"""The real service signs a log that a stranger's program verifies, on both databases."""

import asyncio
import json
import math
import subprocess
from collections.abc import Collection
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

from compute.bars import DAY_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from schemas.vocabulary import DAY_MS, HOUR_MS, find_latest_run, format_instant
from store.market_rows import CommitRow
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded
from tests.rest_shim.test_log import COVERED, parse_proof
from tests.service.commands.test_cli import HEADER
from tests.service.commands.test_serve import served_process
from tests.support.postgres.server import (
    PostgresServer,
    SharedServer,
    build_unprivileged_command,
    make_private_folder,
)
from tests.support.row_builders import list_commits
from tests.support.running_service import ServiceProcess, run_service_process
from tests.support.signals_command import list_rows, run_signals
from tests.support.small_market import open_store
from tests.support.store_homes import StoreHome, build_database_url

KEY_FILE = "log-key.json"


def write_waves(folder: Path, count: int) -> Path:
    """Write hourly bars whose trend turns again and again, so that readings change."""
    folder.mkdir(exist_ok=True)
    closes = [100 + 20 * math.sin(hour / 15) for hour in range(count)]
    lines = [
        f"{1_735_689_600 + 3600 * hour},{close},{close + 1},{close - 1},{close},1"
        for hour, close in enumerate(closes)
    ]
    (folder / "BTC_1h.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


def compute(folder: Path, count: int, **settings: str) -> None:
    """Compute so many hours of recorded bars, or the hours that are new."""
    bars = write_waves(folder / "bars", count)
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
    api_key = run_signals(tmp_path, "keys", "create", "--label", "me", **settings).stdout.strip()
    with served_process(tmp_path, "--no-compute", **settings) as (address, _):
        before, _ = read_log(address)
        compute(tmp_path, 400, **settings)
        after, reader = read_log(address)
        proof = reader.get_consistency_proof(before.size, after.size)
        proof.check(before.root_hash, after.root_hash)
        assert 0 < before.size < after.size
        rows = httpx.get(
            f"{address}/api/v1/signals",
            params={"tier": "all", "order": "oldest", "since": "2020-01-01"},
            headers={"X-Api-Key": api_key},
        ).json()["signals"]
        assert len(rows) > 3
        for row in rows[:3]:
            shown = httpx.get(
                f"{address}/api/v1/log/proof",
                params={"id": row["id"]},
                headers={"X-Api-Key": api_key},
            )
            salt, inclusion, signed = parse_proof(shown.text)
            assert signed == after
            text = rfc8785.dumps({name: row[name] for name in COVERED})
            inclusion.check(leaf_hash(salt + text), after.root_hash)


@pytest.mark.clause("proof", "operation")
@pytest.mark.prove
def test_a_failover_to_a_standby_without_the_last_runs_ends_the_log(
    postgres: SharedServer, private_postgres: PostgresServer, tmp_path: Path
) -> None:
    """The steps of docs/recovery.md, on two servers that replicate without waiting."""
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
        copy = build_unprivileged_command(
            base_backup, "-d", primary.url(), "-D", standby.data, "-R", "-c", "fast"
        )
        subprocess.run(copy, cwd="/", check=True, capture_output=True)
        standby.start()
        try:
            # It receives no more.
            asyncio.run(query(standby.url(), "ALTER SYSTEM SET primary_conninfo = ''"))
            asyncio.run(query(standby.url(), "SELECT pg_reload_conf()"))
            compute(tmp_path, 400, **before)
            signed = json.loads((tmp_path / KEY_FILE).read_text())["size"]
            primary.stop()
            assert asyncio.run(query(standby.url(), "SELECT pg_promote()"))
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
            assert [row["label"] for row in list_rows(tmp_path, "keys", "list", **after)] == [
                "replicated"
            ]
        finally:
            standby.stop()


async def query(url: str, statement: str) -> object:
    session = await asyncpg.connect(url)
    try:
        return await session.fetchval(statement)
    finally:
        await session.close()


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

    service: ServiceProcess
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


async def answers(service: ServiceProcess, now: int, query: dict[str, str], **as_of: str) -> str:
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
    async with run_service_process(tmp_path, BEGINS) as service:
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
