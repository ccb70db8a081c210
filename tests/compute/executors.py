"""An executor that behaves like other processes: it sees copies and may run a task twice."""

import pickle
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from compute.indicators.contract import Indicator
from compute.indicators.enzo import Enzo
from compute.indicators.llnr import Llnr
from compute.indicators.registry import INDICATORS


class CopyingExecutor(Executor):
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
