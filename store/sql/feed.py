"""The feed of both tiers and its volume, as functions over a read transaction."""

from collections.abc import Iterable
from typing import Any

from schemas.vocabulary import TIMEFRAME_CODES, Tier
from store.codes import ACTIONS_BY_CODE, KEY_CODES, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow, Statistics
from store.sql.database import Database
from store.sql.feed_pages import SELECT_ALERT, SELECT_CHANGE, build_counts_query, build_oldest_query


async def load_changes_feed(db: Database, query: FeedQuery) -> list[ChangeRow]:
    """Return one page of published changes, in the query's order."""
    return parse_change_rows(
        await db.execute_named(db.feed_statements.changes(query), _build_values(query, query.after))
    )


async def load_alerts_feed(db: Database, query: FeedQuery) -> list[AlertRow]:
    """Return one page of alerts, in the query's order."""
    return parse_alert_rows(
        await db.execute_named(db.feed_statements.alerts(query), _build_values(query, query.after))
    )


async def load_merged_feed(db: Database, query: FeedQuery, alerts_after: int) -> list[FeedRow]:
    """Return one page of both tiers, in one order, the alerts after a time of their own."""
    rows = await db.execute_named(
        db.feed_statements.merged(query), _build_values(query, alerts_after)
    )
    return [
        _parse_change_row(row[:-1])
        if row[-1] is None
        else _parse_alert_row((*row[:6], row[10], row[8]))
        for row in rows
    ]


async def load_statistics(
    db: Database, tier: Tier, after: int, until: int, visible_after: int
) -> Statistics:
    """Count the published rows of a window; tell when the oldest kept one was created."""
    counted_rows = await db.execute_named(
        build_counts_query(tier), _build_window(after, after, until)
    )
    ((oldest_visible,),) = await db.execute_named(
        build_oldest_query(tier), _build_window(visible_after, visible_after, until)
    )
    return Statistics(
        counts={
            (
                KEYS_BY_CODE[indicator],
                TIMEFRAMES_BY_CODE[timeframe],
                _decode_outcome(tier, code),
            ): count
            for indicator, timeframe, code, count in counted_rows
            if count
        },
        oldest=oldest_visible,
    )


async def load_changes_after(db: Database, created_at: int, limit: int) -> list[ChangeRow]:
    """Return the oldest changes after a `created_at`, published or not."""
    sql = SELECT_CHANGE + "FROM changes c WHERE c.created_at > ? ORDER BY c.created_at LIMIT ?"
    return parse_change_rows(await db.execute(sql, created_at, limit))


async def load_alerts_after(db: Database, created_at: int, limit: int) -> list[AlertRow]:
    """Return the oldest alerts after a `created_at`."""
    sql = SELECT_ALERT + "FROM alerts a WHERE a.created_at > ? ORDER BY a.created_at LIMIT ?"
    return parse_alert_rows(await db.execute(sql, created_at, limit))


async def load_changes_between(
    db: Database, first: int | None, last: int | None
) -> list[ChangeRow]:
    """Return the changes from one `created_at` to another, both included, oldest first."""
    sql = SELECT_CHANGE + "FROM changes c WHERE c.created_at BETWEEN ? AND ? ORDER BY c.created_at"
    return parse_change_rows(await db.execute(sql, first, last))


async def load_alerts_between(db: Database, first: int | None, last: int | None) -> list[AlertRow]:
    """Return the alerts from one `created_at` to another, both included, oldest first."""
    sql = SELECT_ALERT + "FROM alerts a WHERE a.created_at BETWEEN ? AND ? ORDER BY a.created_at"
    return parse_alert_rows(await db.execute(sql, first, last))


def parse_change_rows(rows: Iterable[tuple[Any, ...]]) -> list[ChangeRow]:
    """Read the columns of a change."""
    return [_parse_change_row(row[:10]) for row in rows]


def parse_alert_rows(rows: Iterable[tuple[Any, ...]]) -> list[AlertRow]:
    """Read the columns of an alert."""
    return [_parse_alert_row(row) for row in rows]


def _build_window(after: int, alerts_after: int, until: int) -> dict[str, object]:
    return {"after": after, "alerts_after": alerts_after, "until": until}


def _build_values(query: FeedQuery, alerts_after: int) -> dict[str, object]:
    """Name what statements ask for; -1 is a code that matches nothing."""
    return {
        **_build_window(query.after, alerts_after, query.until),
        "limit": query.limit,
        "offset": query.offset,
        "ticker": query.ticker,
        "indicator": query.indicator and KEY_CODES.get(query.indicator, -1),
        "timeframe": query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1),
    }


def _decode_outcome(tier: Tier, code: int) -> str | int:
    return code if tier == "universe" else ACTIONS_BY_CODE[code]


def _parse_change_row(row: tuple[Any, ...]) -> ChangeRow:
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))


def _parse_alert_row(row: tuple[Any, ...]) -> AlertRow:
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)
