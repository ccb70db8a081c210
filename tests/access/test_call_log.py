"""The log of calls: bounded in memory and in the store, complete after a shutdown."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from access.call_log import CALLS_KEPT_PER_KEY, CallLog
from schemas.vocabulary import DAY_MS
from store.access_rows import LoggedCall
from store.sql.access_store import AccessStore
from tests.support.row_builders import run_sql
from tests.support.store_homes import open_access_as

pytestmark = pytest.mark.clause("dashboard")


@dataclass
class Logged:
    """A log on a store with some keys."""

    store: AccessStore
    path: Path
    hashes: list[bytes]
    dropped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = CallLog(self.store, self.dropped.append)

    def add(self, key: int, number: int, count: int = 1) -> None:
        for each in range(number, number + count):
            call = LoggedCall(each, f"id-{each}", "signals_get_state", "mcp", "ok", 200)
            self.log.add(self.hashes[key], call)

    async def list_times(self, key: int) -> list[int]:
        return [call.at for call in await self.store.list_calls(key + 1, 10**6)]


@pytest.fixture
async def logged(tmp_path: Path) -> AsyncIterator[Logged]:
    store = await open_access_as(AccessStore, tmp_path / "access.db")
    hashes = [number.to_bytes(32, "big") for number in range(1, 81)]
    for key_hash in hashes:
        await store.create_key(key_hash, "agent", 1)
    yield Logged(store, tmp_path / "access.db", hashes)
    await store.close()


async def test_calls_are_listed_newest_first_with_all_their_fields(logged: Logged) -> None:
    call = LoggedCall(5, "abc-1", "signals_get_flips", "rest", "invalid_parameter", 400)
    logged.log.add(logged.hashes[0], call)
    logged.add(0, 6)
    logged.add(1, 7)
    assert await logged.log.flush()
    assert (await logged.store.list_calls(1, 10))[1] == call
    assert await logged.list_times(0) == [6, 5]
    assert await logged.list_times(1) == [7]
    assert await logged.store.list_calls(1, 1) != [call]


@pytest.mark.clause("5.33")
async def test_the_newest_calls_of_each_key_are_kept(logged: Logged) -> None:
    for start in (0, 70, 140):
        logged.add(0, start, 70)
        logged.add(1, start, 10)
        await logged.log.flush()
    assert await logged.list_times(0) == list(range(209, 109, -1))
    assert len(await logged.list_times(1)) == 30


async def test_a_flood_on_one_key_writes_no_more_than_is_kept_and_drops_no_other_key(
    logged: Logged,
) -> None:
    logged.add(1, 1)
    logged.add(0, 0, 50_000)
    assert [len(calls) for calls in logged.log._pending.values()] == [1, CALLS_KEPT_PER_KEY]
    await logged.log.flush()
    assert await logged.list_times(0) == list(range(49_999, 49_899, -1))
    assert await logged.list_times(1) == [1]
    assert logged.dropped == []


async def test_a_failing_store_loses_only_the_keys_beyond_the_bound(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.call_log.MAX_PENDING_KEYS", 50)
    run_sql(logged.path, "ALTER TABLE calls RENAME TO mislaid")
    for key in range(55):
        logged.add(key, 1000 * key, 100)
    with capture_logs() as lines:
        assert not await logged.log.flush()
    assert [line["event"] for line in lines] == ["calls_not_stored"]
    logged.add(54, 99_999)
    assert sum(logged.dropped) == 500
    run_sql(logged.path, "ALTER TABLE mislaid RENAME TO calls")
    assert await logged.log.flush()
    assert [len(await logged.list_times(key)) for key in (4, 5, 54)] == [0, 100, 100]
    assert (await logged.list_times(5))[0] == 5099
    assert (await logged.list_times(54))[0] == 99_999


async def test_the_log_is_flushed_in_intervals_and_when_it_ends(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.call_log.FLUSH_INTERVAL_S", 0.01)
    running = asyncio.create_task(logged.log.run())
    logged.add(4, 0)
    async with asyncio.timeout(30):
        while not await logged.list_times(4):
            await asyncio.sleep(0)
    monkeypatch.setattr("access.call_log.FLUSH_INTERVAL_S", 3600.0)
    logged.add(7, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await logged.list_times(7) == [1]


USED = "SELECT key_id, day, tool, used FROM tool_usage ORDER BY key_id, day, tool"


@pytest.mark.clause("18.8")
async def test_a_flush_ends_and_counts_even_if_each_write_brings_another_call(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = logged.store.add_calls

    async def write_while_called(calls: Mapping[int, Sequence[LoggedCall]], kept: int) -> None:
        writes.append(sum(map(len, calls.values())))
        if len(writes) < 9:
            logged.add(0, len(writes))
        await write(calls, kept)

    monkeypatch.setattr(logged.store, "add_calls", write_while_called)
    logged.add(0, 0)
    for flushes in (1, 2):
        assert await logged.log.flush()
        assert writes == [1] * flushes
    assert run_sql(logged.path, USED) == [(1, 0, "signals_get_state", 3)]
    assert await logged.list_times(0) == [1, 0]


@pytest.mark.clause("18.8")
async def test_calls_are_counted_by_day_and_tool_each_once(logged: Logged) -> None:
    tools = ("signals_get_state", "signals_get_flips")
    # The second day begins with call 2; the quota guard refused the last one.
    outcomes = ("ok", "invalid_parameter", "ok", "unavailable", "rate_limited")
    for _ in range(2):
        for number, outcome in enumerate(outcomes):
            logged.log.add(
                logged.hashes[0],
                LoggedCall(DAY_MS - 2 + number, "id", tools[number % 2], "mcp", outcome, 200),
            )
        assert await logged.log.flush()
    logged.add(1, 0, 1000)  # More than the log keeps.
    assert await logged.log.flush()
    assert await logged.log.flush()
    assert run_sql(logged.path, USED) == [
        (1, 0, tools[1], 2),
        (1, 0, tools[0], 2),
        (1, 1, tools[1], 2),
        (1, 1, tools[0], 2),
        (2, 0, tools[0], 1000),
    ]


@pytest.mark.clause("18.8")
async def test_counts_that_could_not_be_stored_are_stored_later(logged: Logged) -> None:
    run_sql(logged.path, "ALTER TABLE tool_usage RENAME TO mislaid")
    logged.add(0, 0, 3)
    with capture_logs():
        assert not await logged.log.flush()
    logged.add(0, 3)
    run_sql(logged.path, "ALTER TABLE mislaid RENAME TO tool_usage")
    assert await logged.log.flush()
    assert run_sql(logged.path, USED) == [(1, 0, "signals_get_state", 4)]
    assert len(await logged.list_times(0)) == 4
