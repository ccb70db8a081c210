"""Selects the executors of rebuilds, audits and long catch-ups: local cores, or Dask workers.

A Dask scheduler retries the tasks of workers that died. The workers need this same code, but no
store, settings or secrets.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import asynccontextmanager
from functools import partial

from compute.executor import OpenExecutor, open_local_executor
from schemas.errors import OperatorError
from service.config.settings import Settings, SettingsError

CONNECTS_WITHIN_S = 10


async def find_executor(settings: Settings) -> OpenExecutor:
    """Return what opens the executors, after checking that they work.

    OperatorError if Dask's libraries are missing, or its scheduler or workers don't answer.
    """
    # Checked only at the start and when used: a rebuild needs a cluster once per version, and a
    # scheduler that goes away meanwhile must not end the service.
    if settings.dask_scheduler is None:
        return open_local_executor
    open_executor = partial(open_dask_executor, settings.dask_scheduler)
    async with open_executor(1):
        return open_executor


@asynccontextmanager
async def open_dask_executor(address: str, assets: int) -> AsyncIterator[tuple[Executor, int]]:
    """Open an executor of a scheduler's workers, which decides where each task runs."""
    try:
        # Only here, because the libraries load slowly and are an extra.
        import dask
        from distributed import Client
        from distributed.client import FutureCancelledError
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_DASK_SCHEDULER needs the extra libraries ({error.name} is missing): "
            "pip install 'signals-mcp[distributed]'"
        ) from None
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A block of 128 assets is meant to be large: smaller ones took 1.5 times the processor time.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    timeout = f"{CONNECTS_WITHIN_S}s"
    try:
        client = await asyncio.to_thread(Client, address, set_as_default=False, timeout=timeout)
    except (OSError, ValueError) as error:
        raise OperatorError(
            f"no Dask scheduler answers at {address}: {_format_line(error)}"
        ) from None
    try:
        try:
            await asyncio.to_thread(client.wait_for_workers, 1, timeout=CONNECTS_WITHIN_S)
        except TimeoutError:
            raise OperatorError(f"the Dask scheduler at {address} has no workers") from None
        threads = sum((await asyncio.to_thread(client.nthreads)).values())
        # Without `pure`, a result of earlier equal blocks could be returned.
        yield client.get_executor(pure=False), max(1, min(threads, assets))
    except ImportError as error:
        raise OperatorError(
            f"a Dask worker lacks this version of signals: {_format_line(error)}"
        ) from None
    except asyncio.CancelledError:
        # Either this job is being cancelled, or its tasks were because the scheduler is gone.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise OperatorError("the Dask workers were lost: tasks were cancelled") from None
    except (BrokenExecutor, CommClosedError, FutureCancelledError, KilledWorker) as error:
        raise OperatorError(f"the Dask workers were lost: {_format_line(error)}") from None
    finally:
        await asyncio.to_thread(client.close)


def _format_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
