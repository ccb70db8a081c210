"""Pages of the feed as PostgreSQL reads them best: picked in their order, and looked up in it."""

from schemas.vocabulary import Tier
from store.market_rows import FeedQuery
from store.sql.feed_pages import (
    SELECT_ALERT,
    SELECT_CHANGE,
    FeedStatements,
    build_arms,
    build_order_clause,
    build_page_clause,
)

# No feed has so many rows, and no sum with a limit overflows.
OFFSET_CEILING = 2**62


def build_changes_query(query: FeedQuery) -> str:
    """Select a page of published changes."""
    page_sql = _build_page(query, "universe")
    rows = f"({page_sql}) p JOIN changes c USING (created_at)"
    return f"{SELECT_CHANGE} FROM {rows} {_build_page_order(query)}"


def build_alerts_query(query: FeedQuery) -> str:
    """Select a page of alerts."""
    page_sql = _build_page(query, "alerts")
    rows = f"({page_sql}) p JOIN alerts a USING (created_at)"
    return f"{SELECT_ALERT} FROM {rows} {_build_page_order(query)}"


def build_merged_query(query: FeedQuery) -> str:
    """Select a page of both tiers; the last column is the action of an alert, NULL of a change."""
    page_sql = _build_page(query, "universe", "alerts")
    return f"""
        SELECT p.created_at,
          (SELECT ticker FROM assets WHERE id = coalesce(c.asset_id, a.asset_id)),
          coalesce(c.indicator, a.indicator), coalesce(c.timeframe, a.timeframe),
          coalesce(c.close_time, a.close_time), coalesce(c.epoch, a.epoch),
          c."before", c."after", coalesce(c.price, a.price), c.published, a.action
        FROM ({page_sql}) p
          LEFT JOIN changes c USING (created_at) LEFT JOIN alerts a USING (created_at)
        {_build_page_order(query)}
    """


def _build_page(query: FeedQuery, *tiers: Tier) -> str:
    """Select a page of times; arms are merged in order where each has an order of its own."""
    limit_clause = (
        f"LIMIT CAST(:limit AS BIGINT) + least(CAST(:offset AS BIGINT), {OFFSET_CEILING})"
    )
    ordered = [
        f"({arm} {build_order_clause(query)} {limit_clause})" for arm in build_arms(query, *tiers)
    ]
    return f"SELECT created_at FROM ({' UNION ALL '.join(ordered)}) arms {build_page_clause(query)}"


def _build_page_order(query: FeedQuery) -> str:
    return build_order_clause(query).replace("ORDER BY 1", "ORDER BY p.created_at")


POSTGRES_FEED_STATEMENTS = FeedStatements(
    build_changes_query, build_alerts_query, build_merged_query
)
