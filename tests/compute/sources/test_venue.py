"""Retries and the circuit breaker, over a scripted venue and a clock that advances by sleeping."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from compute.bars import HOUR_S, RawBar
from compute.sources.venue import RetryingVenue, RetryPolicy, UnknownSymbolError, VenueError
from tests.doubles.scripted_source import BARS, ScriptedVenue, SleepClock, yield_to_loop

pytestmark = pytest.mark.clause("live")

PATIENCE = RetryPolicy(
    max_concurrent_calls=3,
    max_tries=4,
    first_wait_s=1,
    max_wait_s=45,
    max_failures=5,
    circuit_open_s=60,
)


@pytest.fixture
def clock() -> SleepClock:
    return SleepClock()


@pytest.fixture
def venue(clock: SleepClock) -> ScriptedVenue:
    return ScriptedVenue(clock)


@pytest.fixture
def steady(venue: ScriptedVenue, clock: SleepClock) -> RetryingVenue:
    return steadied(venue, clock, spread=1.0)


def steadied(venue: ScriptedVenue, clock: SleepClock, spread: float) -> RetryingVenue:
    return RetryingVenue(venue, clock, clock.sleep, lambda: spread, PATIENCE)


def busy(wait_s: float | None = None) -> VenueError:
    return VenueError("too many requests", retry_after_s=wait_s)


async def fetch(steady: RetryingVenue, symbol: str = "X") -> Sequence[RawBar]:
    return await steady.fetch_bars(symbol, 0, 3600, 3600)


async def outcomes(steady: RetryingVenue, *symbols: str) -> list[Sequence[RawBar] | BaseException]:
    """Make several calls at once; return the result or error of each."""
    return await asyncio.gather(*(fetch(steady, each) for each in symbols), return_exceptions=True)


async def refusal(steady: RetryingVenue) -> VenueError:
    with pytest.raises(VenueError) as raised:
        await fetch(steady)
    return raised.value


async def open_circuit(steady: RetryingVenue, venue: ScriptedVenue) -> VenueError:
    """Let enough calls fail in a row to open the circuit; return the last one's error."""
    venue.failures.extend(busy() for _ in range(PATIENCE.max_failures))
    await refusal(steady)
    return await refusal(steady)


