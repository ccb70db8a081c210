"""A real server on a loopback port with a small seeded store, in the test's event loop."""

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import httpx
import jsonschema
import pytest_asyncio
import uvicorn

from access.billing.provider import Provider, SandboxBilling
from access.call_log import CallLog
from access.keys_and_quota import create_operator_key
from access.oauth.clients import ClientDocuments
from access.throttle import DEFAULT_LIMIT, Limit
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from rest_shim.endpoints import CALL_NAMES
from schemas.coverage import Coverage, CoveredAsset
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.vocabulary import DAILY_LIMIT, Clock
from service.config.settings import Settings
from service.http.app import create_app
from service.http.metrics import Metrics
from service.http.resources import Resources
from service.http.server import RefusalLog, build_server_config
from serving.fair_share import FairShare
from serving.tool_runner import OnCall
from store.access_rows import KeyRow
from store.opening import (
    open_postgres_access,
    open_postgres_market,
    open_sqlite_access,
    open_sqlite_market,
)
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from tests.doubles.smtp.server import Mailbox
from tests.support.bad_inputs import build_path
from tests.support.example_market import NOON, make_coverage, seed_market
from tests.support.response_schemas import close_schema
from tests.support.row_builders import create_session_cookie
from tests.support.store_homes import open_and_close
from tools.output_schemas import build_output_schema

Transport = Literal["mcp", "rest"]


@cache
def result_validator(tool: str) -> jsonschema.Draft202012Validator:
    """Return a validator that rejects undocumented fields; check the schema itself first."""
    schema = close_schema(build_output_schema(TOOLS_BY_NAME[tool].result))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@dataclass
class ManualClock:
    """A wall clock in epoch ms that tests set; it starts after the last run's late batches."""

    now: int = NOON + 200_000

    def __call__(self) -> int:
        return self.now


class OperatorKeys:
    """Creates, revokes and lists keys as the commands of the operator do."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def create(self, label: str, expires_at: int | None = None) -> str:
        return await create_operator_key(self._store, self._clock(), label, expires_at)

    async def revoke(self, key_id: int) -> bool:
        return await self._store.revoke_key(key_id, self._clock())

    async def list(self) -> list[KeyRow]:
        return await self._store.list_keys()


async def skip_sleep(seconds: float) -> None:
    """Let other tasks run, in place of a sleep of some seconds."""
    await asyncio.sleep(0)


@dataclass
class RunningService:
    """The running service, a live key, and its internal objects for tests that control them."""

    base_url: str
    api_key: str
    client: httpx.AsyncClient
    market: MarketStore
    access: AccessStore
    keys: OperatorKeys
    clock: ManualClock
    mailbox: Mailbox
    app: Any = field(repr=False)
    call_log: CallLog = field(repr=False)
    _session: str | None = field(default=None, init=False)

    @property
    def key_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    async def get_api(self, path: str, **headers: str) -> httpx.Response:
        """GET a path below /api/v1 with the key, or only with the given headers."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.get(f"/api/v1{path}", headers=sent or self.key_headers)

    async def get_page(
        self, path: str, *, is_member: bool = False, **headers: str
    ) -> httpx.Response:
        cookies = {"cookie": await self.get_session_cookie()} if is_member else {}
        return await self.client.get(path, headers=cookies | headers)

    async def get_at(self, now: int, path: str, **arguments: str) -> Any:
        """Return the response of a path below /api/v1 at a time (epoch ms)."""
        self.clock.now = now
        response = await self.get_api(f"{path}?{urlencode(arguments)}")
        assert response.status_code == 200, response.text
        return response.json()

    async def get_session_cookie(self) -> str:
        if self._session is None:
            self._session = await create_session_cookie(self.access, self.clock)
        return self._session

    async def post_mcp(self, body: Any, **headers: str) -> httpx.Response:
        """POST a body to the MCP endpoint: bytes unchanged, other values as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/api/v1/mcp", content=content, headers=sent)

    async def rpc(self, method: str, params: Any = None, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method}
        response = await self.post_mcp(
            body if params is None else {**body, "params": params}, **headers
        )
        assert response.status_code == 200
        return response.json()

    async def call(
        self, tool: str, arguments: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """Return the result of one tools/call, with the key unless headers are given."""
        params = {"name": tool, "arguments": arguments or {}}
        sent = self.key_headers if headers is None else headers
        return (await self.rpc("tools/call", params, **sent))["result"]

    async def fetch_answer(
        self, transport: Transport, tool: str, **arguments: Any
    ) -> dict[str, Any]:
        """Return the result of a tool over one transport, validated by its schema."""
        if transport == "rest":
            response = await self.get_api(build_path(tool, arguments))
            assert response.status_code == 200, response.text
            answer = response.json()
        else:
            result = await self.call(tool, arguments)
            assert result["isError"] is False, result
            answer = result["structuredContent"]
            assert json.loads(result["content"][0]["text"]) == answer
        result_validator(tool).validate(answer)
        return answer

    async def fetch_refusal(
        self, transport: Transport, tool: str, **arguments: Any
    ) -> tuple[int, dict[str, Any]]:
        """Return status and Error object of a refused call over one transport."""
        if transport == "rest":
            response = await self.get_api(build_path(tool, arguments))
            return response.status_code, response.json()
        result = await self.call(tool, arguments)
        assert result["isError"] is True, result
        assert "structuredContent" not in result
        return result["_meta"]["signals/status"], json.loads(result["content"][0]["text"])

    async def check_refusal(
        self,
        transport: Transport,
        tool: str,
        status: int,
        code: str,
        *parts: str,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Check that a call is refused with a message that has all parts, and return the error."""
        found, error = await self.fetch_refusal(transport, tool, **arguments)
        assert (found, error["error"]) == (status, code)
        assert not [part for part in parts if part not in error["message"]], error["message"]
        return error


