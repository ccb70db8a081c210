"""The market store on PostgreSQL."""

from store.postgres.market_engine import PostgresMarketEngine
from store.postgres.schema import SCHEMAS
from store.sql.market_store import MarketStore


async def open_postgres_market(url: str) -> MarketStore:
    """Migrate and open it, creating its schema if it is missing; StoreError in one line."""
    return MarketStore(await PostgresMarketEngine.open(url, *SCHEMAS["market"]))
