"""Counting by several processes at once is exact at the limit, and no count is returned twice.

`python -m tests.store.sql.test_access_store_usage_concurrent ADDRESS SEED ROUNDS` runs one of them.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from schemas.vocabulary import DAY_MS
from store.access_rows import (
    MAX_CALL_GROUPS,
    AttemptLimit,
    CallGroup,
    CountedGroup,
    RefusedAttempt,
)
from store.sql.access_store import AccessStore
from tests.store.conftest import OpenAccess
from tests.support.row_builders import make_call_group
from tests.support.store_homes import StoreHome, open_home, run_sql

pytestmark = pytest.mark.clause("access")

ROOT = Path(__file__).parents[3]
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


async def count_elsewhere(home: StoreHome, seed: int, rounds: int) -> list[Answer]:
    """Run `count` in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, home.address, str(seed), str(rounds)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return [(place, *rest) for place, *rest in json.loads(output)]


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
        counting = [count_elsewhere(home, seed, rounds) for seed in range(processes)]
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
    for place, given in numbers.items():
        assert sorted(given) == list(range(1, min(LIMIT, requested[place]) + 1))
    assert min(requested.values()) > LIMIT
    stored = await run_sql(home, "SELECT used FROM usage")
    assert stored == [(LIMIT,)] * len(PLACES)


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
    while len(decided) < 20:  # noqa: ASYNC110 (what is awaited are other tasks' calls)
        await asyncio.sleep(0)
    assert await access.revoke_key(key_id, 2)
    afterwards = [group for store in stores for group in await store.count_calls(call, None, 10**6)]
    await asyncio.gather(*counting)
    assert {group.verdict for group in afterwards} == {"revoked"}
    numbers = sorted(group.used for group in decided if group.verdict == "counted")
    assert numbers == list(range(1, len(numbers) + 1))
    assert await run_sql(home, "SELECT used FROM usage") == [(len(numbers),)]
    assert {group.used for group in afterwards} == {len(numbers)}


async def test_keys_are_counted_together_in_any_order(
    access: AccessStore, open_access: OpenAccess, home: StoreHome
) -> None:
    hashes = [bytes([number]) * 32 for number in range(1, MAX_CALL_GROUPS + 1)]
    for key_hash in hashes:
        await access.create_key(key_hash, "agent", 1)
    groups = [CallGroup(key_hash, DAY, 2, DAY * DAY_MS) for key_hash in hashes]
    stores = [access, *[await open_access() for _ in range(3)]]
    orders = [groups, groups[::-1], groups[32:] + groups[:32], groups[::2] + groups[1::2]]
    await asyncio.gather(
        *(
            store.count_calls(order, None, LIMIT)
            for _ in range(3)
            for store, order in zip(stores, orders, strict=True)
        )
    )
    assert await run_sql(home, "SELECT used FROM usage") == [(24,)] * MAX_CALL_GROUPS


async def test_concurrent_attempts_are_accepted_up_to_the_limit(
    access: AccessStore, open_access: OpenAccess
) -> None:
    stores = [access, *[await open_access() for _ in range(3)]]
    limits = [AttemptLimit("192.0.2.1", 9), AttemptLimit("192.0.2.0/24", 7)]
    taken = await asyncio.gather(
        *(store.record_attempt("checkout", limits, 5, 100) for store in stores * 5)
    )
    assert taken.count(None) == 7
    assert taken.count(RefusedAttempt(limits[1], 105)) == 13


async def _main(address: str, seed: int, rounds: int) -> None:
    store = await open_home(address).open_access()
    try:
        print(json.dumps(await count(store, seed, rounds)))
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
