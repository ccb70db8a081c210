"""`signals prune`: rows beyond their retention, of both stores."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from access.upkeep import horizons
from service.settings import Settings
from service.stores import existing_store
from store.sqlite_access import SqliteAccessStore


async def prune(settings: Settings, clock: Callable[[], int]) -> int:
    """Delete rows beyond their retention; print how many. `clock` tells epoch milliseconds."""
    async with AsyncExitStack() as opened:
        market = await existing_store(settings)
        opened.push_async_callback(market.close)
        pruned = await market.prune()
        if settings.access_path.exists():
            access = await SqliteAccessStore.open(settings.access_path)
            opened.push_async_callback(access.close)
            pruned += await access.prune(horizons(clock()))
    print(f"pruned {pruned} rows")
    return 0
