"""Pauses between attempts: they grow, keep to what the other side asks for, and end."""

import pytest

from service.terminal.follow import Retrier, TransientError, compute_pause_s, list_pauses

pytestmark = pytest.mark.clause("22.3")

SENT_AT = 1_790_769_980_000  # 2026-09-30T12:06:20Z


class FakeTime:
    """A clock in ms that only sleeping moves; `slept` has the seconds of each sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self) -> int:
        return round(1000 * sum(self.slept))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def fail(count: int, *retry_after_s: int):
    """Return an attempt that fails some times, then returns its number."""
    attempts = iter(range(count + 1))

    async def attempt() -> int:
        number = next(attempts)
        if number < count:
            raise TransientError(f"failure {number}", *retry_after_s)
        return number

    return attempt


async def test_pauses_double_up_to_five_minutes_until_an_attempt_succeeds():
    time, failures = FakeTime(), []
    retrier = Retrier(time, time.sleep, lambda: 0.0, failures.append)
    assert await retrier.retry(fail(11)) == 11
    assert sum(time.slept) == 1 + 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256 + 300 + 300
    assert failures[0] == "failure 0; trying again in 1 s"
    assert len(failures) == 11


async def test_a_longer_pause_is_kept_if_the_other_side_asks_for_it():
    time = FakeTime()
    retrier = Retrier(time, time.sleep, lambda: 0.0, lambda text: None)
    await retrier.retry(fail(2, 3600))
    assert sum(time.slept) == 7200
    # In suspend no timer runs, so the clock is read again after each short sleep.
    assert max(time.slept) == 30


async def test_an_error_that_would_come_again_is_not_retried():
    time = FakeTime()
    retrier = Retrier(time, time.sleep, lambda: 0.0, lambda text: None)

    async def attempt() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await retrier.retry(attempt)
    assert time.slept == []


def test_pauses_are_spread_by_up_to_a_half():
    shortest, longest = list_pauses(lambda: 1.0), list_pauses(lambda: 0.0)
    assert [next(shortest) for _ in range(3)] == [0.5, 1, 2]
    assert [next(longest) for _ in range(3)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("nothing_new_before", "sent_at", "pause_s"),
    [
        # 56 minutes and 40 seconds, and 20 seconds for the commit.
        ("2026-09-30T13:03:00.000Z", SENT_AT, 3420),
        ("2026-09-30T12:03:00.000Z", SENT_AT, 20),
        (None, SENT_AT, 900),
        ("2026-09-30T13:03:00.000Z", None, 900),
    ],
)
def test_the_next_poll_is_when_new_rows_can_have_come(nothing_new_before, sent_at, pause_s):
    assert compute_pause_s(nothing_new_before, sent_at) == pause_s
