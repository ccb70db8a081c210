"""PostgreSQL as operators have it: behind PgBouncer, in another encoding, from a dump.

An empty database, a server that restarts, and a server that requires passwords. Requests are served
from indexes, in index order: tests inspect the plans of a store's own sessions over tables of
realistic size. Only tables with about one row are scanned, and those that are read completely:
assets and current readings.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from store.opening import open_postgres_access, open_postgres_market
from store.postgres.engine import connect
from store.postgres.market_engine import count_missing_migrations, find_schema_faults
from store.postgres.schema import SCHEMAS
from store.sql.access_store import AccessStore
from store.sql.database import Database, Lane, fetch_value
from store.sql.market_store import MarketStore
from store.store_errors import DatabaseFailureError, StoreError
from tests.conftest import MAJORS
from tests.support.access_store_calls import REQUEST_CALLS
from tests.support.postgres.server import (
    PostgresServer,
    SharedServer,
    build_unprivileged_command,
    copy_database,
    make_private_folder,
)
from tests.support.row_builders import NOW, list_changes, list_commits, make_full_batch
from tests.support.signals_command import find_free_port
from tests.support.store_homes import (
    DEADLINE_S,
    PostgresHome,
    make_postgres_home,
    open_and_close,
    take_lock_when_free,
    wait_for_version,
)

WITHIN_S = 20.0

pytestmark = pytest.mark.clause("postgres", "store")


@contextmanager
def pooled(url: str, mode: str) -> Iterator[str]:
    """Run PgBouncer in front of a server; yield the URL of the database behind it."""
    parts, port = urlsplit(url), find_free_port()
    with make_private_folder() as folder:
        (folder / "users").write_text('"postgres" ""\n')
        settings = (
            "[databases]",
            f"* = host=127.0.0.1 port={parts.port}",
            "[pgbouncer]",
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\npool_mode = {mode}",
            f"auth_type = trust\nauth_file = {folder / 'users'}\nunix_socket_dir =",
        )
        (folder / "pgbouncer.ini").write_text("\n".join(settings))
        command = build_unprivileged_command("pgbouncer", "-q", folder / "pgbouncer.ini")
        pooler = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + WITHIN_S
            while not is_open(port):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield parts._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
        finally:
            pooler.terminate()
            pooler.wait(WITHIN_S)


def is_open(port: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
        return True
    return False


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


WITH_PGBOUNCER = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="PgBouncer is not installed"
)


@WITH_PGBOUNCER
@pytest.mark.prove
async def test_a_pooler_of_sessions_serves_both_stores_and_the_lock(database: str) -> None:
    with pooled(database, "session") as url:
        async with (
            open_and_close(open_postgres_access(url)) as access,
            open_and_close(open_postgres_market(url)) as market,
            open_and_close(open_postgres_market(url)) as other,
        ):
            assert await access.list_keys() == []
            await market.lock()
            with pytest.raises(StoreError, match="is computing on"):
                await other.lock()
            before = other.version()
            await market.commit(make_full_batch())
            await wait_for_version(other, before)
            await market.unlock()
            await take_lock_when_free(other)
            assert (await other.progress()).market_time == NOW


@WITH_PGBOUNCER
async def test_a_pooler_of_transactions_is_refused_by_its_name(database: str) -> None:
    with pooled(database, "transaction") as url:
        for open_store in (open_postgres_access, open_postgres_market):
            with pytest.raises(StoreError, match=r"pools transactions.*`pool_mode = session`"):
                await open_store(url)
        assert await count_missing_migrations(url, *SCHEMAS["market"]) == 1


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_is_not_in_utf8_is_refused_with_the_command_that_makes_one(
    database: str, encoding: str
) -> None:
    name = f"test_in_{encoding.lower()}"
    admin = await asyncpg.connect(database)
    try:
        await admin.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' "
            "LOCALE_PROVIDER libc LOCALE 'C'"
        )
        url = urlsplit(database)._replace(path=f"/{name}").geturl()
        with pytest.raises(StoreError, match=rf"is in {encoding}.*createdb --encoding=UTF8"):
            await open_postgres_access(url)
        assert await count_missing_migrations(url, *SCHEMAS["access"]) == 1
    finally:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.close()


@pytest.mark.clause("audit")
@pytest.mark.prove
async def test_a_restored_dump_has_the_schema_of_the_migrations(
    postgres: SharedServer, database: str, tmp_path: Path
) -> None:
    async with open_and_close(open_postgres_market(database)) as market:
        await market.commit(make_full_batch())
    programs, dump = postgres.template.programs, tmp_path / "signals.dump"
    if not (programs / "pg_dump").exists():
        pytest.skip("this installation has no pg_dump")
    schemas = [f"--schema={schema}" for schema, _ in SCHEMAS.values()]
    run(programs / "pg_dump", "--format=custom", f"--file={dump}", *schemas, database)
    async with copy_database(postgres.url) as copy:
        run(programs / "pg_restore", "--exit-on-error", f"--dbname={copy}", dump)
        assert await find_schema_faults(copy, *SCHEMAS["market"]) == []
        async with open_and_close(open_postgres_market(copy)) as restored:
            assert len(await list_commits(restored)) == 1
        session = await asyncpg.connect(copy)
        await session.execute(
            "ALTER TABLE signals_market.clock DROP CONSTRAINT clock_id_check, "
            "ADD CONSTRAINT clock_id_check CHECK (id = 1 OR id = 2)"
        )
        await session.close()
        (fault,) = await find_schema_faults(copy, *SCHEMAS["market"])
        assert "clock_id_check" in fault


async def test_stores_that_are_opened_at_once_all_find_a_migrated_database(database: str) -> None:
    openings = (open_postgres_market, open_postgres_access) * 3
    with capture_logs() as logs:
        for store in await asyncio.gather(*(open_store(database) for open_store in openings)):
            await store.close()
    assert logs == []  # a new schema needs no line


async def read_schema(url: str) -> list[tuple[str, ...]]:
    """Return the migrations and the tables of the market schema."""
    session = await connect(url, SCHEMAS["market"][0])
    try:
        names = await session.fetch("SELECT name FROM migrations ORDER BY name")
        tables = await session.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", SCHEMAS["market"][0]
        )
    finally:
        await session.close()
    return [tuple(row[0] for row in rows) for rows in (names, tables)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("INSERT INTO missing\nVALUES ('secret');", "does not exist"),
        ("DO $$\nBEGIN\n  PERFORM 1;\n  RAISE 'no;\n';\nEND $$;", "no;"),
        ("SELECT pg_terminate_backend(pg_backend_pid());", ""),
    ],
)
async def test_a_migration_that_fails_is_named_and_changes_nothing(
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    statement: str,
    reason: str,
) -> None:
    schema, migrations = SCHEMAS["market"]
    async with open_and_close(open_postgres_market(database)) as store:
        await store.commit(make_full_batch())
    before = await read_schema(database)
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "postgres_market_9998.sql").write_text("CREATE TABLE first (id INTEGER);\n")
    second = "CREATE TABLE added (id INTEGER);\n-- A comment;\n"
    (folder / "postgres_market_9999.sql").write_text(second + statement)
    with monkeypatch.context() as next_version:
        next_version.setattr("store.migrations.files", lambda _: tmp_path)
        names = (*migrations, "postgres_market_9998", "postgres_market_9999")
        next_version.setitem(SCHEMAS, "market", (schema, names))
        with pytest.raises(StoreError) as failure, capture_logs() as logs:
            await open_postgres_market(database)
        message = str(failure.value)
        for part in ("migration postgres_market_9999 failed: ", reason, "unchanged"):
            assert part in message
        assert not any(part in message for part in ("secret", "\n"))
        assert logs == []
        assert await read_schema(database) == before
        (folder / "postgres_market_9999.sql").write_text(second)
        with capture_logs() as logs:
            for _ in range(2):
                await (await open_postgres_market(database)).close()
    assert [(entry["event"], entry["migration"]) for entry in logs] == [
        ("migrated", "postgres_market_9998"),
        ("migrated", "postgres_market_9999"),
    ]


@pytest.mark.prove
async def test_a_lost_server_is_reported_and_used_again_when_it_returns(
    private_postgres: PostgresServer,
) -> None:
    async with open_and_close(PostgresHome(private_postgres.url()).open_market()) as market:
        await market.lock()
        await market.commit(make_full_batch())
        private_postgres.stop()
        for verb in (
            market.commit(make_full_batch(NOW + 1, step=1)),
            market.snapshot(),
            market.lock(),
        ):
            with pytest.raises(StoreError) as refusal:
                await verb
            assert "\n" not in str(refusal.value)
        private_postgres.start()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with suppress(StoreError):
                    assert (await market.progress()).commit_count == 1
                    break
        await take_lock_when_free(market)
        await market.commit(make_full_batch(NOW + 1, step=1))


async def test_each_kind_of_transaction_has_its_own_time_limit(database: str) -> None:
    sql = "SELECT current_setting('statement_timeout')"
    async with open_and_close(open_postgres_market(database)) as market:
        engine = market._engine
        reads = {lane: engine.begin_read(lane) for lane in Lane}
        others = {"page": engine.acquire_connection(), "prune": engine.begin_write()}
        # A process that holds the lock commits in another session.
        others["commit"] = engine.begin_compute_write()
        limits = {}
        for kind, opening in (reads | others).items():
            async with opening as db:
                limits[kind] = await fetch_value(db, sql)
    expected = dict.fromkeys([*Lane, "page"], "10s") | {Lane.BATCH: "10min"}
    assert limits == expected | {"prune": "1min", "commit": "1min"}


async def test_a_rejected_login_is_reported_without_user_and_password(
    private_postgres: PostgresServer,
) -> None:
    session = await asyncpg.connect(private_postgres.url())
    await session.execute("CREATE ROLE operator LOGIN PASSWORD 'right'")
    hosts = private_postgres.data / "pg_hba.conf"
    hosts.write_text("host all operator 127.0.0.1/32 scram-sha-256\n" + hosts.read_text())
    await session.execute("SELECT pg_reload_conf()")
    await session.close()
    for secret in ("operator:wrong", "nobody-such:right"):
        url = private_postgres.url().replace("postgres@", f"{secret}@")
        with pytest.raises(StoreError) as refusal:
            await open_postgres_market(url)
        message = str(refusal.value)
        assert message.endswith("rejects the user or password in its URL")
        assert not any(word in message for word in (*secret.split(":"), "\n"))


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


async def assert_read_by_index(db: Database, *, is_searched: bool = False) -> int:
    """Assert that all plans of a session read by index; return the number of plans.

    If `is_searched`, no plan may read a whole index only for its order.
    """
    statements = await db.execute(PREPARED)
    for name, statement, places in statements:
        if statement.startswith('SELECT "'):
            continue  # asyncpg prepares this before a COPY, for the types of its columns
        values = f"({', '.join(['NULL'] * places)})" if places else ""
        ((document,),) = await db.execute(f'EXPLAIN (FORMAT JSON) EXECUTE "{name}" {values}')
        plan = list(iter_steps(json.loads(document)[0]["Plan"]))
        scanned = {step["Relation Name"] for step in plan if step["Node Type"] == "Seq Scan"}
        assert scanned <= READ_WHOLE, statement
        walks = [step for step in plan if step["Node Type"].startswith("Index")]
        assert not is_searched or all("Index Cond" in step for step in walks), statement
        if "unnest" not in statement and "FROM readings r" not in statement:
            assert not [step for step in plan if "Sort" in step["Node Type"]], statement
    return len(statements)


@pytest.mark.clause("feed")
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


@pytest.mark.clause("feed")
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
