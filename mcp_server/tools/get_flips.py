"""What has just turned: the newest change of each indicator in a window, grouped by asset."""

from collections.abc import Iterable
from typing import Literal

from schemas.errors import invalid_parameter
from schemas.flips import (
    Flip,
    FlipGroup,
    FlipsCounts,
    FlipsEcho,
    FlipsMeta,
    FlipsQuery,
    FlipsResponse,
    FlipsRules,
    HoursRule,
    WindowRules,
)
from schemas.vocabulary import HOUR_MS, READING_NAMES, Timeframe, change_type, instant
from serving.context import Context
from serving.freshness import freshness
from serving.snapshot_cache import Board
from serving.tool import Tool
from store.market_rows import ChangeRow, FeedQuery

ROW_LIMIT = 2000
HOURS: dict[Timeframe, HoursRule] = {
    "1h": HoursRule(default=3, max=6),
    "4h": HoursRule(default=12, max=24),
    "1d": HoursRule(default=48, max=72),
}

DESCRIPTION = (
    "Groups by asset the changes of readings of the last hours on one timeframe, newest change of "
    "each indicator only, ranked by how many indicators turned the same way. "
    "Use it for what has just turned and how broadly; use signals_get_signals for every single "
    "change or to look further back, and signals_get_confluence for agreement that need not be "
    "new. "
    "hours defaults to 3, 12 or 48 and is at most 6, 24 or 72 for 1h, 4h or 1d; the default answer "
    "is about 40,000 characters and, where everything turned, the largest about 294,000, so give "
    "direction or fewer hours. "
    "An empty list means that nothing turned that way inside the window, and meta.note says when "
    "to ask again; capped is true where more than 2000 changes lay in it and older ones are "
    "missing."
)
RULES = FlipsRules(
    hours=WindowRules.model_validate(HOURS),
    row_limit=ROW_LIMIT,
    window=(
        "Rows of /signals?tier=universe of the timeframe with as_of - hours < created_at <= as_of; "
        "the newest row_limit of them are read, those of removed assets then left out."
    ),
    newest="Of each ticker and indicator only its newest row is kept, before direction applies.",
    grouping=(
        "One group a ticker: bullish and bearish count its flips by to, score is the larger, "
        "dominant is the larger side or mixed where both are equal (0 and 0 too), latest_at is "
        "created_at of its newest flip."
    ),
    direction="bullish or bearish keeps the flips whose to is that; all keeps neutral ones too.",
    ranking="By score, highest first; then by latest_at, newest first; then by ticker, A to Z.",
)

CAPPED_NOTE = (
    f"Capped: only the newest {ROW_LIMIT} changes of the window were read; ask for fewer hours or "
    "page through signals_get_signals."
)

Asked = Literal["all", "bullish", "bearish"]


async def get_flips(query: FlipsQuery, context: Context) -> FlipsResponse:
    """Return the groups of a window that ends at the market clock, best first."""
    hours = _hours(query)
    board, now = await context.board(), context.clock()
    end = board.market_clock(now)
    rows = await _rows(query, end - hours * HOUR_MS, board, context)
    capped = len(rows) > ROW_LIMIT
    newest = newest_changes(rows[:ROW_LIMIT], board)
    groups = flip_groups(newest, query.direction, board)
    notes = [CAPPED_NOTE] if capped else []
    if not groups:
        notes.append(_why_empty(query, hours, len(newest)))
    return FlipsResponse(
        as_of=instant(end),
        query=FlipsEcho(timeframe=query.timeframe, hours=hours, direction=query.direction),
        groups=groups,
        counts=FlipsCounts(groups=len(groups), flips=sum(len(group.flips) for group in groups)),
        capped=capped,
        meta=FlipsMeta(**freshness(board, now, *notes, timeframe=query.timeframe), rules=RULES),
    )


