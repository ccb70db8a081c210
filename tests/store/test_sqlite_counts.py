"""The one statement that decides calls, held against a model of a few lines."""

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import DAY_MS, Mode
from store.access_protocol import MOST_GROUPS
from store.access_rows import CallGroup, CountedGroup
from store.sqlite_access import SqliteAccessStore
from tests.store.rows import one_call, plainly
from tests.store.test_sqlite_purchases import CLAIM, MEMBER

pytestmark = pytest.mark.clause("access")

NOON = 20_000 * DAY_MS + DAY_MS // 2
NOBODY = bytes(32)


def hashed(name: str) -> bytes:
    return name.encode().ljust(32, b".")


async def buy(access: SqliteAccessStore, name: str, mode: Mode) -> None:
    claim = replace(CLAIM, id=name, token_hash=hashed(f"token {name}"), agent_name=name, mode=mode)
    await access.create_claim(claim)
    member = replace(MEMBER, subscription=name, mode=mode)
    assert await access.redeem(claim, member, hashed(name), NOON)


async def count_one(
    access: SqliteAccessStore, name: str, mode: Mode | None = None, limit: int = 10, at: int = NOON
) -> CountedGroup:
    (decided,) = await access.count([one_call(hashed(name), at)], mode, limit)
    return decided


async def test_a_call_is_counted_with_the_label_of_its_key(access: SqliteAccessStore) -> None:
    await access.create_key(hashed("one"), "first", NOON)
    assert await count_one(access, "one") == CountedGroup(1, "counted", 1, "first")
    assert await count_one(access, "one") == CountedGroup(1, "counted", 2, "first")


async def test_a_hash_that_no_key_has_is_unknown(access: SqliteAccessStore) -> None:
    assert await access.count([one_call(NOBODY, NOON)], None, 1) == [CountedGroup(0, "unknown")]


async def test_a_spent_key_keeps_the_count_it_had_when_the_limit_was_higher(
    access: SqliteAccessStore,
) -> None:
    await access.create_key(hashed("one"), "first", NOON)
    for _ in range(3):
        await count_one(access, "one")
    assert await count_one(access, "one", limit=2) == CountedGroup(0, "spent", 3, "first")
    assert (await count_one(access, "one", limit=4)).used == 4


@pytest.mark.clause("2.11.6")
@pytest.mark.parametrize("server", [None, "test", "live"])
@pytest.mark.parametrize("bought_in", ["test", "live"])
async def test_a_bought_key_works_in_its_mode_and_where_nothing_is_billed(
    access: SqliteAccessStore, server: Mode | None, bought_in: Mode
) -> None:
    await access.create_key(hashed("own"), "own", NOON)
    await buy(access, "member", bought_in)
    assert (await count_one(access, "own", server)).verdict == "counted"
    decided = await count_one(access, "member", server)
    if server in (None, bought_in):
        assert decided == CountedGroup(1, "counted", 1, "member")
    else:
        assert decided == CountedGroup(0, "wrong_mode", 0, "member", bought_in)


async def test_a_revoked_key_of_another_mode_is_told_that_it_is_revoked(
    access: SqliteAccessStore,
) -> None:
    await buy(access, "member", "test")
    await count_one(access, "member")
    await access.revoke_key(1, NOON)
    assert await count_one(access, "member", "live") == CountedGroup(
        0, "revoked", 1, "member", "test"
    )


async def test_of_a_group_that_does_not_fit_the_first_calls_are_let_in(
    access: SqliteAccessStore,
) -> None:
    await access.create_key(hashed("one"), "first", NOON)
    group = one_call(hashed("one"), NOON)._replace(calls=40)
    assert await access.count([group], None, 30) == [CountedGroup(30, "spent", 30, "first")]
    assert await access.count([group], None, 100) == [CountedGroup(40, "counted", 70, "first")]
    assert await access.count([group], None, 100) == [CountedGroup(30, "spent", 100, "first")]


async def test_as_many_keys_as_are_decided_together_are_each_counted(
    access: SqliteAccessStore,
) -> None:
    names = [f"key {number}" for number in range(MOST_GROUPS)]
    for name in names:
        await access.create_key(hashed(name), name, NOON)
    decided = await access.count([one_call(hashed(name), NOON) for name in names], None, 1)
    assert decided == [CountedGroup(1, "counted", 1, name) for name in names]


