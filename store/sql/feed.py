"""The feed of both tiers and its volume, as functions over a read transaction."""

from collections.abc import Iterable
from typing import Any

from schemas.vocabulary import ACTIONS, TIMEFRAMES, Tier
from store.codes import INDICATOR_CODES, INDICATORS, TIMEFRAME_CODES
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow, Statistics
from store.sql.database import Database
from store.sql.feed_pages import ALERT, CHANGE, counts, oldest


async def feed(db: Database, query: FeedQuery) -> list[ChangeRow]:
    """Return one page of published changes, in the query's order."""
    return change_rows(await db.named_rows(db.feed.changes(query), _values(query, query.after)))


async def alerts_feed(db: Database, query: FeedQuery) -> list[AlertRow]:
    """Return one page of alerts, in the query's order."""
    return alert_rows(await db.named_rows(db.feed.alerts(query), _values(query, query.after)))


async def merged_feed(db: Database, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
    """Return one page of both tiers, in one order, the alerts after a time of their own."""
    rows = await db.named_rows(db.feed.merged(query), _values(query, alerts_after))
    return [
        _change_row(row[:-1]) if row[-1] is None else _alert_row((*row[:6], row[10], row[8]))
        for row in rows
    ]


async def statistics(
    db: Database, tier: Tier, after: int, until: int, kept_after: int
) -> Statistics:
    """Count the published rows of a window; tell when the oldest kept one was created."""
    counted = await db.named_rows(counts(tier), _window(after, after, until))
    ((oldest_kept,),) = await db.named_rows(oldest(tier), _window(kept_after, kept_after, until))
    return Statistics(
        counts={
            (INDICATORS[indicator], TIMEFRAMES[timeframe], _turned_to(tier, code)): count
            for indicator, timeframe, code, count in counted
            if count
        },
        oldest=oldest_kept,
    )


async def changes_after(db: Database, created_at: int, limit: int) -> list[ChangeRow]:
    """Return the oldest changes after a `created_at`, published or not."""
    sql = CHANGE + "FROM changes c WHERE c.created_at > ? ORDER BY c.created_at LIMIT ?"
    return change_rows(await db.rows(sql, created_at, limit))


async def alerts_after(db: Database, created_at: int, limit: int) -> list[AlertRow]:
    """Return the oldest alerts after a `created_at`."""
    sql = ALERT + "FROM alerts a WHERE a.created_at > ? ORDER BY a.created_at LIMIT ?"
    return alert_rows(await db.rows(sql, created_at, limit))


async def changes_between(db: Database, first: int | None, last: int | None) -> list[ChangeRow]:
    """Return the changes from one `created_at` to another, both included, oldest first."""
    sql = CHANGE + "FROM changes c WHERE c.created_at BETWEEN ? AND ? ORDER BY c.created_at"
    return change_rows(await db.rows(sql, first, last))


async def alerts_between(db: Database, first: int | None, last: int | None) -> list[AlertRow]:
    """Return the alerts from one `created_at` to another, both included, oldest first."""
    sql = ALERT + "FROM alerts a WHERE a.created_at BETWEEN ? AND ? ORDER BY a.created_at"
    return alert_rows(await db.rows(sql, first, last))


def change_rows(rows: Iterable[tuple[Any, ...]]) -> list[ChangeRow]:
    """Read the columns of a change."""
    return [_change_row(row[:10]) for row in rows]


def alert_rows(rows: Iterable[tuple[Any, ...]]) -> list[AlertRow]:
    """Read the columns of an alert."""
    return [_alert_row(row) for row in rows]


def _window(after: int, alerts_after: int, until: int) -> dict[str, object]:
    return {"after": after, "alerts_after": alerts_after, "until": until}


def _values(query: FeedQuery, alerts_after: int) -> dict[str, object]:
    """Name what statements ask for; -1 is a code that matches nothing."""
    return {
        **_window(query.after, alerts_after, query.until),
        "limit": query.limit,
        "offset": query.offset,
        "ticker": query.ticker,
        "indicator": query.indicator and INDICATOR_CODES.get(query.indicator, -1),
        "timeframe": query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1),
    }


def _turned_to(tier: Tier, code: int) -> str | int:
    return code if tier == "universe" else ACTIONS[code]


def _change_row(row: tuple[Any, ...]) -> ChangeRow:
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown = row
    names = INDICATORS[indicator], TIMEFRAMES[timeframe]
    return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))


def _alert_row(row: tuple[Any, ...]) -> AlertRow:
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    names = INDICATORS[indicator], TIMEFRAMES[timeframe]
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS[action], price)
