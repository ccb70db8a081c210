"""Blocks of assets give the same results in every executor, and no worker outlives its leader.

A real Dask cluster rebuilds and audits as a thread does, even if its workers are killed.
"""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from compute import executor as executor_module, rebuild as restore_module
from compute.audit import audit as audit_module
from compute.audit.audit import Report
from compute.executor import (
    open_dask_executor,
    open_local_executor,
    run_tasks,
)
from compute.indicators.contract import Indicator
from compute.indicators.enzo import Enzo
from compute.indicators.llnr import Llnr
from compute.indicators.registry import INDICATORS
from compute.rebuild import split_into_blocks
from compute.universe import Universe
from schemas.errors import OperatorError
from store.market_rows import BarBlock
from store.sql.market_store import MarketStore
from tests.compute.audit.test_audit import PRUNED, TAMPERED, Databases, alter, copy, databases
from tests.support.signals_command import find_free_port, run_signals
from tests.support.small_market import (
    DENSE,
    END,
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
from tests.support.store_homes import open_and_close, open_market_as

__all__ = ["databases"]

pytestmark = pytest.mark.clause("scaling")


class CopyingExecutor(Executor):
    """Behaves like other processes: it sees copies and may run a task twice."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        sent = pickle.dumps(partial(fn, *args, **kwargs))
        results = [call() for call in (pickle.loads(sent), pickle.loads(sent))]
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(results[-1])))
        return future


@asynccontextmanager
async def open_copying_executor(assets: int) -> AsyncIterator[tuple[Executor, int]]:
    yield CopyingExecutor(), max(1, min(3, assets))


class NextEnzo(Enzo):
    version = 2


class NextLlnr(Llnr):
    version = 2


def raised() -> tuple[Indicator, ...]:
    """Return indicators of which two are newer."""
    newer = {"enzo": NextEnzo(), "llnr": NextLlnr()}
    return tuple(newer.get(indicator.id, indicator) for indicator in INDICATORS)


@pytest.fixture(autouse=True)
def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split small stores too into several blocks and several groups of commits."""
    monkeypatch.setattr(restore_module, "MAX_REBUILD_ASSETS", 2)
    monkeypatch.setattr(audit_module, "BARS_PER_READ", 300)


async def test_ctrl_c_reaches_a_leader_whose_workers_could_not_start(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(executor_module.ProcessPoolExecutor, "submit", refuse)
    with pytest.raises(OSError, match="no more processes"):
        async with open_local_executor(2, parallelism=2):
            pass
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("count", "max_size", "min_count", "sizes"),
    [
        (0, 4, 2, []),
        (3, 4, 1, [3]),
        (9, 4, 1, [3, 3, 3]),
        (9, 4, 2, [3, 3, 3]),
        (9, 100, 2, [4, 5]),
        (2, 100, 5, [1, 1]),
    ],
)
def test_items_are_split_evenly_in_their_order_with_a_block_for_each_worker(
    count: int, max_size: int, min_count: int, sizes: list[int]
):
    blocks = split_into_blocks(range(count), max_size, min_count)
    assert [len(block) for block in blocks] == sizes
    assert [item for block in blocks for item in block] == list(range(count))


@pytest.mark.parametrize(
    ("assets", "workers"), [(0, 1), (7, 1), (99, 1), (100, 2), (251, 4), (25_100, 4)]
)
async def test_a_worker_is_started_only_for_enough_assets(
    assets: int, workers: int, monkeypatch: pytest.MonkeyPatch
):
    class Pool(ThreadPoolExecutor):
        def __init__(self, size: int, *given: object, **named: object) -> None:
            super().__init__(size)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr(executor_module, "ProcessPoolExecutor", Pool)
    async with open_local_executor(assets) as (_, parallelism):
        assert parallelism == workers


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_results_come_in_the_order_of_the_blocks(parallelism: int):
    async with open_local_executor(0, parallelism) as (executor, _):
        assert await run_tasks(executor, [partial(abs, n) for n in (-3, 2, -1)]) == [3, 2, 1]


@pytest.mark.prove
async def test_a_worker_that_dies_is_reported_in_one_line():
    with pytest.raises(OperatorError, match=r"^a worker process died"):
        async with open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, [partial(os._exit, 1)])


@pytest.mark.prove
async def test_a_worker_with_other_code_computes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor_module, "hash_code", lambda: "another")
    with pytest.raises(OperatorError, match="another version of signals or NumPy"):
        async with open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, [int])


@pytest.mark.prove
async def test_a_cancelled_job_ends_its_workers_at_once():
    started_at = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, [partial(time.sleep, 600)])
    # A machine under load takes most of a minute to start the workers.
    assert time.monotonic() - started_at < 300


