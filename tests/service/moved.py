"""The service in a process of its own, forked as forked.py says, on a clock that the test moves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from access.billing.sandbox import SandboxBilling
from access.keys import Keys
from service.http.app import create_app
from tests.mailbox import Mailbox
from tests.service.forked import FORKING
from tests.serving import loopback_socket, running, stores

ENDS_WITHIN_S = 30


class Moved:
    """A running service as its clients know it, and its clock (epoch ms)."""

    def __init__(self, client: httpx.AsyncClient, clock: Any) -> None:
        self._client = client
        self._clock = clock

    async def at(self, now: int, path: str, **arguments: str) -> dict[str, Any]:
        """Return the answer that a path below /api/v1 has at a time of its clock."""
        self._clock.value = now
        response = await self._client.get(f"/api/v1{path}", params=arguments)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@asynccontextmanager
async def moved(folder: Path, now: int) -> AsyncIterator[Moved]:
    """Serve the store in a folder beside whatever else is done with it."""
    clock, (ours, theirs) = FORKING.Value("q", now), FORKING.Pipe()
    with loopback_socket() as bound:
        process = FORKING.Process(target=_serve, args=(folder, bound, clock, theirs))
        process.start()
        theirs.close()
        try:
            base_url, api_key = await asyncio.to_thread(ours.recv)
            headers = {"X-Api-Key": api_key}
            async with httpx.AsyncClient(base_url=base_url, headers=headers) as client:
                yield Moved(client, clock)
        finally:
            ours.close()
            await asyncio.to_thread(process.join, ENDS_WITHIN_S)
            process.kill()
        assert process.exitcode == 0


def _serve(folder: Path, bound: socket.socket, clock: Any, other: Connection) -> None:
    asyncio.run(_served(folder, bound, clock, other))


async def _served(folder: Path, bound: socket.socket, clock: Any, other: Connection) -> None:
    """Serve until the other end is closed."""

    def now() -> int:
        return int(clock.value)

    base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with stores(folder) as (market, access):
        billing = SandboxBilling(access, now, base_url)
        app = create_app(market, access, billing, Mailbox(), base_url=base_url, clock=now)
        async with running(app, bound):
            other.send((base_url, await Keys(access, now).create("tests")))
            with suppress(EOFError):
                await asyncio.to_thread(other.recv)
