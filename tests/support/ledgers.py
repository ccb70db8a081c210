"""The feed and past states of a store, as a serving process reads them, but without a cache."""

from serving.ledger import read_ledger
from serving.signal_rows import FeedQuery
from store.market_rows import FeedRow, StoredSnapshot
from store.sql.market_store import MarketStore

EVER = 2**62
EVERYTHING = FeedQuery("all", 0, 0, EVER, limit=100_000, oldest_first=True)


async def list_feed(store: MarketStore) -> list[FeedRow]:
    """Return the published rows of both tiers, oldest first."""
    ledger = await read_ledger(store, EVER, None)
    return ledger.build_rows(ledger.find_page(EVERYTHING)[0])


async def load_past(store: MarketStore, at: int) -> StoredSnapshot:
    """Return the state that was the latest at a time (epoch ms)."""
    key = await store.past_key(at)
    ledger = await read_ledger(store, EVER, None)
    return await store.past_snapshot(key, ledger.find_readings(key.last_created_at))
