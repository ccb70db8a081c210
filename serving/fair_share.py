"""Shares one process between callers: calls in progress, past snapshots, and turns at the work.

A caller is the hash of an API key, or the client's network if the call needs no key. Nothing is
kept of a caller that has no calls. The limits hold for each serving process.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.types import Scope

from schemas.errors import ApiError
from serving.http import ON_DISCONNECT_KEY

CallerId = bytes | str
MonotonicClock = Callable[[], float]
# Schedules a callback in some seconds, as the event loop does.
CallLater = Callable[[float, Callable[[], object]], asyncio.TimerHandle]

MAX_CALLS = 32
MAX_WAIT_S = 1.0
# A refused client calls again at once, so each waiting call adds this much to the next one's wait:
# a caller gets at most 250 refusals a second, no matter how many connections it has.
WAIT_PER_CALL_S = 0.004
PAST_BURST, PAST_PER_S = 20, 10
RETRY_AFTER_S = 1
# The outcomes of refused calls in metrics, where `rate_limited` is an exhausted quota.
CALL_LIMIT_OUTCOMES = TOO_MANY_CALLS, TOO_MANY_PAST = "too_many_calls", "too_many_past"
# A second slot for one caller gained it nothing, because Python renders one response at a time, and
# doubled the wait of others. All slots together leave a session of PostgreSQL to the probes.
PRESENT_SLOTS, PRESENT_SLOTS_PER_CALLER, SLOW_SLOTS = 2, 1, 1
# A cached response takes six turns of the event loop, from reading the request to the response.
# Work starts at most once in so many turns, so that a cached call meets one piece of it.
TURNS_PER_START = 8
# While calls of live keys arrive, other work is followed by a pause. The event loop sleeps in it,
# and so lets go of Python's lock: beside 64 flooding connections, reading the feed after a start
# took 3 s without pauses and 0.2 s with them, because its thread asks for the lock at each row.
STRANGER_PAUSE_S, PAUSES_END_S = 0.001, 1.0


class CallPlaces:
    """Lets `max_calls` calls of a caller be in progress; further ones wait in line for a place."""

    # The line needs no limit of its own: a connection has one call at a time and leaves the line
    # when it ends, and the server limits connections.

    def __init__(self, max_calls: int = MAX_CALLS, call_later: CallLater | None = None) -> None:
        self._max_calls = max_calls
        self._call_later = call_later or _call_later
        self._in_progress: dict[CallerId, int] = {}
        self._lines: dict[CallerId, OrderedDict[asyncio.Future[bool], None]] = {}

    def __len__(self) -> int:
        """Return the number of callers that have calls."""
        return len(self._in_progress.keys() | self._lines.keys())

    def count(self, caller: CallerId) -> tuple[int, int]:
        """Return how many calls of a caller are in progress, and how many wait."""
        return self._in_progress.get(caller, 0), len(self._lines.get(caller, ()))

    def try_take(self, caller: CallerId) -> bool:
        """Take a free place; return False if there is none. `leave` must follow."""
        count = self._in_progress.get(caller, 0)
        if count >= self._max_calls:
            return False
        self._in_progress[caller] = count + 1
        return True

    async def wait(self, caller: CallerId, scope: Scope | None = None) -> None:
        """Wait in line for a place; raise ApiError 429 if none is free in time.

        If the client of the request with this ASGI scope disconnects, the wait ends.
        """
        line = self._lines.setdefault(caller, OrderedDict())
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        give_up = partial(_resolve, place, False)
        timer = self._call_later(MAX_WAIT_S + WAIT_PER_CALL_S * len(line), give_up)
        line[place] = None
        if scope is not None:
            scope[ON_DISCONNECT_KEY] = give_up
        try:
            has_place = await place
        except asyncio.CancelledError:
            # The place can have been handed over in the turn in which the task was cancelled.
            if place.done() and not place.cancelled() and place.result():
                self.leave(caller)
            raise
        finally:
            timer.cancel()
            line.pop(place, None)
            if not line and self._lines.get(caller) is line:
                del self._lines[caller]
        if not has_place:
            raise self._build_refusal()

    def leave(self, caller: CallerId) -> None:
        """Hand the place of a call to the one that has waited longest, or free it."""
        line = self._lines.get(caller)
        while line:
            place, _ = line.popitem(last=False)
            if not place.done():
                place.set_result(True)
                return
        self._in_progress[caller] -= 1
        if not self._in_progress[caller]:
            del self._in_progress[caller]

    def _build_refusal(self) -> ApiError:
        return ApiError(
            "rate_limited",
            f"Too many calls at the same time: {self._max_calls} are in progress, and none ended "
            "while this one waited. It was not counted. Make fewer calls at a time; "
            f"retry after {RETRY_AFTER_S} second.",
            429,
            retry_after_s=RETRY_AFTER_S,
            outcome=TOO_MANY_CALLS,
        )


class PastBudget:
    """Limits how many past snapshots a caller can request: a burst, then some per second."""

    def __init__(
        self, clock: MonotonicClock = time.monotonic, call_later: CallLater | None = None
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._call_later = call_later or _call_later
        # The time at which the whole burst is available again, which is all that a token bucket
        # has to remember.
        self._full_at: dict[CallerId, float] = {}

    def __len__(self) -> int:
        """Return the number of callers whose burst is not whole."""
        return len(self._full_at)

    def reserve(self, caller: CallerId) -> float:
        """Return the seconds until the caller may go on; ApiError 429 if more than MAX_WAIT_S."""
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now)
        # Rounded, or a sum of tenths would refuse a wait of exactly MAX_WAIT_S.
        wait_s = round(full_at - now - (PAST_BURST - 1) / PAST_PER_S, 6)
        if wait_s > MAX_WAIT_S:
            raise _build_past_refusal()
        if caller not in self._full_at:
            self._call_later(1 / PAST_PER_S, partial(self._forget, caller))
        self._full_at[caller] = full_at + 1 / PAST_PER_S
        return max(wait_s, 0.0)

    def _forget(self, caller: CallerId) -> None:
        """Forget a caller whose burst is whole, else look again when it should be."""
        left_s = self._full_at[caller] - self._clock()
        if left_s > 0:
            self._call_later(left_s, partial(self._forget, caller))
        else:
            del self._full_at[caller]


class FairQueue:
    """Gives few slots to callers in rotation, and to the calls of one caller in order.

    So the next call of a caller waits for at most one call of each other caller.
    """

    def __init__(self, slots: int, slots_per_caller: int) -> None:
        self._free_slots = slots
        self._slots_per_caller = slots_per_caller
        self._held: dict[CallerId, int] = {}
        self._lines: OrderedDict[CallerId, deque[asyncio.Future[bool]]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of callers that have a slot or wait for one."""
        return len(self._held.keys() | self._lines.keys())

    async def acquire(self, caller: CallerId) -> None:
        """Wait for a slot, which `release` must free."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        self._grant_slots()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(caller)
            raise

    def release(self, caller: CallerId) -> None:
        """Free a slot of a caller for the next one in rotation."""
        self._free_slots += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._grant_slots()

    def _grant_slots(self) -> None:
        """Give free slots to waiting callers; one that has its share keeps its place in line."""
        while self._free_slots and (caller := self._find_next()) is not None:
            line = self._lines.pop(caller)
            turn = _take_first(line)
            if line:
                self._lines[caller] = line
            if turn is not None:
                self._free_slots -= 1
                self._held[caller] = self._held.get(caller, 0) + 1
                turn.set_result(True)

    def _find_next(self) -> CallerId | None:
        may_have = (
            caller for caller in self._lines if self._held.get(caller, 0) < self._slots_per_caller
        )
        return next(may_have, None)


class StartGate:
    """Lets one piece of work start, and the next one only some turns of the event loop later."""

    def __init__(self, turns: int = TURNS_PER_START) -> None:
        self._turns = turns
        self._is_open = True
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def enter(self) -> None:
        """Wait until work may start."""
        if not self._is_open:
            start: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting.append(start)
            await start
            return
        self._is_open = False
        self._count_down(self._turns)

    def _count_down(self, turns: int) -> None:
        """Let the next work start in so many turns of the event loop."""
        if turns:
            asyncio.get_running_loop().call_soon(self._count_down, turns - 1)
        elif (start := _take_first(self._waiting)) is not None:
            start.set_result(True)
            self._count_down(self._turns)
        else:
            self._is_open = True


class FairShare:
    """The limits and queues of one process.

    `ToolRunner` applies them to each call, `KeysFirstMiddleware` the strangers' to each request.
    """

    def __init__(
        self,
        places: CallPlaces | None = None,
        past_budget: PastBudget | None = None,
        clock: MonotonicClock = time.monotonic,
        call_later: CallLater | None = None,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self.places = CallPlaces() if places is None else places
        self.past_budget = PastBudget() if past_budget is None else past_budget
        # A small call never waits behind a past snapshot, which has a slot of its own.
        self._present = FairQueue(PRESENT_SLOTS, PRESENT_SLOTS_PER_CALLER)
        self._slow = FairQueue(SLOW_SLOTS, SLOW_SLOTS)
        self._gate = StartGate()
        self._strangers = FairQueue(1, 1)
        self._clock = clock
        self._call_later = call_later or _call_later
        self._pauses_until = 0.0

    def favour(self) -> None:
        """Let others pause between their starts for a second, for a call that must be fast."""
        self._pauses_until = self._clock() + PAUSES_END_S

    async def start_stranger(self, caller: CallerId) -> None:
        """Wait until the work of a caller without a live key may start; callers take turns."""
        await self._strangers.acquire(caller)
        release = partial(self._strangers.release, caller)
        # A turn of the event loop later, so that the pause follows the work.
        if self._clock() < self._pauses_until:
            asyncio.get_running_loop().call_soon(self._call_later, STRANGER_PAUSE_S, release)
        else:
            asyncio.get_running_loop().call_soon(release)

    @asynccontextmanager
    async def take_turn(self, caller: CallerId, *, is_slow: bool) -> AsyncIterator[None]:
        """Wait for the caller's turn to read and render, which lasts as long as the block."""
        queue = self._slow if is_slow else self._present
        await queue.acquire(caller)
        try:
            yield
        finally:
            queue.release(caller)

    async def start_work(self) -> None:
        """Wait within a turn until its work may start."""
        await self._gate.enter()


def _take_first(line: "deque[asyncio.Future[bool]]") -> "asyncio.Future[bool] | None":
    """Remove and return the first future that is not cancelled, None if there is none."""
    while line:
        if not (first := line.popleft()).done():
            return first
    return None


def _call_later(delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, callback)


def _resolve(place: "asyncio.Future[bool]", has_place: bool) -> None:
    if not place.done():
        place.set_result(has_place)


def _build_past_refusal() -> ApiError:
    return ApiError(
        "rate_limited",
        f"Too many calls with as_of: {PAST_PER_S} per second are accepted after a burst of "
        f"{PAST_BURST}. Retry after {RETRY_AFTER_S} second.",
        429,
        retry_after_s=RETRY_AFTER_S,
        outcome=TOO_MANY_PAST,
    )
