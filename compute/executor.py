"""Runs tasks over blocks of assets in an executor of the standard library: a thread, local
processes, or the workers of a Dask cluster, which have this same code and no store or secrets.

A task is a picklable call without arguments. Only the leader, the process that submits the tasks,
reads or writes the store.
"""

import asyncio
import logging
import os
import signal
from _thread import start_new_thread
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from schemas.errors import OperatorError
from schemas.version import describe_install

Result = TypeVar("Result")
# Opens an executor for a job of so many assets; gives it and the number of tasks that it runs at a
# time. Raises OperatorError if it cannot compute, or as soon as it no longer can.
OpenExecutor = Callable[[int], AbstractAsyncContextManager[tuple[Executor, int]]]

# Starting a worker takes 0.5 s of processor time (measured), rebuilding an asset's year 0.07 s
# and auditing it 0.12 s: with so many assets each, starting costs 14 % at most.
MIN_ASSETS_PER_WORKER = 50
CONNECTS_WITHIN_S = 10


async def find_executor(scheduler: str | None) -> OpenExecutor:
    """Return what opens local executors, or those of a Dask scheduler once it has answered."""
    # Checked only at the start and when used: a rebuild needs a cluster once per version, and a
    # scheduler that goes away meanwhile must not end the service.
    if scheduler is None:
        return open_local_executor
    open_executor = partial(open_dask_executor, scheduler)
    async with open_executor(1):
        return open_executor


@asynccontextmanager
async def open_local_executor(
    assets: int, parallelism: int | None = None
) -> AsyncIterator[tuple[Executor, int]]:
    """Open a thread, or as many processes as the assets and the cores are worth.

    The processes end with the context, or with this process if it is killed.
    """
    if parallelism is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        parallelism = max(1, min(cores or 1, assets // MIN_ASSETS_PER_WORKER))
    leader_end, worker_end = Pipe()
    executor: Executor = (
        ThreadPoolExecutor(1)
        if parallelism == 1
        # Spawned, because a fork of a process with threads may copy a lock that is held.
        else ProcessPoolExecutor(
            parallelism,
            get_context("spawn"),
            initializer=start_new_thread,
            initargs=(_exit_with_leader, (worker_end,)),
        )
    )
    try:
        # On Ctrl-C only this process reacts, and ends the others, which start with SIGINT blocked.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for _ in range(parallelism):
                executor.submit(os.getpid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield executor, parallelism
    except BrokenExecutor:
        raise OperatorError(
            "a worker process died, perhaps out of memory: free some memory and try again"
        ) from None
    finally:
        # Workers that still compute after an error or Ctrl-C end at once.
        leader_end.close()
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)


def _exit_with_leader(connection: Connection) -> None:
    # The leader closes its end of the pipe, or is killed.
    connection.poll(None)
    os._exit(1)


@asynccontextmanager
async def open_dask_executor(address: str, assets: int) -> AsyncIterator[tuple[Executor, int]]:
    """Open an executor of a scheduler's workers; it retries the tasks of workers that died."""
    try:
        # Only here, because the libraries load slowly and are an extra.
        import dask
        from distributed import Client, KilledWorker
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise OperatorError(
            f"SIGNALS_DASK_SCHEDULER needs the extra libraries ({error.name} is missing): "
            f"{describe_install('distributed')}"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    # A block of 128 assets is meant to be large: smaller ones took 1.5 times the processor time.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    try:
        client = await asyncio.to_thread(
            Client, address, set_as_default=False, timeout=CONNECTS_WITHIN_S
        )
    except (OSError, ValueError) as error:
        raise OperatorError(
            f"no Dask scheduler answers at {address}: {' '.join(str(error).split())}"
        ) from None
    try:
        await asyncio.to_thread(client.wait_for_workers, 1, timeout=CONNECTS_WITHIN_S)
        threads = sum((await asyncio.to_thread(client.nthreads)).values())
        # Without `pure`, a result of earlier equal blocks could be returned.
        yield client.get_executor(pure=False), max(1, min(threads, assets))
    except (
        *(asyncio.CancelledError, BrokenExecutor, CancelledError),
        *(CommClosedError, ImportError, KilledWorker, TimeoutError),
    ) as error:
        # Unless this job is being cancelled, its tasks were, because the scheduler is gone.
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise OperatorError(
            f"the Dask workers at {address} do not compute this version of signals: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from None
    finally:
        await asyncio.to_thread(client.close)


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[Result]):
    """The result of a task. Dask passes it on as it is, but would turn named tuples into tuples."""

    value: Result


async def run_tasks(executor: Executor, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
    """Return the results in the order of the tasks."""
    # Dask looks into arguments, so a worker gets the whole call as one function.
    futures = [executor.submit(partial(run_task, hash_code(), task)) for task in tasks]
    return [done.value for done in await asyncio.gather(*map(asyncio.wrap_future, futures))]


def run_task(leader_code: str, task: Callable[[], Result]) -> TaskResult[Result]:
    """Run a task on a worker; OperatorError if its code differs from the leader's."""
    # Other code could rebuild other carries, and nothing would notice.
    if hash_code() != leader_code:
        raise OperatorError(
            "a worker has another version of signals or NumPy: install the same versions there"
        )
    return TaskResult(task())


@cache
def hash_code() -> str:
    """Return a digest of the sources of `compute` and the version of NumPy."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    contents = map(Path.read_bytes, files)
    return sha256(b"".join([np.__version__.encode(), *contents])).hexdigest()