LEADER = """
import asyncio, os, signal, time
from functools import partial
from compute.executor import open_local_executor, run_tasks

async def main():
    async with open_local_executor(0, 2) as (executor, _):
        print(await asyncio.wrap_future(executor.submit(os.getpid)), flush=True)
        await run_tasks(executor, [partial(time.sleep, 60)])

if __name__ == "__main__":
    # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
@pytest.mark.prove
def test_workers_end_with_their_leader(tmp_path: Path, number: signal.Signals):
    script = tmp_path / "leader.py"
    script.write_text(LEADER)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline()
        # A terminal sends Ctrl-C to all processes of its group.
        (os.killpg if number == signal.SIGINT else os.kill)(leader.pid, number)
        # This returns once no process is left that holds the pipes.
        errors = leader.communicate(timeout=30)[1].decode()
    assert "SpawnProcess" not in errors
    assert errors.endswith("KeyboardInterrupt\n") == (number == signal.SIGINT)


@pytest.mark.prove
async def test_outdated_carries_are_rebuilt_the_same_in_another_executor(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    stop = DENSE + 230 * HOUR_S
    before = await replay_bars(tmp_path / "here.db", bars_folder, universe, stop)
    copy(tmp_path / "here.db", tmp_path / "elsewhere.db")
    until = stop + 10 * HOUR_S
    own = await replay_bars(tmp_path / "here.db", bars_folder, universe, until, raised())
    other = await replay_bars(
        tmp_path / "elsewhere.db", bars_folder, universe, until, raised(), open_copying_executor
    )
    assert own == other
    assert len(own["epochs"]) > len(before["epochs"]) + 20


@pytest.mark.parametrize(
    "indicators",
    [
        pytest.param(INDICATORS, id="of one version", marks=pytest.mark.prove),
        pytest.param(raised(), id="of two versions", marks=pytest.mark.prove),
    ],
)
async def test_an_audit_of_a_whole_market_reports_the_same_in_another_executor(
    tmp_path: Path, bars_folder: Path, universe: Universe, indicators: Sequence[Indicator]
):
    path = tmp_path / "market.db"
    await replay_bars(path, bars_folder, universe, END - 40 * HOUR_S)
    await replay_bars(path, bars_folder, universe, END, indicators)
    report = await same(path, universe, indicators)
    assert report.findings == []
    assert (sum(report.not_verifiable.values()) > 0) == (indicators is not INDICATORS)


@pytest.mark.parametrize("what", [*TAMPERED, *PRUNED])
@pytest.mark.prove
def test_an_audit_of_an_altered_store_reports_the_same_in_another_executor(
    what: str, databases: Databases, tmp_path: Path, universe: Universe
):
    of, altered = (databases.fresh, TAMPERED) if what in TAMPERED else (databases.pruned, PRUNED)
    path = copy(of, tmp_path / "copy.db")
    assert alter(path, altered[what][0]) > 0
    assert asyncio.run(same(path, universe)).findings


async def same(
    path: Path, universe: Universe, indicators: Sequence[Indicator] = INDICATORS
) -> Report:
    """Audit in this thread and in another executor; return the equal report."""
    own = await audit_store(path, universe, indicators)
    other = await audit_store(path, universe, indicators, open_copying_executor)
    assert own == other
    assert list(own.checked) == list(other.checked)
    assert list(own.not_verifiable) == list(other.not_verifiable)
    return own


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
    # A `LocalCluster` drops a killed worker that is not back within 15 seconds, which it is not on
    # a machine under load. Without workers a job would wait forever.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        LocalCluster(
            n_workers=2,
            processes=True,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as cluster,
    ):
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


async def kill_one(address: str) -> int:
    """Kill one of two workers; return its process id. Its nanny starts another."""
    async with Client(address, asynchronous=True, set_as_default=False) as client:
        await client.wait_for_workers(2, timeout=300)
        pid = next(iter((await client.run(os.getpid)).values()))
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.prove
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

    opening = partial(open_dask_executor, address)
    path = copy(stopped.path, tmp_path / "market.db")
    async with open_and_close(open_market_as(Killing, path)) as store:
        runs = await open_pipeline(store, stopped.folder, stopped.universe, open_executor=opening)
        await runs.run_until(UNTIL)
        held = await load_content(store)
    assert killed
    assert held == stopped.later
    assert (
        await audit_store(tmp_path / "market.db", stopped.universe, open_executor=opening)
        == stopped.report
    )
    assert {row[7] for row in held["epochs"]} == {"first bar", "replaces version 0"}


@pytest.mark.prove
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
async def test_a_dask_worker_with_other_code_computes_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor_module, "hash_code", lambda: "another")
    with pytest.raises(OperatorError, match="another version of signals or NumPy"):
        async with open_dask_executor(address, 1) as (executor, _):
            await run_tasks(executor, [int])


@pytest.mark.prove
async def test_a_block_that_kills_every_worker_fails_in_one_line(address: str):
    with pytest.raises(OperatorError, match="do not compute this version") as caught:
        async with open_dask_executor(address, 1) as (executor, _):
            await run_tasks(executor, [partial(os._exit, 1)])
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
