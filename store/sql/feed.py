"""Parameters of feed statements, and parsers for the rows they return, for both tiers."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from schemas.vocabulary import TIMEFRAME_CODES, Tier, Timeframe
from store.codes import ACTIONS_BY_CODE, KEY_CODES, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow
from store.sql.database import Database, Row

# The pages of more assets take longer than a walk of all rows, of which many match.
MAX_MERGED_TICKERS = 20
RowT = TypeVar("RowT", ChangeRow, AlertRow, FeedRow)


def build_window(after: int, until: int, alerts_after: int | None = None) -> dict[str, object]:
    """Return the bounds of a window as parameters; alerts start at `alerts_after` if given."""
    alerts_after = after if alerts_after is None else alerts_after
    return {"after": after, "alerts_after": alerts_after, "until": until}


def build_page_values(query: FeedQuery, alerts_after: int | None = None) -> dict[str, object]:
    """Return the parameters of a page's statement."""
    # An unknown key becomes -1, a code that no row has, so the page is empty instead of unfiltered.
    return {
        **build_window(query.after, query.until, alerts_after),
        "limit": query.limit,
        "offset": query.offset,
        "ticker": query.ticker,
        "tickers": format_tickers(query.tickers),
        "indicator": query.indicator and KEY_CODES.get(query.indicator, -1),
        "timeframe": query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1),
    }


def format_tickers(tickers: Iterable[str] | None) -> str | None:
    """Return tickers as one parameter, of which a statement finds `,TICKER,`."""
    return None if tickers is None else f",{','.join(tickers)},"


async def read_page(
    db: Database,
    query: FeedQuery,
    build_statement: Callable[[FeedQuery], str],
    parse: Callable[[Iterable[Any]], RowT],
    alerts_after: int | None = None,
) -> list[RowT]:
    """Return the rows of a page.

    Pages of a few assets are merged, because their rows may be too sparse for a walk of all rows.
    """
    if query.tickers and len(query.tickers) <= MAX_MERGED_TICKERS:
        end = query.offset + query.limit
        pages = [
            await read_page(
                db,
                replace(query, ticker=ticker, tickers=None, limit=end, offset=0),
                build_statement,
                parse,
                alerts_after,
            )
            for ticker in query.tickers
        ]
        rows = merge(*pages, key=lambda row: row.created_at, reverse=not query.oldest_first)
        return list(islice(rows, query.offset, end))
    values = build_page_values(query, alerts_after)
    return [parse(row) for row in await db.execute_page(build_statement(query), values)]


def decode_kind(tier: Tier, row: Row) -> tuple[str, Timeframe, str | int]:
    """Return indicator, timeframe and outcome: the new reading, or the name of the action."""
    outcome = row["outcome"] if tier == "universe" else ACTIONS_BY_CODE[row["outcome"]]
    return KEYS_BY_CODE[row["indicator"]], TIMEFRAMES_BY_CODE[row["timeframe"]], outcome


# Feed rows are unpacked by position, in the order of SELECT_CHANGE, SELECT_ALERT and
# FeedStatements, because reading 200 rows by column name takes 1.6 to 2 times as long.


def parse_change(row: Iterable[Any]) -> ChangeRow:
    """Return a change from the columns of SELECT_CHANGE."""
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))


def parse_alert(row: Iterable[Any]) -> AlertRow:
    """Return an alert from the columns of SELECT_ALERT."""
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)


def parse_feed_row(row: Iterable[Any]) -> FeedRow:
    """Return an alert if the last column, its action, is not None, else a change."""
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown, action = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    if action is None:
        return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)
