"""Runs tasks on Dask workers through a scheduler, which retries tasks of dead workers.

Imported only if a scheduler is set, because the libraries load slowly and are an extra. Workers
need this same code but no store, settings or secrets.
"""

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator, Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import asynccontextmanager
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

import compute
from compute.executor import ExecutorError, ExecutorFactory

CONNECTS_WITHIN_S = 10
LOGGERS = ("distributed", "distributed.client")


class DaskExecutor(Executor):
    """Sends pickled tasks to Dask workers."""

    # Dask inspects arguments and results, and turned named tuples into plain tuples. It leaves
    # bytes alone.

    def __init__(self, client: Client) -> None:
        self._executor: Executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a task to the workers."""
        call = pickle.dumps(partial(fn, *args, **kwargs), pickle.HIGHEST_PROTOCOL)
        return self._executor.submit(run_call, hash_code(), call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks, or cancel them."""
        self._executor.shutdown(wait and not cancel_futures)


class Pickled:
    """A result that Dask passes on unchanged, because it only inspects dicts and lists."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Callable[..., object], tuple[bytes]]:
        return pickle.loads, (pickle.dumps(self._value, pickle.HIGHEST_PROTOCOL),)


async def find_dask_workers(address: str) -> ExecutorFactory:
    """Return the executors of a scheduler; ExecutorError if it or its workers don't answer."""
    client = await _connect(address)
    try:
        parallelism = await asyncio.to_thread(_count_threads, client, address)
    finally:
        await asyncio.to_thread(client.close)
    return ExecutorFactory(partial(open_dask_executor, address), parallelism)


@asynccontextmanager
async def open_dask_executor(address: str, parallelism: int) -> AsyncIterator[Executor]:
    """Yield an executor of a scheduler's workers, which decides where each task runs."""
    client = await _connect(address)
    executor = DaskExecutor(client)
    try:
        yield executor
    except ImportError as error:
        raise ExecutorError(
            f"a Dask worker lacks this version of signals: {_format_line(error)}"
        ) from None
    except (BrokenExecutor, CommClosedError, FutureCancelledError, KilledWorker) as error:
        raise ExecutorError(f"the Dask workers were lost: {_format_line(error)}") from None
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
        await asyncio.to_thread(client.close)


async def _connect(address: str) -> Client:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A block of 128 assets is meant to be large: smaller ones took 1.5 times the processor time.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    timeout = f"{CONNECTS_WITHIN_S}s"
    try:
        return await asyncio.to_thread(Client, address, set_as_default=False, timeout=timeout)
    except (OSError, ValueError) as error:
        raise ExecutorError(
            f"no Dask scheduler answers at {address}: {_format_line(error)}"
        ) from None


def _count_threads(client: Client, address: str) -> int:
    """Return how many tasks the workers can run at a time."""
    try:
        client.wait_for_workers(1, timeout=CONNECTS_WITHIN_S)
    except TimeoutError:
        raise ExecutorError(f"the Dask scheduler at {address} has no workers") from None
    return sum(client.nthreads().values())


def _format_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def run_call(leader_code: str, call: bytes) -> Pickled:
    """Run a task on a worker; ExecutorError if its code differs from the leader's."""
    # Other code could rebuild other carries, and nothing would notice.
    if hash_code() != leader_code:
        raise ExecutorError(
            "a Dask worker has another version of signals or NumPy: install the same versions there"
        )
    return Pickled(pickle.loads(call)())


@cache
def hash_code() -> str:
    """Return a digest of the sources of `compute` and the version of NumPy."""
    digest = sha256(np.__version__.encode())
    for path in sorted(Path(*compute.__path__).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
