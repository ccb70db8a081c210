"""signals_get_confluence: counts the readings of one timeframe as votes and ranks the assets."""

from collections.abc import Iterator, Mapping

from mcp_server.tools.empty_results import (
    describe_assets,
    explain_coverage,
    explain_missing_reading,
)
from mcp_server.tools.reading_changes import load_reading_changes
from schemas.confluence import (
    ConfluenceEcho,
    ConfluenceMeta,
    ConfluenceQuery,
    ConfluenceResponse,
    ConfluenceResult,
)
from schemas.coverage import CoveredAsset
from schemas.vocabulary import (
    INDICATOR_COUNT_TEXT,
    LEGACY_KEYS,
    READING_NAMES,
    STORED_KEYS,
    Reading,
    Side,
    StoredKey,
    Timeframe,
    format_instant,
)
from serving.context import Context
from serving.freshness import build_freshness, find_legacy_keys
from serving.snapshot import Snapshot
from serving.tool import Tool

DESCRIPTION = (
    "Screener of the market for consensus: ranks the assets (crypto coins, stocks, metals) on "
    f"which at least min_agree votes of {INDICATOR_COUNT_TEXT} indicators agree, bullish or "
    "bearish, and shows every vote. "
    "Use it to scan or screen the market for the top, best or strongest coins, stocks, setups, "
    "trades or opportunities: the most bullish or most bearish stocks or coins, where many or all "
    "indicators agree, line up or confirm an uptrend or downtrend, or the broadest agreement now "
    "or, with as_of, a week ago. "
    "The result is 10,000 to 50,000 characters, the largest about 74,000, so raise "
    "min_agree or filter by asset_class. "
    "If no asset reaches min_agree, meta.note says why. "
    "It forecasts nothing, and the votes depend on each other: "
    # docs/indicators.md explains the figure.
    "all seven are worth 2.1 to 2.6 independent votes."
)
RULES = {
    "votes": (
        "votes and total_reporting have every stored key with a reading on the timeframe, the "
        "outdated dexter too if present; a key without a reading is excluded. agree counts the "
        "votes in the requested direction. If dexter is one of them, current_agree counts the "
        "others. Removed assets are excluded."
    ),
    "score": "agree / total_reporting. An asset is listed if agree >= min_agree.",
    "ranking": "By score, then by agree, highest first; then by ticker, A to Z.",
}

Votes = dict[StoredKey, Reading]


async def get_confluence(query: ConfluenceQuery, context: Context) -> ConfluenceResponse:
    """Return the assets that reach `min_agree`, best first, all from one snapshot."""
    snapshot, at = await context.snapshot_at(query.as_of)
    polled = list(_count_votes(snapshot, query))
    reached = (result for result in polled if result.agree >= query.min_agree)
    results = sorted(reached, key=lambda one: (-one.score, -one.agree, one.ticker))
    notes = [] if results else [_explain_empty(query, snapshot, polled)]
    if query.detail == "changes":
        results = await _add_changes(results, query, snapshot, context)
    return ConfluenceResponse(
        as_of=format_instant(snapshot.market_time),
        query=ConfluenceEcho(
            **query.model_dump(exclude={"as_of", "detail"}),
            as_of=format_instant(at) if query.as_of else None,
            detail="changes" if query.detail == "changes" else None,
        ),
        results=results,
        meta=ConfluenceMeta(
            **build_freshness(snapshot, at, *notes, timeframe=query.timeframe),
            legacy_keys=find_legacy_keys(result.votes for result in results),
            rules=RULES,
        ),
    )


async def _add_changes(
    results: list[ConfluenceResult], query: ConfluenceQuery, snapshot: Snapshot, context: Context
) -> list[ConfluenceResult]:
    """Return results with the change that set each vote, and with last bars."""
    tickers = [result.ticker for result in results]
    changes = await load_reading_changes(snapshot, tickers, query.timeframe, context)
    return [
        result.model_copy(
            update={
                "changes": {
                    key: change
                    for key in result.votes
                    for change in changes.describe(result.ticker, key, [query.timeframe]).values()
                },
                "last_bar": changes.get_last_bar(result.ticker),
            }
        )
        for result in results
    ]


def _count_votes(snapshot: Snapshot, query: ConfluenceQuery) -> Iterator[ConfluenceResult]:
    """Yield a result for every asset with a vote, whether or not it reaches `min_agree`."""
    # Unselected assets are counted too, so that an empty result can name the highest agreement.
    removed = set(snapshot.removed_tickers)
    for ticker in snapshot.assets.keys() & snapshot.stored.readings.keys() - removed:
        asset = snapshot.assets[ticker]
        votes = _select_votes(snapshot.stored.readings[ticker], query.timeframe)
        if votes and query.asset_class in (None, asset.asset_class):
            yield _build_result(asset, votes, query.direction)


def _select_votes(stored: Mapping[str, Mapping[Timeframe, int]], timeframe: Timeframe) -> Votes:
    return {
        key: READING_NAMES[stored[key][timeframe]]
        for key in STORED_KEYS
        if timeframe in stored.get(key, ())
    }


def _build_result(asset: CoveredAsset, votes: Votes, direction: Side) -> ConfluenceResult:
    """Return the votes of an asset, of which there is at least one, as a result."""
    agreeing = [key for key, reading in votes.items() if reading == direction]
    current = [key for key in agreeing if key not in LEGACY_KEYS]
    agree = len(agreeing)
    # model_construct() skips validation: all values are from the store's own vocabularies.
    return ConfluenceResult.model_construct(
        ticker=asset.ticker,
        name=asset.name,
        asset_class=asset.asset_class,
        agree=agree,
        current_agree=len(current) if len(current) < agree else None,
        total_reporting=len(votes),
        score=agree / len(votes),
        votes=votes,
    )


def _explain_empty(
    query: ConfluenceQuery, snapshot: Snapshot, polled: list[ConfluenceResult]
) -> str:
    kind = f"{query.asset_class} asset" if query.asset_class else "asset"
    when = "now" if query.as_of is None else "then"
    if not polled:
        return f"{_explain_no_votes(query, snapshot)} No {kind} has a reading on {query.timeframe}."
    highest = max(result.agree for result in polled)
    if highest == 0:
        return f"No vote on any {kind} is {query.direction} on {query.timeframe} {when}."
    return (
        f"No {kind} has {query.min_agree} {query.direction} votes on {query.timeframe} "
        f"{when}; the highest agreement is {highest}, so lower min_agree to {highest}."
    )


def _explain_no_votes(query: ConfluenceQuery, snapshot: Snapshot) -> str:
    assets = [
        asset
        for asset in snapshot.assets.values()
        if query.asset_class in (None, asset.asset_class) and not snapshot.is_removed(asset)
    ]
    named = describe_assets(None, query.asset_class)
    reason = explain_coverage(snapshot, assets, named, query.timeframe)
    return reason or explain_missing_reading(snapshot, assets)


async def _check_as_of(query: ConfluenceQuery, context: Context) -> None:
    if query.as_of is not None:
        context.parse_as_of(query.as_of, await context.snapshot())


GET_CONFLUENCE = Tool(
    name="signals_get_confluence",
    title="Assets on which indicators agree",
    description=DESCRIPTION,
    query=ConfluenceQuery,
    result=ConfluenceResponse,
    handler=get_confluence,
    check=_check_as_of,
    meta={"anthropic/maxResultSizeChars": 500_000},
)
