"""Opens the market store in a PostgreSQL database; commands about keys never load it."""

from store.postgres.market_engine import PostgresMarketEngine
from store.postgres.schema import SCHEMAS
from store.sql.market_store import MarketStore


async def open_postgres_market(url: str) -> MarketStore:
    """Migrate and open the market store, creating its schema if missing; raise StoreError."""
    return MarketStore(await PostgresMarketEngine.open(url, *SCHEMAS["market"]))
