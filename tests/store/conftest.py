"""Fixtures for stores on every engine, closed at the end of the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from tests.support.row_builders import make_full_batch
from tests.support.store_homes import AnyStore, StoreHome

OpenMarket = Callable[[], Awaitable[MarketStore]]
OpenAccess = Callable[[], Awaitable[AccessStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "market.db"


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stores:
        yield stores


def keep(
    opening: Callable[[], Awaitable[AnyStore]], closing: AsyncExitStack
) -> Callable[[], Awaitable[AnyStore]]:
    """Return a function that opens another connection on each call, closed by `closing`."""

    async def open_and_keep() -> AnyStore:
        store = await opening()
        closing.push_async_callback(store.close)
        return store

    return open_and_keep


@pytest.fixture
def open_market(home: StoreHome, closing: AsyncExitStack) -> OpenMarket:
    return keep(home.open_market, closing)


@pytest.fixture
def open_access(home: StoreHome, closing: AsyncExitStack) -> OpenAccess:
    return keep(home.open_access, closing)


@pytest.fixture
async def market(open_market: OpenMarket) -> MarketStore:
    return await open_market()


@pytest.fixture
async def filled(market: MarketStore) -> MarketStore:
    """A market store with one commit, which writes to every table."""
    await market.commit(make_full_batch())
    return market


@pytest.fixture
async def access(open_access: OpenAccess) -> AccessStore:
    return await open_access()
