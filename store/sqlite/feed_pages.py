"""Feed page statements for SQLite: select the `created_at` of a page, then look up its rows."""

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


def build_changes_query(query: FeedQuery) -> str:
    """Return the statement for a page of published changes."""
    page_sql = _build_page(query, "universe")
    rows = f"changes c WHERE created_at IN ({page_sql})"
    return f"{SELECT_CHANGE} FROM {rows} {build_order_clause(query)}"


def build_alerts_query(query: FeedQuery) -> str:
    """Return the statement for a page of alerts."""
    page_sql = _build_page(query, "alerts")
    return (
        f"{SELECT_ALERT} FROM alerts a WHERE created_at IN ({page_sql}) {build_order_clause(query)}"
    )


def build_merged_query(query: FeedQuery) -> str:
    """Return the statement for a page of both tiers; the last column is the action or NULL."""
    # MATERIALIZED: both halves of the UNION read the page, which would otherwise be selected twice.
    alert_columns = SELECT_ALERT.replace(
        "a.action, a.price", "NULL, NULL, a.price, NULL, a.action", 1
    )
    return f"""
        WITH page AS MATERIALIZED ({_build_page(query, "universe", "alerts")})
        {SELECT_CHANGE}, NULL FROM changes c WHERE created_at IN page
        UNION ALL {alert_columns} FROM alerts a WHERE created_at IN page {build_order_clause(query)}
    """


def _build_page(query: FeedQuery, *tiers: Tier) -> str:
    return f"{' UNION ALL '.join(build_arms(query, *tiers))} {build_page_clause(query)}"


SQLITE_FEED_STATEMENTS = FeedStatements(build_changes_query, build_alerts_query, build_merged_query)
