"""Pages of the feed as PostgreSQL reads them best: picked in their order, and looked up in it."""

from schemas.vocabulary import Tier
from store.market_rows import FeedQuery
from store.sql.feed_pages import ALERT, CHANGE, FeedStatements, arms, in_order, of_page

# No feed has so many rows, and no sum with a limit overflows.
BEYOND_ALL = 2**62


def changes_statement(query: FeedQuery) -> str:
    """Select a page of published changes."""
    picked = _page(query, "universe")
    return f"{CHANGE} FROM ({picked}) p JOIN changes c USING (created_at) {_in_order(query)}"


def alerts_statement(query: FeedQuery) -> str:
    """Select a page of alerts."""
    picked = _page(query, "alerts")
    return f"{ALERT} FROM ({picked}) p JOIN alerts a USING (created_at) {_in_order(query)}"


def merged_statement(query: FeedQuery) -> str:
    """Select a page of both tiers; the last column is the action of an alert, NULL of a change."""
    picked = _page(query, "universe", "alerts")
    return f"""
        SELECT p.created_at,
          (SELECT ticker FROM assets WHERE id = coalesce(c.asset_id, a.asset_id)),
          coalesce(c.indicator, a.indicator), coalesce(c.timeframe, a.timeframe),
          coalesce(c.close_time, a.close_time), coalesce(c.epoch, a.epoch),
          c."before", c."after", coalesce(c.price, a.price), c.published, a.action
        FROM ({picked}) p
          LEFT JOIN changes c USING (created_at) LEFT JOIN alerts a USING (created_at)
        {_in_order(query)}
    """


def _page(query: FeedQuery, *tiers: Tier) -> str:
    """Select a page of times; arms are merged in order where each has an order of its own."""
    most = f"LIMIT CAST(:limit AS BIGINT) + least(CAST(:offset AS BIGINT), {BEYOND_ALL})"
    ordered = [f"({arm} {in_order(query)} {most})" for arm in arms(query, *tiers)]
    return f"SELECT created_at FROM ({' UNION ALL '.join(ordered)}) arms {of_page(query)}"


def _in_order(query: FeedQuery) -> str:
    return in_order(query).replace("ORDER BY 1", "ORDER BY p.created_at")


POSTGRES_FEED = FeedStatements(changes_statement, alerts_statement, merged_statement)
