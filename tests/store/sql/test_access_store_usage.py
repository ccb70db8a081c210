"""The statement that counts calls, compared to a model of a few lines."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import (
    MAX_CALL_GROUPS,
    CallGroup,
    CountedGroup,
    DayUsage,
    KeyLimits,
    RetentionCutoffs,
    ToolUsage,
)
from store.sql.access_store import AccessStore
from tests.store.sql.test_access_store_purchases import CLAIM, MEMBER
from tests.support.row_builders import make_call_group
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("access")

NOON = 20_000 * DAY_MS + DAY_MS // 2
NOBODY = bytes(32)
LIMITS = KeyLimits(9, 9, NOON)


def make_hash(name: str) -> bytes:
    return name.encode().ljust(32, b".")


async def buy(access: AccessStore, name: str, mode: Mode) -> None:
    claim = replace(
        CLAIM, id=name, token_hash=make_hash(f"token {name}"), agent_name=name, mode=mode
    )
    await access.create_claim(claim)
    member = replace(MEMBER, subscription=name, mode=mode)
    assert await access.redeem_claim(claim, member, make_hash(name), NOON)


async def count_one(
    access: AccessStore, name: str, mode: Mode | None = None, limit: int = 10, at: int = NOON
) -> CountedGroup:
    (decided,) = await access.count_calls([make_call_group(make_hash(name), at)], mode, limit)
    return decided


async def test_a_call_is_counted_with_the_label_of_its_key(access: AccessStore) -> None:
    await access.create_key(make_hash("one"), "first", NOON)
    assert await count_one(access, "one") == CountedGroup(1, "counted", 1, "first")
    assert await count_one(access, "one") == CountedGroup(1, "counted", 2, "first")


async def test_an_exhausted_key_keeps_its_count_after_the_limit_was_lowered(
    access: AccessStore,
) -> None:
    await access.create_key(make_hash("one"), "first", NOON)
    for _ in range(3):
        await count_one(access, "one")
    assert await count_one(access, "one", limit=2) == CountedGroup(0, "exhausted", 3, "first")
    assert (await count_one(access, "one", limit=4)).used == 4


async def test_each_key_of_the_largest_batch_is_counted(
    access: AccessStore,
) -> None:
    names = [f"key {number}" for number in range(MAX_CALL_GROUPS)]
    for name in names:
        await access.create_key(make_hash(name), name, NOON)
    decided = await access.count_calls(
        [make_call_group(make_hash(name), NOON) for name in names], None, 1
    )
    assert decided == [CountedGroup(1, "counted", 1, name) for name in names]


@pytest.mark.clause("18.8")
async def test_calls_add_up_by_key_day_and_tool_and_are_listed_by_membership(
    access: AccessStore,
) -> None:
    await buy(access, "one", "test")
    await buy(access, "other", "test")
    assert await access.create_member_key(1, make_hash("second"), "second", NOON, LIMITS)
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
    cutoffs = RetentionCutoffs(*[0] * 8)
    assert await access.prune(replace(cutoffs, calls=8 * DAY_MS)) == 1
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
STEPS = st.one_of(
    st.lists(ARRIVALS, min_size=1, max_size=MAX_CALL_GROUPS), st.sampled_from(["own", "test"])
)


@pytest.mark.clause("1.36", "2.11.6", "5.22", "5.25")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mode=st.sampled_from([None, "test", "live"]),
    limit=st.integers(1, 6),
    steps=st.lists(STEPS, min_size=1, max_size=6),
)
async def test_any_sequence_of_calls_is_decided_as_by_the_model(
    access: AccessStore, home: StoreHome, mode: Mode | None, limit: int, steps: list[Step]
) -> None:
    """A step is a group of calls, or the name of a key to revoke."""
    model, known = Model(mode, limit), await make_keys(access)
    for step in steps:
        if isinstance(step, str):
            await access.revoke_key(known[step].id, NOON)
            model.revoked.add(step)
        else:
            arrived = Counter(step)
            groups = [
                CallGroup(
                    known[name].key_hash if name in known else NOBODY, at // DAY_MS, calls, at
                )
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
    names = {made.id: name for name, made in known.items()}
    stored = await run_sql(home, "SELECT key_id, day, used FROM usage")
    assert {(names[id_], day): used for id_, day, used in stored if id_ in names} == model.used


def list_results(group: CountedGroup, calls: int) -> list[tuple[str, int]]:
    """Return the verdict and count of each call of a group."""
    first = group.used - group.counted + 1
    counted = [("counted", first + number) for number in range(group.counted)]
    return counted + [(group.verdict, group.used)] * (calls - group.counted)


class Made(NamedTuple):
    id: int
    key_hash: bytes


async def make_keys(access: AccessStore) -> dict[str, Made]:
    """Create a key for each name in KEYS, with a hash that no other example has."""
    start = len(await access.list_keys())
    made: dict[str, Made] = {}
    for number, (name, bought_in) in enumerate(KEYS.items(), start + 1):
        own = f"{name} {number}"
        if bought_in is None:
            await access.create_key(make_hash(own), name, NOON)
        else:
            await buy(access, own, bought_in)
        made[name] = Made(number, make_hash(own))
    return made
