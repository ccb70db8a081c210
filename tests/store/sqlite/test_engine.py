"""The connections of a SQLite file."""

import os
from pathlib import Path

import pytest

from store.errors import StoreError
from store.sqlite.engine import _connect, _connect_directly

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


def list_open_files() -> list[str]:
    return [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
