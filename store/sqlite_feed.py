"""The feed of both tiers and its volume, as functions over a connection in a read transaction.

A page is picked by `created_at` alone, and then its rows are looked up; the merged one walks both
tiers side by side.
"""

from collections.abc import Iterable
from typing import Any

from aiosqlite import Connection

from schemas.vocabulary import ACTIONS, TIMEFRAMES, Tier
from store.rows import AlertRow, ChangeRow, FeedQuery, FeedRow, Statistics
from store.sqlite_codes import INDICATOR_CODES, INDICATORS, TIMEFRAME_CODES
from store.sqlite_page import counts, in_order, oldest, page
from store.sqlite_rows import all_rows

_CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id), c.indicator, c.timeframe,
  c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
_ALERT = """
SELECT a.created_at, (SELECT ticker FROM assets WHERE id = a.asset_id), a.indicator, a.timeframe,
  a.close_time, a.epoch, a.action, a.price
"""


async def feed(db: Connection, query: FeedQuery) -> list[ChangeRow]:
    """Return one page of published changes, in the query's order."""
    return change_rows(await _found(db, changes_statement(query), _values(query, query.after)))


async def alerts_feed(db: Connection, query: FeedQuery) -> list[AlertRow]:
    """Return one page of alerts, in the query's order."""
    return alert_rows(await _found(db, alerts_statement(query), _values(query, query.after)))


async def merged_feed(db: Connection, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
    """Return one page of both tiers, in one order, the alerts after a time of their own."""
    rows = await _found(db, merged_statement(query), _values(query, alerts_after))
    return [
        _change_row(row[:-1]) if row[-1] is None else _alert_row((*row[:6], row[10], row[8]))
        for row in rows
    ]


def changes_statement(query: FeedQuery) -> str:
    """Select a page of published changes."""
    picked = page(query, "universe")
    return f"{_CHANGE} FROM changes c WHERE created_at IN ({picked}) {in_order(query)}"


def alerts_statement(query: FeedQuery) -> str:
    """Select a page of alerts."""
    picked = page(query, "alerts")
    return f"{_ALERT} FROM alerts a WHERE created_at IN ({picked}) {in_order(query)}"


def merged_statement(query: FeedQuery) -> str:
    """Select a page of both tiers; the last column is the action of an alert, NULL of a change."""
    alert = _ALERT.replace("a.action, a.price", "NULL, NULL, a.price, NULL, a.action", 1)
    return f"""
        WITH page AS MATERIALIZED ({page(query, "universe", "alerts")})
        {_CHANGE}, NULL FROM changes c WHERE created_at IN page
        UNION ALL {alert} FROM alerts a WHERE created_at IN page {in_order(query)}
    """


async def statistics(
    db: Connection, tier: Tier, after: int, until: int, kept_after: int
) -> Statistics:
    """Count the published rows of a window; tell when the oldest kept one was created."""
    counted = await _found(db, counts(tier), _window(after, after, until))
    ((oldest_kept,),) = await _found(db, oldest(tier), _window(kept_after, kept_after, until))
    return Statistics(
        counts={
            (INDICATORS[indicator], TIMEFRAMES[timeframe], _turned_to(tier, code)): count
            for indicator, timeframe, code, count in counted
            if count
        },
        oldest=oldest_kept,
    )


async def changes_after(db: Connection, created_at: int, limit: int) -> list[ChangeRow]:
    """Return the oldest changes after a `created_at`, published or not."""
    sql = _CHANGE + "FROM changes c WHERE c.created_at > ? ORDER BY c.created_at LIMIT ?"
    return change_rows(await all_rows(db, sql, created_at, limit))


async def alerts_after(db: Connection, created_at: int, limit: int) -> list[AlertRow]:
    """Return the oldest alerts after a `created_at`."""
    sql = _ALERT + "FROM alerts a WHERE a.created_at > ? ORDER BY a.created_at LIMIT ?"
    return alert_rows(await all_rows(db, sql, created_at, limit))


async def changes_between(db: Connection, first: int | None, last: int | None) -> list[ChangeRow]:
    """Return the changes from one `created_at` to another, both included, oldest first."""
    sql = _CHANGE + "FROM changes c WHERE c.created_at BETWEEN ? AND ? ORDER BY c.created_at"
    return change_rows(await all_rows(db, sql, first, last))


async def alerts_between(db: Connection, first: int | None, last: int | None) -> list[AlertRow]:
    """Return the alerts from one `created_at` to another, both included, oldest first."""
    sql = _ALERT + "FROM alerts a WHERE a.created_at BETWEEN ? AND ? ORDER BY a.created_at"
    return alert_rows(await all_rows(db, sql, first, last))


def change_rows(rows: Iterable[tuple[Any, ...]]) -> list[ChangeRow]:
    """Read the columns of a change."""
    return [_change_row(row[:10]) for row in rows]


def alert_rows(rows: Iterable[tuple[Any, ...]]) -> list[AlertRow]:
    """Read the columns of an alert."""
    return [_alert_row(row) for row in rows]


async def _found(
    db: Connection, statement: str, values: dict[str, object]
) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await db.execute_fetchall(statement, values)]


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
