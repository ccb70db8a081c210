"""Runs the service in this process on stores in a folder, to generate parts of the docs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from access.billing.sandbox import SandboxBilling
from access.keys import OperatorKeys
from access.mail.outbox import Outbox
from schemas.clock import Clock
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from store.sql.market_store import MarketStore
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.market_store import open_sqlite_market
from tools.example_market import NOON

ADDRESS = "http://127.0.0.1:8000"
# After the last run's batches for late assets, so that results name the next run.
NOW = NOON + 200_000


def get_now() -> int:
    """Return NOW, as a clock that stands still."""
    return NOW


@dataclass(frozen=True)
class ExampleService:
    """A service that is called in process, without a socket, and its market store."""

    app: Starlette
    market: MarketStore
    _client: httpx.AsyncClient

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a tools/call."""
        response = await self.send("tools/call", {"name": tool, "arguments": arguments})
        result: dict[str, Any] = response["result"]
        return result

    async def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON-RPC response to a request, which has a result or an error."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = await self._client.post("/api/v1/mcp", json=body)
        answer: dict[str, Any] = response.raise_for_status().json()
        return answer


@asynccontextmanager
async def open_example_service(
    folder: Path, clock: Clock = get_now
) -> AsyncIterator[ExampleService]:
    """Open a service with an empty market store, an API key, and by default a fixed clock (NOW)."""
    market = await open_sqlite_market(folder / "market.db")
    access = await open_sqlite_access(folder / "market.db-access")
    try:
        provider = SandboxBilling(access, clock, ADDRESS)
        mailer = Outbox(folder / "outbox", "signals@localhost")
        resources = Resources(market, access, provider, mailer, clock)
        app = create_app(AppConfig(ADDRESS), resources)
        api_key = await OperatorKeys(access, clock).create("tests")
        headers = {"Authorization": f"Bearer {api_key}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url=ADDRESS, headers=headers
        ) as client:
            yield ExampleService(app, market, client)
    finally:
        await access.close()
        await market.close()
