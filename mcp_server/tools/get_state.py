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
from mcp_server.tools.reading_changes import load_reading_changes
from mcp_server.tools.state_matrix import build_matrix
from schemas.coverage import CoveredAsset
from schemas.state import AssetState, LastBars, StateCounts, StateMeta, StateQuery, StateResponse
from schemas.vocabulary import (
    INDICATOR_COUNT_TEXT,
    READING_NAMES,
    STORED_KEYS,
    TIMEFRAMES,
    Reading,
    StoredKey,
    Timeframe,
    format_instant,
)
from serving.argument_values import find_assets
from serving.arguments import ArgumentError, Problem, ProblemCollector
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
    "Shows the technical analysis of crypto coins, stocks and metals: the current readings "
    f"(bullish, bearish or neutral) of {INDICATOR_COUNT_TEXT} indicators for each asset on 1h, 4h "
    "and 1d, or with as_of the readings of a past time, such as yesterday or last week. "
    "Use it for what the indicators say about an asset or the market right now, its trend, "
    "momentum, sentiment or outlook: does bitcoin (BTC), Ethereum (ETH), Solana (SOL), Dogecoin, a "
    "stock such as Apple (AAPL), Nvidia (NVDA), Tesla (TSLA) or Microsoft, gold or silver look "
    "good at the moment, is it bullish or bearish, trending up or down on the daily chart, in an "
    "uptrend or downtrend, strong, overbought or at a reversal; and to compare coins or stocks, or "
    "for an overview, summary or snapshot of the crypto market, stock market, metals market or a "
    "portfolio. "
    "Unfiltered it is about 135,000 characters, with view board under 11,000, for one ticker about "
    "1,200. "
    "If it is empty, meta.note says why; meta also says if the data are simulated or stale."
)

Cells = dict[StoredKey, Mapping[Timeframe, Reading]]
# These take 2 to 3 ms, after which other work goes on.
ASSETS_PER_TURN = 100


async def get_state(query: StateQuery, context: Context) -> StateResponse:
    """Return the matching readings by ticker, indicator and timeframe."""
    selected = await _find_selected(query, context)
    snapshot, at = await context.snapshot_at(query.as_of)
    states = []
    for state in _list_states(snapshot, query, snapshot.assets if selected is None else selected):
        states.append(state)
        if len(states) % ASSETS_PER_TURN == 0:
            await asyncio.sleep(0)
    if query.detail == "changes":
        states = await _add_changes(states, query, snapshot, context)
    readings = sum(len(cells) for state in states for cells in state.signals.values())
    notes = list(_list_notes(query, snapshot, selected or {}, states))
    meta = StateMeta(
        **build_freshness(snapshot, at, *notes, timeframe=query.timeframe),
        last_bars=_group_last_bars(snapshot, states),
        # Those with neither bars in the source nor stored readings.
        not_covered=sorted(
            ticker
            for ticker, asset in (selected or {}).items()
            if not asset.timeframes and not snapshot.stored.readings.get(ticker)
        ),
        legacy_keys=find_legacy_keys(state.signals for state in states),
    )
    as_letters = query.view == "board"
    return StateResponse(
        as_of=format_instant(snapshot.market_time),
        assets=[] if as_letters else states,
        board=build_matrix(states, query) if as_letters else None,
        counts=StateCounts(assets=len(states), readings=readings),
        meta=meta,
    )


async def _add_changes(
    states: list[AssetState], query: StateQuery, snapshot: Snapshot, context: Context
) -> list[AssetState]:
    """Return states with the change that set each reading, and with last bars."""
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


async def _find_selected(query: StateQuery, context: Context) -> dict[str, CoveredAsset] | None:
    """Return the requested assets, None for all; ArgumentError names a bad ticker and as_of."""
    latest = await context.snapshot()
    with ProblemCollector() as problems:
        selected = problems.attempt(
            lambda text: find_assets(text, latest.assets, query.asset_class), query.ticker
        )
        problems.attempt(lambda text: context.parse_as_of(text, latest), query.as_of)
        problems.attempt(lambda _: _check_view(query), query.detail)
    return selected


def _check_view(query: StateQuery) -> None:
    if query.view == "board" and query.detail == "changes":
        message = "detail: changes do not fit the letters of view board; omit view or detail"
        raise ArgumentError(Problem("detail", message))


def _list_states(
    snapshot: Snapshot, query: StateQuery, assets: Mapping[str, CoveredAsset]
) -> Iterator[AssetState]:
    for ticker in sorted(assets.keys() & snapshot.stored.readings.keys()):
        asset = assets[ticker]
        if query.asset_class in (None, asset.asset_class):
            cells = _select_cells(snapshot.stored.readings[ticker], query)
            if cells:
                # No validation: an unfiltered result has some 5,000 readings, all of them from
                # the store's own vocabularies.
                yield AssetState.model_construct(
                    ticker=ticker, name=asset.name, asset_class=asset.asset_class, signals=cells
                )


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
    """Return the assets grouped by the close of their newest bar, newest first."""
    # Most assets close together, so groups need a fraction of the characters of a time per asset.
    by_close: dict[int, list[str]] = {}
    for state in states:
        if (close := snapshot.stored.last_closes.get(state.ticker)) is not None:
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
    meta={"anthropic/maxResultSizeChars": 500_000},
)
