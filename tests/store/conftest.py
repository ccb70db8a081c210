"""Stores on files, opened by the test and closed for it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore

OpenMarket = Callable[[Path], Awaitable[SqliteMarketStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "market.db"


@pytest.fixture
async def open_market() -> AsyncIterator[OpenMarket]:
    async with AsyncExitStack() as stores:

        async def open_and_keep(path: Path) -> SqliteMarketStore:
            store = await SqliteMarketStore.open(path)
            stores.push_async_callback(store.close)
            return store

        yield open_and_keep


@pytest.fixture
async def market(open_market: OpenMarket, path: Path) -> SqliteMarketStore:
    return await open_market(path)


@pytest.fixture
async def access(tmp_path: Path) -> AsyncIterator[SqliteAccessStore]:
    store = await SqliteAccessStore.open(tmp_path / "access.db")
    yield store
    await store.close()
