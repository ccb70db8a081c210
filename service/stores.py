"""The store that a command works on, which must be there."""

from service.settings import Settings
from store.protocol import StoreError
from store.sqlite import SqliteMarketStore


async def existing_store(settings: Settings) -> SqliteMarketStore:
    """Open the store; StoreError where there is none, so that no command succeeds on nothing."""
    if not settings.market_path.exists():
        raise StoreError(
            f"there is no store at {settings.market_path}: set SIGNALS_DATABASE_URL, "
            "or fill one with `signals replay --bars DIR`"
        )
    return await SqliteMarketStore.open(settings.market_path)
