"""Keys on disk: hashes alone, revoked for good."""

from pathlib import Path

import pytest

from store.protocol import StoreError
from store.rows import KeyRow
from store.sqlite_access import SqliteAccessStore
from tests.store.rows import plainly

HASH = bytes(range(32))


async def test_a_key_is_found_by_its_hash_alone(access: SqliteAccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", 5)
    assert await access.find_key(HASH) == KeyRow(key_id, "agent", 5, None)
    assert await access.find_key(bytes(32)) is None


async def test_keys_are_listed_oldest_first(access: SqliteAccessStore) -> None:
    ids = [await access.create_key(bytes([number] * 32), "same", 9 - number) for number in (3, 1)]
    assert [key.id for key in await access.list_keys()] == ids


async def test_a_key_is_revoked_once_and_for_good(access: SqliteAccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", 5)
    assert await access.revoke_key(key_id, 7)
    assert await access.revoke_key(key_id, 9)
    assert await access.find_key(HASH) == KeyRow(key_id, "agent", 5, 7)
    assert not await access.revoke_key(key_id + 1, 7)


async def test_one_hash_belongs_to_one_key(access: SqliteAccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "other", 6)
    assert len(await access.list_keys()) == 1


async def test_a_clear_key_cannot_be_stored_by_mistake(access: SqliteAccessStore) -> None:
    with pytest.raises(StoreError):
        await access.create_key(b"ek_clear", "agent", 5)


async def test_keys_survive_reopening_and_each_commit_reaches_the_disk(
    access: SqliteAccessStore, tmp_path: Path
) -> None:
    await access.create_key(HASH, "agent", 5)
    async with access._connections.writing() as writer:
        assert list(await writer.execute_fetchall("PRAGMA synchronous")) == [(2,)]
    await access.close()
    reopened = await SqliteAccessStore.open(tmp_path / "access.db")
    assert len(await reopened.list_keys()) == 1
    await reopened.close()
    assert plainly(tmp_path / "access.db", "SELECT key_hash FROM keys") == [(HASH,)]
