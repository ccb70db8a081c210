"""Places, past snapshots and turns under random callers, cancellations and timeouts."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from serving.fair_share import (
    MAX_WAIT_S,
    PAST_BURST,
    PAST_PER_S,
    TURNS_PER_START,
    CallPlaces,
    FairQueue,
    PastBudget,
    StartGate,
)
from serving.http import ON_DISCONNECT_KEY

CALLERS = st.sampled_from(["a", "b", "c"])
INDEXES = st.integers(0, 50)
SLOTS, SLOTS_PER_CALLER, PLACES = 3, 2, 4
TURNS = 12


class ManualTimer:
    """A timer that a test fires."""

    def __init__(self, due_at: float, callback: Callable[[], object]) -> None:
        self.due_at, self.callback, self.is_cancelled = due_at, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class ManualTimers:
    """A monotonic clock that tests move, and the timers that are set on it."""

    now: float = 0.0
    timers: list[ManualTimer] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], object], /) -> ManualTimer:
        timer = ManualTimer(self.now + delay_s, callback)
        self.timers.append(timer)
        return timer

    def move(self, seconds: float) -> None:
        """Move the clock, and fire the timers that are due by then, in order."""
        until = self.now + seconds
        while due := [one for one in self.timers if one.due_at <= until and not one.is_cancelled]:
            first = min(due, key=lambda one: one.due_at)
            self.timers.remove(first)
            self.now = max(self.now, first.due_at)
            first.callback()
        self.now = until


@dataclass(eq=False)
class Call:
    """A call that is worked on from `is_started` until it is ended."""

    caller: str
    number: int
    scope: dict[str, Any] = field(default_factory=dict)
    end: asyncio.Event = field(default_factory=asyncio.Event)
    is_started: bool = False
    is_over: bool = False
    task: "asyncio.Task[None] | None" = None


@dataclass
class Calls:
    """All calls of a test, by arrival, and the order in which they started."""

    enter: Callable[[Call], Awaitable[None]]
    leave: Callable[[str], None]
    made: list[Call] = field(default_factory=list)
    started: list[Call] = field(default_factory=list)

    def make(self, caller: str) -> None:
        call = Call(caller, len(self.made))
        self.made.append(call)
        call.task = asyncio.create_task(self._run(call))

    async def _run(self, call: Call) -> None:
        try:
            await self.enter(call)
        except (ApiError, asyncio.CancelledError):
            call.is_over = True
            return
        call.is_started = True
        self.started.append(call)
        try:
            await call.end.wait()
        except asyncio.CancelledError:
            pass
        finally:
            call.is_over = True
            self.leave(call.caller)

    @property
    def working(self) -> list[Call]:
        return [call for call in self.made if call.is_started and not call.is_over]

    @property
    def waiting(self) -> list[Call]:
        return [call for call in self.made if not call.is_started and not call.is_over]

    async def end_all(self) -> None:
        while self.working or self.waiting:
            for call in self.working:
                call.end.set()
            await settle()


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def pick(calls: list[Call], index: int) -> Call | None:
    return calls[index % len(calls)] if calls else None


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), CALLERS),
        st.tuples(st.sampled_from(["end", "cancel", "disconnect"]), INDEXES),
        st.tuples(st.just("move"), st.floats(0, 2)),
        # Two things in the same turn of the loop.
        st.tuples(st.just("end and cancel"), INDEXES),
    ),
    max_size=60,
)


def take_step(calls: Calls, timers: ManualTimers, step: str, value: Any) -> None:
    if step == "call":
        calls.make(value)
    elif step == "move":
        timers.move(value)
    elif step == "disconnect" and (call := pick(calls.waiting, value)):
        if ON_DISCONNECT_KEY in call.scope:
            call.scope[ON_DISCONNECT_KEY]()
    elif step == "cancel" and (call := pick(calls.working + calls.waiting, value)):
        call.task.cancel()
    if step.startswith("end") and (call := pick(calls.working, value)):
        if step == "end and cancel" and (other := pick(calls.waiting, value)):
            calls.leave(call.caller)
            other.task.cancel()
            calls.leave = skip_once(calls, calls.leave)
        call.end.set()


def skip_once(calls: Calls, leave: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `leave` that ignores its next call, because that place was left already."""

    def skip(caller: str) -> None:
        calls.leave = leave

    return skip


@pytest.mark.clause("8.54", "8.55")
@given(steps=STEPS)
def test_places_are_never_exceeded_or_lost_and_are_given_in_order(steps) -> None:
    async def check() -> None:
        timers = ManualTimers()
        places = CallPlaces(PLACES, timers.call_later)

        async def enter(call: Call) -> None:
            if not places.try_take(call.caller):
                await places.wait(call.caller, call.scope)

        calls = Calls(enter, places.leave)
        for step, value in steps:
            take_step(calls, timers, step, value)
            await settle()
            working = Counter(call.caller for call in calls.working)
            waiting = Counter(call.caller for call in calls.waiting)
            for caller in "abc":
                assert places.count(caller) == (working[caller], waiting[caller])
                assert working[caller] <= PLACES
                assert not waiting[caller] or working[caller] == PLACES
        for caller in "abc":
            numbers = [call.number for call in calls.started if call.caller == caller]
            assert numbers == sorted(numbers)
        await calls.end_all()
        assert len(places) == 0
        assert all(timer.is_cancelled for timer in timers.timers)

    run(check())


