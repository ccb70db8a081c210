"""The market store on PostgreSQL."""

from typing import Self

from store.postgres.market_engine import PostgresMarketEngine
from store.postgres.schema import SCHEMAS
from store.sql.market_store import SqlMarketStore


class PostgresMarketStore(SqlMarketStore):
    """A MarketStore on a PostgreSQL database."""

    @classmethod
    async def open(cls, url: str) -> Self:
        """Migrate and open it, creating its schema where it is missing; StoreError in one line."""
        return cls(await PostgresMarketEngine.open(url, *SCHEMAS["market"]))
