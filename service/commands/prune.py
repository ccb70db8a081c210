"""`signals prune`: rows beyond their retention, of both stores."""

from contextlib import AsyncExitStack

from access.maintenance import horizons
from schemas.clock import Clock
from service.config.settings import Settings
from service.config.stores import existing_market, is_there, open_access


async def prune(settings: Settings, clock: Clock) -> int:
    """Delete rows beyond their retention; print how many. `clock` tells epoch milliseconds."""
    async with AsyncExitStack() as opened:
        market = await existing_market(settings)
        opened.push_async_callback(market.close)
        pruned = await market.prune()
        if await is_there(settings, "access"):
            access = await open_access(settings)
            opened.push_async_callback(access.close)
            pruned += await access.prune(horizons(clock()))
    print(f"pruned {pruned} rows")
    return 0
