"""Shares one process between callers: places for their calls, and turns at the work.

A caller is the hash of an API key, or the client's network if the call needs no key. Nothing is
kept of a caller that has no calls. The limits hold for each serving process.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Receive, Scope, Send

from access.throttle import find_client
from schemas.errors import rate_limited_error
from serving.http import (
    HEALTH_PATHS,
    IS_KEY_LIVE,
    ON_DISCONNECT_KEY,
    SENT_KEY_HASH,
    read_headers,
)

CallerId = bytes | str
MonotonicClock = Callable[[], float]
# Schedules a callback in some seconds, as the event loop does.
CallLater = Callable[[float, Callable[[], object]], object]

MAX_CALLS = 32
MAX_WAIT_S = 1.0
# A refused client calls again at once, so each waiting call adds this much to the next one's wait:
# a caller gets at most 250 refusals a second, no matter how many connections it has.
WAIT_PER_CALL_S = 0.004
RETRY_AFTER_S = 1
# The outcome of refused calls in metrics, where `rate_limited` is an exhausted quota.
TOO_MANY_CALLS = "too_many_calls"
# The second slot is for a call that waits for the store.
WORK_SLOTS = 2
# A cached response takes six turns of the event loop, from reading the request to the response.
# Work starts that many turns later, so that cached calls come first.
TURNS_BEFORE_WORK = 8
# While calls of live keys arrive, other work is followed by a pause. The event loop sleeps in it,
# and so lets go of Python's lock: beside 64 flooding connections, reading the feed after a start
# took 3 s without pauses and 0.2 s with them, because its thread asks for the lock at each row.
STRANGER_PAUSE_S, PAUSES_END_S = 0.001, 1.0
MAX_LIVE_KEYS = 10_000


class Places:
    """The free places of a caller for calls in progress, and the line of those that wait for one.

    Places are given in order.
    """

    # asyncio's semaphore takes as long as parsing a call. The line needs no limit of its own: a
    # connection has one call at a time and leaves the line when it ends, and the server limits
    # connections.

    def __init__(self, free: int) -> None:
        self.free = free
        self.line: deque[asyncio.Future[None]] = deque()

    def release(self) -> None:
        """Give back a place, to the first in the line if there is one."""
        while self.line:
            turn = self.line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class Turns:
    """Gives slots to callers in rotation, one at a time to each, and to its calls in order.

    So the next call of a caller waits for at most one call of each other caller.
    """

    def __init__(self, slots: int) -> None:
        self._free_slots = slots
        self._working: set[CallerId] = set()
        self._lines: OrderedDict[CallerId, deque[asyncio.Future[None]]] = OrderedDict()

    async def begin(self, caller: CallerId) -> None:
        """Wait for a slot, which `end` must free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        self._grant_slots()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(caller)
            raise

    def end(self, caller: CallerId) -> None:
        """Free the slot of a caller for the next one in rotation."""
        self._free_slots += 1
        self._working.remove(caller)
        self._grant_slots()

    def _grant_slots(self) -> None:
        while self._free_slots:
            caller = next((one for one in self._lines if one not in self._working), None)
            if caller is None:
                return
            line = self._lines.pop(caller)
            turn = line.popleft()
            if line:
                self._lines[caller] = line
            if not turn.done():
                self._free_slots -= 1
                self._working.add(caller)
                turn.set_result(None)


