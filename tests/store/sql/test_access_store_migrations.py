"""Migrating access databases of earlier versions keeps their rows, and members can use them."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.access_rows import KeyLimits, SignInRow
from store.postgres.access_store import open_postgres_access
from store.postgres.engine import connect
from store.postgres.schema import SCHEMAS
from store.postgres.schema import migrate as migrate_postgres
from store.sql.access_store import AccessStore
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from tests.support.access_store_calls import DURABLE_CALLS, FAST_CALLS, HASH, NOW, TOKENS
from tests.support.store_homes import open_and_close

pytestmark = pytest.mark.clause("store")

# Each engine has its own function for byte literals.
BEFORE = """
INSERT INTO memberships VALUES
  (4, 'stripe', 'live', 'sub_1', 'cus_1', 'A@Example.com', 'yearly', 5, NULL, NULL),
  (7, 'stripe', 'live', 'sub_2', 'cus_2', 'b@example.com', 'monthly', 6, 9, 'canceled');
INSERT INTO keys (id, key_hash, label, created_at, revoked_at, mode, membership_id) VALUES
  (2, HASH1, 'Agent', 5, NULL, 'live', 4), (3, HASH2, NULL, 6, 9, 'live', 7);
INSERT INTO usage VALUES (2, 20000, 3, 8);
INSERT INTO claims (id, token_hash, provider, mode, session, contact_email, billing, agent_name,
  created_at, expires_at, redeemed_at, key_id) VALUES
  ('c1', HASH1, 'stripe', 'live', 'cs_1', 'A@Example.com', 'yearly', 'Agent', 4, 99, 5, 2),
  ('c2', HASH2, 'stripe', 'live', 'cs_2', 'Late@Example.com', 'yearly', NULL, 4, 99, NULL, NULL);
INSERT INTO sandbox_sessions VALUES ('sb', 'c9', 'a@example.com', 'monthly', 129, 'open', 9);
INSERT INTO events VALUES ('evt', 7);
INSERT INTO attempts VALUES ('checkout', '192.0.2.1', 7);
INSERT INTO access_requests VALUES ('a@example.com', NULL, 'Op', NULL, NULL, 1, 2);
INSERT INTO notices VALUES ('seen', 'it', 3)
"""
TABLES = (
    *("memberships", "keys", "usage", "claims", "sandbox_sessions", "events", "attempts"),
    *("access_requests", "notices"),
)


def build_inserts(hash_of: str) -> list[str]:
    """Return the INSERT statements with two hashes in the syntax of an engine."""
    text = BEFORE
    for number in (1, 2):
        text = text.replace(f"HASH{number}", hash_of.format(f"{number:02x}" * 32))
    return text.split(";")


def assert_kept(
    before: Sequence[Sequence[Sequence[Any]]], after: Sequence[Sequence[Sequence[Any]]]
) -> None:
    """Assert that every row is as before, except for columns that were added at its end."""
    assert all(before)
    for old_rows, new_rows in zip(before, after, strict=True):
        width = len(old_rows[0])
        assert [tuple(row)[:width] for row in new_rows] == [tuple(row) for row in old_rows]


async def assert_found(store: AccessStore) -> None:
    """Assert that members find their rows and that the new tables can be written."""
    (held,) = await store.list_memberships_by_email("a@example.com")
    assert [key.key.id for key in await store.list_member_keys(held.id, 20000)] == [2]
    (ended,) = await store.list_memberships_by_email("B@example.com")
    assert (ended.id, ended.ended_reason) == (7, "canceled")
    (claim,) = await store.list_unredeemed_claims("late@example.com", "stripe", "live", 5)
    assert claim.id == "c2"
    await store.create_sign_in_link(SignInRow(bytes(32), "A@Example.com", 9))
    assert await store.sign_in(bytes(32), bytes([1] * 32), 8, 99) == "A@Example.com"
    for name in ("add_client", "add_request"):
        await (DURABLE_CALLS | FAST_CALLS)[name](store)
    hashes = [bytes([number] * 32) for number in range(3, 8)]
    await store.oauth.approve_request(HASH, hashes[0], NOW, held.id, 0)
    request = await store.oauth.find_code(hashes[0])
    assert request is not None
    limits = KeyLimits(2, 9, NOW)
    repeat = hashes[3], NOW
    connected = await store.oauth.redeem_code(
        hashes[0], request, *hashes[1:3], repeat, TOKENS, NOW, limits
    )
    assert connected == "connected"
    clients = {key.key.client_id for key in await store.list_member_keys(held.id, 20000)}
    assert clients == {None, "oc_1"}


# Two versions: the one before sign-in, and the one before OAuth.
@pytest.mark.parametrize("version", [2, 4])
async def test_a_file_of_an_earlier_version_keeps_all_its_rows(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "access.db"
    migrate(path, ACCESS_MIGRATIONS[:version])

    def rows() -> list[list[Any]]:
        with closing(sqlite3.connect(path)) as db:
            return [db.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES]

    with closing(sqlite3.connect(path)) as db:
        for statement in build_inserts("X'{}'"):
            db.execute(statement)
        db.commit()
    before = rows()
    async with open_and_close(open_sqlite_access(path)) as store:
        assert_kept(before, rows())
        await assert_found(store)


@pytest.mark.parametrize("version", [1, 3])
async def test_a_postgres_database_of_an_earlier_version_keeps_all_its_rows(
    database: str, version: int
) -> None:
    schema, names = SCHEMAS["access"]
    session = await connect(database, schema)
    try:
        await migrate_postgres(session, database, schema, names[:version])
        for statement in build_inserts("'\\x{}'"):
            await session.execute(statement)

        async def rows() -> list[list[Any]]:
            return [await session.fetch(f"SELECT * FROM {table}") for table in TABLES]

        before = await rows()
        async with open_and_close(open_postgres_access(database)) as store:
            assert_kept(before, await rows())
            await assert_found(store)
    finally:
        await session.close()
