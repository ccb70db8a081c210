"""Fixtures for stores on every engine, closed at the end of the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from tests.support.store_homes import StoreHome

OpenMarket = Callable[[], Awaitable[MarketStore]]
OpenAccess = Callable[[], Awaitable[AccessStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the market database file."""
    return tmp_path / "market.db"


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stores:
        yield stores


@pytest.fixture
def open_market(home: StoreHome, closing: AsyncExitStack) -> OpenMarket:
    """A function that opens another connection to the market store on each call."""

    async def open_and_keep() -> MarketStore:
        store = await home.open_market()
        closing.push_async_callback(store.close)
        return store

    return open_and_keep


@pytest.fixture
def open_access(home: StoreHome, closing: AsyncExitStack) -> OpenAccess:
    """A function that opens another connection to the access store on each call."""

    async def open_and_keep() -> AccessStore:
        store = await home.open_access()
        closing.push_async_callback(store.close)
        return store

    return open_and_keep


@pytest.fixture
async def market(open_market: OpenMarket) -> MarketStore:
    return await open_market()


@pytest.fixture
async def access(open_access: OpenAccess) -> AccessStore:
    return await open_access()
