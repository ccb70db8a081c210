"""Whether the service can do its work: the stores are really asked, and no probe waits for long."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.clock import Clock
from serving.freshness import is_played_out, is_stale
from serving.snapshot_cache import Boards
from store.access_protocol import AccessStore
from store.errors import StoreError

ANSWERS_WITHIN_S = 2.0
HEADERS = {"Cache-Control": "no-store"}
WELL = frozenset({"ok", "fresh", "resting"})

Checks = dict[str, str]


class Readiness:
    """Looks at what a process rests on; `clock` tells the wall clock in epoch ms.

    Without an access store, as where nobody is served, that is not asked for.
    """

    def __init__(
        self,
        boards: Boards,
        access: AccessStore | None,
        clock: Clock,
        within_s: float = ANSWERS_WITHIN_S,
    ) -> None:
        """A store that takes longer than `within_s` counts as one that does not answer."""
        self.boards: Final = boards
        self._access: Final = access
        self.clock: Final = clock
        self._within_s: Final = within_s

    async def checks(self) -> Checks:
        """Return in a word or two how each part is."""
        asked = {"market_store": self._asked(self._market())}
        if self._access is not None:
            asked["access_store"] = self._asked(self._access.notices())
        checks = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
        return {**checks, "state": self._state() if checks["market_store"] == "ok" else "unknown"}

    async def _market(self) -> None:
        """Ask the store itself, for the board may be held already."""
        await self.boards.store.progress()
        await self.boards.board()

    async def _asked(self, work: Awaitable[object]) -> str:
        asking = asyncio.ensure_future(work)
        asking.add_done_callback(_heard)
        try:
            # Not asyncio.timeout, which waits on where giving up hangs too.
            done, _ = await asyncio.wait([asking], timeout=self._within_s)
            if not done:
                return "no answer"
            asking.result()
        except StoreError:
            return "not reachable"
        finally:
            asking.cancel()
        return "ok"

    def _state(self) -> str:
        board = self.boards.held
        if board is None:
            return "not computed yet"
        if is_played_out(board):
            return "resting"
        return "stale" if is_stale(board, self.clock()) else "fresh"


def _heard(asking: "asyncio.Future[object]") -> None:
    """Take note of how asking ended: where it was given up, nobody else does."""
    if not asking.cancelled():
        asking.exception()


def is_ready(checks: Checks) -> bool:
    """Tell whether all is as it should be."""
    return WELL.issuperset(checks.values())


def health_routes(readiness: Readiness) -> list[Route]:
    """Return the routes of /healthz, that the process answers, and of /readyz, that it can work."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    async def readyz(request: Request) -> Response:
        checks = await readiness.checks()
        is_well = is_ready(checks)
        told = {"status": "ready" if is_well else "not ready", "checks": checks}
        return JSONResponse(told, 200 if is_well else 503, HEADERS)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
