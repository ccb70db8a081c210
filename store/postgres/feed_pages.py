"""Feed page statements for PostgreSQL: select the `created_at` of a page, then join its rows."""

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

# More rows than any feed has, and low enough that offset + limit does not overflow BIGINT.
OFFSET_CEILING = 2**62


def build_changes_query(query: FeedQuery) -> str:
    """Return the statement for a page of published changes."""
    page_sql = _build_page(query, "universe")
    rows = f"({page_sql}) p JOIN changes c USING (created_at)"
    return f"{SELECT_CHANGE} FROM {rows} {_build_page_order(query)}"


def build_alerts_query(query: FeedQuery) -> str:
    """Return the statement for a page of alerts."""
    page_sql = _build_page(query, "alerts")
    rows = f"({page_sql}) p JOIN alerts a USING (created_at)"
    return f"{SELECT_ALERT} FROM {rows} {_build_page_order(query)}"


def build_merged_query(query: FeedQuery) -> str:
    """Return the statement for a page of both tiers; the last column is the action or NULL."""
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
    """Return the statement for the `created_at` of a page."""
    # Each arm has its own ORDER BY and LIMIT. Without the LIMIT PostgreSQL loses the order of an
    # arm with a constant condition, and sorts all of its rows instead of merging the arms.
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
