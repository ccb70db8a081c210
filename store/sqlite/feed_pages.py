"""Pages of the feed as SQLite reads them best.

A page is picked by `created_at` alone, and then its rows are looked up; the merged one walks both
tiers side by side.
"""

from schemas.vocabulary import Tier
from store.market_rows import FeedQuery
from store.sql.feed_pages import ALERT, CHANGE, FeedStatements, arms, in_order, of_page


def changes_statement(query: FeedQuery) -> str:
    """Select a page of published changes."""
    picked = _page(query, "universe")
    return f"{CHANGE} FROM changes c WHERE created_at IN ({picked}) {in_order(query)}"


def alerts_statement(query: FeedQuery) -> str:
    """Select a page of alerts."""
    picked = _page(query, "alerts")
    return f"{ALERT} FROM alerts a WHERE created_at IN ({picked}) {in_order(query)}"


def merged_statement(query: FeedQuery) -> str:
    """Select a page of both tiers; the last column is the action of an alert, NULL of a change."""
    alert = ALERT.replace("a.action, a.price", "NULL, NULL, a.price, NULL, a.action", 1)
    return f"""
        WITH page AS MATERIALIZED ({_page(query, "universe", "alerts")})
        {CHANGE}, NULL FROM changes c WHERE created_at IN page
        UNION ALL {alert} FROM alerts a WHERE created_at IN page {in_order(query)}
    """


def _page(query: FeedQuery, *tiers: Tier) -> str:
    return f"{' UNION ALL '.join(arms(query, *tiers))} {of_page(query)}"


SQLITE_FEED = FeedStatements(changes_statement, alerts_statement, merged_statement)
