"""Runs tasks over blocks of assets in an executor of the standard library: here or in processes.

A task is a module's function and a block, both picklable. Only the process that hands tasks out
reads or writes the store.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import NamedTuple, TypeVar

from schemas.operator_error import OperatorError

Block = TypeVar("Block")
Result = TypeVar("Result")
Item = TypeVar("Item")

# Starting a worker takes 0.5 s of processor time (measured), rebuilding an asset's year 0.07 s
# and auditing it 0.12 s (docs/scaling.md): with so many assets each, starting costs 14 % at most.
MIN_ASSETS_PER_WORKER = 50


class ExecutorError(OperatorError):
    """Why an executor can't compute, in one line."""


class ExecutorFactory(NamedTuple):
    """Opens executors: `open` takes how many tasks are to run at a time.

    `parallelism` is the most that it can run, None for one task a core of this machine;
    `min_assets` is how many assets a task must have at least to be worth a worker.
    """

    open: Callable[[int], AbstractAsyncContextManager[Executor]]
    parallelism: int | None
    min_assets: int = 1

    def choose_parallelism(self, assets: int) -> int:
        """Return how many tasks should run at a time for a job of so many assets."""
        most = count_cores() if self.parallelism is None else self.parallelism
        return max(1, min(most, assets // self.min_assets))


@asynccontextmanager
async def open_local_executor(parallelism: int) -> AsyncIterator[Executor]:
    """Yield a thread, or a pool of processes if more than one task is to run at a time.

    ExecutorError when a process dies; the others end with the block, or with this process.
    """
    if parallelism == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    leader_end, worker_end = Pipe()
    # Spawned, because forking beside threads and an event loop may copy a lock that is held.
    executor = ProcessPoolExecutor(
        parallelism, get_context("spawn"), initializer=_exit_with_leader, initargs=(worker_end,)
    )
    try:
        _start_workers(executor, parallelism)
        yield executor
    except BrokenExecutor:
        raise ExecutorError(
            "a worker process died, perhaps out of memory: free some memory and try again"
        ) from None
    finally:
        # Workers that still compute after an error or Ctrl-C end at once.
        leader_end.close()
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
        worker_end.close()


def _start_workers(executor: Executor, parallelism: int) -> None:
    """Start all workers now; Ctrl-C in a terminal reaches this process only, which ends them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for _ in range(parallelism):
            executor.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _exit_with_leader(connection: Connection) -> None:
    """End this worker when the leader closes its end, or is killed."""

    def wait_for_end() -> None:
        connection.poll(None)
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LOCAL_EXECUTORS = ExecutorFactory(open_local_executor, None, MIN_ASSETS_PER_WORKER)


async def map_blocks(
    executor: Executor,
    parallelism: int,
    work: Callable[[Block], Result],
    blocks: AsyncIterable[Block],
) -> AsyncIterator[Result]:
    """Yield the results in the order of the blocks.

    One block is drawn while `parallelism` are computed (while none is, if that is 1), so that few
    are in memory.
    """
    max_in_flight = 1 if parallelism == 1 else parallelism + 1
    in_flight: deque[Future[Result]] = deque()
    async for block in blocks:
        in_flight.append(executor.submit(work, block))
        if len(in_flight) >= max_in_flight:
            yield await _wait_for_result(in_flight.popleft())
    while in_flight:
        yield await _wait_for_result(in_flight.popleft())


async def _wait_for_result(future: Future[Result]) -> Result:
    """Return a task's result; BrokenExecutor if the executor gave it up."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokenExecutor("tasks were cancelled") from None


def split_into_blocks(
    items: Sequence[Item], max_size: int, min_count: int = 1
) -> list[Sequence[Item]]:
    """Split items into at least `min_count` blocks of about one size, at most `max_size` each."""
    count = min(max(min_count, -(-len(items) // max_size)), len(items))
    edges = [len(items) * number // count for number in range(count + 1)] if count else []
    return [items[first:last] for first, last in pairwise(edges)]


async def iterate(items: Sequence[Item]) -> AsyncIterator[Item]:
    """Yield items as an asynchronous iterable."""
    for item in items:
        yield item
