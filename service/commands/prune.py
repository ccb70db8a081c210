"""`signals prune`: deletes rows of both stores that are older than their retention."""

from contextlib import AsyncExitStack

from access.maintenance import prune_access
from schemas.vocabulary import Clock
from service.config.billing import open_provider
from service.config.settings import Settings
from service.config.stores import open_access, open_market, refuse_missing_store, refuse_wrong_clock


async def prune_stores(settings: Settings, clock: Clock) -> int:
    """Delete the rows and print how many there were; NotReadyError if the clock looks wrong."""
    await refuse_missing_store(settings)
    if settings.is_sqlite:
        from store.sqlite.copies import free_spare, keep_spare
        from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, delete_old_copies

        # Before the stores are opened, which a full disk does not let happen.
        delete_old_copies(settings.market_path, MARKET_MIGRATIONS)
        delete_old_copies(settings.access_path, ACCESS_MIGRATIONS)
        free_spare(settings.market_path)
    async with AsyncExitStack() as stack:
        market = await open_market(settings)
        stack.push_async_callback(market.close)
        await refuse_wrong_clock(settings, market, clock())
        access = await open_access(settings)
        stack.push_async_callback(access.close)
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        row_count = await market.prune() + await prune_access(access, provider, clock())
    if settings.is_sqlite:
        keep_spare(settings.market_path)
    print(f"pruned {row_count} rows")
    return 0
