"""Stored keys (hashes only, revoked for good), attempts, requests, notices and pruning."""

from dataclasses import replace

import pytest

from store.access_rows import AccessRequestRow, AttemptLimit, KeyRow, Notice, RefusedAttempt
from store.errors import StoreError
from store.sql.access_store import AccessStore
from tests.store.conftest import OpenAccess
from tests.store.sql.test_purchase_store import NOW
from tests.support.access_store_calls import HASH, REQUEST
from tests.support.row_builders import DAY_MS, NO_CUTOFFS, make_call_group
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("access")


async def test_keys_are_listed_oldest_first_without_a_mode_and_never_used(
    access: AccessStore,
) -> None:
    ids = [await access.create_key(bytes([number] * 32), "same", 9 - number) for number in (3, 1)]
    assert await access.list_keys() == [
        KeyRow(ids[0], "same", 6, None),
        KeyRow(ids[1], "same", 8, None),
    ]


async def test_a_key_is_revoked_once_and_for_good(access: AccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", 5)
    assert await access.revoke_key(key_id, 7)
    assert await access.revoke_key(key_id, 9)
    assert await access.list_keys() == [KeyRow(key_id, "agent", 5, 7)]
    assert not await access.revoke_key(key_id + 1, 7)


async def test_a_key_knows_when_it_was_last_used(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    for at in (2 * DAY_MS + 7, DAY_MS, 2 * DAY_MS + 3):
        await access.count_calls([make_call_group(HASH, at)], None, 10)
    (key,) = await access.list_keys()
    assert key.last_used_at == 2 * DAY_MS + 7


async def test_one_hash_belongs_to_one_key(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "other", 6)
    assert len(await access.list_keys()) == 1


async def test_a_clear_key_cannot_be_stored_by_mistake(access: AccessStore) -> None:
    with pytest.raises(StoreError):
        await access.create_key(b"ek_clear", "agent", 5)


async def test_an_access_request_is_new_once_and_updated_after(access: AccessStore) -> None:
    assert await access.put_access_request(REQUEST, 2) == "received"
    other = AccessRequestRow("b@example.com", None, None, None, None, NOW - 5, NOW - 5)
    assert await access.put_access_request(other, 2) == "received"
    changed = AccessRequestRow("a@example.com", None, "Op", None, "9", NOW + 1, NOW + 1)
    assert await access.put_access_request(changed, 2) == "updated"
    assert await access.list_access_requests() == [
        other,
        AccessRequestRow("a@example.com", None, "Op", None, "9", NOW, NOW + 1),
    ]


async def test_no_more_requests_are_stored_than_allowed_and_known_ones_still_change(
    access: AccessStore,
) -> None:
    assert await access.put_access_request(REQUEST, 1) == "received"
    other = replace(REQUEST, contact_email="b@example.com")
    assert await access.put_access_request(other, 1) == "full"
    changed = replace(REQUEST, use_case="other")
    assert await access.put_access_request(changed, 1) == "updated"
    assert await access.list_access_requests() == [changed]
    assert await access.put_access_request(other, 2) == "received"


async def test_requests_that_were_last_changed_before_the_cutoff_are_deleted(
    access: AccessStore,
) -> None:
    for name, updated_at in (("a", NOW), ("b", NOW + 1)):
        email = f"{name}@example.com"
        row = replace(REQUEST, contact_email=email, created_at=5, updated_at=updated_at)
        await access.put_access_request(row, 9)
    assert await access.prune(replace(NO_CUTOFFS, access_requests=NOW + 1)) == 1
    assert [row.contact_email for row in await access.list_access_requests()] == ["b@example.com"]


async def test_an_attempt_counts_for_every_limit_or_for_none(
    access: AccessStore, home: StoreHome
) -> None:
    async def attempt(at: int, *limits: tuple[str, int]) -> RefusedAttempt | None:
        return await access.record_attempt(
            "checkout", [AttemptLimit(*limit) for limit in limits], at, 100
        )

    narrow, other, wide = ("192.0.2.1", 2), ("192.0.2.2", 2), ("192.0.2.0/24", 3)
    assert [await attempt(at, narrow, wide) for at in (0, 10)] == [None, None]
    assert await attempt(20, narrow, wide) == RefusedAttempt(AttemptLimit(*narrow), 100)
    assert await attempt(30, other, wide) is None
    assert await attempt(40, other, wide) == RefusedAttempt(AttemptLimit(*wide), 100)
    both = await attempt(41, ("192.0.2.1", 1), wide)
    assert both == RefusedAttempt(AttemptLimit("192.0.2.1", 1), 110)
    assert await attempt(100, other, wide) is None
    counts = await run_sql(
        home, "SELECT address, count(*) FROM attempts GROUP BY address ORDER BY address"
    )
    assert counts == [("192.0.2.0/24", 4), ("192.0.2.1", 2), ("192.0.2.2", 2)]


async def test_attempts_of_a_clock_that_was_far_ahead_lock_no_one_out(access: AccessStore) -> None:
    limits = [AttemptLimit("192.0.2.1", 1)]
    assert await access.record_attempt("checkout", limits, NOW + 90 * DAY_MS, 100) is None
    assert await access.record_attempt("checkout", limits, NOW, 100) is None
    refused = await access.record_attempt("checkout", limits, NOW, 100)
    assert refused == RefusedAttempt(limits[0], NOW + 100)


async def test_a_notice_replaces_the_last_of_its_name(access: AccessStore) -> None:
    for notice in (Notice("b", "1", 1), Notice("a", "2", 2), Notice("b", "3", 3)):
        await access.put_notice(notice)
    assert await access.list_notices() == [Notice("a", "2", 2), Notice("b", "3", 3)]


async def test_an_address_has_a_limited_number_of_attempts_per_kind_and_window(
    access: AccessStore, home: StoreHome
) -> None:
    async def at(time: int, kind: str = "checkout", address: str = "192.0.2.1") -> int | None:
        refused = await access.record_attempt(kind, [AttemptLimit(address, 2)], time, 100)
        return None if refused is None else refused.free_at

    assert [await at(0), await at(60), await at(99)] == [None, None, 100]
    assert await at(99, kind="access-request") is None
    assert await at(99, address="192.0.2.2") is None
    assert [await at(100), await at(101), await at(159)] == [None, 160, 160]
    assert [await at(160), await at(161)] == [None, 200]
    assert await run_sql(home, "SELECT count(*) FROM attempts") == [(6,)]


async def test_pruning_keeps_each_keys_last_day_of_use_and_recent_rows(
    access: AccessStore, home: StoreHome
) -> None:
    rare, busy = bytes(32), HASH
    for key_hash in (rare, busy):
        await access.create_key(key_hash, "agent", 5)
    for day in (1, 2):
        await access.count_calls([make_call_group(rare, day * DAY_MS)], None, 10)
    for day in (2, 9):
        await access.count_calls([make_call_group(busy, day * DAY_MS)], None, 10)
    await access.mark_event_handled("evt_old", 10)
    await access.mark_event_handled("evt_new", 20)
    for at in (10, 20):
        await access.record_attempt("checkout", [AttemptLimit("192.0.2.1", 5)], at, 100)
    pruned = await access.prune(replace(NO_CUTOFFS, usage=8 * DAY_MS, events=20, attempts=20))
    assert pruned == 4
    async with home.open_plain() as run:
        assert await run("SELECT key_id, day FROM usage ORDER BY key_id") == [(1, 2), (2, 9)]
        assert await run("SELECT id FROM events") == [("evt_new",)]
        assert await run("SELECT at FROM attempts") == [(20,)]


async def test_keys_survive_reopening(
    access: AccessStore, open_access: OpenAccess, home: StoreHome
) -> None:
    await access.create_key(HASH, "agent", 5)
    await access.close()
    assert len(await (await open_access()).list_keys()) == 1
    assert await run_sql(home, "SELECT key_hash FROM keys") == [(HASH,)]
