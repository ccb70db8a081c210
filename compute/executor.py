"""Runs tasks over blocks of assets in executors of the standard library: a thread or processes.

A task is a module-level function and a block, both picklable. Only the leader, the process that
submits the tasks, reads or writes the store.
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

from schemas.errors import OperatorError

Block = TypeVar("Block")
Result = TypeVar("Result")
Item = TypeVar("Item")

# Starting a worker takes 0.5 s of processor time (measured), rebuilding an asset's year 0.07 s
# and auditing it 0.12 s (docs/scaling.md): with so many assets each, starting costs 14 % at most.
MIN_ASSETS_PER_WORKER = 50


class ExecutorError(OperatorError):
    """An executor that cannot compute, with the reason in one line."""


class ExecutorFactory(NamedTuple):
    """Opens executors; `open` takes the number of tasks to run at a time.

    `parallelism` is the maximum of that number, None for one task per core of this machine.
    `min_assets` is the number of assets from which on a task is worth a worker.
    """

    open: Callable[[int], AbstractAsyncContextManager[Executor]]
    parallelism: int | None
    min_assets: int = 1

    def choose_parallelism(self, assets: int) -> int:
        """Return the number of tasks to run at a time for a job of `assets` assets, at least 1."""
        most = count_cores() if self.parallelism is None else self.parallelism
        return max(1, min(most, assets // self.min_assets))


@asynccontextmanager
async def open_local_executor(parallelism: int) -> AsyncIterator[Executor]:
    """Yield an executor of one thread, or of processes if `parallelism` is more than 1.

    Raise ExecutorError if a worker process dies. The workers end with the context, or with this
    process if it is killed.
    """
    if parallelism == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    leader_end, worker_end = Pipe()
    # Spawned, because a fork of a process with threads may copy a lock that is held.
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
    """Start all workers with SIGINT blocked: on Ctrl-C only this process reacts, and ends them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for _ in range(parallelism):
            executor.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _exit_with_leader(connection: Connection) -> None:
    """Exit this worker when the leader closes its end of the pipe, or is killed."""

    def wait_for_end() -> None:
        connection.poll(None)
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LOCAL_EXECUTORS = ExecutorFactory(open_local_executor, None, MIN_ASSETS_PER_WORKER)


async def map_blocks(
    executor: Executor,
    parallelism: int,
    work: Callable[[Block], Result],
    blocks: AsyncIterable[Block],
) -> AsyncIterator[Result]:
    """Yield the results in the order of the blocks.

    At most one block waits while `parallelism` others are computed, or none if that is 1, which
    bounds the memory.
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
    """Return a task's result; raise BrokenExecutor if the executor dropped the task."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        # Either this coroutine is being cancelled, or the executor cancelled the future because
        # its workers are gone. Both arrive as the same exception.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokenExecutor("tasks were cancelled") from None


def split_into_blocks(
    items: Sequence[Item], max_size: int, min_count: int = 1
) -> list[Sequence[Item]]:
    """Split items into blocks of similar size: `min_count` or more, each of `max_size` or less."""
    count = min(max(min_count, -(-len(items) // max_size)), len(items))
    edges = [len(items) * number // count for number in range(count + 1)] if count else []
    return [items[first:last] for first, last in pairwise(edges)]


async def iterate(items: Sequence[Item]) -> AsyncIterator[Item]:
    """Yield items as an asynchronous iterable."""
    for item in items:
        yield item
