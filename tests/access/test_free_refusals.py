"""Calls with bad arguments that do not count, on both databases, single and concurrent."""

import asyncio
from collections.abc import Sequence

import pytest

from access.free_refusals import MAX_FREE_REFUSALS, MINUTE_MS, FreeRefusals
from access.keys import OperatorKeys, hash_key
from access.quota import Caller, QuotaGuard
from schemas.errors import ApiError
from tests.access.test_quota import (
    WELL_FORMED,
    Open,
    list_admitted_counts,
    load_usage,
    make_quota_guard,
)
from tests.access.test_quota import clock as clock
from tests.access.test_quota import keys as keys
from tests.access.test_quota import open_store as open_store
from tests.access.test_quota import quota_guard as quota_guard
from tests.access.test_quota import store as store
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome

pytestmark = pytest.mark.clause("access", "8.59")


async def call(
    quota_guard: QuotaGuard, api_key: str, bad: Sequence[bool]
) -> list[Caller | BaseException]:
    """Make concurrent calls of a key, with bad arguments or good ones."""
    key_hash = hash_key(api_key)
    calls = (quota_guard.authorize(key_hash, has_bad_arguments=is_bad) for is_bad in bad)
    return await asyncio.gather(*calls, return_exceptions=True)


def test_a_key_has_ten_a_minute_whatever_other_keys_do(clock: ManualClock) -> None:
    refusals = FreeRefusals(clock)
    assert [refusals.take(b"one") for _ in range(12)] == [*[True] * 10, False, False]
    assert [refusals.take(b"two"), refusals.has_left(b"one")] == [True, False]
    clock.now += MINUTE_MS
    assert [refusals.take(b"one") for _ in range(11)] == [*[True] * 10, False]


async def test_concurrent_calls_with_bad_arguments_are_counted_from_the_eleventh(
    quota_guard: QuotaGuard, keys: OperatorKeys, home: StoreHome
) -> None:
    api_key = await keys.create("agent")
    decided = await call(quota_guard, api_key, [True] * 15)
    assert max(list_admitted_counts(decided)) == 5
    assert [used for _, used in await load_usage(home)] == [5]


async def test_a_refused_call_makes_no_other_call_free(
    quota_guard: QuotaGuard, keys: OperatorKeys, home: StoreHome
) -> None:
    api_key = await keys.create("agent")
    mixed = [True, False] * MAX_FREE_REFUSALS
    decided = await call(quota_guard, api_key, mixed)
    good = [one for one, is_bad in zip(decided, mixed, strict=True) if not is_bad]
    assert sorted(list_admitted_counts(good)) == list(range(1, 11))
    assert [used for _, used in await load_usage(home)] == [10]
    # The quota of ten is used up, also for calls that would not count.
    assert list_admitted_counts(await call(quota_guard, api_key, [False, True])) == []
    assert [used for _, used in await load_usage(home)] == [10]


async def test_two_processes_have_ten_each_and_admit_exactly_the_limit_together(
    open_store: Open, keys: OperatorKeys, clock: ManualClock, home: StoreHome
) -> None:
    api_key = await keys.create("agent")
    processes = [make_quota_guard(await open_store(), clock, 30) for _ in range(2)]
    mixed = [is_bad for is_bad in (True, False) for _ in range(20)]
    decided = await asyncio.gather(*(call(one, api_key, mixed) for one in processes))
    # Of 40 calls with bad arguments 20 are free, so 60 compete for a quota of 30.
    refused = [one for outcomes in decided for one in outcomes if isinstance(one, ApiError)]
    assert {one.code for one in refused} == {"rate_limited"}
    assert 30 <= len(refused) <= 50
    assert [used for _, used in await load_usage(home)] == [30]


async def test_a_key_that_does_not_work_is_refused_as_with_good_arguments(
    quota_guard: QuotaGuard, keys: OperatorKeys, clock: ManualClock
) -> None:
    revoked, expired = await keys.create("old"), await keys.create("short", clock.now + 1)
    (key, _) = await keys.list()
    await keys.revoke(key.id)
    clock.now += 1
    for api_key, code in (
        (WELL_FORMED, "invalid_key"),
        (revoked, "revoked_key"),
        (expired, "revoked_key"),
    ):
        (error,) = await call(quota_guard, api_key, [True])
        assert isinstance(error, ApiError)
        assert error.code == code
