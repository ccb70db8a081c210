"""Rebuilds and audits on a real Dask cluster equal local ones, even if workers are killed."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from compute import executor as executor_module
from compute import rebuild as restore_module
from compute.audit import audit as audit_module
from compute.audit.audit import Report
from compute.executor import open_dask_executor, run_tasks
from compute.universe import Universe
from schemas.errors import OperatorError
from store.market_rows import BarBlock
from store.sql.market_store import MarketStore
from tests.compute.audit.test_audit import alter, copy
from tests.support.signals_command import find_free_port, run_signals
from tests.support.small_market import (
    DENSE,
    HOUR_S,
    Content,
    audit_store,
    load_content,
    load_small_universe,
    open_pipeline,
    replay_bars,
    write_small_market,
    write_universe,
)
from tests.support.store_homes import open_market_as

pytestmark = pytest.mark.clause("scaling")

STOP = DENSE + 230 * HOUR_S
UNTIL = STOP + 4 * HOUR_S


@dataclass(frozen=True)
class Stopped:
    """A store in the middle of the small market, and its content after some local runs."""

    path: Path
    folder: Path
    universe: Universe
    later: Content
    report: Report


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of two worker processes."""
    with LocalCluster(
        n_workers=2,
        processes=True,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs="CRITICAL",
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    parent = tmp_path_factory.mktemp("dask")
    folder, universe = write_small_market(parent), load_small_universe(parent)
    path, later = parent / "stopped.db", parent / "later.db"
    asyncio.run(replay_bars(path, folder, universe, STOP))
    alter(path, "UPDATE carries SET version = 0")
    copy(path, later)
    held = asyncio.run(replay_bars(later, folder, universe, UNTIL))
    return Stopped(path, folder, universe, held, asyncio.run(audit_store(later, universe)))


@pytest.fixture
def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small store consist of many blocks and stretches of commits."""
    monkeypatch.setattr(restore_module, "MAX_REBUILD_ASSETS", 1)
    monkeypatch.setattr(audit_module, "BARS_PER_READ", 500)


async def kill_one(address: str) -> int:
    """Kill a worker; return its process id. Its nanny starts another."""
    async with Client(address, asynchronous=True, set_as_default=False) as client:
        pid = next(iter((await client.run(os.getpid)).values()))
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.prove
@pytest.mark.usefixtures("use_small_blocks")
async def test_a_rebuild_is_the_same_although_a_worker_is_killed(
    address: str, stopped: Stopped, tmp_path: Path
):
    killed: list[int] = []

    class Killing(MarketStore):
        async def bars(
            self, ticker: str | None = None, after: int = -1, revision: int | None = None
        ) -> list[BarBlock]:
            if ticker == "IBM" and not killed:
                killed.append(await kill_one(address))
            return await super().bars(ticker, after, revision)

    store = await open_market_as(Killing, copy(stopped.path, tmp_path / "market.db"))
    try:
        opening = partial(open_dask_executor, address)
        runs = await open_pipeline(store, stopped.folder, stopped.universe, open_executor=opening)
        await runs.run_until(UNTIL)
        held = await load_content(store)
    finally:
        await store.close()
    assert killed
    assert held == stopped.later
    assert (
        await audit_store(tmp_path / "market.db", stopped.universe, open_executor=opening)
        == stopped.report
    )
    assert {row[7] for row in held["epochs"]} == {"first bar", "replaces version 0"}


@pytest.mark.prove
@pytest.mark.usefixtures("use_small_blocks")
@pytest.mark.parametrize("of", ["a clean store", "an altered store"])
async def test_an_audit_is_the_same_although_a_worker_is_killed(
    address: str, stopped: Stopped, tmp_path: Path, of: str
):
    path = tmp_path / "market.db"
    await replay_bars(copy(stopped.path, path), stopped.folder, stopped.universe, UNTIL)
    if of == "an altered store":
        alter(path, "UPDATE changes SET price = 2 WHERE created_at % 7 = 0")
    loop, killed = asyncio.get_running_loop(), []

    def kill_in_the_middle(done: int, end: int) -> None:
        if not killed and done > 1:
            killed.append(asyncio.run_coroutine_threadsafe(kill_one(address), loop).result())

    opening = partial(open_dask_executor, address)
    report = await audit_store(
        path, stopped.universe, open_executor=opening, progressed=kill_in_the_middle
    )
    assert killed
    assert report == await audit_store(path, stopped.universe)
    # Forcing the rebuild left other findings, on the schema and on epochs.
    has_changes = any(finding.startswith("changes: ") for finding in report.findings)
    assert has_changes == (of == "an altered store")


@pytest.mark.prove
def test_signals_audit_runs_on_the_configured_workers(
    address: str, stopped: Stopped, tmp_path: Path
):
    path = copy(stopped.path, tmp_path / "market.db")
    given = {
        "database_url": f"sqlite:///{path}",
        "universe": str(write_universe(tmp_path)),
    }
    here = run_signals(tmp_path, "audit", **given)
    elsewhere = run_signals(tmp_path, "audit", **given, dask_scheduler=address)
    assert (elsewhere.returncode, elsewhere.stdout) == (here.returncode, here.stdout)
    assert elsewhere.stderr == ""


@pytest.mark.prove
async def test_a_worker_with_other_code_computes_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor_module, "hash_code", lambda: "another")
    with pytest.raises(OperatorError, match="another version of signals or NumPy"):
        async with open_dask_executor(address, 1) as (executor, _):
            await run_tasks(executor, abs, [-1])


@pytest.mark.prove
async def test_a_block_that_kills_every_worker_fails_in_one_line(address: str):
    with pytest.raises(OperatorError, match="do not compute this version") as caught:
        async with open_dask_executor(address, 1) as (executor, _):
            await run_tasks(executor, os._exit, [1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["audit", "compute", "replay"])
def test_an_unreachable_scheduler_fails_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.setattr(executor_module, "CONNECTS_WITHIN_S", 0.1)
    address = f"tcp://127.0.0.1:{find_free_port()}"
    given = ["--bars", str(tmp_path)] if command == "replay" else []
    ended = run_signals(tmp_path, command, *given, dask_scheduler=address)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"signals: no Dask scheduler answers at {address}: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.prove
def test_a_scheduler_without_workers_fails_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor_module, "CONNECTS_WITHIN_S", 1)
    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs="CRITICAL") as empty:
        address = empty.scheduler_address
        ended = run_signals(tmp_path, "audit", dask_scheduler=address)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"signals: the Dask workers at {address} do not compute")
    assert "0/1 workers" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_missing_extra_fails_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "distributed", None)
    ended = run_signals(tmp_path, "audit", dask_scheduler="tcp://127.0.0.1:8786")
    assert (ended.returncode, ended.stderr) == (
        1,
        "signals: SIGNALS_DASK_SCHEDULER needs the extra libraries (distributed is missing): "
        f"{sys.executable} -m pip install 'distributed>=2025.1'\n",
    )
