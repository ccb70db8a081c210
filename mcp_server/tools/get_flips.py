"""signals_get_flips: the newest change of each indicator in a time window, grouped by asset."""

from collections.abc import Iterable, Sequence
from typing import Literal

from mcp_server.tools.empty_results import (
    describe_assets,
    explain_coverage,
    explain_next_call,
)
from mcp_server.tools.lines import MAX_WORDED, build_lines, format_readings
from schemas.coverage import CoveredAsset
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
from schemas.vocabulary import HOUR_MS, READING_NAMES, Timeframe, classify_change, format_instant
from serving.argument_values import find_assets
from serving.arguments import ArgumentError, Problem
from serving.context import Context
from serving.freshness import NO_CALL, build_freshness
from serving.signal_rows import FeedQuery
from serving.snapshot import Snapshot
from serving.tool import Tool
from store.market_rows import ChangeRow

# A safety bound: the longest windows hold about 280 rows on a busy day.
ROW_LIMIT = 2000
WINDOW_HOURS: dict[Timeframe, HoursRule] = {
    "1h": HoursRule(default=3, max=6),
    "4h": HoursRule(default=12, max=24),
    "1d": HoursRule(default=48, max=72),
}

DESCRIPTION = (
    "Shows which assets just flipped or started to turn bullish or bearish: the newest trend "
    "changes and reversals of the last hours, up to three days, ranked with the biggest first. "
    "Use signals to look further back, and limit for the top few. The result has 30,000 to "
    "294,000 characters, with view=lines 4,000 to 12,000."
)
RULES = FlipsRules(
    hours=WindowRules.model_validate(WINDOW_HOURS),
    row_limit=ROW_LIMIT,
    window=(
        "Rows of /signals?tier=universe of the timeframe with as_of - hours < created_at <= as_of. "
        "Only the newest row_limit of them are read."
    ),
    newest="Only the newest row of each ticker and indicator is kept, before direction applies.",
    grouping=(
        "One group per ticker: bullish and bearish count its flips by their to, score is the "
        "larger count, dominant is the larger side or mixed if both are equal (0 and 0 included), "
        "latest_at is created_at of its newest flip."
    ),
    direction="bullish or bearish keeps the flips with that to; all keeps neutral ones too.",
    ranking="By score, highest first; then by latest_at, newest first; then by ticker, A to Z.",
)

CAPPED_NOTE = (
    f"Capped: only the newest {ROW_LIMIT} changes of the window were read; set fewer hours or page "
    "through signals_get_signals."
)

ECHOED = {"direction", "ticker", "asset_class"}
DirectionFilter = Literal["all", "bullish", "bearish"]


async def get_flips(query: FlipsQuery, context: Context) -> FlipsResponse:
    """Return the groups of a window that ends at the current market time, best first."""
    hours = await _check_query(query, context)
    snapshot, now = await context.snapshot(), context.clock()
    requested = snapshot.assets
    if query.ticker is not None:
        requested = find_assets(query.ticker, snapshot.assets, query.asset_class)
    assets = [a for a in requested.values() if query.asset_class in (None, a.asset_class)]
    end = snapshot.to_market_time(now)
    after = end - hours * HOUR_MS
    # `until` is the snapshot's newest row, which is never after the window's end. No window is
    # longer than the retention, so retention needs no filter here.
    wanted = FeedQuery(
        "universe",
        after,
        after,
        snapshot.stored.last_created_at,
        limit=ROW_LIMIT + 1,
        timeframe=query.timeframe,
        tickers=tuple(asset.ticker for asset in assets),
    )
    ledger = await context.snapshots.ledger(snapshot)
    places, _ = ledger.find_page(wanted)
    rows = [row for row in ledger.build_rows(places) if isinstance(row, ChangeRow)]
    capped = len(rows) > ROW_LIMIT
    newest = select_newest_changes(rows[:ROW_LIMIT])
    groups = group_flips(newest, query.direction, snapshot)
    notes = [CAPPED_NOTE] if capped else []
    if not groups:
        notes.append(_explain_empty(query, hours, len(newest), assets, snapshot))
    shown = groups[: query.limit]
    if len(shown) < len(groups):
        notes.append(f"limit leaves out {len(groups) - len(shown)} of {len(groups)} groups.")
    as_lines = query.view == "lines"
    freshness = build_freshness(
        snapshot,
        now,
        *notes,
        timeframe=query.timeframe,
        tickers={group.ticker for group in shown},
        as_lines=as_lines,
    )
    return FlipsResponse(
        as_of=format_instant(end),
        query=FlipsEcho(timeframe=query.timeframe, hours=hours, **query.model_dump(include=ECHOED)),
        groups=[] if as_lines else shown,
        lines=_build_lines(shown) if as_lines else None,
        counts=FlipsCounts(groups=len(groups), flips=sum(len(group.flips) for group in groups)),
        capped=capped,
        meta=FlipsMeta(**freshness, rules=None if as_lines else RULES),
    )