async def test_results_of_a_venue_are_returned_unchanged(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    assert (steady.name, steady.delay_s) == ("scripted", 900)
    assert await steady.fetch_symbols() == {"X"}
    assert await steady.fetch_bars("X", 0, 3600, 3600) == BARS
    assert await steady.fetch_funding("X", 0, 3600) == [(3600, 0.0001)]
    assert await steady.fetch_time_ms() == clock.now
    assert not venue.is_closed
    await steady.close()
    assert venue.is_closed
    assert clock.waits == []


async def test_no_more_calls_are_under_way_at_once_than_are_allowed(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    venue.hold(*"ABCDEFGH")
    asking = asyncio.ensure_future(outcomes(steady, *"ABCDEFGH"))
    await yield_to_loop()
    assert venue.in_flight == PATIENCE.max_concurrent_calls
    venue.release()
    assert await asking == [BARS] * 8
    assert venue.max_in_flight == PATIENCE.max_concurrent_calls
    assert [what for what, _ in venue.requests] == list("ABCDEFGH")


@pytest.mark.parametrize(
    ("spread", "waits"), [(0.0, [0.5, 1, 2]), (0.5, [0.75, 1.5, 3]), (1.0, [1, 2, 4])]
)
async def test_waits_double_and_vary_from_half_to_all_of_their_length(
    venue: ScriptedVenue, clock: SleepClock, spread: float, waits: list[float]
) -> None:
    venue.failures.extend([busy(), busy(), busy()])
    assert await fetch(steadied(venue, clock, spread)) == BARS
    assert clock.waits == waits
    gaps = [later - sooner for (_, sooner), (_, later) in pairwise(venue.requests)]
    assert gaps == [1000 * wait for wait in waits]


async def test_the_last_try_fails_as_the_venue_did(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    venue.failures.extend(VenueError(f"failure {number}") for number in range(1, 5))
    assert (await refusal(steady)).reason == "failure 4"
    assert len(venue.requests) == PATIENCE.max_tries
    assert len(clock.waits) == PATIENCE.max_tries - 1


async def test_a_short_wait_that_a_venue_requests_is_waited_for(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    venue.failures.append(busy(45))
    assert await fetch(steady) == BARS
    [(_, first), (_, second)] = venue.requests
    assert second - first == 45_000


async def test_a_longer_wait_is_refused_at_once_until_enough_of_it_is_over(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    venue.failures.append(busy(600))
    assert (await refusal(steady)).retry_after_s == 600
    assert (await refusal(steady)).reason == "too many requests"
    assert (len(venue.requests), clock.waits) == (1, [])
    begun = clock.now
    clock.now += 560_000
    assert await fetch(steady) == BARS
    assert venue.requests[-1][1] - begun == 600_000


async def test_every_call_waits_if_one_must_wait(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    venue.failures.append(busy(30))
    assert await outcomes(steady, *"ABCDE") == [BARS] * 5
    begun = venue.requests[0][1]
    assert all(at - begun >= 30_000 for what, at in venue.requests[3:])
    assert venue.requests[3:]


async def test_a_call_that_waits_already_waits_longer_if_another_extends_the_wait(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    begun = clock.now
    venue.hold("B")
    venue.failures.extend([busy(10), busy(40)])
    asking = asyncio.ensure_future(outcomes(steady, "B", "A"))
    await yield_to_loop(30)
    assert clock.waits == [1, 9]
    venue.release()
    assert await asking == [BARS] * 2
    assert [(what, at - begun) for what, at in venue.requests[:2]] == [("B", 0), ("A", 0)]
    assert min(at - begun for _, at in venue.requests[2:]) == 41_000


async def test_the_circuit_opens_for_a_venue_that_keeps_failing_and_closes_again(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    assert (await open_circuit(steady, venue)).reason == "too many requests"
    call_count, waited = len(venue.requests), len(clock.waits)
    assert call_count == PATIENCE.max_failures
    clock.now += 59_999
    assert all(isinstance(one, VenueError) for one in await outcomes(steady, *"ABC"))
    assert (len(venue.requests), len(clock.waits)) == (call_count, waited)
    clock.now += 1
    assert await fetch(steady) == BARS


async def test_one_failure_after_the_circuit_has_closed_opens_it_again(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    await open_circuit(steady, venue)
    call_count = len(venue.requests)
    clock.now += 60_000
    venue.failures.append(busy())
    await refusal(steady)
    await refusal(steady)
    assert len(venue.requests) == call_count + 1


async def test_a_success_resets_the_count_of_failures(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    for _ in range(4):
        venue.failures.extend([busy(), busy(), None])
        assert await fetch(steady) == BARS
    assert len(venue.requests) == 12


async def test_an_error_shared_by_many_calls_is_one_failure(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    shared = busy()
    venue.failures.extend([shared, shared, shared] * 3)
    assert await outcomes(steady, "A", "B", "C") == [BARS] * 3
    assert len(venue.requests) == 12


async def test_a_permanent_refusal_is_not_retried(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    venue.failures.append(VenueError("this country is refused", is_permanent=True))
    for _ in range(3):
        assert (await refusal(steady)).is_permanent
    assert (len(venue.requests), clock.waits) == (1, [])
    clock.now += 60_000
    assert await fetch(steady) == BARS


async def test_an_unknown_symbol_is_not_retried_and_not_counted_as_a_failure(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    for _ in range(2 * PATIENCE.max_failures):
        venue.failures.append(UnknownSymbolError("not listed"))
        assert isinstance(await refusal(steady), UnknownSymbolError)
    assert (len(venue.requests), clock.waits) == (2 * PATIENCE.max_failures, [])
    assert await fetch(steady) == BARS


async def test_a_call_that_is_cancelled_leaves_its_place(
    steady: RetryingVenue, venue: ScriptedVenue
) -> None:
    venue.hold(*"ABCDEFGH")
    asking = [asyncio.ensure_future(fetch(steady, each)) for each in "ABCDEF"]
    await yield_to_loop()
    for each in asking:
        each.cancel()
    ended = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    venue.release()
    assert await outcomes(steady, *"ABCDEF") == [BARS] * 6
    assert venue.max_in_flight == PATIENCE.max_concurrent_calls


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_place(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    venue.failures.append(busy(30))
    asking = asyncio.ensure_future(fetch(steady))
    await yield_to_loop(10)
    assert clock.waits == [1]
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await outcomes(steady, *"ABCDEF") == [BARS] * 6


async def test_a_call_that_hangs_ends_and_one_of_a_wide_window_has_more_time(
    venue: ScriptedVenue, clock: SleepClock
) -> None:
    hasty = PATIENCE._replace(max_call_s=0.02, max_tries=1)
    limited = RetryingVenue(venue, clock, clock.sleep, lambda: 1.0, hasty)
    venue.hold("A")
    wide = asyncio.ensure_future(limited.fetch_bars("A", 0, 7920 * HOUR_S, HOUR_S))
    [failed, found] = await outcomes(limited, "A", "B")
    assert isinstance(failed, VenueError)
    assert (failed.reason, found) == ("scripted did not answer in time", BARS)
    venue.release()
    assert await wide == BARS


async def test_a_call_that_failed_slowly_is_not_retried_and_one_that_failed_fast_is(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    for seconds, tries in ((10, 1), (9, 2)):
        venue.requests.clear()
        venue.hold("A")
        venue.failures.append(VenueError("the client's own limit"))
        asking = asyncio.ensure_future(outcomes(steady, "A"))
        await yield_to_loop()
        clock.now += 1000 * seconds
        venue.release()
        venue.holds = {}
        await asking
        assert len(venue.requests) == tries


async def test_an_endless_wait_that_a_venue_requests_is_one_of_a_day(
    steady: RetryingVenue, venue: ScriptedVenue, clock: SleepClock
) -> None:
    venue.failures.append(busy(float("inf")))
    await refusal(steady)
    clock.now += 86_400_000
    assert await fetch(steady) == BARS
