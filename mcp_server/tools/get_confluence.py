"""signals_get_confluence: counts the readings of one timeframe as votes and ranks the assets."""

from collections.abc import Iterator, Sequence

from mcp_server.tools.empty_results import (
    describe_assets,
    explain_coverage,
    explain_missing_reading,
)
from mcp_server.tools.lines import MAX_WORDED, build_lines, format_readings
from mcp_server.tools.reading_changes import check_detail, load_reading_changes
from schemas.confluence import (
    ConfluenceEcho,
    ConfluenceMeta,
    ConfluenceQuery,
    ConfluenceResponse,
    ConfluenceResult,
)
from schemas.vocabulary import LEGACY_KEYS, READING_NAMES, STORED_KEYS, format_instant
from serving.arguments import ProblemCollector
from serving.context import Context
from serving.freshness import build_freshness, find_legacy_keys
from serving.snapshot import Snapshot
from serving.tool import Tool

DESCRIPTION = (
    "Screens the market for consensus: ranks the coins, stocks and metals by how many indicators "
    "agree that an asset points up (bullish) or down (bearish). Use it for the strongest or "
    "broadest agreement, flips for what just turned, and limit for the top few. The result has "
    "10,000 to 74,000 characters, with view=lines 1,000 to 4,000."
)


async def get_confluence(query: ConfluenceQuery, context: Context) -> ConfluenceResponse:
    """Return the assets that reach `min_agree`, best first, all from one snapshot."""
    await _check_query(query, context)
    snapshot, at = await context.snapshot_at(query.as_of)
    polled = list(_count_votes(snapshot, query))
    reached = (result for result in polled if result.agree >= query.min_agree)
    results = sorted(reached, key=lambda one: (-one.score, -one.agree, one.ticker))
    notes = context.explain_date(query.as_of)
    if not results:
        notes.append(_explain_empty(query, snapshot, polled))
    if query.limit is not None and query.limit < len(results):
        left = len(results) - query.limit
        notes.append(f"limit leaves out {left} of {len(results)} assets.")
        results = results[: query.limit]
    if query.detail == "changes":
        results = await _add_changes(results, query, snapshot, context)
    as_lines = query.view == "lines"
    return ConfluenceResponse(
        as_of=format_instant(snapshot.market_time),
        query=ConfluenceEcho(
            **query.model_dump(include={"timeframe", "direction", "min_agree", "asset_class"}),
            as_of=format_instant(at) if query.as_of else None,
            detail="changes" if query.detail == "changes" else None,
        ),
        results=[] if as_lines else results,
        lines=_build_lines(results) if as_lines else None,
        meta=ConfluenceMeta(
            **build_freshness(
                snapshot,
                at,
                *notes,
                timeframe=query.timeframe,
                tickers={result.ticker for result in results},
                as_lines=as_lines,
            ),
            legacy_keys={} if as_lines else find_legacy_keys(one.votes for one in results),
        ),
    )


def _build_lines(results: Sequence[ConfluenceResult]) -> str:
    is_worded = len(results) <= MAX_WORDED
    return build_lines(
        "ticker agree/total votes (else neutral), without dexter",
        (
            [
                result.ticker,
                f"{result.current_agree or result.agree}/{len(result.votes.keys() - LEGACY_KEYS)}",
                format_readings(result.votes, is_worded=is_worded),
            ]
            for result in results
        ),
        is_worded=is_worded,
    )


async def _add_changes(
    results: list[ConfluenceResult], query: ConfluenceQuery, snapshot: Snapshot, context: Context
) -> list[ConfluenceResult]:
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
        stored = snapshot.stored.readings[ticker]
        votes = {
            key: READING_NAMES[stored[key][query.timeframe]]
            for key in STORED_KEYS
            if query.timeframe in stored.get(key, ())
        }
        if not votes or query.asset_class not in (None, asset.asset_class):
            continue
        agreeing = [key for key, reading in votes.items() if reading == query.direction]
        agree, current = len(agreeing), len(set(agreeing) - LEGACY_KEYS.keys())
        # model_construct() skips validation: all values are from the store's own vocabularies.
        yield ConfluenceResult.model_construct(
            ticker=ticker,
            name=asset.name,
            asset_class=asset.asset_class,
            agree=agree,
            current_agree=current if current < agree else None,
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
        assets = [
            asset
            for asset in snapshot.assets.values()
            if query.asset_class in (None, asset.asset_class) and not snapshot.is_removed(asset)
        ]
        named = describe_assets(None, query.asset_class)
        reason = explain_coverage(snapshot, assets, named, query.timeframe)
        reason = reason or explain_missing_reading(snapshot, assets)
        return f"{reason} No {kind} has a reading on {query.timeframe}."
    highest = max(result.agree for result in polled)
    if highest == 0:
        return f"No vote on any {kind} is {query.direction} on {query.timeframe} {when}."
    return (
        f"No {kind} has {query.min_agree} {query.direction} votes on {query.timeframe} "
        f"{when}; the highest agreement is {highest}, so lower min_agree to {highest}."
    )


async def _check_query(query: ConfluenceQuery, context: Context) -> None:
    latest = await context.snapshot()
    with ProblemCollector() as problems:
        problems.attempt(lambda text: context.parse_as_of(text, latest), query.as_of)
        problems.attempt(lambda _: check_detail(query), query.detail)


GET_CONFLUENCE = Tool(
    name="signals_get_confluence",
    title="Assets on which indicators agree",
    description=DESCRIPTION,
    query=ConfluenceQuery,
    result=ConfluenceResponse,
    handler=get_confluence,
    check=_check_query,
    meta={"anthropic/maxResultSizeChars": 60_000},
)
