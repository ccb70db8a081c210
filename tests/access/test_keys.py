"""API keys on a real store: created, stored only as hashes, listed and revoked."""

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from access.keys import OperatorKeys, hash_key
from store.access_rows import KeyRow
from store.sqlite.access_store import open_sqlite_access
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("access")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def keys(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OperatorKeys]:
    store = await open_sqlite_access(tmp_path / "access.db")
    yield OperatorKeys(store, clock)
    await store.close()


def read_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.mark.clause("5.3")
async def test_a_key_is_32_random_bytes_that_the_store_never_sees(
    keys: OperatorKeys, tmp_path: Path
) -> None:
    made = {await keys.create("agent") for _ in range(20)}
    assert len(made) == 20
    assert all(re.fullmatch(r"ek_[A-Za-z0-9_-]{43}", key) for key in made)
    on_disk = read_files(tmp_path)
    assert not any(key.encode() in on_disk for key in made)
    assert all(sha256(key.encode()).digest() in on_disk for key in made)


def test_a_key_is_stored_as_its_sha256() -> None:
    assert hash_key("abc").hex() == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@pytest.mark.clause("3.5.3", "3.5.5", "5.27")
async def test_a_key_is_revoked_once_and_for_good(keys: OperatorKeys, clock: ManualClock) -> None:
    await keys.create("agent")
    (made,) = await keys.list()
    assert made == KeyRow(made.id, "agent", clock.now, None)
    clock.now += 5
    assert await keys.revoke(made.id)
    revoked_at = clock.now
    clock.now += 5
    assert await keys.revoke(made.id)
    assert not await keys.revoke(made.id + 1)
    assert [key.revoked_at for key in await keys.list()] == [revoked_at]


@pytest.mark.parametrize("label", ["", "x" * 121, "two\nlines", "bell\x07"])
async def test_a_bad_label_is_refused_in_one_line(keys: OperatorKeys, label: str) -> None:
    with pytest.raises(ValueError, match=r"^a label must have 1 to 120 printable characters$"):
        await keys.create(label)
    assert await keys.list() == []


async def test_a_label_of_full_length_is_kept(keys: OperatorKeys) -> None:
    await keys.create("é" * 120)
    assert [key.label for key in await keys.list()] == ["é" * 120]
