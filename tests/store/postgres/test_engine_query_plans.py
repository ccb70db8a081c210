"""PostgreSQL serves requests from indexes, in index order.

The tests inspect the plans of a store's own sessions over tables of realistic size. Only tables
with about one row are scanned, and those that are read completely: assets and current readings.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from store.errors import DatabaseFailureError, StoreError
from store.sql.access_store import AccessStore
from store.sql.database import Database
from store.sql.market_store import MarketStore
from tests.conftest import MAJORS
from tests.support.access_store_calls import REQUEST_CALLS
from tests.support.postgres.server import SharedServer
from tests.support.row_builders import NOW, list_changes
from tests.support.store_homes import PostgresHome, make_postgres_home, open_and_close

pytestmark = pytest.mark.clause("feed")

ASSETS, ROWS, PASSES = 251, 20_000, 2000
FILLING = f"""
INSERT INTO clock VALUES (1, {NOW + ROWS});
INSERT INTO assets (ticker, publish_from, pass)
  SELECT 'T' || n, 0, 0 FROM generate_series(1, {ASSETS}) n;
INSERT INTO changes SELECT {NOW} + 2 * n, 1 + n % {ASSETS}, n % 8, n / 8 % 3, n, 0, NULL,
  n / 24 % 3 - 1, 1, 1 FROM generate_series(1, {ROWS}) n;
INSERT INTO alerts SELECT {NOW} + 3 * {ROWS} + n, 1 + n % {ASSETS}, n % 7, n / 7 % 3, n, 0,
  n / 21 % 5, 1 FROM generate_series(1, {ROWS}) n;
INSERT INTO readings SELECT a, t, i, 1
  FROM generate_series(1, {ASSETS}) a, generate_series(0, 2) t, generate_series(0, 7) i;
INSERT INTO passes SELECT n, {NOW} + n, NULL, n, n, '', '', NULL, '', ''
  FROM generate_series(1, {PASSES}) n;
INSERT INTO watermarks SELECT n, 1 + n % {ASSETS}, 0, 1, 0 FROM generate_series(1, {PASSES}) n;
INSERT INTO memberships (provider, mode, subscription, customer, contact_email, billing, created_at)
  SELECT 'stripe', 'live', 's' || n, 'c' || n / 2, n / 2 || '@example.com', 'monthly', 0
  FROM generate_series(1, {PASSES}) n;
INSERT INTO keys (key_hash, label, created_at, membership_id)
  SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), 'agent', 0, 1 + n / 3
  FROM generate_series(1, {PASSES}) n;
INSERT INTO usage SELECT 1 + n / 10, n, 1, n FROM generate_series(1, {ROWS} - 10) n;
INSERT INTO tool_usage SELECT 1 + n / 10, n, 'signals_get_state', 1
  FROM generate_series(1, {ROWS} - 10) n;
INSERT INTO claims SELECT n::text, decode(lpad(to_hex(n), 64, '0'), 'hex'), 'stripe', 'live', '',
  n / 2 || '@example.com', 'monthly', NULL, 0, n FROM generate_series(1, {PASSES}) n;
INSERT INTO sign_in_links SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), '', n, NULL
  FROM generate_series(1, {PASSES}) n;
INSERT INTO sessions SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), '', n
  FROM generate_series(1, {PASSES}) n;
INSERT INTO sandbox_sessions SELECT n::text, '', '', 'monthly', 1, 'open', n
  FROM generate_series(1, {PASSES}) n;
INSERT INTO events SELECT n::text, n FROM generate_series(1, {PASSES}) n;
INSERT INTO attempts SELECT 'checkout', (n % 100)::text, n FROM generate_series(1, {ROWS}) n;
INSERT INTO access_requests SELECT n::text, NULL, NULL, NULL, NULL, 0, 0
  FROM generate_series(1, {PASSES}) n;
INSERT INTO oauth_clients SELECT n::text, '', '[]', n, n FROM generate_series(1, {PASSES}) n;
INSERT INTO oauth_requests
  SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), n::text, '', '', NULL, '', '', n,
    decode(lpad(to_hex(n), 64, '0'), 'hex'), n, NULL FROM generate_series(1, {PASSES}) n;
