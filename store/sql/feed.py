"""Rows of the feed as they are asked for and read, for both tiers."""

from collections.abc import Iterable
from typing import Any

from schemas.vocabulary import TIMEFRAME_CODES, Tier, Timeframe
from store.codes import ACTIONS_BY_CODE, KEY_CODES, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow
from store.sql.database import Row


def build_window(after: int, until: int, alerts_after: int | None = None) -> dict[str, object]:
    """Name the bounds of a window; alerts may begin at a time of their own."""
    alerts_after = after if alerts_after is None else alerts_after
    return {"after": after, "alerts_after": alerts_after, "until": until}


def build_page_values(query: FeedQuery, alerts_after: int | None = None) -> dict[str, object]:
    """Name the values of a page's statement; -1 is a code that matches nothing."""
    return {
        **build_window(query.after, query.until, alerts_after),
        "limit": query.limit,
        "offset": query.offset,
        "ticker": query.ticker,
        "indicator": query.indicator and KEY_CODES.get(query.indicator, -1),
        "timeframe": query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1),
    }


def decode_kind(tier: Tier, row: Row) -> tuple[str, Timeframe, str | int]:
    """Return indicator, timeframe and outcome: a new reading, or the name of an action."""
    outcome = row["outcome"] if tier == "universe" else ACTIONS_BY_CODE[row["outcome"]]
    return KEYS_BY_CODE[row["indicator"]], TIMEFRAMES_BY_CODE[row["timeframe"]], outcome


# Rows of the feed are unpacked by position, in the order of SELECT_CHANGE, SELECT_ALERT and
# FeedStatements: to fetch and read 200 rows by name takes 1.6 to 2 times as long.


def parse_change(row: Iterable[Any]) -> ChangeRow:
    """Read the columns of SELECT_CHANGE."""
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))


def parse_alert(row: Iterable[Any]) -> AlertRow:
    """Read the columns of SELECT_ALERT."""
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)


def parse_feed_row(row: Iterable[Any]) -> FeedRow:
    """Read the columns of SELECT_CHANGE and the action of an alert, which is None for a change."""
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown, action = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    if action is None:
        return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)
