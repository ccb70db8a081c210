"""Whether the service can do its work: the stores are really asked, and no probe waits for long."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.clock import Clock
from serving.freshness import is_recording_over, is_stale
from serving.snapshot_cache import SnapshotCache
from store.errors import StoreError
from store.sql.access_store import AccessStore

PROBE_TIMEOUT_S = 2.0
NO_STORE_HEADERS = {"Cache-Control": "no-store"}
HEALTHY_STATES = frozenset({"ok", "fresh", "resting"})

Checks = dict[str, str]


class Readiness:
    """Looks at what a process rests on; `clock` tells the wall clock in epoch ms.

    Without an access store, as where nobody is served, that is not asked for.
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        access: AccessStore | None,
        clock: Clock,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        """A store that takes longer than `timeout_s` counts as one that does not answer."""
        self.snapshots: Final = snapshots
        self._access: Final = access
        self.clock: Final = clock
        self._timeout_s: Final = timeout_s

    async def run_checks(self) -> Checks:
        """Return in a word or two how each part is."""
        probes = {"market_store": self._run_probe(self._probe_market())}
        if self._access is not None:
            probes["access_store"] = self._run_probe(self._access.list_notices())
        checks = dict(zip(probes, await asyncio.gather(*probes.values()), strict=True))
        return {
            **checks,
            "state": self._describe_state() if checks["market_store"] == "ok" else "unknown",
        }

    async def _probe_market(self) -> None:
        """Ask the store itself, for the board may be held already."""
        await self.snapshots.store.progress()
        await self.snapshots.snapshot()

    async def _run_probe(self, probe: Awaitable[object]) -> str:
        task = asyncio.ensure_future(probe)
        task.add_done_callback(_on_probe_done)
        try:
            # Not asyncio.timeout, which waits on where giving up hangs too.
            done, _ = await asyncio.wait([task], timeout=self._timeout_s)
            if not done:
                return "no answer"
            task.result()
        except StoreError:
            return "not reachable"
        finally:
            task.cancel()
        return "ok"

    def _describe_state(self) -> str:
        snapshot = self.snapshots.last
        if snapshot is None:
            return "not computed yet"
        if is_recording_over(snapshot):
            return "resting"
        return "stale" if is_stale(snapshot, self.clock()) else "fresh"


def _on_probe_done(task: "asyncio.Future[object]") -> None:
    """Take note of how asking ended: where it was given up, nobody else does."""
    if not task.cancelled():
        task.exception()


def is_ready(checks: Checks) -> bool:
    """Tell whether all is as it should be."""
    return HEALTHY_STATES.issuperset(checks.values())


def build_health_routes(readiness: Readiness) -> list[Route]:
    """Return the routes of /healthz, that the process answers, and of /readyz, that it can work."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"}, headers=NO_STORE_HEADERS)

    async def readyz(request: Request) -> Response:
        checks = await readiness.run_checks()
        is_healthy = is_ready(checks)
        body = {"status": "ready" if is_healthy else "not ready", "checks": checks}
        return JSONResponse(body, 200 if is_healthy else 503, NO_STORE_HEADERS)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
