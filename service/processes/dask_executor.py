"""A crew of Dask workers: blocks go out by a scheduler, and to another worker where one dies.

Loaded only where a scheduler is set, for the libraries take long and are an extra. Workers need
this same code and nothing else: no store, no settings, no secret.
"""

import logging
import pickle
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

import compute
from compute.executor import Block, Crew, Result
from schemas.operator_error import OperatorError

CONNECTS_WITHIN_S = 10
SENT_AHEAD = 2
LOGGERS = ("distributed", "distributed.client")


class CrewError(OperatorError):
    """Why no crew could compute, told in one line."""


class DaskCrew:
    """Hands blocks to the workers that a client reaches."""

    def __init__(self, client: Client, hands: int) -> None:
        self.hands = hands
        self._client = client

    async def map(
        self, work: Callable[[Block], Result], blocks: AsyncIterable[Block]
    ) -> AsyncIterator[Result]:
        """Yield the results in the order of the blocks, of which few are on their way at a time."""
        sent: deque[Future[bytes]] = deque()
        async for block in blocks:
            # Dask would look into what is sent, and turn named tuples into others.
            given = pickle.dumps((work, block), pickle.HIGHEST_PROTOCOL)
            sent.append(self._client.submit(_worked, code(), given, pure=False))
            if len(sent) >= SENT_AHEAD * self.hands:
                yield pickle.loads(await _result(sent.popleft()))
        while sent:
            yield pickle.loads(await _result(sent.popleft()))


@asynccontextmanager
async def dask_crew(address: str) -> AsyncIterator[Crew]:
    """Reach the scheduler at an address; CrewError where nobody answers or works."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A block is as large as it is meant to be.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    client = await _client(address)
    try:
        yield DaskCrew(client, await _hands(client, address))
    finally:
        await client.close()


async def _client(address: str) -> Client:
    timeout = f"{CONNECTS_WITHIN_S}s"
    try:
        client = Client(address, asynchronous=True, set_as_default=False, timeout=timeout)
        return await client
    except (OSError, ValueError) as error:
        raise CrewError(f"no Dask scheduler answers at {address}: {_line(error)}") from None


async def _hands(client: Client, address: str) -> int:
    """Return how many blocks the workers can compute at a time."""
    try:
        await client.wait_for_workers(1, timeout=CONNECTS_WITHIN_S)
    except TimeoutError:
        raise CrewError(f"the Dask scheduler at {address} has no workers") from None
    return sum((await client.nthreads()).values())


async def _result(future: "Future[bytes]") -> bytes:
    try:
        result: bytes = await future
    except ImportError as error:
        raise CrewError(f"a Dask worker lacks this version of signals: {_line(error)}") from None
    except (FutureCancelledError, KilledWorker, OSError) as error:
        raise CrewError(f"the Dask workers were lost: {_line(error)}") from None
    return result


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _worked(code_here: str, given: bytes) -> bytes:
    """Compute a block on a worker whose results are bit for bit those of who sent it."""
    if code() != code_here:
        raise CrewError(
            "a Dask worker has another version of signals or of NumPy: install the same"
        )
    work, block = pickle.loads(given)
    return pickle.dumps(work(block), pickle.HIGHEST_PROTOCOL)


@cache
def code() -> str:
    """Return a digest of what computes: the sources of `compute`, and NumPy's version."""
    digest = sha256(np.__version__.encode())
    for path in sorted(Path(*compute.__path__).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
