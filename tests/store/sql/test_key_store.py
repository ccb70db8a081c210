"""Keys that expire and keys that are rotated: exact times, and limits that always hold."""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from schemas.vocabulary import DAY_MS, HOUR_MS, Mode
from store.access_rows import (
    MAX_CALL_GROUPS,
    AttemptLimit,
    CallGroup,
    CountedGroup,
    DayUsage,
    KeyLimits,
    KeyRow,
    RefusedAttempt,
    RetentionCutoffs,
    ToolUsage,
)
from store.sql.access_store import AccessStore
from store.sql.database import fetch_value
from tests.store.conftest import OpenAccess
from tests.store.sql.test_purchase_store import CLAIM, MEMBER, NOW, add_membership, make_hash
from tests.support.row_builders import make_call_group
from tests.support.store_homes import StoreHome, call_elsewhere, run_sql

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
        (await access.list_member_keys(await add_membership(access), 0))[0].id,
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
@pytest.mark.prove
async def test_no_order_of_rotations_passes_the_limits(
    access: AccessStore, steps: list[tuple[str, int]]
) -> None:
    number = len(await access.list_keys()) + 1
    membership = await add_membership(access, f"{number}@example.com", number)
    did, now = Chains(), NOW
    for step, (verb, choice) in enumerate(steps):
        now += choice
        limits = KeyLimits(3, 4, now - DAY_MS, 6)
        keys = await access.list_member_keys(membership, 0)
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
        async with access._engine.acquire_connection() as db:
            sql = "SELECT key_hash FROM keys WHERE id = ?"
            key_hash = bytes(await fetch_value(db, sql, held.id))
        group = CallGroup(key_hash, now // DAY_MS, calls, now)
        (decided,) = await access.count_calls([group], None, DAILY_LIMIT)
        assert (decided.counted > 0) <= held.works_at(now)
        did.calls[did.chain_by_id.get(held.id, held.id), now // DAY_MS] += decided.counted


async def assert_within_limits(access: AccessStore, did: Chains, membership: int, now: int) -> None:
    keys = await access.list_member_keys(membership, 0)
    working = {key.id: key for key in keys if key.works_at(now)}
    assert len(working) <= 6
    assert sum(key.replaced_by not in working for key in working.values()) <= 3
    assert sum(at > now - DAY_MS for at in did.created_at) <= 4
    assert sum(at > now - DAY_MS for at in did.rotated_at) <= 6
    # The keys of one chain overlap, but rotating again and again gives no third quota.
    assert max(did.calls.values(), default=0) <= 2 * DAILY_LIMIT


NOON = 20_000 * DAY_MS + DAY_MS // 2
LIMITS = KeyLimits(9, 9, NOON)


def hash_name(name: str) -> bytes:
    return name.encode().ljust(32, b".")


async def buy(access: AccessStore, name: str, mode: Mode) -> None:
    claim = replace(
        CLAIM, id=name, token_hash=hash_name(f"token {name}"), agent_name=name, mode=mode
    )
    await access.create_claim(claim)
    member = replace(MEMBER, subscription=name, mode=mode)
    assert await access.redeem_claim(claim, member, hash_name(name), NOON)


async def test_an_exhausted_key_keeps_its_count_after_the_limit_was_lowered(
    access: AccessStore,
) -> None:
    await access.create_key(HASH, "first", NOON)
    for _ in range(3):
        await count_at(access, HASH, NOON)
    assert await count_at(access, HASH, NOON, 2) == CountedGroup(0, "exhausted", 3, "first")
    assert (await count_at(access, HASH, NOON, 4)).used == 4


async def test_each_key_of_the_largest_batch_is_counted(
    access: AccessStore,
) -> None:
    names = [f"key {number}" for number in range(MAX_CALL_GROUPS)]
    for name in names:
        await access.create_key(hash_name(name), name, NOON)
    assert await access.count_calls(
        [make_call_group(hash_name(name), NOON) for name in names], None, 1
    ) == [CountedGroup(1, "counted", 1, name) for name in names]


@pytest.mark.clause("18.8")
async def test_calls_add_up_by_key_day_and_tool_and_are_listed_by_membership(
    access: AccessStore,
) -> None:
    await buy(access, "one", "test")
    await buy(access, "other", "test")
    assert await access.create_member_key(1, hash_name("second"), "second", NOON, LIMITS)
    first = [ToolUsage(3, 8, "a", 5), ToolUsage(1, 8, "b", 1), ToolUsage(1, 7, "a", 2)]
    await access.add_tool_usage(first)
    await access.add_tool_usage([ToolUsage(1, 8, "a", 3), ToolUsage(1, 7, "a", 4)])
    await access.add_tool_usage([ToolUsage(2, 8, "a", 90)])
    assert sorted(await access.list_tool_usage(1, 7)) == [
        DayUsage(7, "a", 6),
        DayUsage(8, "a", 3),
        DayUsage(8, "a", 5),
        DayUsage(8, "b", 1),
    ]
    assert await access.list_tool_usage(1, 9) == []
    assert await access.prune(replace(RetentionCutoffs(*[0] * 8), calls=8 * DAY_MS)) == 1
    assert {row.day for row in await access.list_tool_usage(1, 0)} == {8}


class Model:
    """The expected behaviour: a count per key and day."""

    def __init__(self, mode: Mode | None, limit: int) -> None:
        self.mode = mode
        self.limit = limit
        self.revoked: set[str] = set()
        self.used: dict[tuple[str, int], int] = {}

    def decide(self, name: str, at: int) -> tuple[str, int]:
        place = (name, at // DAY_MS)
        used = self.used.get(place, 0)
        if name not in KEYS:
            return "unknown", 0
        if name in self.revoked:
            return "revoked", used
        if self.mode not in (None, KEYS[name]) and KEYS[name] is not None:
            return "wrong_mode", used
        if used >= self.limit:
            return "exhausted", used
        self.used[place] = used + 1
        return "counted", used + 1


KEYS: dict[str, Mode | None] = {"own": None, "other": None, "test": "test", "live": "live"}
Step = str | list[tuple[str, int]]
ARRIVALS = st.tuples(st.sampled_from([*KEYS, "nobody"]), st.sampled_from([NOON, NOON + DAY_MS]))
COUNT_STEPS = st.one_of(
    st.lists(ARRIVALS, min_size=1, max_size=MAX_CALL_GROUPS), st.sampled_from(["own", "test"])
)


@pytest.mark.clause("1.36", "2.11.6", "5.22", "5.25")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mode=st.sampled_from([None, "test", "live"]),
    limit=st.integers(1, 6),
    steps=st.lists(COUNT_STEPS, min_size=1, max_size=6),
)
async def test_any_sequence_of_calls_is_decided_as_by_the_model(
    access: AccessStore, home: StoreHome, mode: Mode | None, limit: int, steps: list[Step]
) -> None:
    """A step is a group of calls, or the name of a key to revoke."""
    model, known = Model(mode, limit), await make_keys(access)
    for step in steps:
        if isinstance(step, str):
            await access.revoke_key(known[step][0], NOON)
            model.revoked.add(step)
        else:
            arrived = Counter(step)
            groups = [
                CallGroup(known[name][1] if name in known else bytes(32), at // DAY_MS, calls, at)
                for (name, at), calls in arrived.items()
            ]
            expected = [
                [model.decide(name, at) for _ in range(calls)]
                for (name, at), calls in arrived.items()
            ]
            decided = await access.count_calls(groups, mode, limit)
            assert [
                list_results(one, group.calls) for one, group in zip(decided, groups, strict=True)
            ] == expected
            for (name, _), group in zip(arrived, decided, strict=True):
                is_refused = group.verdict not in ("counted", "unknown")
                assert group.mode == (KEYS[name] if is_refused else None)
                assert group.label is None or name in group.label
    names = {id_: name for name, (id_, _) in known.items()}
    stored = await run_sql(home, "SELECT key_id, day, used FROM usage")
    assert {(names[id_], day): used for id_, day, used in stored if id_ in names} == model.used


def list_results(group: CountedGroup, calls: int) -> list[tuple[str, int]]:
    """Return the verdict and count of each call of a group."""
    first = group.used - group.counted + 1
    counted = [("counted", first + number) for number in range(group.counted)]
    return counted + [(group.verdict, group.used)] * (calls - group.counted)


async def make_keys(access: AccessStore) -> dict[str, tuple[int, bytes]]:
    """Create a key for each name in KEYS, with a hash that no other example has; return both."""
    start = len(await access.list_keys())
    made: dict[str, tuple[int, bytes]] = {}
    for number, (name, bought_in) in enumerate(KEYS.items(), start + 1):
        own = f"{name} {number}"
        if bought_in is None:
            await access.create_key(hash_name(own), name, NOON)
        else:
            await buy(access, own, bought_in)
        made[name] = number, hash_name(own)
    return made


DAY = 20_000
LIMIT = 50
HASHES = [bytes([number]) * 32 for number in range(1, 5)]
PLACES = [(key_hash, day) for key_hash in HASHES for day in (DAY, DAY + 1)]

# Number of the key and day, requested calls, counted calls, count afterwards, verdict.
Answer = tuple[int, int, int, int, str]


async def count(store: AccessStore, seed: int, rounds: int) -> list[Answer]:
    """Count groups of calls repeatedly, in an order that differs between processes."""
    chance, answers = random.Random(seed), list[Answer]()
    for _ in range(rounds):
        requested = {place: chance.randint(1, 6) for place in chance.sample(range(len(PLACES)), 5)}
        groups = [
            CallGroup(*PLACES[place], calls, PLACES[place][1] * DAY_MS)
            for place, calls in requested.items()
        ]
        decided = await store.count_calls(groups, None, LIMIT)
        for (place, calls), group in zip(requested.items(), decided, strict=True):
            answers.append((place, calls, group.counted, group.used, group.verdict))
    return answers


@pytest.mark.parametrize(
    ("processes", "rounds"),
    [(0, 12), pytest.param(6, 200, marks=pytest.mark.prove)],
    ids=["stores", "processes"],
)
async def test_concurrent_calls_are_counted_up_to_the_limit_each_with_its_own_number(
    access: AccessStore, open_access: OpenAccess, home: StoreHome, processes: int, rounds: int
) -> None:
    for key_hash in HASHES:
        await access.create_key(key_hash, "agent", 1)
    if processes:
        counting = [call_elsewhere(home, count, seed, rounds) for seed in range(processes)]
    else:
        stores = [access, *[await open_access() for _ in range(3)]]
        counting = [count(store, seed, rounds) for seed, store in enumerate(stores * 2)]
    answers = [answer for output in await asyncio.gather(*counting) for answer in output]
    numbers, requested = defaultdict[int, list[int]](list), defaultdict[int, int](int)
    for place, calls, counted, used, verdict in answers:
        assert used <= LIMIT
        assert (counted == calls) is (verdict == "counted")
        assert verdict == "counted" or (verdict, used) == ("exhausted", LIMIT)
        numbers[place] += range(used - counted + 1, used + 1)
        requested[place] += calls
    for place, counted_numbers in numbers.items():
        assert sorted(counted_numbers) == list(range(1, min(LIMIT, requested[place]) + 1))
    assert min(requested.values()) > LIMIT
    assert await run_sql(home, "SELECT used FROM usage") == [(LIMIT,)] * len(PLACES)


async def test_nothing_is_counted_once_a_key_is_revoked_although_others_count_it(
    access: AccessStore, open_access: OpenAccess, home: StoreHome
) -> None:
    key_id = await access.create_key(HASHES[0], "agent", 1)
    stores = [access, *[await open_access() for _ in range(3)]]
    call = [make_call_group(HASHES[0], DAY * DAY_MS)]
    decided: list[CountedGroup] = []

    async def count_until_revoked(store: AccessStore) -> None:
        while not decided or decided[-1].verdict == "counted":
            decided.extend(await store.count_calls(call, None, 10**6))
            await asyncio.sleep(0)  # on SQLite counting never waits, so give the other tasks a turn

    counting = [asyncio.create_task(count_until_revoked(store)) for store in stores]
    while len(decided) < 20:
        await asyncio.sleep(0)
    assert await access.revoke_key(key_id, 2)
    refused = [group for store in stores for group in await store.count_calls(call, None, 10**6)]
    # Calls that began before the revocation may be counted a moment later.
    await asyncio.gather(*counting)
    refused += [group for store in stores for group in await store.count_calls(call, None, 10**6)]
    assert {group.verdict for group in refused} == {"revoked"}
    numbers = sorted(group.used for group in decided if group.verdict == "counted")
    assert numbers == list(range(1, len(numbers) + 1))
    assert await run_sql(home, "SELECT used FROM usage") == [(len(numbers),)]
    assert {group.used for group in refused[len(stores) :]} == {len(numbers)}


async def test_concurrent_attempts_are_accepted_up_to_the_limit(
    access: AccessStore, open_access: OpenAccess
) -> None:
    stores = [access, *[await open_access() for _ in range(3)]]
    limits = [AttemptLimit("192.0.2.1", 9), AttemptLimit("192.0.2.0/24", 7)]
    taken = await asyncio.gather(
        *(store.record_attempt("checkout", limits, 5, 100) for store in stores * 5)
    )
    assert (taken.count(None), taken.count(RefusedAttempt(limits[1], 105))) == (7, 13)
