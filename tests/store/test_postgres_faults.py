"""A database from nothing, a server that goes away, and one that asks for passwords."""

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from store.errors import StoreError
from store.postgres.access_store import PostgresAccessStore
from store.postgres.market_store import PostgresMarketStore
from store.postgres.schema import SCHEMAS
from tests.postgres.server import PostgresServer
from tests.store.homes import DEADLINE_S, PostgresHome, closing_store, free_lock
from tests.store.rows import NOW, full

pytestmark = pytest.mark.clause("store")


async def test_stores_that_are_opened_at_once_all_find_a_migrated_database(database: str) -> None:
    kinds = (PostgresMarketStore, PostgresAccessStore) * 3
    for store in await asyncio.gather(*(kind.open(database) for kind in kinds)):
        await store.close()


async def test_a_database_is_migrated_whole_or_not_at_all(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as next_version:
        schema, migrations = SCHEMAS["market"]
        next_version.setitem(SCHEMAS, "market", (schema, (*migrations, "market_9999")))
        with pytest.raises(StoreError, match="market_9999"):
            await PostgresMarketStore.open(database)
    async with closing_store(PostgresMarketStore.open(database)) as store:
        await store.commit(full())


async def test_a_server_that_goes_away_is_told_and_is_used_again_once_it_is_back(
    own_postgres: PostgresServer,
) -> None:
    home = PostgresHome(own_postgres.url())
    async with closing_store(home.open_market()) as market:
        await market.lock()
        await market.commit(full())
        own_postgres.stop()
        for verb in (market.commit(full(NOW + 1, step=1)), market.snapshot(), market.lock()):
            with pytest.raises(StoreError) as told:
                await verb
            assert "\n" not in str(told.value)
        own_postgres.start()
        async with asyncio.timeout(DEADLINE_S):
            while (passes := await passes_of(market)) is None:
                pass
        assert passes == 1
        await free_lock(market)
        await market.commit(full(NOW + 1, step=1))


async def passes_of(market: PostgresMarketStore) -> int | None:
    """Return how many passes a store holds, None where it can't be asked."""
    with suppress(StoreError):
        return (await market.progress()).passes
    return None


async def test_a_user_who_is_not_let_in_is_told_without_name_and_password(
    own_postgres: PostgresServer,
) -> None:
    session = await asyncpg.connect(own_postgres.url())
    await session.execute("CREATE ROLE operator LOGIN PASSWORD 'right'")
    hosts = own_postgres.data / "pg_hba.conf"
    hosts.write_text("host all operator 127.0.0.1/32 scram-sha-256\n" + hosts.read_text())
    await session.execute("SELECT pg_reload_conf()")
    await session.close()
    for secret in ("operator:wrong", "nobody-such:right"):
        url = own_postgres.url().replace("postgres@", f"{secret}@")
        with pytest.raises(StoreError) as told:
            await PostgresMarketStore.open(url)
        said = str(told.value)
        assert said.endswith("lets nobody in by the user and password of its URL")
        assert not any(word in said for word in (*secret.split(":"), "\n"))