def _build_lines(groups: Sequence[FlipGroup]) -> str:
    is_worded = len(groups) <= MAX_WORDED
    return build_lines(
        "ticker score dominant changed price_then turned",
        (
            [
                *(group.ticker, group.score, group.dominant),
                *(f"{group.latest_at[:16]}Z", group.flips[0].price),
                format_readings(
                    {flip.indicator: flip.to for flip in group.flips},
                    is_worded=is_worded,
                    with_neutral=True,
                ),
            ]
            for group in groups
        ),
        is_worded=is_worded,
    )


def select_newest_changes(rows: Iterable[ChangeRow]) -> list[ChangeRow]:
    """Return the newest change of each ticker and indicator; `rows` must be newest first.

    First readings are dropped, because they are not changes.
    """
    newest: dict[tuple[str, str], ChangeRow] = {}
    for row in rows:
        if row.before is not None:
            newest.setdefault((row.ticker, row.indicator), row)
    return list(newest.values())


def group_flips(
    newest: Iterable[ChangeRow], direction: DirectionFilter, snapshot: Snapshot
) -> list[FlipGroup]:
    """Group changes by ticker and rank the groups.

    `newest` has one change per ticker and indicator, newest first.
    """
    by_ticker: dict[str, list[ChangeRow]] = {}
    for row in newest:
        if direction in ("all", READING_NAMES[row.after]):
            by_ticker.setdefault(row.ticker, []).append(row)
    groups = []
    for rows in by_ticker.values():
        asset = snapshot.assets[rows[0].ticker]
        bullish = sum(row.after == 1 for row in rows)
        bearish = sum(row.after == -1 for row in rows)
        lead = "bullish" if bullish > bearish else "bearish"
        group = FlipGroup.model_construct(
            ticker=asset.ticker,
            name=asset.name,
            asset_class=asset.asset_class,
            dominant="mixed" if bullish == bearish else lead,
            bullish=bullish,
            bearish=bearish,
            score=max(bullish, bearish),
            latest_at=format_instant(rows[0].created_at),
            flips=[
                Flip.model_construct(
                    indicator=row.indicator,
                    indicator_name=snapshot.get_indicator_name(row.indicator),
                    from_=READING_NAMES[row.before],
                    to=READING_NAMES[row.after],
                    change_type=classify_change(row.before, row.after),
                    price=row.price,
                    created_at=format_instant(row.created_at),
                )
                for row in rows
                if row.before is not None
            ],
        )
        groups.append(group)
    # Two stable sorts: tickers ascend, while score and time descend. Instants compare as text.
    groups.sort(key=lambda group: group.ticker)
    return sorted(groups, key=lambda group: (group.score, group.latest_at), reverse=True)


async def _check_query(query: FlipsQuery, context: Context) -> int:
    """Return the window's hours; ArgumentError names bad hours and bad tickers."""
    window, problems = WINDOW_HOURS[query.timeframe], list[Problem]()
    hours = window.default if query.hours is None else query.hours
    if query.ticker is not None:
        assets = (await context.snapshot()).assets
        try:
            find_assets(query.ticker, assets, query.asset_class)
        except ArgumentError as error:
            problems += error.problems
    # A silently shortened window would look like the requested one.
    if hours > window.max:
        text = (
            f"hours: {hours} is above the maximum of {window.max} for timeframe {query.timeframe}; "
            f"accepted: an integer from 1 to {window.max} with timeframe {query.timeframe}"
        )
        problems.append(Problem("hours", text))
    if problems:
        raise ArgumentError(*problems)
    return hours


def _explain_empty(
    query: FlipsQuery,
    hours: int,
    change_count: int,
    assets: Sequence[CoveredAsset],
    snapshot: Snapshot,
) -> str:
    if not assets and query.ticker is not None:
        kind = query.asset_class
        return f"None of the requested tickers is a {kind} asset; omit asset_class. {NO_CALL}"
    window = f"on {query.timeframe} in the {hours} h up to as_of"
    tracked = [a for a in assets if not snapshot.is_removed(a)]
    if assets and not tracked:
        return f"Removed assets change no more. {NO_CALL}"
    tickers = None if query.ticker is None else [asset.ticker for asset in tracked]
    named = describe_assets(tickers, query.asset_class)
    if reason := explain_coverage(snapshot, tracked, named, query.timeframe):
        return reason
    again = explain_next_call(snapshot)
    if change_count:
        return (
            f"No newest change {window} turned {query.direction}; direction all shows the "
            f"{change_count} that turned another way. {again}"
        )
    longest = WINDOW_HOURS[query.timeframe].max
    longer = f"; hours can be up to {longest}" * (hours < longest)
    return f"Nothing changed {window}{longer}. {again}"


GET_FLIPS = Tool(
    name="signals_get_flips",
    title="Recent changes grouped by asset",
    description=DESCRIPTION,
    query=FlipsQuery,
    result=FlipsResponse,
    handler=get_flips,
    check=_check_query,
    # The window ends at the current time, so the result changes between two snapshots.
    depends_on_snapshot=False,
    meta={"anthropic/maxResultSizeChars": 60_000},
)
