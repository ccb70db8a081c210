"""The service in a forked process (see forked_command.py), with a clock that the test sets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from access.billing.sandbox import SandboxBilling
from access.keys import OperatorKeys
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from tests.doubles.mailbox import Mailbox
from tests.support.forked_command import FORKSERVER
from tests.support.running_service import open_loopback_socket, open_stores, run_app

ENDS_WITHIN_S = 30


class ServiceProcess:
    """The URL and process of a running service, and its clock (epoch ms)."""

    def __init__(self, client: httpx.AsyncClient, clock: Any, pid: int) -> None:
        self.base_url, self.pid = str(client.base_url), pid
        self._client = client
        self._clock = clock

    async def get_at(self, now: int, path: str, **arguments: str) -> dict[str, Any]:
        """Return the response of a path below /api/v1 at a time of the service's clock."""
        self._clock.value = now
        response = await self._client.get(f"/api/v1{path}", params=arguments)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@asynccontextmanager
async def run_service_process(folder: Path, now: int) -> AsyncIterator[ServiceProcess]:
    """Serve the store in a folder, which other processes may use at the same time."""
    clock, (ours, theirs) = FORKSERVER.Value("q", now), FORKSERVER.Pipe()
    with open_loopback_socket() as bound:
        process = FORKSERVER.Process(target=_serve, args=(folder, bound, clock, theirs))
        process.start()
        theirs.close()
        try:
            base_url, api_key = await asyncio.to_thread(ours.recv)
            headers = {"X-Api-Key": api_key}
            async with httpx.AsyncClient(base_url=base_url, headers=headers) as client:
                yield ServiceProcess(client, clock, process.pid or 0)
        finally:
            ours.close()
            await asyncio.to_thread(process.join, ENDS_WITHIN_S)
            process.kill()
        assert process.exitcode == 0


def _serve(folder: Path, bound: socket.socket, clock: Any, other: Connection) -> None:
    asyncio.run(_serve_until_closed(folder, bound, clock, other))


async def _serve_until_closed(
    folder: Path, bound: socket.socket, clock: Any, other: Connection
) -> None:
    """Serve until the other end of the pipe is closed."""

    def now() -> int:
        return int(clock.value)

    base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with open_stores(folder) as (market, access):
        billing = SandboxBilling(access, now, base_url)
        app = create_app(AppConfig(base_url), Resources(market, access, billing, Mailbox(), now))
        async with run_app(app, bound):
            other.send((base_url, await OperatorKeys(access, now).create("tests")))
            with suppress(EOFError):
                await asyncio.to_thread(other.recv)
