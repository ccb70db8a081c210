"""`signals prune`: deletes rows of both stores that are older than their retention."""

from contextlib import AsyncExitStack

from access.maintenance import compute_cutoffs
from schemas.clock import Clock
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
        row_count = await market.prune() + await access.prune(compute_cutoffs(clock()))
    print(f"pruned {row_count} rows")
    return 0
