"""Whether an engine accepts writes, from its last ones and from rare test writes."""

import asyncio
from contextlib import suppress

import pytest

from store.errors import DatabaseFailureError, NotWritableError, StoreError
from store.write_health import MIN_TEST_INTERVAL_S, WriteHealth

pytestmark = pytest.mark.clause("monitoring")

MAX_AGE_S = 30.0


class Disk:
    """A database with a clock of its own, whose writes fail while it is full."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_full = False
        self.tests = 0
        self.health = WriteHealth(lambda: self.now)

    def write(self) -> None:
        with self.health.report("count"):
            if self.is_full:
                raise DatabaseFailureError("disk full")

    async def test_write(self) -> None:
        self.tests += 1
        await asyncio.sleep(0)
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


async def test_concurrent_probes_share_a_test_and_a_cancelled_one_does_not_end_it():
    disk = Disk()
    disk.is_full = True
    probes = [asyncio.create_task(disk.check()) for _ in range(50)]
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