class FairShare:
    """The limits of one process.

    `ToolRunner` applies them to each call, `KeysFirstMiddleware` the strangers' to each request.
    """

    def __init__(
        self,
        max_calls: int = MAX_CALLS,
        clock: MonotonicClock = time.monotonic,
        call_later: CallLater | None = None,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._max_calls, self._clock, self._call_later = max_calls, clock, call_later
        # Those of a caller vanish with its last call.
        self.places: WeakValueDictionary[CallerId, Places] = WeakValueDictionary()
        # No call of the present waits behind reads of the past.
        self._work, self._past, self._strangers = Turns(WORK_SLOTS), Turns(1), Turns(1)
        self._pauses_until = 0.0

    async def take_place(self, caller: CallerId, scope: Scope | None = None) -> Places:
        """Return the places of a caller, of which one was taken, to be released after the call.

        Raise ApiError 429 if none is free in time. If the client of the request with this ASGI
        scope disconnects, the wait ends.
        """
        places = self.places.get(caller)
        if places is None:
            places = self.places[caller] = Places(self._max_calls)
        if places.free:
            places.free -= 1
            return places
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limit = asyncio.timeout(MAX_WAIT_S + WAIT_PER_CALL_S * len(places.line))

        def leave() -> None:
            with suppress(RuntimeError):  # The time is over already.
                limit.reschedule(0)

        places.line.append(turn)
        try:
            async with limit:
                if scope is not None:
                    scope[ON_DISCONNECT_KEY] = leave
                try:
                    await turn
                except asyncio.CancelledError:
                    if not turn.cancelled():
                        places.release()
                    elif turn in places.line:
                        places.line.remove(turn)
                    raise
        except TimeoutError:
            raise rate_limited_error(
                f"Too many calls at the same time: {self._max_calls} are in progress, and none "
                "ended while this one waited. It was not counted. Make fewer calls at a time; "
                f"retry after {RETRY_AFTER_S} second.",
                RETRY_AFTER_S,
                outcome=TOO_MANY_CALLS,
            ) from None
        finally:
            if scope is not None:
                scope[ON_DISCONNECT_KEY] = None
        return places

    @asynccontextmanager
    async def take_turn(self, caller: CallerId, *, is_past: bool = False) -> AsyncIterator[None]:
        """Wait for the caller's turn to read and render, which lasts as long as the block."""
        turns = self._past if is_past else self._work
        await turns.begin(caller)
        try:
            for _ in range(TURNS_BEFORE_WORK):
                await asyncio.sleep(0)
            yield
        finally:
            turns.end(caller)

    def favour(self) -> None:
        """Let others pause between their starts for a second, for a call that must be fast."""
        self._pauses_until = self._clock() + PAUSES_END_S

    async def start_stranger(self, caller: CallerId) -> None:
        """Wait until the work of a caller without a live key may start; callers take turns."""
        await self._strangers.begin(caller)
        loop, end = asyncio.get_running_loop(), partial(self._strangers.end, caller)
        # A turn of the event loop later, so that the pause follows the work.
        if self._clock() < self._pauses_until:
            loop.call_soon(self._call_later or loop.call_later, STRANGER_PAUSE_S, end)
        else:
            loop.call_soon(end)


class KeysFirstMiddleware:
    """ASGI middleware: a request waits for its turn to start, unless a call has shown its key live.

    Networks take turns, and so do the health checks of each, as if they came from another one.
    """

    def __init__(self, app: ASGIApp, fair_share: FairShare) -> None:
        self._app = app
        self._fair_share = fair_share
        # By the hash of the headers, the last used last, the key that they carry, None if it was
        # found otherwise.
        self._live_keys: OrderedDict[bytes, bytes | None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, now or when it is its turn."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = read_headers(scope)
        # The hash of the headers that can carry a key says nothing of the key.
        parts = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
        key = sha256(b"\n".join(parts)).digest()
        if key in self._live_keys:
            scope[SENT_KEY_HASH] = self._live_keys[key]
            self._fair_share.favour()
        elif not await self._wait_as_stranger(scope):
            return
        await self._app(scope, receive, send)
        is_live = scope.get(IS_KEY_LIVE)
        if is_live:
            self._live_keys[key] = scope.get(SENT_KEY_HASH)
            self._live_keys.move_to_end(key)
            if len(self._live_keys) > MAX_LIVE_KEYS:
                self._live_keys.popitem(last=False)
        elif is_live is False:
            self._live_keys.pop(key, None)

    async def _wait_as_stranger(self, scope: Scope) -> bool:
        """Wait for the turn of a request; return whether its client is still there."""
        if (waiting := asyncio.current_task()) is not None:
            scope[ON_DISCONNECT_KEY] = waiting.cancel
        caller = find_client((scope.get("client") or ("", 0))[0])
        if scope["path"] in HEALTH_PATHS:
            caller = f"{scope['path']} {caller}"
            self._fair_share.favour()
        try:
            await self._fair_share.start_stranger(caller)
        except asyncio.CancelledError:
            return False
        scope[ON_DISCONNECT_KEY] = None
        return True
