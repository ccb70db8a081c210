"""signals_get_state: the readings of every indicator, current or at a past time."""

import asyncio
from collections.abc import Iterator, Mapping
from functools import lru_cache

from mcp_server.tools.empty_results import (
    describe_assets,
    explain_coverage,
    explain_end,
    explain_missing_reading,
    explain_next_call,
)
from mcp_server.tools.lines import MAX_WORDED, build_lines, format_minute, format_readings
from mcp_server.tools.reading_changes import check_detail, load_reading_changes
from schemas.coverage import CoveredAsset
from schemas.state import AssetState, LastBars, StateCounts, StateMeta, StateQuery, StateResponse
from schemas.vocabulary import (
    HOUR_MS,
    INDICATOR_IDS,
    LEGACY_KEYS,
    READING_NAMES,
    STORED_KEYS,
    TIMEFRAMES,
    Reading,
    StoredKey,
    Timeframe,
    format_instant,
)
from serving.argument_values import find_assets
from serving.arguments import ProblemCollector
from serving.context import Context
from serving.freshness import (
    NO_CALL,
    build_freshness,
    find_legacy_keys,
    format_removed_note,
)
from serving.snapshot import Snapshot
from serving.tool import Tool

DESCRIPTION = (
    "Shows how the crypto, stock and metals market looks right now, by technical analysis: the "
    "current reading of each indicator, bullish, bearish or neutral, for trend and momentum of "
    "each coin or stock on the hourly, 4h and daily chart. Use it for one asset, to compare a "
    "few, or for an overview of all, today or as of a past day; signals says what changed. "
    "view=lines adds price and score: 700 characters for one asset, 11,000 for all, else 135,000."
)

Cells = dict[StoredKey, Mapping[Timeframe, Reading]]
# These take 2 to 3 ms, after which other work goes on.
ASSETS_PER_TURN = 100


async def get_state(query: StateQuery, context: Context) -> StateResponse:
    """Return the matching readings by ticker, indicator and timeframe."""
    selected = await _find_selected(query, context)
    snapshot, at = await context.snapshot_at(query.as_of)
    assets, states = snapshot.assets if selected is None else selected, list[AssetState]()
    for ticker in sorted(assets.keys() & snapshot.stored.readings.keys()):
        asset, cells = assets[ticker], _select_cells(snapshot.stored.readings[ticker], query)
        if not cells or query.asset_class not in (None, asset.asset_class):
            continue
        # No validation: an unfiltered result has some 5,000 readings, all of them from the store's
        # own vocabularies.
        state = AssetState.model_construct(
            ticker=ticker, name=asset.name, asset_class=asset.asset_class, signals=cells
        )
        states.append(state)
        if len(states) % ASSETS_PER_TURN == 0:
            await asyncio.sleep(0)
    lines = None
    if query.view == "lines":
        lines = await _build_state_lines(states, query, snapshot, context)
    elif query.detail == "changes":
        states = await _add_changes(states, query, snapshot, context)
    readings = sum(len(cells) for state in states for cells in state.signals.values())
    notes = context.explain_date(query.as_of)
    notes += _list_notes(query, snapshot, selected or {}, states)
    meta = StateMeta(
        **build_freshness(
            snapshot,
            at,
            *notes,
            timeframe=query.timeframe,
            tickers=None
            if selected is None and query.asset_class is None
            else {state.ticker for state in states} | (selected or {}).keys(),
            as_lines=query.view == "lines",
        ),
        last_bars=_group_last_bars(snapshot, states),
        # Those with neither bars in the source nor stored readings.
        not_covered=sorted(
            ticker
            for ticker, asset in (selected or {}).items()
            if not asset.timeframes and not snapshot.stored.readings.get(ticker)
        ),
        legacy_keys={} if lines else find_legacy_keys(state.signals for state in states),
    )
    return StateResponse(
        as_of=format_instant(snapshot.market_time),
        assets=states if query.view == "full" else [],
        lines=lines,
        counts=StateCounts(assets=len(states), readings=readings),
        meta=meta,
    )


async def _add_changes(
    states: list[AssetState], query: StateQuery, snapshot: Snapshot, context: Context
) -> list[AssetState]:
    tickers = [state.ticker for state in states]
    changes = await load_reading_changes(snapshot, tickers, query.timeframe, context)
    return [
        state.model_copy(
            update={
                "changes": {
                    key: changes.describe(state.ticker, key, readings)
                    for key, readings in state.signals.items()
                },
                "last_bar": changes.get_last_bar(state.ticker),
            }
        )
        for state in states
    ]


