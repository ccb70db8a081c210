"""A store moved into another holds what it held, whatever engines keep the two."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from store.errors import LockTakenError, StoreError
from store.sql.migrate_database import ACCESS, FACTS, MARKET, Table
from tests.postgres.installed import installations
from tests.postgres.shared import SharedServer
from tests.store.access_verbs import FOR_GOOD, FOR_NOW
from tests.store.homes import (
    Home,
    NewHome,
    SqliteHome,
    closing_store,
    postgres_home,
    sqlite_home,
)
from tests.store.rows import DAY_MS, NOW, bar, blocks, full, work
from tests.store.test_facts import covering
from tests.store.test_purchases import CLAIM, MEMBER

pytestmark = pytest.mark.clause("postgres")

PASSES = 4
BOUGHT = bytes(range(1, 33))
WRITTEN = (
    "create_key",
    "count",
    "revoke_key",
    "mark_handled",
    "create_sandbox_session",
    "put_access_request",
    "attempt",
    "notice",
    "create_sign_in_link",
    "sign_in",
)


class StoppedError(Exception):
    """Somebody stopped a move."""


def stopping(at: int) -> Callable[[int, int], None]:
    """Stop a move as soon as so many passes are done."""

    def told(done: int, total: int) -> None:
        assert done <= total == PASSES
        if done >= at:
            raise StoppedError

    return told


async def fill(home: Home) -> None:
    """Fill both stores, in passes of different days."""
    async with closing_store(home.open_market()) as market:
        await market.adopt_source("simulated", NOW)
        await market.publish_coverage(covering(NOW))
        for step in range(PASSES):
            await market.commit(full(NOW + step * DAY_MS, step=step))
    async with closing_store(home.open_access()) as access:
        await access.create_claim(CLAIM)
        await access.redeem(CLAIM, MEMBER, BOUGHT, NOW)
        for name in WRITTEN:
            await (FOR_GOOD | FOR_NOW)[name](access)


async def move(source: Home, target: Home, told: Callable[[int, int], None] = lambda *_: None):
    async with (
        closing_store(source.open_market()) as held,
        closing_store(target.open_market()) as market,
        closing_store(source.open_access()) as keys,
        closing_store(target.open_access()) as access,
    ):
        await market.move_from(held, told)
        await access.move_from(keys)
        await market.finish_move()


async def rows(home: Home) -> dict[str, list[tuple[object, ...]]]:
    """All that both stores hold."""
    tables = (*MARKET, *ACCESS, FACTS, Table("clock", "market_time", "id"))
    async with home.plain() as run:
        return {
            table.name: await run(
                f"SELECT {table.columns} FROM {table.name} ORDER BY {table.order}"
            )
            for table in tables
        }


@pytest.fixture
async def homes(
    new_home: NewHome, tmp_path: Path, server_of: Callable[[str], SharedServer]
) -> AsyncIterator[tuple[Home, Home]]:
    """A filled home of each engine in turn, and an empty one of another."""
    async with AsyncExitStack() as made:
        source = await made.enter_async_context(new_home())
        await fill(source)
        other: AbstractAsyncContextManager[Home] = sqlite_home(tmp_path)
        if isinstance(source, SqliteHome):
            other = postgres_home(server_of(next(iter(installations()))).url)
        yield source, await made.enter_async_context(other)


async def test_the_target_holds_what_the_source_held_and_goes_on(homes: tuple[Home, Home]) -> None:
    source, target = homes
    told: list[tuple[int, int]] = []
    await move(source, target, lambda done, total: told.append((done, total)))
    assert told == [(done, PASSES) for done in range(PASSES + 1)]
    held = await rows(source)
    assert await rows(target) == held
    assert all(held.values())
    async with closing_store(target.open_market()) as market:
        await market.adopt_source("simulated", NOW)
        await market.commit(work(NOW + PASSES * DAY_MS, bars=blocks(bar("XAU"))))
        assert len(await market.passes()) == PASSES + 1
    async with closing_store(target.open_access()) as access:
        assert await access.create_key(bytes(32), "after", NOW) == 1 + held["keys"][-1][0]


async def test_a_move_that_was_stopped_goes_on_after_the_last_day_that_was_moved(
    homes: tuple[Home, Home],
) -> None:
    source, target = homes
    with pytest.raises(StoppedError):
        await move(source, target, stopping(at=2))
    async with closing_store(target.open_market()) as market:
        with pytest.raises(StoreError, match="not finished: run `signals migrate` again"):
            await market.adopt_source("simulated", NOW)
    async with closing_store(source.open_market()) as market:
        await market.commit(work(NOW + PASSES * DAY_MS, bars=blocks(bar("XAU"))))
    told: list[int] = []
    await move(source, target, lambda done, _: told.append(done))
    assert told == [2, 3, 4, 5]
    assert await rows(target) == await rows(source)


async def test_rows_that_the_source_has_pruned_meanwhile_are_noticed(
    homes: tuple[Home, Home],
) -> None:
    source, target = homes
    with pytest.raises(StoppedError):
        await move(source, target, stopping(at=PASSES))
    async with closing_store(source.open_market()) as market:
        await market.commit(work(NOW + 400 * DAY_MS))
        assert await market.prune() > 0
    with pytest.raises(StoreError, match="begin again with an empty database"):
        await move(source, target)


async def test_a_target_in_use_is_left_as_it_is(homes: tuple[Home, Home]) -> None:
    source, target = homes
    async with closing_store(target.open_market()) as market:
        await market.adopt_source("simulated", NOW)
    with pytest.raises(StoreError, match="is in use: name a database that holds nothing"):
        await move(source, target)
    held = await rows(target)
    assert [table for table in held if held[table]] == ["facts"]


async def test_keys_of_the_target_s_own_are_not_replaced(homes: tuple[Home, Home]) -> None:
    source, target = homes
    async with closing_store(target.open_access()) as access:
        await access.create_key(bytes(32), "mine", NOW)
        with pytest.raises(StoreError, match="holds keys of its own"):
            await move(source, target)
        assert [key.label for key in await access.list_keys()] == ["mine"]


async def test_nothing_is_moved_while_somebody_computes_on_either(
    homes: tuple[Home, Home],
) -> None:
    for busy in homes:
        async with closing_store(busy.open_market()) as market:
            await market.lock()
            with pytest.raises(LockTakenError):
                await move(*homes)