async def fetch(
    client: httpx.AsyncClient, method: str, path: str, status: int, **sent: Any
) -> httpx.Response:
    """Return the response to a request, which has the given status."""
    response = await client.request(method, path, **sent)
    assert response.status_code == status, response.text
    return response


@contextmanager
def open_loopback_socket() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@asynccontextmanager
async def run_app(
    app: Any,
    bound: socket.socket,
    refusals: RefusalLog | None = None,
    **options: Any,
) -> AsyncIterator[None]:
    """Run uvicorn until the block ends.

    Its main loop and shutdown sleep 0.2 s of real time, so its parts are called directly: startup,
    which returns when it listens, and closing its sockets. Without `refusals`, each refusal has
    a line in the log: what many tests share would otherwise log ten a minute.
    """
    host, port = bound.getsockname()
    config = build_server_config(
        app,
        base_url=f"http://{host}:{port}",
        refusals=refusals or RefusalLog(_call_at_once),
        **options,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await asyncio.wait_for(server.startup([bound]), 10)
    assert server.started
    try:
        yield
    finally:
        await asyncio.wait_for(_stop_server(server), 10)


@asynccontextmanager
async def serve_app(build: Callable[[str], Any], **options: Any) -> AsyncIterator[str]:
    """Run the app that `build` returns for its base URL, and yield that."""
    with open_loopback_socket() as bound:
        base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with run_app(build(base_url), bound, **options):
            yield base_url


def _call_at_once(delay: float, callback: Callable[..., object], *, context: Context) -> None:
    asyncio.get_running_loop().call_soon(callback, context=context)


async def _stop_server(server: uvicorn.Server) -> None:
    for listener in server.servers:
        listener.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    while state.connections or state.tasks:
        await asyncio.sleep(0)


@asynccontextmanager
async def open_stores(
    address: Path | str, store_class: type[MarketStore] = MarketStore
) -> AsyncIterator[tuple[MarketStore, AccessStore]]:
    """Open both stores in a folder or in a PostgreSQL database, the market store as its class."""
    if isinstance(address, Path):
        market_opening = open_sqlite_market(address / "market.db")
        access_opening = open_sqlite_access(address / "market.db-access")
    else:
        market_opening = open_postgres_market(address)
        access_opening = open_postgres_access(address)
    async with open_and_close(market_opening) as market, open_and_close(access_opening) as access:
        yield store_class(market._engine), access


@contextmanager
def break_usage_counting(access: Any) -> Iterator[None]:
    """Rename the usage table within the block, so that calls cannot be counted."""
    with closing(sqlite3.connect(access._engine.path, isolation_level=None)) as db:
        db.execute("ALTER TABLE usage RENAME TO mislaid")
        yield
        db.execute("ALTER TABLE mislaid RENAME TO usage")


@cache
def _create_unread_metrics() -> Metrics:
    """Return the metrics of all services whose test reads none: creating them takes long."""
    return Metrics(CALL_NAMES)


@asynccontextmanager
async def run_service(
    address: Path | str,
    published: Coverage | None = None,
    *,
    provider: Provider | None = None,
    clock: ManualClock | None = None,
    daily_limit: int = DAILY_LIMIT,
    attempt_limit: Limit = DEFAULT_LIMIT,
    store_class: type[MarketStore] = MarketStore,
    metrics: Metrics | None = None,
    fair_share: FairShare | None = None,
    on_call: OnCall | None = None,
    allowed_origins: tuple[str, ...] = (),
    operator: Operator = UNNAMED_OPERATOR,
    client_documents: ClientDocuments | None = None,
    accepts_documents: bool = True,
    shows_prices: bool = True,
) -> AsyncIterator[RunningService]:
    """Serve a seeded store, or an empty one without coverage; sandbox billing by default."""
    clock, mailbox = clock or ManualClock(), Mailbox()
    metrics = metrics or _create_unread_metrics()
    async with open_stores(address, store_class) as (market, access):
        call_log = CallLog(access, metrics.on_calls_dropped)
        if published is not None:
            await seed_market(market, published)
        keys = OperatorKeys(access, clock)
        with open_loopback_socket() as bound:
            base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            app = create_app(
                Settings(
                    base_url=base_url,
                    daily_limit=daily_limit,
                    checkout_limit=attempt_limit,
                    access_request_limit=attempt_limit,
                    sign_in_limit=attempt_limit,
                    oauth_limit=attempt_limit,
                    allowed_origins=",".join(allowed_origins),
                    operator_name=operator.name,
                    operator_contact=operator.contact,
                    terms_url=operator.terms_url,
                    privacy_url=operator.privacy_url,
                    show_prices=shows_prices,
                ),
                Resources(
                    market,
                    access,
                    provider or SandboxBilling(access, clock, base_url),
                    mailbox,
                    clock,
                    skip_sleep,
                    client_documents=(
                        client_documents or ClientDocuments(clock) if accepts_documents else None
                    ),
                ),
                on_call=on_call or metrics.on_call,
                on_sale=metrics.on_sale,
                on_key_call=call_log.add,
                fair_share=fair_share,
            )
            async with (
                run_app(app, bound),
                httpx.AsyncClient(base_url=base_url, verify=False, timeout=60) as client,
            ):
                api_key = await keys.create("tests")
                yield RunningService(
                    base_url, api_key, client, market, access, keys, clock, mailbox, app, call_log
                )


async def publish_assets(served: RunningService, *assets: CoveredAsset) -> None:
    await served.market.publish_coverage(make_coverage().model_copy(update={"assets": assets}))


@pytest_asyncio.fixture(loop_scope="session")
async def served(served_shared: RunningService) -> AsyncIterator[RunningService]:
    address = served_shared.base_url
    async with httpx.AsyncClient(base_url=address, verify=False, timeout=60) as client:
        api_key = await served_shared.keys.create("tests")
        yield replace(served_shared, api_key=api_key, client=client)
