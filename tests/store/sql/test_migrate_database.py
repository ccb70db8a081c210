"""Moving a store into another, between any two engines, keeps its content."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from store.market_rows import CheckpointRow
from store.sql.database import Lane
from store.sql.migrate_database import ACCESS_TABLES, OTHER_MARKET_TABLES, TABLES_OF_COMMITS
from store.store_errors import LockTakenError, StoreError
from tests.store.sql.test_market_reads import make_coverage
from tests.store.sql.test_purchase_store import CLAIM, MEMBER
from tests.support.access_store_calls import CALL, DURABLE_CALLS, FAST_CALLS, TOOL_USAGE
from tests.support.postgres.server import SharedServer, find_installations
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    TABLES,
    list_commits,
    make_bar,
    make_batch,
    make_blocks,
    make_full_batch,
)
from tests.support.store_homes import (
    HomeFactory,
    SqliteHome,
    StoreHome,
    make_postgres_home,
    make_sqlite_home,
    open_and_close,
    run_sql,
)

pytestmark = pytest.mark.clause("postgres")

PASSES = 4
MARKET_TABLES = [table for table in TABLES if table != "migrations"]
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
    "add_client",
    "add_request",
    "approve_request",
    "redeem_code",
    "watch",
    # Another one, which stays pending.
    "add_request",
)


class StoppedError(Exception):
    """Stands for a move that was interrupted."""


async def fill(home: StoreHome) -> None:
    """Fill both stores, with commits on different days."""
    async with open_and_close(home.open_market()) as market:
        await market.adopt_source("simulated", NOW)
        await market.publish_coverage(make_coverage(NOW))
        for step in range(PASSES):
            await market.commit(make_full_batch(NOW + step * DAY_MS, step=step))
        await market.feed_log.save_checkpoint(CheckpointRow(4 * PASSES, "note", "vkey", "none"))
    await run_sql(home, "INSERT INTO sources VALUES (1, 1, 'okx BTC/USDT', 1)")
    async with open_and_close(home.open_access()) as access:
        await access.create_claim(CLAIM)
        await access.redeem_claim(CLAIM, MEMBER, bytes(range(1, 33)), NOW)
        for name in WRITTEN:
            await (DURABLE_CALLS | FAST_CALLS)[name](access)
        await DURABLE_CALLS["rotate_key"](access)
        await access.add_calls({1: [CALL]}, 100)
        await access.add_tool_usage([TOOL_USAGE])


async def move(
    source: StoreHome, target: StoreHome, progress: Callable[[int, int], None] = lambda *_: None
):
    async with (
        open_and_close(source.open_market()) as held,
        open_and_close(target.open_market()) as market,
        open_and_close(source.open_access()) as keys,
        open_and_close(target.open_access()) as access,
    ):
        await market.move_from(held, progress)
        await access.move_from(keys)
        await market.finish_move()


async def load_rows(home: StoreHome) -> dict[str, list[str]]:
    """Return all rows of both stores, with the names of their columns."""
    rows: dict[str, list[str]] = {}
    async with (
        open_and_close(home.open_market()) as market,
        open_and_close(home.open_access()) as access,
    ):
        for tables, store in ((MARKET_TABLES, market), (ACCESS_TABLES, access)):
            async with store._engine.begin_read(Lane.BATCH) as db:
                for table in tables:
                    held = [dict(row) for row in await db.execute(f"SELECT * FROM {table}")]
                    rows[table] = sorted(repr(sorted(row.items())) for row in held)
    return rows


@pytest.fixture
async def homes(
    new_home: HomeFactory, tmp_path: Path, get_postgres_server: Callable[[str], SharedServer]
) -> AsyncIterator[tuple[StoreHome, StoreHome]]:
    """A filled home of each engine in turn, and an empty home of another one."""
    async with AsyncExitStack() as made:
        source = await made.enter_async_context(new_home())
        await fill(source)
        other: AbstractAsyncContextManager[StoreHome] = make_sqlite_home(tmp_path)
        if isinstance(source, SqliteHome):
            other = make_postgres_home(get_postgres_server(next(iter(find_installations()))).url)
        yield source, await made.enter_async_context(other)


@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_the_target_has_the_rows_of_the_source_and_can_be_continued(
    homes: tuple[StoreHome, StoreHome],
) -> None:
    source, target = homes
    progress: list[tuple[int, int]] = []
    await move(source, target, lambda done, total: progress.append((done, total)))
    assert progress == [(done, PASSES) for done in range(PASSES + 1)]
    held = await load_rows(source)
    assert await load_rows(target) == held
    assert all(held.values())
    async with open_and_close(target.open_market()) as market:
        await market.adopt_source("simulated", NOW)
        await market.commit(make_batch(NOW + PASSES * DAY_MS, bars=make_blocks(make_bar("XAU"))))
        assert len(await list_commits(market)) == PASSES + 1
    async with open_and_close(target.open_access()) as access:
        newest = max(key.id for key in await access.list_keys())
        assert await access.create_key(bytes(32), "after", NOW) == 1 + newest


@pytest.mark.prove
async def test_a_target_in_use_is_left_as_it_is(homes: tuple[StoreHome, StoreHome]) -> None:
    source, target = homes
    async with open_and_close(target.open_market()) as market:
        await market.adopt_source("simulated", NOW)
    with pytest.raises(StoreError, match="is in use: name a database that holds nothing"):
        await move(source, target)
    held = await load_rows(target)
    assert [table for table in held if held[table]] == ["facts", "store_id"]


@pytest.mark.prove
async def test_a_target_with_its_own_keys_is_refused(
    homes: tuple[StoreHome, StoreHome],
) -> None:
    source, target = homes
    async with open_and_close(target.open_access()) as access:
        await access.create_key(bytes(32), "mine", NOW)
        with pytest.raises(StoreError, match="holds keys of its own"):
            await move(source, target)
        assert [key.label for key in await access.list_keys()] == ["mine"]


async def test_all_tables_are_moved(tmp_path: Path) -> None:
    home = SqliteHome(tmp_path)
    for opening in (home.open_market(), home.open_access()):
        await (await opening).close()
    sql = "SELECT name FROM {}sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for tables, database in ((MARKET_TABLES, ""), (ACCESS_TABLES, "access.")):
        names = {name for (name,) in await run_sql(home, sql.format(database))}
        assert names - {"migrations"} == {*tables}
    by_commit = {"assets", "changes", "alerts", "log_leaves", "passes", "clock", "facts"}
    assert {*TABLES_OF_COMMITS, *OTHER_MARKET_TABLES} | by_commit == {*MARKET_TABLES}


@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_an_interrupted_move_leaves_a_database_that_nothing_uses(
    homes: tuple[StoreHome, StoreHome],
) -> None:
    source, target = homes

    def stop_after_two_commits(done: int, total: int) -> None:
        assert done <= total == PASSES
        if done >= 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        await move(source, target, stop_after_two_commits)
    async with open_and_close(target.open_market()) as market:
        with pytest.raises(StoreError, match="not finished: run `signals migrate` again, into an"):
            await market.adopt_source("simulated", NOW)
    with pytest.raises(StoreError, match=r"holds a part of .*: name an empty database"):
        await move(source, target)


@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_nothing_is_moved_while_a_process_computes_on_either_store(
    homes: tuple[StoreHome, StoreHome],
) -> None:
    for busy in homes:
        async with open_and_close(busy.open_market()) as market:
            await market.lock()
            with pytest.raises(LockTakenError):
                await move(*homes)