async def _rows(query: FlipsQuery, after: int, board: Board, context: Context) -> list[ChangeRow]:
    """Return the newest rows of a window, one beyond the limit where there are more.

    No window outlasts the retention, and no row of the board is later than the window's end.
    """
    return await context.boards.store.feed(
        FeedQuery(
            after=after,
            until=board.snapshot.last_created_at,
            limit=ROW_LIMIT + 1,
            offset=0,
            timeframe=query.timeframe,
        )
    )


def newest_changes(rows: Iterable[ChangeRow], board: Board) -> list[ChangeRow]:
    """Keep the first row of each ticker and indicator, of rows that come newest first.

    Left out are assets removed at market time, and first readings, which are no changes.
    """
    removed = set(board.removed)
    newest: dict[tuple[str, str], ChangeRow] = {}
    for row in rows:
        if row.before is not None and row.ticker not in removed:
            newest.setdefault((row.ticker, row.indicator), row)
    return list(newest.values())


def flip_groups(newest: Iterable[ChangeRow], direction: Asked, board: Board) -> list[FlipGroup]:
    """Return the ranked groups of changes that come newest first, one an indicator."""
    by_ticker: dict[str, list[ChangeRow]] = {}
    for row in newest:
        if direction in ("all", READING_NAMES[row.after]):
            by_ticker.setdefault(row.ticker, []).append(row)
    groups = [_group(rows, board) for rows in by_ticker.values()]
    groups.sort(key=lambda group: group.ticker)
    return sorted(groups, key=lambda group: (group.score, group.latest_at), reverse=True)


def _group(rows: list[ChangeRow], board: Board) -> FlipGroup:
    asset = board.assets[rows[0].ticker]
    bullish = sum(row.after == 1 for row in rows)
    bearish = sum(row.after == -1 for row in rows)
    return FlipGroup.model_construct(
        ticker=asset.ticker,
        name=asset.name,
        asset_class=asset.asset_class,
        dominant=_dominant(bullish, bearish),
        bullish=bullish,
        bearish=bearish,
        score=max(bullish, bearish),
        latest_at=instant(rows[0].created_at),
        flips=[_flip(row, board) for row in rows],
    )


def _dominant(bullish: int, bearish: int) -> Literal["bullish", "bearish", "mixed"]:
    if bullish == bearish:
        return "mixed"
    return "bullish" if bullish > bearish else "bearish"


def _flip(row: ChangeRow, board: Board) -> Flip:
    assert row.before is not None
    return Flip.model_construct(
        indicator=row.indicator,
        indicator_name=board.indicator_name(row.indicator),
        from_=READING_NAMES[row.before],
        to=READING_NAMES[row.after],
        change_type=change_type(row.before, row.after),
        price=row.price,
        created_at=instant(row.created_at),
    )


def _hours(query: FlipsQuery) -> int:
    """Return the window's hours; ApiError `invalid_parameter` beyond the timeframe's largest."""
    window = HOURS[query.timeframe]
    hours = window.default if query.hours is None else query.hours
    if hours > window.max:
        raise invalid_parameter(
            f"hours: {hours} is more than the {window.max} that timeframe {query.timeframe} has at "
            f"most; accepted: an integer from 1 to {window.max} with timeframe {query.timeframe}."
        )
    return hours


def _why_empty(query: FlipsQuery, hours: int, changed: int) -> str:
    window = f"on {query.timeframe} in the {hours} h up to as_of"
    again = "meta.next_update says when to ask again (null: nothing more will come)."
    if changed:
        return (
            f"No newest change {window} turned {query.direction}, {changed} turned otherwise and "
            f"direction all shows them; {again}"
        )
    return f"Nothing changed {window}, hours may be up to {HOURS[query.timeframe].max}; {again}"


GET_FLIPS = Tool(
    name="signals_get_flips",
    title="Recent changes grouped by asset",
    description=DESCRIPTION,
    query=FlipsQuery,
    result=FlipsResponse,
    handler=get_flips,
    rests_on_board=False,
    meta={"anthropic/maxResultSizeChars": 500_000},
)
