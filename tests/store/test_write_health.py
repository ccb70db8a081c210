"""Whether an engine accepts writes, from its last ones and from rare test writes.

A failure that repeats is logged at once, then once a minute with its number.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

import pytest

from store.failure_log import INTERVAL_S, MAX_CAUSES, FailureLog
from store.store_errors import DatabaseFailureError, NotWritableError, StoreError
from store.write_health import MIN_TEST_INTERVAL_S, WriteHealth

pytestmark = pytest.mark.clause("monitoring")

MAX_AGE_S = 30.0


class Disk:
    """A database with a clock of its own, whose writes fail while it is full."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_full = False
        self.tests, self.test_s = 0, 0.0
        self.health = WriteHealth(lambda: self.now)

    def write(self) -> None:
        with self.health.report("count"):
            if self.is_full:
                raise DatabaseFailureError("disk full")

    async def test_write(self) -> None:
        self.tests += 1
        await asyncio.sleep(0)
        self.now += self.test_s
        self.write()

    async def check(self) -> None:
        await self.health.check({"count": self.test_write}, MAX_AGE_S)


async def test_a_recent_write_needs_no_test():
    disk = Disk()
    with suppress(StoreError):
        disk.write()
    disk.now += MAX_AGE_S
    await disk.check()
    assert disk.tests == 0
    disk.now += 1
    await disk.check()
    assert disk.tests == 1


async def test_a_failed_write_is_tested_again_at_most_every_few_seconds():
    disk = Disk()
    disk.is_full = True
    with suppress(StoreError):
        disk.write()
    for _ in range(100):
        with pytest.raises(NotWritableError, match="disk full"):
            await disk.check()
    assert disk.tests == 1
    disk.is_full = False
    with pytest.raises(NotWritableError):
        await disk.check()
    disk.now += MIN_TEST_INTERVAL_S
    await disk.check()
    assert disk.tests == 2


@pytest.mark.parametrize("test_s", [0, 60], ids=["short", "long"])
async def test_concurrent_probes_share_a_test_and_a_cancelled_one_does_not_end_it(test_s: float):
    disk = Disk()
    disk.is_full, disk.test_s = True, test_s
    probes = [asyncio.create_task(disk.check()) for _ in range(50)]
    # The first one is in its test then.
    for _ in range(2):
        await asyncio.sleep(0)
    probes[0].cancel()
    outcomes = await asyncio.gather(*probes, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert {type(outcome) for outcome in outcomes[1:]} == {NotWritableError}
    assert disk.tests == 1


async def test_a_success_of_one_kind_does_not_hide_the_failure_of_another():
    health = WriteHealth(lambda: 0.0)
    with suppress(StoreError), health.report("count"):
        raise DatabaseFailureError("disk full")
    with health.report("transaction"):
        pass
    with pytest.raises(NotWritableError, match="disk full"):
        await health.check({}, MAX_AGE_S)


FULL = {"failure": "StoreError", "cause": "disk full"}


class Failures(FailureLog):
    """A log of failures at times that the test sets; `lines` holds its lines."""

    def __init__(self) -> None:
        super().__init__(self.call_later)
        self.now, self.lines = 0.0, list[dict[str, Any]]()
        self._calls: list[tuple[float, Callable[..., object]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], context: Context) -> None:
        assert len(context) == 0
        self._calls.append((self.now + delay, callback))

    def fail(self, cause: dict[str, object] = FULL, **details: object) -> None:
        self.write(
            lambda event, **fields: self.lines.append({"event": event, **fields}),
            *("store_failed", cause),
            **details,
        )

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [call for call in self._calls if call[0] <= self.now]
        self._calls = [call for call in self._calls if call[0] > self.now]
        for _, callback in due:
            callback()


def test_ten_thousand_failures_are_one_line_a_minute_that_counts_all():
    failures = Failures()
    for _ in range(10_000):
        failures.fail(at="signals_get_state")
    assert failures.lines == [{"event": "store_failed", **FULL, "at": "signals_get_state"}]
    failures.wait(INTERVAL_S - 1)
    assert len(failures.lines) == 1
    failures.wait(1)
    assert failures.lines[1:] == [{"event": "store_failed", **FULL, "repeated": 9999}]


def test_a_minute_without_a_repetition_ends_a_failure():
    failures = Failures()
    for _ in range(2):
        failures.fail()
    for _ in range(2):
        failures.wait(INTERVAL_S)
    assert failures.lines[1:] == [
        {"event": "store_failed", **FULL, "repeated": 1},
        {"event": "store_failed_ended", **FULL},
    ]
    failures.fail(at="again")
    assert failures.lines[3:] == [{"event": "store_failed", **FULL, "at": "again"}]
    for _ in range(2):
        failures.wait(INTERVAL_S)
    assert len(failures.lines) == 4  # a single failure needs no second line


def test_each_cause_has_its_own_lines_and_their_number_is_bounded():
    failures = Failures()
    failures.fail()
    failures.fail({"cause": "no answer"})
    assert [line["cause"] for line in failures.lines] == ["disk full", "no answer"]
    for number in range(2 * MAX_CAUSES):
        failures.fail({"cause": str(number)})
    assert len(failures.lines) == MAX_CAUSES + 1


def test_an_error_that_is_raised_again_is_the_same_failure():
    failures, place = Failures(), "File a.py, line 7" * 20
    for outer in ("", "File b.py, line 3\n"):
        failures.fail({"failure": "KeyError", "where": outer + place})
    assert len(failures.lines) == 1
