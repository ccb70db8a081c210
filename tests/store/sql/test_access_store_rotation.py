"""Keys that expire and keys that are rotated: exact times, and limits that always hold."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import DAY_MS, HOUR_MS
from store.access_rows import CallGroup, CountedGroup, KeyLimits, KeyRow
from store.sql.access_store import AccessStore
from tests.store.conftest import OpenAccess
from tests.store.sql.test_access_store_members import add_membership, make_hash
from tests.store.sql.test_access_store_purchases import NOW
from tests.support.row_builders import make_call_group

pytestmark = [pytest.mark.clause("access"), pytest.mark.clause("dashboard")]

ALL = KeyLimits(max_live=3, max_created=10, created_since=NOW - DAY_MS, max_rotated=10)
HASH = make_hash(900)


async def count_at(access: AccessStore, key_hash: bytes, at: int, limit: int = 10) -> CountedGroup:
    (decided,) = await access.count_calls([make_call_group(key_hash, at)], None, limit)
    return decided


@pytest.mark.clause("3.5.4", "5.25", "5.31")
async def test_a_key_is_refused_from_the_millisecond_of_its_expiry(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", NOW, NOW + 100)
    assert await count_at(access, HASH, NOW + 99) == CountedGroup(1, "counted", 1, "agent")
    refused = CountedGroup(0, "expired", 1, "agent", None, NOW + 100)
    for at in (NOW + 100, NOW + 101, NOW + 10 * HOUR_MS):
        assert (await count_at(access, HASH, at))._replace(used=1) == refused
    assert (await count_at(access, HASH, NOW + 99)).used == 2


async def test_calls_of_an_expired_key_do_not_stop_those_of_others(access: AccessStore) -> None:
    await access.create_key(HASH, "old", NOW, NOW + 1)
    await access.create_key(make_hash(901), "new", NOW)
    groups = [CallGroup(key_hash, NOW // DAY_MS, 4, NOW + 1) for key_hash in (HASH, make_hash(901))]
    decided = await access.count_calls(groups, None, 3)
    assert [(one.counted, one.verdict) for one in decided] == [(0, "expired"), (3, "exhausted")]


@pytest.mark.clause("5.31")
async def test_an_expired_key_does_not_count_as_live(access: AccessStore) -> None:
    membership = await add_membership(access)
    for number in range(2):
        assert await access.create_member_key(
            membership, make_hash(800 + number), "short", NOW, ALL, NOW + 5
        )
    full = membership, make_hash(802), "late", NOW + 4, ALL
    assert not await access.create_member_key(*full)
    assert await access.create_member_key(membership, make_hash(802), "late", NOW + 5, ALL)


@pytest.mark.clause("5.32")
async def test_a_rotated_key_works_for_the_overlap_and_its_successor_continues_its_count(
    access: AccessStore,
) -> None:
    key_id = await access.create_key(HASH, "agent", NOW, NOW + DAY_MS)
    for _ in range(3):
        await count_at(access, HASH, NOW + 1)
    rotated_at = NOW + 10
    successor = await access.rotate_key(key_id, make_hash(901), rotated_at, rotated_at + HOUR_MS)
    old, new = await access.list_keys()
    assert (old.expires_at, old.replaced_by) == (rotated_at + HOUR_MS, successor)
    assert new == KeyRow(new.id, "agent", rotated_at, None, expires_at=rotated_at + DAY_MS)
    assert (await count_at(access, make_hash(901), rotated_at)).used == 4
    assert (await count_at(access, HASH, rotated_at + HOUR_MS - 1)).verdict == "counted"
    assert (await count_at(access, HASH, rotated_at + HOUR_MS)).verdict == "expired"


async def test_an_overlap_never_lengthens_the_life_of_a_key(access: AccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", NOW, NOW + 100)
    await access.rotate_key(key_id, make_hash(901), NOW + 50, NOW + 50 + DAY_MS)
    assert (await access.list_keys())[0].expires_at == NOW + 100


async def test_only_a_working_key_is_rotated_and_only_once(access: AccessStore) -> None:
    expired = await access.create_key(make_hash(1), "expired", NOW, NOW + 1)
    revoked = await access.create_key(make_hash(2), "revoked", NOW)
    await access.revoke_key(revoked, NOW)
    rotated = await access.create_key(make_hash(3), "rotated", NOW)
    assert await access.rotate_key(rotated, make_hash(4), NOW, NOW + DAY_MS)
    for key_id in (expired, revoked, rotated, 999):
        assert await access.rotate_key(key_id, make_hash(5), NOW + 1, NOW + DAY_MS) is None
    assert len(await access.list_keys()) == 4


async def test_of_concurrent_rotations_of_a_key_one_succeeds(
    access: AccessStore, open_access: OpenAccess
) -> None:
    for key_id in (
        await access.create_key(HASH, "own", NOW),
        (await access.list_member_keys(await add_membership(access), 0))[0].key.id,
    ):
        stores = [access, *[await open_access() for _ in range(3)]]
        rotating = [
            store.rotate_key(key_id, make_hash(1000 * key_id + number), NOW, NOW + DAY_MS, ALL)
            for number, store in enumerate(stores * 2)
        ]
        assert sum(made is not None for made in await asyncio.gather(*rotating)) == 1


@dataclass
class Chains:
    """What a membership did: its keys by the first key of their chain, and its calls."""

    chain_by_id: dict[int, int] = field(default_factory=dict)
    calls: Counter[tuple[int, int]] = field(default_factory=Counter)
    created_at: list[int] = field(default_factory=list)
    rotated_at: list[int] = field(default_factory=list)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "rotate", "rotate", "revoke", "call", "call", "wait"]),
        st.integers(0, 5),
    ),
    min_size=5,
    max_size=30,
)
DAILY_LIMIT = 5


@pytest.mark.clause("5.32")
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
@pytest.mark.sampled(2)
async def test_no_order_of_rotations_passes_the_limits(
    access: AccessStore, steps: list[tuple[str, int]]
) -> None:
    number = len(await access.list_keys()) + 1
    membership = await add_membership(access, f"{number}@example.com", number)
    did, now = Chains(), NOW
    for step, (verb, choice) in enumerate(steps):
        now += choice
        limits = KeyLimits(3, 4, now - DAY_MS, 6)
        keys = [held.key for held in await access.list_member_keys(membership, 0)]
        did.chain_by_id |= {key.id: did.chain_by_id.get(key.id, key.id) for key in keys}
        key, key_hash = keys[choice % len(keys)], make_hash(10**6 * number + step)
        if verb == "create" and await access.create_member_key(
            membership, key_hash, "own", now, limits
        ):
            did.created_at.append(now)
        elif verb == "rotate":
            until = now + (0, HOUR_MS, 72 * HOUR_MS)[choice % 3]
            successor = await access.rotate_key(key.id, key_hash, now, until, limits)
            if successor is not None:
                did.chain_by_id[successor] = did.chain_by_id[key.id]
                did.rotated_at.append(now)
        elif verb == "revoke":
            await access.revoke_member_key(membership, key.id, now)
        elif verb == "wait":
            now += choice * 9 * HOUR_MS
        elif verb == "call":
            await count_everywhere(access, did, membership, now, choice + 1)
        await assert_within_limits(access, did, membership, now)


async def count_everywhere(
    access: AccessStore, did: Chains, membership: int, now: int, calls: int
) -> None:
    """Use every key of a membership for some calls."""
    for held in await access.list_member_keys(membership, 0):
        key_hash = await find_hash(access, held.key.id)
        group = CallGroup(key_hash, now // DAY_MS, calls, now)
        (decided,) = await access.count_calls([group], None, DAILY_LIMIT)
        assert (decided.counted > 0) <= held.key.works_at(now)
        chain = did.chain_by_id.get(held.key.id, held.key.id)
        did.calls[chain, now // DAY_MS] += decided.counted


async def find_hash(access: AccessStore, key_id: int) -> bytes:
    async with access._engine.acquire_connection() as db:
        rows = await db.execute("SELECT key_hash FROM keys WHERE id = ?", key_id)
    return bytes(rows[0]["key_hash"])


async def assert_within_limits(access: AccessStore, did: Chains, membership: int, now: int) -> None:
    keys = [held.key for held in await access.list_member_keys(membership, 0)]
    working = {key.id: key for key in keys if key.works_at(now)}
    assert len(working) <= 6
    assert sum(key.replaced_by not in working for key in working.values()) <= 3
    assert sum(at > now - DAY_MS for at in did.created_at) <= 4
    assert sum(at > now - DAY_MS for at in did.rotated_at) <= 6
    # The keys of one chain overlap, but rotating again and again gives no third quota.
    assert max(did.calls.values(), default=0) <= 2 * DAILY_LIMIT
