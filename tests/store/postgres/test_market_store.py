"""Features of PostgreSQL only: notified versions, and errors for wrong URLs and versions."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from store.access_rows import SignInRow
from store.errors import StoreError
from store.postgres import market_engine as postgres_market_engine
from store.postgres.access_store import open_postgres_access
from store.postgres.market_store import open_postgres_market
from store.sql import market_writes as writes
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from tests.conftest import MAJORS
from tests.store.conftest import OpenMarket
from tests.store.sql.test_purchase_store import CLAIM
from tests.support.postgres.server import cut_sessions
from tests.support.row_builders import DAY_MS, NOW, make_batch, make_change, make_full_batch
from tests.support.store_homes import DEADLINE_S, PostgresHome, run_sql, wait_for_version

pytestmark = [
    pytest.mark.clause("store"),
    pytest.mark.parametrize("new_home", MAJORS, indirect=True),
]

STORES = {"market": open_postgres_market, "access": open_postgres_access}


async def get_open_error(url: str, store: str = "market") -> str:
    """Return the error of opening a store; assert that it names the database and no secret."""
    with pytest.raises(StoreError) as refused:
        await STORES[store](url)
    message = str(refused.value)
    assert "\n" not in message
    assert "postgres@" not in message
    assert urlsplit(url).path in message
    return message


async def test_a_new_version_is_notified_at_once(
    market: MarketStore, open_market: OpenMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_market_engine, "POLL_S", 10 * DEADLINE_S)
    other = await open_market()
    await other.commit(make_batch())
    listening = await wait_for_version(market, market.version())
    for step in range(3):
        await other.commit(make_full_batch(NOW, step=step))
        listening = await wait_for_version(market, listening)


async def test_a_version_without_notification_is_found_by_polling(
    market: MarketStore, home: PostgresHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_market_engine, "POLL_S", 0.01)
    await market.commit(make_batch())
    seen = await wait_for_version(market, market.version())
    await run_sql(home, "UPDATE version SET number = number + 1")
    seen = await wait_for_version(market, seen)
    await cut_sessions(home.url)
    await run_sql(home, "UPDATE version SET number = number + 1")
    await wait_for_version(market, seen)


async def test_a_store_recovers_from_lost_sessions_without_reopening(
    market: MarketStore, access: AccessStore, home: PostgresHome
) -> None:
    await market.commit(make_full_batch())
    await access.create_claim(CLAIM)
    await cut_sessions(home.url)
    async with asyncio.timeout(DEADLINE_S):
        for verb in (market.progress, access.list_keys):
            while True:
                with suppress(StoreError):
                    await verb()
                    break
    assert (await market.snapshot()).last_created_at == NOW + 3
    assert await access.find_claim(CLAIM.token_hash) == CLAIM


async def test_prune_deletes_in_short_transactions(
    market: MarketStore, home: PostgresHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = NOW - 365 * DAY_MS
    rows = [make_change(edge - 9 + n, after=1 - 2 * (n % 2)) for n in range(9)]
    await market.commit(make_batch(NOW, changes=rows))
    monkeypatch.setattr(writes, "ROWS_PER_PRUNE", 3)
    ((before,),) = await run_sql(home, "SELECT number FROM version")
    assert await market.prune() == 8
    ((after,),) = await run_sql(home, "SELECT number FROM version")
    horizons, deleting, nothing_left = 1, 3, 2
    assert after - before == horizons + deleting + nothing_left


async def test_an_error_quotes_no_values_of_rows(
    access: AccessStore,
) -> None:
    link = SignInRow(bytes(32), "buyer@example.com", 9)
    await access.create_sign_in_link(link)
    with pytest.raises(StoreError) as refused:
        await access.create_sign_in_link(link)
    message = str(refused.value)
    assert "unique" in message
    assert bytes(32).hex() not in message
    assert "\n" not in message


@pytest.mark.parametrize("store", STORES)
async def test_a_database_of_another_version_is_refused(home: PostgresHome, store: str) -> None:
    await run_sql(home, f"INSERT INTO signals_{store}.migrations VALUES ('{store}_9999')")
    message = await get_open_error(home.url, store)
    assert "another version of signals" in message
    assert f"{store}_9999" in message


@pytest.mark.parametrize("store", STORES)
async def test_a_database_that_is_not_there_is_refused(home: PostgresHome, store: str) -> None:
    assert "does not exist" in await get_open_error(f"{home.url}_missing", store)


async def test_a_server_that_is_not_there_is_refused(home: PostgresHome) -> None:
    port = str(urlsplit(home.url).port)
    assert "postgresql://127.0.0.1:1/" in await get_open_error(home.url.replace(port, "1"))