@pytest.mark.clause("8.55")
def test_a_call_that_waits_is_refused_after_a_second_and_a_bit_for_each_one_before_it() -> None:
    async def check() -> None:
        timers = ManualTimers()
        places = CallPlaces(1, timers.call_later)
        assert places.try_take("a")
        waiting = [asyncio.create_task(places.wait("a")) for _ in range(3)]
        await settle()
        delays = [timer.due_at for timer in timers.timers]
        assert delays == [MAX_WAIT_S, MAX_WAIT_S + 0.004, MAX_WAIT_S + 0.008]
        timers.move(2)
        refusals = await asyncio.gather(*waiting, return_exceptions=True)
        assert {(one.code, one.status, one.retry_after_s) for one in refusals} == {
            ("rate_limited", 429, 1)
        }
        assert places.try_take("b")

    run(check())


@pytest.mark.clause("8.56")
@given(steps=st.lists(st.tuples(CALLERS, st.sampled_from([0, 0, 0.05, 0.1, 0.3, 4])), max_size=120))
def test_a_caller_starts_a_burst_of_past_calls_and_then_some_per_second(steps) -> None:
    timers = ManualTimers()
    budget = PastBudget(timers.clock, timers.call_later)
    starts: dict[str, list[float]] = {caller: [] for caller in "abc"}
    for caller, seconds in steps:
        timers.move(seconds)
        used = starts[caller]
        # Only a caller that has used its burst and reserved a second is refused.
        if sum(at > timers.now for at in used) > PAST_PER_S * MAX_WAIT_S:
            with pytest.raises(ApiError, match="calls with as_of"):
                budget.reserve(caller)
            continue
        wait_s = budget.reserve(caller)
        assert 0 <= wait_s <= MAX_WAIT_S + 1e-6
        used.append(timers.now + wait_s)
        for first in range(len(used)):
            allowed = PAST_BURST + PAST_PER_S * (used[-1] - used[first])
            assert len(used) - first <= allowed + 1e-6
    # The longest time after which a burst is whole again.
    timers.move(PAST_BURST / PAST_PER_S + MAX_WAIT_S + 0.1)
    assert len(budget) == 0
    assert not timers.timers


@pytest.mark.clause("8.57")
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("call"), CALLERS),
            st.tuples(st.sampled_from(["end", "cancel", "end and cancel"]), INDEXES),
        ),
        max_size=80,
    )
)
def test_a_backlog_delays_another_caller_by_one_piece_of_work(steps) -> None:
    async def check() -> None:
        queue = FairQueue(SLOTS, SLOTS_PER_CALLER)
        calls = Calls(lambda call: queue.acquire(call.caller), queue.release)
        # By waiting call: how many of its own caller were before it, and the starts since.
        ahead: dict[Call, int] = {}
        since: dict[Call, Counter[str]] = {}
        checked = 0
        for step, value in steps:
            before = len(calls.made)
            take_step(calls, ManualTimers(), step, value)
            held = Counter(call.caller for call in calls.working)
            await settle()
            for call in calls.started[checked:]:
                for other, starts in since.items():
                    # A call whose own caller has its share waits for that, not for others.
                    has_share = held[other.caller] >= SLOTS_PER_CALLER
                    if other is not call and not other.is_over and not has_share:
                        starts[call.caller] += 1
                since.pop(call, None)
            checked = len(calls.started)
            for call in calls.made[before:]:
                if call in calls.waiting:
                    ahead[call] = sum(one.caller == call.caller for one in calls.waiting) - 1
                    since[call] = Counter()
            working = Counter(call.caller for call in calls.working)
            assert sum(working.values()) <= SLOTS
            assert not working or max(working.values()) <= SLOTS_PER_CALLER
            if sum(working.values()) < SLOTS:
                assert all(working[call.caller] == SLOTS_PER_CALLER for call in calls.waiting)
            for call in calls.waiting:
                others = {name: count for name, count in since[call].items() if name != call.caller}
                assert not others or max(others.values()) <= ahead[call] + 1
        for caller in "abc":
            numbers = [call.number for call in calls.started if call.caller == caller]
            assert numbers == sorted(numbers)
        await calls.end_all()
        assert len(queue) == 0

    run(check())


@pytest.mark.clause("8.57")
@given(waiting=st.integers(1, 6))
def test_work_starts_some_turns_of_the_event_loop_after_other_work(waiting) -> None:
    async def check() -> None:
        gate, turns, starts = StartGate(), 0, deque[int]()

        async def start() -> None:
            await gate.enter()
            starts.append(turns)

        tasks = [asyncio.create_task(start()) for _ in range(waiting)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turns += 1
        gaps = [later - earlier for earlier, later in zip(starts, list(starts)[1:], strict=False)]
        assert all(gap >= TURNS_PER_START for gap in gaps)
        # An idle gate opens again, so that the next work starts without a wait.
        for _ in range(TURNS_PER_START + 1):
            await asyncio.sleep(0)
        before = turns
        await start()
        assert starts[-1] == before

    run(check())
