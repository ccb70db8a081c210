"""A failure that repeats is logged at once, then once a minute with its number."""

from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from store.failure_log import INTERVAL_S, MAX_CAUSES, FailureLog

pytestmark = pytest.mark.clause("monitoring")

FULL = {"failure": "StoreError", "cause": "disk full"}


class Timer:
    """Schedules calls at times that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, Callable[..., object]]] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context
    ) -> None:
        assert not args
        assert len(context) == 0
        self._calls.append((self.now + delay, callback))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [call for call in self._calls if call[0] <= self.now]
        self._calls = [call for call in self._calls if call[0] > self.now]
        for _, callback in due:
            callback()


class Lines(list[dict[str, Any]]):
    def write(self, event: str, **fields: object) -> None:
        self.append({"event": event, **fields})


def test_ten_thousand_failures_are_one_line_a_minute_that_counts_all():
    timer, lines = Timer(), Lines()
    failures = FailureLog(timer.call_later)
    for _ in range(10_000):
        failures.write(lines.write, "store_failed", FULL, at="signals_get_state")
    assert lines == [{"event": "store_failed", **FULL, "at": "signals_get_state"}]
    timer.wait(INTERVAL_S - 1)
    assert len(lines) == 1
    timer.wait(1)
    assert lines[1:] == [{"event": "store_failed", **FULL, "repeated": 9999}]


def test_a_minute_without_a_repetition_ends_a_failure():
    timer, lines = Timer(), Lines()
    failures = FailureLog(timer.call_later)
    for _ in range(2):
        failures.write(lines.write, "store_failed", FULL)
    timer.wait(INTERVAL_S)
    timer.wait(INTERVAL_S)
    assert lines[1:] == [
        {"event": "store_failed", **FULL, "repeated": 1},
        {"event": "store_failed_ended", **FULL},
    ]
    failures.write(lines.write, "store_failed", FULL, at="again")
    assert lines[3:] == [{"event": "store_failed", **FULL, "at": "again"}]
    timer.wait(INTERVAL_S)
    timer.wait(INTERVAL_S)
    assert len(lines) == 4  # a single failure needs no second line


def test_each_cause_has_its_own_lines_and_their_number_is_bounded():
    timer, lines = Timer(), Lines()
    failures = FailureLog(timer.call_later)
    failures.write(lines.write, "store_failed", FULL)
    failures.write(lines.write, "store_failed", {"cause": "no answer"})
    assert [line["cause"] for line in lines] == ["disk full", "no answer"]
    for number in range(2 * MAX_CAUSES):
        failures.write(lines.write, "store_failed", {"cause": str(number)})
    assert len(lines) == MAX_CAUSES + 1


def test_an_error_that_is_raised_again_is_the_same_failure():
    lines = Lines()
    failures = FailureLog(Timer().call_later)
    place = "File a.py, line 7" * 20
    for outer in ("", "File b.py, line 3\n"):
        failures.write(lines.write, "call_failed", {"failure": "KeyError", "where": outer + place})
    assert len(lines) == 1
