"""The feed of changes of readings, newest first."""

from dataclasses import dataclass

from mcp_server.context import Board, Context
from mcp_server.freshness import freshness
from mcp_server.tools.tool import Tool
from mcp_server.values import indicator_named, one_ticker, since_ms
from schemas.errors import unavailable
from schemas.meta import SignalsMeta
from schemas.queries import SignalsQuery
from schemas.results import Pagination, Signal, SignalsResponse, Transition
from schemas.vocabulary import (
    DAY_MS,
    READING_NAMES,
    UNIVERSE_RETENTION_MS,
    IndicatorId,
    change_type,
    instant,
)
from store.rows import MAX_OFFSET, ChangeRow, FeedQuery

ALERTS_RETRY_S = 86_400
READING_NUMBERS: dict[str, int] = {name: number for number, name in READING_NAMES.items()}
TIMING = (
    "created_at is when a row was written, about 3 to 5 minutes after its candle closed; every "
    "change is logged, there is no cooldown."
)

DESCRIPTION = (
    "Returns the feed of changes of indicator readings, newest first: what flipped, from what to "
    "what, when and at which price. "
    "Use it to poll for news (at most every 900 seconds, passing the next_cursor of the first page "
    "as since) or to look back up to 365 days; use signals_get_state for where things stand now. "
    "200 rows are about 68,000 characters, so filter or keep limit near 50; to read a backlog "
    "raise offset by limit until has_more is false. "
    "An empty page means that nothing matching changed after since, and meta.note says why; only "
    "tier universe is published by this release, which logs every indicator but perpkit."
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a query means on a board: `after` in epoch ms, the ticker and indicator found."""

    after: int
    since: int | None
    ticker: str | None
    indicator: IndicatorId | None


async def get_signals(query: SignalsQuery, context: Context) -> SignalsResponse:
    """Return one page of changes; the page and its reasons rest on one version of the board."""
    board = await context.board()
    asked = _asked(query, board)
    if query.tier != "universe":
        raise unavailable(
            f"tier: {query.tier} is not published yet; accepted: universe. The alert engines come "
            f"in a later release; retry after {ALERTS_RETRY_S} seconds or read tier=universe.",
            retry_after_s=ALERTS_RETRY_S,
        )
    rows = [] if query.direction == "exit" else await _rows(query, asked, board, context)
    page = rows[: query.limit]
    notes = [] if page else [_why_empty(query, asked, board)]
    return SignalsResponse(
        signals=[_signal(row, board) for row in page],
        pagination=_pagination(query, rows),
        meta=SignalsMeta(
            **freshness(board, context.clock(), *notes, timeframe=query.timeframe),
            retention_days=UNIVERSE_RETENTION_MS // DAY_MS,
            timing=TIMING,
        ),
    )


def _asked(query: SignalsQuery, board: Board) -> _Asked:
    since = None if query.since is None else since_ms(query.since)
    oldest = board.market_time - UNIVERSE_RETENTION_MS
    return _Asked(
        after=oldest if since is None else max(since, oldest),
        since=since,
        ticker=None if query.ticker is None else one_ticker(query.ticker, board.assets).ticker,
        indicator=(
            None if query.indicator is None else indicator_named(query.indicator, board.coverage)
        ),
    )


async def _rows(
    query: SignalsQuery, asked: _Asked, board: Board, context: Context
) -> list[ChangeRow]:
    """Return the page and, where there is one, the row after it; no store holds 2^63 rows."""
    if query.offset > MAX_OFFSET:
        return []
    return await context.boards.store.feed(
        FeedQuery(
            after=asked.after,
            until=board.snapshot.last_created_at,
            limit=query.limit + 1,
            offset=query.offset,
            ticker=asked.ticker,
            indicator=asked.indicator,
            timeframe=query.timeframe,
            direction=READING_NUMBERS.get(query.direction or ""),
        )
    )


def _pagination(query: SignalsQuery, rows: list[ChangeRow]) -> Pagination:
    return Pagination(
        limit=query.limit,
        offset=query.offset,
        returned=min(len(rows), query.limit),
        has_more=len(rows) > query.limit,
        next_cursor=instant(rows[0].created_at) if rows else None,
    )


def _signal(row: ChangeRow, board: Board) -> Signal:
    before = row.before
    return Signal.model_construct(
        id=row.id,
        tier="universe",
        ticker=row.ticker,
        asset_class=board.assets[row.ticker].asset_class,
        indicator=row.indicator,
        indicator_name=board.indicator_name(row.indicator),
        timeframe=row.timeframe,
        direction=READING_NAMES[row.after],
        transition=None if before is None else _transition(before, row.after),
        change_type=None if before is None else change_type(before, row.after),
        action=None,
        price=row.price,
        created_at=instant(row.created_at),
    )


def _transition(before: int, after: int) -> Transition:
    return Transition.model_construct(from_=READING_NAMES[before], to=READING_NAMES[after])


def _why_empty(query: SignalsQuery, asked: _Asked, board: Board) -> str:
    if query.direction == "exit":
        return "exit is a direction of the alerts tier alone; no universe row can match."
    if asked.indicator in {i.id for i in board.coverage.indicators if not i.logged}:
        return (
            f"Changes of {asked.indicator} are not logged on the universe tier; "
            "read its current readings from state."
        )
    if asked.since is not None and asked.since > board.newest:
        return "since lies after the last compute (as_of); nothing can have changed yet."
    if query.offset:
        return "No matching row lies this deep; lower offset."
    return (
        "Nothing matching changed since; ask again at nothing_new_before (null: see next_update)."
    )


GET_SIGNALS = Tool(
    name="signals_get_signals",
    title="Feed of indicator changes",
    description=DESCRIPTION,
    query=SignalsQuery,
    result=SignalsResponse,
    handler=get_signals,
    meta={"anthropic/maxResultSizeChars": 500_000},
)
