"""Migrating access databases of earlier versions keeps their rows, and members can use them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.access_rows import SignInRow
from store.postgres.access_store import open_postgres_access
from store.postgres.engine import connect
from store.postgres.schema import SCHEMAS
from store.postgres.schema import migrate as migrate_postgres
from store.sql.access_store import AccessStore
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from tests.support.store_homes import open_and_close

pytestmark = pytest.mark.clause("store")

# Each engine has its own function for byte literals.
BEFORE = """
INSERT INTO memberships VALUES
  (4, 'stripe', 'live', 'sub_1', 'cus_1', 'A@Example.com', 'yearly', 5, NULL, NULL),
  (7, 'stripe', 'live', 'sub_2', 'cus_2', 'b@example.com', 'monthly', 6, 9, 'canceled');
INSERT INTO keys VALUES (2, HASH1, 'Agent', 5, NULL, 'live', 4), (3, HASH2, NULL, 6, 9, 'live', 7);
INSERT INTO usage VALUES (2, 20000, 3, 8);
INSERT INTO claims VALUES
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


# Later migrations add columns to these.
COLUMNS = {"keys": "id, key_hash, label, created_at, revoked_at, mode, membership_id"}


def build_query(table: str) -> str:
    """Return the query for the columns that a table had before sign-in."""
    return f"SELECT {COLUMNS.get(table, '*')} FROM {table}"


def build_inserts(hash_of: str) -> list[str]:
    """Return the INSERT statements with two hashes in the syntax of an engine."""
    text = BEFORE
    for number in (1, 2):
        text = text.replace(f"HASH{number}", hash_of.format(f"{number:02x}" * 32))
    return text.split(";")


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


async def test_a_file_from_before_sign_in_keeps_all_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "access.db"
    migrate(path, ACCESS_MIGRATIONS[:2])

    def rows() -> list[object]:
        with closing(sqlite3.connect(path)) as db:
            return [db.execute(build_query(table)).fetchall() for table in TABLES]

    with closing(sqlite3.connect(path)) as db:
        for statement in build_inserts("X'{}'"):
            db.execute(statement)
        db.commit()
    before = rows()
    assert all(before)
    async with open_and_close(open_sqlite_access(path)) as store:
        assert rows() == before
        await assert_found(store)


async def test_a_postgres_database_from_before_sign_in_keeps_all_its_rows(
    database: str,
) -> None:
    schema, names = SCHEMAS["access"]
    session = await connect(database, schema)
    try:
        await migrate_postgres(session, database, schema, names[:1])
        for statement in build_inserts("'\\x{}'"):
            await session.execute(statement)

        async def rows() -> list[object]:
            return [await session.fetch(build_query(table)) for table in TABLES]

        before = await rows()
        assert all(before)
        async with open_and_close(open_postgres_access(database)) as store:
            assert await rows() == before
            await assert_found(store)
    finally:
        await session.close()
