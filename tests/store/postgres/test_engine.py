"""PostgreSQL as operators have it: behind PgBouncer, in another encoding, from a dump."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from store.errors import StoreError
from store.postgres.access_store import open_postgres_access
from store.postgres.database_info import count_missing_migrations
from store.postgres.market_engine import find_schema_faults
from store.postgres.market_store import open_postgres_market
from store.postgres.schema import SCHEMAS
from tests.support.postgres.server import (
    SharedServer,
    build_unprivileged_command,
    make_empty_database,
    make_private_folder,
)
from tests.support.row_builders import NOW, make_full_batch
from tests.support.signals_command import find_free_port
from tests.support.store_homes import take_lock_when_free
from tests.support.stored_rows import list_commits

WITHIN_S = 20.0

pytestmark = pytest.mark.clause("postgres")


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


@pytest.fixture
def with_pgbouncer() -> None:
    if shutil.which("pgbouncer") is None:
        pytest.skip("PgBouncer is not installed")


@pytest.mark.usefixtures("with_pgbouncer")
@pytest.mark.prove
async def test_a_pooler_of_sessions_serves_both_stores_and_the_lock(database: str) -> None:
    with pooled(database, "session") as url:
        access, market = await open_postgres_access(url), await open_postgres_market(url)
        other = await open_postgres_market(url)
        try:
            assert await access.list_keys() == []
            await market.lock()
            with pytest.raises(StoreError, match="is computing on"):
                await other.lock()
            before = other.version()
            await market.commit(make_full_batch())
            async with asyncio.timeout(WITHIN_S):
                while other.version() == before:  # noqa: ASYNC110 (a server notifies it)
                    await asyncio.sleep(0.02)
            await market.unlock()
            await take_lock_when_free(other)
            assert (await other.progress()).market_time == NOW
        finally:
            for store in (other, market, access):
                await store.close()


@pytest.mark.usefixtures("with_pgbouncer")
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
    market = await open_postgres_market(database)
    try:
        await market.commit(make_full_batch())
    finally:
        await market.close()
    programs, dump = postgres.template.programs, tmp_path / "signals.dump"
    if not (programs / "pg_dump").exists():
        pytest.skip("this installation has no pg_dump")
    schemas = [f"--schema={schema}" for schema, _ in SCHEMAS.values()]
    run(programs / "pg_dump", "--format=custom", f"--file={dump}", *schemas, database)
    async with make_empty_database(postgres.url) as copy:
        run(programs / "pg_restore", "--exit-on-error", f"--dbname={copy}", dump)
        assert await find_schema_faults(copy, *SCHEMAS["market"]) == []
        restored = await open_postgres_market(copy)
        try:
            assert len(await list_commits(restored)) == 1
        finally:
            await restored.close()
        session = await asyncpg.connect(copy)
        await session.execute(
            "ALTER TABLE signals_market.clock DROP CONSTRAINT clock_id_check, "
            "ADD CONSTRAINT clock_id_check CHECK (id = 1 OR id = 2)"
        )
        await session.close()
        (fault,) = await find_schema_faults(copy, *SCHEMAS["market"])
        assert "clock_id_check" in fault
