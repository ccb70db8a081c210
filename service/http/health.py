"""Liveness and readiness: probes query and test the stores, each with a time limit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import ApiError, describe_failure
from schemas.vocabulary import Clock
from service.config.settings import Settings
from service.http.server import build_server_config, serve_in_background
from serving.freshness import is_recording_over, is_stale
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import format_error_body
from store.access_rows import Notice
from store.failure_log import FailureLog
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from store.store_errors import LostStoreError, NotWritableError, StoreError

if TYPE_CHECKING:
    from service.http.metrics import Metrics

PROBE_TIMEOUT_S = 2.0
NO_STORE_HEADERS = {"Cache-Control": "no-store"}
HEALTHY_STATES = frozenset({"ok", "fresh", "resting"})

# A first start is ready once this share of the covered assets has its history.
MIN_BUILT_RATIO = 0.9
NOT_ENOUGH_ASSETS = "building: "

Checks = dict[str, str]

log = structlog.get_logger("operations")


@dataclass
class Readiness:
    """Checks the stores and the snapshot of a process; `clock` is the wall clock.

    A process that only computes passes no access store, which is then not checked. A store that
    takes longer than `timeout_s` is reported as "no answer".
    """

    snapshots: SnapshotCache
    access: AccessStore | None
    clock: Clock
    are_runs_failing: Callable[[], bool] = lambda: False
    timeout_s: float = PROBE_TIMEOUT_S
    failures: FailureLog = field(default_factory=FailureLog)

    async def run_checks(self) -> Checks:
        """Return the state of each part, in a word or two."""
        store, access = self.snapshots.store, self.access
        # The snapshot may be cached, so loading it does not prove that the store answers.
        reads = (store.check_writes, store.progress, self.snapshots.snapshot)
        probes = {"market_store": self._run_probe(*reads)}
        if access is not None:
            probes["access_store"] = self._run_probe(access.check_writes, access.check_id)
        checks = dict(zip(probes, await asyncio.gather(*probes.values()), strict=True))
        if self.are_runs_failing():
            checks["runs"] = "failing"
        if checks["market_store"] != "ok":
            return {**checks, "state": "unknown"}
        snapshot = self.snapshots.last
        if snapshot is None:
            return {**checks, "state": "not computed yet"}
        checks["state"] = "stale" if is_stale(snapshot, self.clock()) else "fresh"
        if is_recording_over(snapshot):
            checks["state"] = "resting"
        if snapshot.coverage.source == "live":
            # How many of the covered assets of live markets have their history.
            covered = {asset.ticker for asset in snapshot.coverage.tracked if asset.timeframes}
            built = len(covered.difference(snapshot.building_tickers))
            # Assets that a ready store lacks later, as those which a universe file adds, don't
            # count: a service that has been ready goes on as before.
            unbuilt = len(covered.intersection(snapshot.stored.unbuilt_tickers))
            is_enough = len(covered) - unbuilt >= MIN_BUILT_RATIO * len(covered)
            checks["assets"] = f"{'' if is_enough else NOT_ENOUGH_ASSETS}{built} of {len(covered)}"
        return checks

    async def list_notices(self) -> list[Notice]:
        """Return the notices for the operator; none if the store does not answer in time."""
        if self.access is None:
            return []
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                return await self.access.list_notices()
        return []

    async def _run_probe(self, *parts: Callable[[], Awaitable[object]]) -> str:
        """Do the parts one after the other; return how that ended."""

        async def probe() -> None:
            for part in parts:
                await part()

        task = asyncio.ensure_future(probe())
        # Retrieves the error of an abandoned probe, which asyncio would otherwise log.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # Not asyncio.timeout: it waits for the cancelled task, which can hang as well.
            done, _ = await asyncio.wait([task], timeout=self.timeout_s)
            if not done:
                return "no answer"
            task.result()
        except StoreError as error:
            self.failures.write(log.error, "not_ready", describe_failure(error))
            if isinstance(error, LostStoreError):
                return "lost"
            return "not writable" if isinstance(error, NotWritableError) else "not reachable"
        finally:
            task.cancel()
        return "ok"


def is_ready(checks: Checks) -> bool:
    """Return whether every part is healthy."""
    states = {name: state for name, state in checks.items() if name != "assets"}
    has_assets = not checks.get("assets", "").startswith(NOT_ENOUGH_ASSETS)
    return has_assets and HEALTHY_STATES.issuperset(states.values())


def build_health_routes(readiness: Readiness) -> list[Route]:
    """Return the routes of /healthz (the process answers) and /readyz (it can do its work)."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"}, headers=NO_STORE_HEADERS)

    async def readyz(request: Request) -> Response:
        checks = await readiness.run_checks()
        is_healthy = is_ready(checks)
        return JSONResponse(
            {"status": "ready" if is_healthy else "not ready", "checks": checks},
            200 if is_healthy else 503,
            NO_STORE_HEADERS,
        )

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def build_waiting_app(address: str) -> ASGIApp:
    """Return the app that answers while a start waits for its database."""
    error = ApiError("unavailable", "The service is starting. Retry in a few seconds.", 503)
    unavailable = format_error_body(error, f"{address}/api/v1")
    not_ready = {"status": "not ready", "checks": {"database": "not reachable"}}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = Response(
            unavailable, 503, {**NO_STORE_HEADERS, "Retry-After": "5"}, "application/json"
        )
        if scope["path"] == "/healthz":
            response = JSONResponse({"status": "ok"}, headers=NO_STORE_HEADERS)
        elif scope["path"] == "/readyz":
            response = JSONResponse(not_ready, 503, NO_STORE_HEADERS)
        await response(scope, receive, send)

    return answer


@asynccontextmanager
async def answer_waiting(settings: Settings, *listeners: socket | None) -> AsyncIterator[None]:
    """Answer with 503 during the block, in which the service waits for its database."""
    async with AsyncExitStack() as stack:
        for listener in filter(None, listeners):
            # The server closes its socket at the end.
            config = build_server_config(
                build_waiting_app(settings.address), base_url=settings.address
            )
            await stack.enter_async_context(serve_in_background(config, listener.dup()))
        yield


def build_readiness(
    market: MarketStore, access: AccessStore | None, clock: Clock, metrics: "Metrics"
) -> Readiness:
    """Return the readiness checks of a process that holds these stores."""
    return Readiness(SnapshotCache(market), access, clock, lambda: metrics.are_runs_failing)