INSERT INTO oauth_connections
  SELECT n, n::text, '', decode(lpad(to_hex(n), 64, '0'), 'hex')
  FROM generate_series(1, {PASSES}) n;
INSERT INTO oauth_grants SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), n, n, NULL
  FROM generate_series(1, {PASSES}) n;
INSERT INTO oauth_access_tokens SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), n, n
  FROM generate_series(1, {PASSES}) n;
ANALYZE
"""
READ_WHOLE = {"assets", "clock", "coverage", "facts", "readings", "version"}
PREPARED = """
SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements
WHERE statement !~ 'pg_prepared_statements|pg_catalog'
"""


@pytest.fixture(scope="module", params=MAJORS)
def filled(
    request: pytest.FixtureRequest, get_postgres_server: Callable[[str], SharedServer]
) -> Iterator[PostgresHome]:
    """A filled database, which the tests of this module only read."""
    made = make_postgres_home(get_postgres_server(request.param).url)
    with asyncio.Runner() as runner:
        home = runner.run(made.__aenter__())
        runner.run(fill(home))
        yield home
        runner.run(made.__aexit__(None, None, None))


async def fill(home: PostgresHome) -> None:
    async with home.open_plain() as run:
        for statement in FILLING.split(";"):
            await run(statement)


@pytest.fixture
async def market(filled: PostgresHome) -> AsyncIterator[MarketStore]:
    async with open_and_close(filled.open_market()) as store:
        yield store


@pytest.fixture
async def access(filled: PostgresHome) -> AsyncIterator[AccessStore]:
    async with open_and_close(filled.open_access()) as store:
        yield store


def iter_steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from iter_steps(part)


async def collect_plans(db: Database) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the prepared statements of a session and the steps of their plans."""
    for name, statement, places in await db.execute(PREPARED):
        values = f"({', '.join(['NULL'] * places)})" if places else ""
        ((document,),) = await db.execute(f'EXPLAIN (FORMAT JSON) EXECUTE "{name}" {values}')
        yield statement, list(iter_steps(json.loads(document)[0]["Plan"]))


def is_full_index_walk(step: dict[str, Any]) -> bool:
    """Return whether a step reads a whole index only for its order."""
    return step["Node Type"].startswith("Index") and "Index Cond" not in step


async def assert_read_by_index(db: Database, *, is_searched: bool = False) -> int:
    """Assert that all plans of a session read by index; return the number of plans.

    If `is_searched`, no plan may read a whole index only for its order.
    """
    number = 0
    async for statement, plan in collect_plans(db):
        number += 1
        if statement.startswith('SELECT "'):
            continue  # asyncpg prepares this before a COPY, for the types of its columns
        scanned = {step["Relation Name"] for step in plan if step["Node Type"] == "Seq Scan"}
        assert scanned <= READ_WHOLE, statement
        assert not (is_searched and any(is_full_index_walk(step) for step in plan)), statement
        if "unnest" not in statement and "FROM readings r" not in statement:
            assert not [step for step in plan if "Sort" in step["Node Type"]], statement
    return number


@pytest.mark.prove
async def test_every_other_read_neither_scans_nor_sorts(market: MarketStore) -> None:
    await market.snapshot()
    await market.past_snapshot(await market.past_key(NOW + 5), {})
    assert [part async for part in market.ledger_reads.load_rows(NOW, NOW + 5)]
    await market.progress()
    assert await list_changes(market)
    assert await anext(market.alerts())
    async with market._engine.acquire_connection() as db:
        assert await assert_read_by_index(db) >= 15


async def test_no_statement_of_a_request_scans_or_sorts_a_table(
    access: AccessStore,
) -> None:
    for verb in REQUEST_CALLS.values():
        try:
            await verb(access)
        except DatabaseFailureError:
            raise
        except StoreError:
            pass  # A row that the call needs is missing.
    async with access._engine.acquire_connection() as db:
        assert await assert_read_by_index(db, is_searched=True) >= 20
