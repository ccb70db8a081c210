"""Runs the service in this process on stores in a folder, to generate parts of the docs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from access.billing.sandbox import SandboxBilling
from access.keys import OperatorKeys
from access.mail.outbox import Outbox
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from store.sql.market_store import MarketStore
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.market_store import open_sqlite_market
from tools.example_market import NOON

ADDRESS = "http://127.0.0.1:8000"
# After the last run's batches for late assets, so that results name the next run.
NOW = NOON + 200_000


@dataclass(frozen=True)
class ExampleService:
    """A service that is called in process, without a socket, and its market store."""

    market: MarketStore
    _client: httpx.AsyncClient

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a tools/call."""
        params = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        response = await self._client.post("/api/v1/mcp", json=body)
        result: dict[str, Any] = response.raise_for_status().json()["result"]
        return result


@asynccontextmanager
async def open_example_service(folder: Path) -> AsyncIterator[ExampleService]:
    """Open a service with an empty market store, a fixed clock (NOW) and an API key."""
    market = await open_sqlite_market(folder / "market.db")
    access = await open_sqlite_access(folder / "market.db-access")
    try:
        provider = SandboxBilling(access, _get_now, ADDRESS)
        mailer = Outbox(folder / "outbox", "signals@localhost")
        resources = Resources(market, access, provider, mailer, _get_now)
        app = create_app(AppConfig(ADDRESS), resources)
        api_key = await OperatorKeys(access, _get_now).create("tests")
        headers = {"Authorization": f"Bearer {api_key}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url=ADDRESS, headers=headers
        ) as client:
            yield ExampleService(market, client)
    finally:
        await access.close()
        await market.close()


def _get_now() -> int:
    return NOW
