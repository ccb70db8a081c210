"""Blocks of assets give the same results in every executor, and no worker outlives its leader."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from compute import executor as executor_module
from compute import rebuild as restore_module
from compute.audit import audit as audit_module
from compute.audit.audit import Report
from compute.executor import OpenExecutor, open_local_executor, run_tasks, split_into_blocks
from compute.universe import Universe
from schemas.errors import OperatorError
from tests.compute.audit.test_audit import PRUNED, TAMPERED, Databases, alter, copy, databases
from tests.compute.executors import open_copying_executor, raised
from tests.support.small_market import DENSE, END, HOUR_S, audit_store, replay_bars

__all__ = ["databases"]

pytestmark = pytest.mark.clause("scaling")

SAMPLE = {
    "a change's after",
    "a carry's byte",
    "a base row deleted",
}


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
        assert await run_tasks(executor, abs, [-3, 2, -1]) == [3, 2, 1]


@pytest.mark.prove
async def test_a_worker_that_dies_is_reported_in_one_line():
    with pytest.raises(OperatorError, match=r"^a worker process died"):
        async with open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, os._exit, [1])


@pytest.mark.prove
async def test_a_worker_with_other_code_computes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor_module, "hash_code", lambda: "another")
    with pytest.raises(OperatorError, match="another version of signals or NumPy"):
        async with open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, abs, [-1])


@pytest.mark.prove
async def test_a_cancelled_job_ends_its_workers_at_once():
    started_at = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), open_local_executor(0, 2) as (executor, _):
            await run_tasks(executor, time.sleep, [60])
    assert time.monotonic() - started_at < 30


LEADER = """
import asyncio, os, signal, time
from compute.executor import open_local_executor, run_tasks

async def main():
    async with open_local_executor(0, 2) as (executor, _):
        print(await asyncio.wrap_future(executor.submit(os.getpid)), flush=True)
        await run_tasks(executor, time.sleep, [60])

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
        pytest.param(None, id="of one version", marks=pytest.mark.prove),
        pytest.param(raised(), id="of two versions", marks=pytest.mark.prove),
    ],
)
async def test_an_audit_of_a_whole_market_reports_the_same_in_another_executor(
    tmp_path: Path, bars_folder: Path, universe: Universe, indicators: None
):
    given = () if indicators is None else (indicators,)
    path = tmp_path / "market.db"
    await replay_bars(path, bars_folder, universe, END - 40 * HOUR_S)
    await replay_bars(path, bars_folder, universe, END, *given)
    report = await same(path, universe, *given)
    assert report.findings == []
    assert (sum(report.not_verifiable.values()) > 0) == (indicators is not None)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if what in SAMPLE else pytest.mark.prove)
        for what in [*TAMPERED, *PRUNED]
    ],
)
@pytest.mark.prove
def test_an_audit_of_an_altered_store_reports_the_same_in_another_executor(
    what: str, databases: Databases, tmp_path: Path, universe: Universe
):
    of, altered = (databases.fresh, TAMPERED) if what in TAMPERED else (databases.pruned, PRUNED)
    path = copy(of, tmp_path / "copy.db")
    assert alter(path, altered[what][0]) > 0
    assert asyncio.run(same(path, universe)).findings


@pytest.mark.prove
async def test_processes_rebuild_and_audit_with_the_same_results_as_a_thread(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    processes = partial(open_local_executor, parallelism=2)
    stop = DENSE + 230 * HOUR_S
    await replay_bars(tmp_path / "thread.db", bars_folder, universe, stop)
    path = copy(tmp_path / "thread.db", tmp_path / "processes.db")
    assert alter(path, "UPDATE carries SET version = 0") > 0
    alter(tmp_path / "thread.db", "UPDATE carries SET version = 0")
    until = stop + 10 * HOUR_S
    own = await replay_bars(tmp_path / "thread.db", bars_folder, universe, until)
    assert own == await replay_bars(path, bars_folder, universe, until, open_executor=processes)
    assert await audit_store(path, universe, open_executor=processes) == await audit_store(
        path, universe
    )


async def same(path: Path, universe: Universe, *indicators: object) -> Report:
    """Audit in this thread and in another executor; return the equal report."""

    async def report(open_executor: OpenExecutor) -> Report:
        given = {"indicators": indicators[0]} if indicators else {}
        return await audit_store(path, universe, open_executor=open_executor, **given)

    own, other = await report(open_local_executor), await report(open_copying_executor)
    assert own == other
    assert list(own.checked) == list(other.checked)
    assert list(own.not_verifiable) == list(other.not_verifiable)
    return own
