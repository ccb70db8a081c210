"""Another process writes to the file while calls are counted."""

import sqlite3
from contextlib import closing, suppress

import pytest

from store.access_rows import CallGroup, CountedGroup
from store.sql.access_store import AccessStore
from tests.store.sql.test_access_store_usage import NOON, make_hash

pytestmark = [
    pytest.mark.clause("access"),
    pytest.mark.parametrize("new_home", ["sqlite"], indirect=True),
]


async def test_calls_interrupted_by_another_process_are_counted_once(access: AccessStore) -> None:
    await access.create_key(make_hash("member"), "member", 1)
    rival = sqlite3.connect(access._engine.path, timeout=0, check_same_thread=False)
    interrupted: list[str] = []

    def interrupt(statement: str) -> None:
        """Write before every second statement, unless a transaction excludes other writers."""
        rival.rollback()
        if len(interrupted) % 2 == 0:
            with suppress(sqlite3.OperationalError):
                rival.execute("BEGIN IMMEDIATE")
        interrupted.append(statement)

    access._engine._direct.set_trace_callback(interrupt)
    with closing(rival):
        (decided,) = await access.count_calls(
            [CallGroup(make_hash("member"), 20_000, 5, NOON)], None, 3
        )
    assert decided == CountedGroup(3, "exhausted", 3, "member")
