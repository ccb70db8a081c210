"""The feed of both tiers and its volume, as functions over a connection in a read transaction.

Every statement names its index and searches it between two times, so that it can't scan; the
merged one walks both tiers side by side.
"""

from collections.abc import Iterable
from typing import Any

from aiosqlite import Connection

from schemas.vocabulary import ACTION_DIRECTIONS, ACTIONS, TIMEFRAMES, Tier
from store.rows import AlertRow, ChangeRow, FeedQuery, FeedRow, Statistics
from store.sqlite_codes import (
    DIRECTION_CODES,
    INDICATOR_CODES,
    INDICATORS,
    TIMEFRAME_CODES,
)
from store.sqlite_reads import all_rows, one_value

_CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id), c.indicator, c.timeframe,
  c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
_ALERT = """
SELECT a.created_at, (SELECT ticker FROM assets WHERE id = a.asset_id), a.indicator, a.timeframe,
  a.close_time, a.epoch, a.action, a.price
"""
_PUBLISHED = """
FROM changes INDEXED BY feed_all WHERE published = 1 AND created_at > ? AND created_at <= ?
"""
_ALERTED = "FROM alerts NOT INDEXED WHERE created_at > ? AND created_at <= ?"
COUNTS: dict[Tier, str] = {
    "universe": f"""
        SELECT indicator, timeframe, "after", count(*) {_PUBLISHED}
        GROUP BY indicator, timeframe, "after"
    """,
    "alerts": f"""
        SELECT indicator, timeframe, action, count(*) {_ALERTED}
        GROUP BY indicator, timeframe, action
    """,
}
OLDEST: dict[Tier, str] = {
    "universe": f"SELECT min(created_at) {_PUBLISHED}",
    "alerts": f"SELECT min(created_at) {_ALERTED}",
}

Statement = tuple[str, list[object]]


async def feed(db: Connection, query: FeedQuery) -> list[ChangeRow]:
    """Return one page of published changes, in the query's order."""
    return change_rows(await _page(db, query, changes_statement(query)))


async def alerts_feed(db: Connection, query: FeedQuery) -> list[AlertRow]:
    """Return one page of alerts, in the query's order."""
    return alert_rows(await _page(db, query, alerts_statement(query)))


async def merged_feed(db: Connection, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
    """Return one page of both tiers, in one order, the alerts after a time of their own."""
    rows = await _page(db, query, merged_statement(query, alerts_after))
    return [
        _change_row(row[:-1]) if row[-1] is None else _alert_row((*row[:6], row[10], row[8]))
        for row in rows
    ]


def changes_statement(query: FeedQuery) -> Statement:
    """Select the published changes that a query asks for, and a column more, in no order."""
    conditions, values = _conditions("c", query)
    if query.direction is not None:
        conditions.append('c."after" = ?')
        values.append(query.direction)
    conditions.append("c.published = 1")
    index = f"INDEXED BY {_feed_index(query)}"
    return f"{_CHANGE}, NULL FROM changes c {index} WHERE {' AND '.join(conditions)}", values


def alerts_statement(query: FeedQuery) -> Statement:
    """Select the alerts that a query asks for, in no order."""
    conditions, values = _conditions("a", query)
    if query.direction is not None:
        conditions.append(f"a.action IN ({', '.join(map(str, _actions(query.direction)))})")
    index = _alerts_index(query)
    return f"{_ALERT} FROM alerts a {index} WHERE {' AND '.join(conditions)}", values


def merged_statement(query: FeedQuery, alerts_after: int) -> Statement:
    """Select from both tiers; the last column is the action of an alert, NULL of a change."""
    changes, values = changes_statement(query)
    alerts, alert_values = alerts_statement(query)
    own = alerts.replace("a.action, a.price", "NULL, NULL, a.price, NULL, a.action", 1)
    return f"{changes} UNION ALL {own}", [*values, alerts_after, *alert_values[1:]]


def ordered(statement: str, query: FeedQuery) -> str:
    """Make a page of what a statement selects."""
    return f"{statement} ORDER BY 1 {'ASC' if query.oldest_first else 'DESC'} LIMIT ? OFFSET ?"


async def statistics(
    db: Connection, tier: Tier, after: int, until: int, kept_after: int
) -> Statistics:
    """Count the published rows of a window; tell when the oldest kept one was created."""
    return Statistics(
        counts={
            (INDICATORS[indicator], TIMEFRAMES[timeframe], _turned_to(tier, code)): count
            for indicator, timeframe, code, count in await all_rows(db, COUNTS[tier], after, until)
        },
        oldest=await one_value(db, OLDEST[tier], kept_after, until),
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


async def _page(db: Connection, query: FeedQuery, statement: Statement) -> list[tuple[Any, ...]]:
    sql, values = statement
    return await all_rows(db, ordered(sql, query), *values, query.limit, query.offset)


def _conditions(table: str, query: FeedQuery) -> tuple[list[str], list[object]]:
    """Return the conditions that both tiers share; -1 is a code that matches nothing."""
    indicator = query.indicator and INDICATOR_CODES.get(query.indicator, -1)
    timeframe = query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1)
    asked: list[tuple[str, object]] = [
        (f"{table}.created_at > ?", query.after),
        (f"{table}.created_at <= ?", query.until),
        (f"{table}.asset_id = (SELECT id FROM assets WHERE ticker = ?)", query.ticker),
        (f"{table}.indicator = ?", indicator),
        (f"{table}.timeframe = ?", timeframe),
    ]
    given = [(condition, value) for condition, value in asked if value is not None]
    return [condition for condition, _ in given], [value for _, value in given]


def _feed_index(query: FeedQuery) -> str:
    """Choose the most selective index that also keeps the order."""
    if query.ticker is not None:
        is_cell = query.indicator is not None and query.timeframe is not None
        return "cell" if is_cell else "feed_asset"
    if query.indicator is not None:
        return "feed_indicator"
    if query.timeframe is not None:
        return "feed_timeframe"
    return "feed_all" if query.direction is None else "feed_direction"


def _alerts_index(query: FeedQuery) -> str:
    """Choose as `_feed_index`; NOT INDEXED means by `created_at`, the table's own order."""
    if query.ticker is not None:
        is_engine = query.indicator is not None and query.timeframe is not None
        return f"INDEXED BY {'alerts_engine' if is_engine else 'alerts_asset'}"
    return "NOT INDEXED" if query.indicator is None else "INDEXED BY alerts_indicator"


def _actions(direction: int) -> list[int]:
    """Return the codes of the actions with a direction."""
    return [
        code
        for code, action in enumerate(ACTIONS)
        if DIRECTION_CODES[ACTION_DIRECTIONS[action]] == direction
    ]


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