class Model:
    """What the statement should decide: a count by key and day."""

    def __init__(self, mode: Mode | None, limit: int) -> None:
        self.mode = mode
        self.limit = limit
        self.revoked: set[str] = set()
        self.used: dict[tuple[str, int], int] = {}

    def decided(self, name: str, at: int) -> tuple[str, int]:
        place = (name, at // DAY_MS)
        used = self.used.get(place, 0)
        if name not in KEYS:
            return "unknown", 0
        if name in self.revoked:
            return "revoked", used
        if self.mode not in (None, KEYS[name]) and KEYS[name] is not None:
            return "wrong_mode", used
        if used >= self.limit:
            return "spent", used
        self.used[place] = used + 1
        return "counted", used + 1


KEYS: dict[str, Mode | None] = {"own": None, "other": None, "test": "test", "live": "live"}
Step = str | list[tuple[str, int]]
ARRIVALS = st.tuples(st.sampled_from([*KEYS, "nobody"]), st.sampled_from([NOON, NOON + DAY_MS]))
STEPS = st.one_of(
    st.lists(ARRIVALS, min_size=1, max_size=MOST_GROUPS), st.sampled_from(["own", "test"])
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mode=st.sampled_from([None, "test", "live"]),
    limit=st.integers(1, 6),
    steps=st.lists(STEPS, min_size=1, max_size=6),
)
async def test_whatever_arrives_is_decided_as_by_the_model(
    tmp_path: Path, mode: Mode | None, limit: int, steps: list[Step]
) -> None:
    """A step is a group of calls, or the name of a key that is revoked."""
    model, path = Model(mode, limit), Path(tempfile.mkdtemp(dir=tmp_path)) / "access.db"
    access = await SqliteAccessStore.open(path)
    try:
        await make_keys(access)
        for step in steps:
            if isinstance(step, str):
                await access.revoke_key(list(KEYS).index(step) + 1, NOON)
                model.revoked.add(step)
            else:
                groups = [
                    CallGroup(hashed(name), at // DAY_MS, calls, at)
                    for (name, at), calls in Counter(step).items()
                ]
                decided = await access.count(groups, mode, limit)
                expected = [
                    [model.decided(name, at) for _ in range(calls)]
                    for (name, at), calls in Counter(step).items()
                ]
                assert [
                    told(one, group.calls) for one, group in zip(decided, groups, strict=True)
                ] == expected
    finally:
        await access.close()
    stored = plainly(path, "SELECT k.label, day, used FROM usage JOIN keys AS k ON k.id = key_id")
    assert {(name, day): used for name, day, used in stored} == model.used


def told(group: CountedGroup, calls: int) -> list[tuple[str, int]]:
    """Return what each call of a group learns."""
    first = group.used - group.counted + 1
    counted = [("counted", first + number) for number in range(group.counted)]
    return counted + [(group.verdict, group.used)] * (calls - group.counted)


async def make_keys(access: SqliteAccessStore) -> None:
    for name, bought_in in KEYS.items():
        if bought_in is None:
            await access.create_key(hashed(name), name, NOON)
        else:
            await buy(access, name, bought_in)


async def test_what_another_process_interrupts_is_counted_once(access: SqliteAccessStore) -> None:
    await access.create_key(hashed("member"), "member", 1)
    rival = sqlite3.connect(access._connections.path, timeout=0, check_same_thread=False)
    begun: list[str] = []

    def interrupt(statement: str) -> None:
        """Write before every second statement, unless a transaction keeps others out."""
        rival.rollback()
        if len(begun) % 2 == 0:
            with suppress(sqlite3.OperationalError):
                rival.execute("BEGIN IMMEDIATE")
        begun.append(statement)

    access._connections._direct.set_trace_callback(interrupt)
    with closing(rival):
        (decided,) = await access.count([CallGroup(hashed("member"), 20_000, 5, NOON)], None, 3)
    assert decided == CountedGroup(3, "spent", 3, "member")
