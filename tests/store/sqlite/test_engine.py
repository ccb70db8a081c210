"""The connections of a SQLite file."""

import os
from pathlib import Path

import pytest

from store.errors import StoreError
from store.sql.database import fetch_value
from store.sqlite.engine import SqliteEngine, _connect, _connect_directly
from store.sqlite.schema import MARKET_MIGRATIONS

pytestmark = pytest.mark.clause("operation")


async def test_a_connection_whose_setup_fails_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    path.write_text("this is no database\n" * 100)
    # The exceptions hold their frames, and with them a connection that was not closed.
    with pytest.raises(StoreError, match="not a database") as direct_failure:
        _connect_directly(path)
    with pytest.raises(StoreError, match="not a database") as reader_failure:
        await _connect(path)
    assert direct_failure.tb is not None
    assert reader_failure.tb is not None
    assert str(path) not in list_open_files()
    with path.open():
        assert str(path) in list_open_files()


@pytest.mark.clause("proof")
async def test_commits_reach_the_disk_from_the_compute_lock_on(tmp_path: Path) -> None:
    # The key file of the log is on the disk, and must never be ahead of the rows.
    engine = await SqliteEngine.open(tmp_path / "market.db", MARKET_MIGRATIONS)
    try:
        async with engine.begin_compute_write() as db:
            assert await fetch_value(db, "PRAGMA synchronous") == 1
        await engine.lock()
        async with engine.begin_compute_write() as db:
            assert await fetch_value(db, "PRAGMA synchronous") == 2
    finally:
        await engine.close()


def list_open_files() -> list[str]:
    return [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