async def _build_state_lines(
    states: list[AssetState], query: StateQuery, snapshot: Snapshot, context: Context
) -> str:
    """Return the readings as lines; a few assets come with their close and newest changes."""
    timeframes = TIMEFRAMES if query.timeframe is None else (query.timeframe,)
    is_worded = len(states) <= MAX_WORDED

    def format_score(state: AssetState, each: Timeframe) -> str:
        """Return bullish minus bearish readings, `-` without a reading."""
        stored = snapshot.stored.readings[state.ticker]
        own = [stored[key][each] for key in INDICATOR_IDS if each in stored.get(key, ())]
        return f"{sum(own):+d}".replace("+0", "0") if own else "-"

    def format_cell(state: AssetState, each: Timeframe) -> str:
        own = {key: cells[each] for key, cells in state.signals.items() if each in cells}
        # Of a filtered direction only these readings are shown, so neutral ones are too.
        has_direction = query.direction is not None
        return format_readings(own, is_worded=is_worded, with_neutral=has_direction)

    shown = "readings" if query.indicator is None else f"readings of {query.indicator}"
    shown += " (else neutral)" if query.direction is None else f", only {query.direction}"
    if not is_worded:
        return build_lines(
            f"ticker, then score and {shown} on {' '.join(timeframes)}",
            (
                [state.ticker]
                + [format_score(state, each) + format_cell(state, each) for each in timeframes]
                for state in states
            ),
            is_worded=False,
        )
    tickers = [state.ticker for state in states]
    changes = await load_reading_changes(snapshot, tickers, query.timeframe, context)

    def list_cells(state: AssetState, each: Timeframe) -> list[object]:
        own = changes.changes.get(state.ticker, {}).items()
        newest = max(
            (change for (key, at), change in own if at == each and key not in LEGACY_KEYS),
            key=lambda change: change.created_at,
            default=None,
        )
        changed = (
            [None, None] if newest is None else [format_minute(newest.created_at), newest.price]
        )
        close = changes.closes.get(state.ticker)
        score, cell = format_score(state, each), format_cell(state, each)
        return [state.ticker, each, score, close, *changed, cell]

    return build_lines(
        f"ticker timeframe score close changed price_then {shown}",
        (list_cells(state, each) for state in states for each in timeframes),
    )


async def _find_selected(query: StateQuery, context: Context) -> dict[str, CoveredAsset] | None:
    """Return the requested assets, None for all; ArgumentError names a bad ticker and as_of."""
    latest = await context.snapshot()
    with ProblemCollector() as problems:
        selected = problems.attempt(
            lambda text: find_assets(text, latest.assets, query.asset_class), query.ticker
        )
        problems.attempt(lambda text: context.parse_as_of(text, latest), query.as_of)
        problems.attempt(lambda _: check_detail(query), query.detail)
    return selected


def _select_cells(stored: Mapping[str, Mapping[Timeframe, int]], query: StateQuery) -> Cells:
    # The legacy key dexter is in STORED_KEYS only: indicator=enzo does not return it.
    keys: tuple[StoredKey, ...] = STORED_KEYS if query.indicator is None else (query.indicator,)
    cells: Cells = {}
    for key in keys:
        if key in stored:
            readings = tuple(map(stored[key].get, TIMEFRAMES))
            if selected := _select_readings(readings, query.timeframe, query.direction):
                cells[key] = selected
    return cells


# All sets of readings with all filters.
@lru_cache(maxsize=1024)
def _select_readings(
    stored: tuple[int | None, ...], timeframe: Timeframe | None, direction: Reading | None
) -> Mapping[Timeframe, Reading]:
    """Return the matching readings by timeframe; `stored` has one for each of TIMEFRAMES."""
    return {
        each: READING_NAMES[reading]
        for each, reading in zip(TIMEFRAMES, stored, strict=True)
        if reading is not None
        and timeframe in (None, each)
        and direction in (None, READING_NAMES[reading])
    }


def _group_last_bars(snapshot: Snapshot, states: list[AssetState]) -> list[LastBars]:
    """Return the assets whose newest bar did not close at the last full hour, by its close."""
    # Most assets close at the hour of the run, which as_of says already.
    hour_s = snapshot.market_time // HOUR_MS * (HOUR_MS // 1000)
    by_close: dict[int, list[str]] = {}
    for state in states:
        close = snapshot.stored.last_closes.get(state.ticker)
        if close is not None and close != hour_s:
            by_close.setdefault(close, []).append(state.ticker)
    return [
        LastBars(closed_at=format_instant(1000 * close), tickers=tickers)
        for close, tickers in sorted(by_close.items(), reverse=True)
    ]


def _list_notes(
    query: StateQuery,
    snapshot: Snapshot,
    selected: Mapping[str, CoveredAsset],
    states: list[AssetState],
) -> Iterator[str]:
    removed = set(snapshot.removed_tickers)
    for ticker, asset in selected.items():
        if ticker in removed:
            yield format_removed_note(asset)
    if not states:
        when = "now" if query.as_of is None else "then"
        reason = _explain_empty(query, snapshot, selected)
        yield f"No reading matches these filters {when}: {reason}"
    elif selected and all(explain_end(snapshot, asset) for asset in selected.values()):
        yield NO_CALL


def _explain_empty(
    query: StateQuery, snapshot: Snapshot, selected: Mapping[str, CoveredAsset]
) -> str:
    requested = selected if query.ticker is not None else snapshot.assets
    assets = [a for a in requested.values() if query.asset_class in (None, a.asset_class)]
    if not assets:
        return (
            f"none of the requested tickers is a {query.asset_class} asset; omit asset_class. "
            f"{NO_CALL}"
        )
    named = describe_assets(
        None if query.ticker is None else [asset.ticker for asset in assets], query.asset_class
    )
    if reason := explain_coverage(snapshot, assets, named, query.timeframe):
        return reason
    unfiltered = query.model_copy(update={"direction": None})
    readings = snapshot.stored.readings
    if not any(_select_cells(readings.get(asset.ticker, {}), unfiltered) for asset in assets):
        return explain_missing_reading(snapshot, assets)
    is_over = all(explain_end(snapshot, asset) for asset in assets)
    return (
        f"none of these readings is {query.direction}; omit direction to see them. "
        f"{NO_CALL if is_over else explain_next_call(snapshot)}"
    )


GET_STATE = Tool(
    name="signals_get_state",
    title="Current indicator readings",
    description=DESCRIPTION,
    query=StateQuery,
    result=StateResponse,
    handler=get_state,
    check=_find_selected,
    meta={"anthropic/maxResultSizeChars": 60_000},
)
