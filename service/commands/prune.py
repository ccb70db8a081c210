"""`signals prune`: deletes rows of both stores that are older than their retention."""

from contextlib import AsyncExitStack

from access.maintenance import prune_access
from schemas.clock import Clock
from service.config.billing import open_provider
from service.config.settings import Settings
from service.config.stores import open_access, open_market, refuse_missing_store


async def prune_stores(settings: Settings, clock: Clock) -> int:
    """Delete the rows and print how many there were."""
    await refuse_missing_store(settings)
    async with AsyncExitStack() as stack:
        market = await open_market(settings)
        stack.push_async_callback(market.close)
        access = await open_access(settings)
        stack.push_async_callback(access.close)
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        row_count = await market.prune() + await prune_access(access, provider, clock())
    print(f"pruned {row_count} rows")
    return 0
