"""The sample feed, flips and confluence that visitors see, filtered as live results are."""

from collections.abc import Iterable
from typing import Any

from mcp_server.tools.get_confluence import RULES as CONFLUENCE_RULES
from mcp_server.tools.get_confluence import build_result, rank_results
from mcp_server.tools.get_flips import RULES as FLIPS_RULES
from mcp_server.tools.get_flips import WINDOW_HOURS
from rest_shim.sample import SAMPLE_NAMES, build_sample
from schemas.confluence import ConfluenceEcho, ConfluenceMeta, ConfluenceQuery, ConfluenceResponse
from schemas.flips import (
    Flip,
    FlipGroup,
    FlipsCounts,
    FlipsEcho,
    FlipsMeta,
    FlipsQuery,
    FlipsResponse,
)
from schemas.result import Freshness
from schemas.signals import Pagination, Signal, SignalsQuery, SignalsResponse
from schemas.vocabulary import HOUR_MS, AssetClass, fold_name, format_instant
from serving.argument_values import parse_instant_ms
from serving.arguments import ArgumentError, unknown_indicator_problem
from web.sample_board import build_sample_model


def build_sample_feed(query: SignalsQuery) -> SignalsResponse:
    """Return the page of the sample feed that a query selects; ArgumentError as the tool's."""
    sample = build_sample()
    rows = list(_select_rows(query, sample.signals))
    ordered = rows if query.order == "newest" else rows[::-1]
    page = ordered[query.offset : query.offset + query.limit]
    pagination = Pagination(
        limit=query.limit,
        offset=query.offset,
        returned=len(page),
        has_more=len(ordered) > query.offset + query.limit,
        next_cursor=max((row.created_at for row in page), default=None),
    )
    return sample.model_copy(update={"signals": page, "pagination": pagination})


def _select_rows(query: SignalsQuery, rows: Iterable[Signal]) -> Iterable[Signal]:
    since = None if query.since is None else parse_instant_ms("since", query.since)
    indicator = None if query.indicator is None else _find_indicator(query.indicator)
    for row in rows:
        if (
            query.tier in ("all", row.tier)
            and _is_of_asset(row, query.ticker, query.asset_class)
            and (indicator or row.indicator) == row.indicator
            and (query.timeframe or row.timeframe) == row.timeframe
            and (query.direction or row.direction) == row.direction
            and (since is None or parse_instant_ms("created_at", row.created_at) > since)
        ):
            yield row


def _is_of_asset(row: Signal, tickers: str | None, asset_class: AssetClass | None) -> bool:
    """Return true if a row is of one of comma-separated tickers and of a class, if any is given."""
    requested = [ticker.strip() for ticker in (tickers or row.ticker).upper().split(",")]
    return row.ticker in requested and asset_class in (None, row.asset_class)


def _find_indicator(text: str) -> str:
    for id_, name in SAMPLE_NAMES.items():
        if fold_name(text) in (fold_name(id_), fold_name(name)):
            return id_
    raise ArgumentError(unknown_indicator_problem(text, SAMPLE_NAMES))


def build_sample_flips(query: FlipsQuery) -> FlipsResponse:
    """Return the sample's changes in a window as flips; they are the same on every timeframe."""
    sample = build_sample()
    hours = query.hours or WINDOW_HOURS[query.timeframe].default
    after = format_instant(parse_instant_ms("as_of", sample.meta.as_of) - hours * HOUR_MS)
    groups = [
        _build_group(row)
        for row in sample.signals
        if row.tier == "universe"
        and _is_of_asset(row, query.ticker, query.asset_class)
        and row.created_at > after
        and query.direction in ("all", row.direction)
    ]
    groups.sort(key=lambda group: (group.score, group.latest_at), reverse=True)
    return FlipsResponse(
        as_of=sample.meta.as_of,
        query=FlipsEcho(timeframe=query.timeframe, hours=hours, direction=query.direction),
        groups=groups,
        counts=FlipsCounts(groups=len(groups), flips=len(groups)),
        capped=False,
        meta=FlipsMeta(**_dump_freshness(sample.meta), rules=FLIPS_RULES),
    )


def _build_group(row: Signal) -> FlipGroup:
    names = {asset.ticker: asset.name for asset in build_sample_model("4h").state.assets}
    assert row.transition is not None
    copied = row.model_dump(include=set(Flip.model_fields))
    flip = Flip.model_validate({**copied, "from_": row.transition.from_, "to": row.transition.to})
    bullish, bearish = int(flip.to == "bullish"), int(flip.to == "bearish")
    return FlipGroup(
        ticker=row.ticker,
        name=names[row.ticker],
        asset_class=row.asset_class,
        dominant="bullish" if bullish else "bearish" if bearish else "mixed",
        bullish=bullish,
        bearish=bearish,
        score=max(bullish, bearish),
        latest_at=row.created_at,
        flips=[flip],
    )


def build_sample_confluence(query: ConfluenceQuery) -> ConfluenceResponse:
    """Return the sample board's assets on which enough indicators agree, at any `as_of`."""
    if query.as_of is not None:
        parse_instant_ms("as_of", query.as_of)
    board = build_sample_model(query.timeframe)
    polled = [
        build_result(
            asset,
            {key: cells[query.timeframe] for key, cells in asset.signals.items()},
            query.direction,
        )
        for asset in board.state.assets
        if query.asset_class in (None, asset.asset_class)
    ]
    sample = build_sample()
    return ConfluenceResponse(
        as_of=sample.meta.as_of,
        query=ConfluenceEcho(**query.model_dump(exclude={"as_of", "detail"})),
        results=rank_results(result for result in polled if result.agree >= query.min_agree),
        meta=ConfluenceMeta(**_dump_freshness(sample.meta), legacy_keys={}, rules=CONFLUENCE_RULES),
    )


def _dump_freshness(meta: Freshness) -> dict[str, Any]:
    return meta.model_dump(include=set(Freshness.model_fields), by_alias=True)
