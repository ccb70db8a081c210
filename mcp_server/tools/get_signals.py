"""signals_get_signals: the feed of both tiers, changes of readings and actions of alert engines."""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from mcp_server.tools.empty_results import (
    MAX_NAMED_TICKERS,
    NEXT_CALL,
    describe_assets,
    explain_coverage,
    explain_end,
    explain_missing_reading,
    explain_next_call,
)
from schemas.coverage import CoveredAsset, merge_timeframes
from schemas.signals import Pagination, RetentionDays, SignalsMeta, SignalsQuery, SignalsResponse
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    COOLDOWN_CANDLES,
    DAY_MS,
    RETENTION_MS,
    UNIVERSE_RETENTION_MS,
    AssetClass,
    IndicatorId,
    Timeframe,
    format_instant,
)
from serving.argument_values import find_asset, find_assets, find_indicator, parse_instant_ms
from serving.arguments import ProblemCollector
from serving.context import Context
from serving.freshness import (
    NO_CALL,
    build_freshness,
    is_recording_over,
    keep_response,
    list_timing_exceptions,
)
from serving.response_cache import ResponseBody
from serving.signal_rows import FeedQuery
from serving.snapshot import Snapshot
from serving.tool import Tool

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from serving.ledger import Ledger

# Only changes can be neutral, and only alerts can be exit.
TIERS_BY_DIRECTION = {"neutral": "universe", "exit": "alerts"}
RETENTION_DAYS = RetentionDays(
    universe=UNIVERSE_RETENTION_MS // DAY_MS, alerts=ALERTS_RETENTION_MS // DAY_MS
)
# The fields of `meta` that qualify rows, and the lists that matter without rows unless empty.
ROW_FIELDS = {"ended_assets", "missing_bars", "most_delay_seconds", "removed_assets"}
MAX_FEEDS = 256
CALL_LISTS = ("late_assets", "building_assets")
PAGE_TEMPLATE = b'{"signals":[%b],"pagination":%b,"meta":%b}'
TIMING_NOTE = (
    "created_at is when a row was written, about 3 to 5 minutes after its candle closed; a held "
    "alert is written when its window ends. Rows of one run are milliseconds apart, even if they "
    "fired on different candles."
)
COOLDOWN_NOTE = (
    "universe: none, every change is logged. alerts: the same action of one ticker, indicator and "
    f"timeframe at most once per {COOLDOWN_CANDLES} candles ({4 * COOLDOWN_CANDLES} hours on 4h, "
    f"{COOLDOWN_CANDLES} days on 1d), by created_at. An alert that fires sooner is held, then "
    "published with the price at which it fired, or never if another alert of the same ticker, "
    "indicator and timeframe is published first."
)
CLOSE_NOTE = (
    "CLOSE ends the strategy's open position without saying whether it was long or short. Because "
    "of the cooldown, its entry may be missing from the feed or published late."
)

DESCRIPTION = (
    "Lists trading signals with time and price, the latest or most recent first: changes of "
    "indicator readings (tier universe, without perpkit), alerts of the strategies to buy, sell or "
    "close (LONG, SHORT, CLOSE; tier alerts, few tickers), or both (tier all). "
    "Use it to watch, monitor or follow an asset such as bitcoin (BTC), Ethereum (ETH) or Apple "
    "stock, and to alert the user or let them know of new signals, alerts and changes: what "
    "changed since the last check, which buy, long or short alerts of the alert engines fired, "
    "whether a strategy closed its position, when a trend turned bullish or bearish and at which "
    "price; and for the history or log of past signals, alerts, changes, reversals and breakouts "
    "of the last days, week, month or year, such as for a backtest. "
    "Poll with the last next_cursor as since, at most every 900 seconds, a backlog with order "
    "oldest. 200 rows are about 69,000 characters. "
    "If no row matches, meta.note says why."
)


class _MetaKind(NamedTuple):
    """What `meta` of a page depends on, except the snapshot and the time."""

    note: str
    timeframe: Timeframe | None
    has_rows: bool
    has_alerts: bool


class _FeedFilter(NamedTuple):
    """A query resolved against a snapshot; times are epoch ms.

    Changes are read after `after` and alerts after `alerts_after`: each tier has its own retention.
    `tickers` are those of the requested class; None if the query names none.
    """

    since: int | None
    after: int
    alerts_after: int
    tickers: tuple[str, ...] | None
    asset_class: AssetClass | None
    indicator: IndicatorId | None


async def get_signals(query: SignalsQuery, context: Context) -> SignalsResponse:
    """Return one page of the feed; the rows and `meta` are of the same snapshot."""
    return SignalsResponse.model_validate_json((await render_signals(query, context)).text)


async def render_signals(query: SignalsQuery, context: Context) -> ResponseBody:
    """Return the response of one page of the feed."""
    snapshot = await context.snapshot()
    ledger = await context.snapshots.ledger(snapshot)
    return render_page(query, ledger, snapshot, context.clock())


def render_signals_at_once(
    query: SignalsQuery, context: Context, snapshot: Snapshot
) -> ResponseBody | None:
    """Return the response of a page; None if its rows are still being read."""
    ledger = context.snapshots.peek_ledger(snapshot)
    return None if ledger is None else render_page(query, ledger, snapshot, context.clock())


def render_page(
    query: SignalsQuery, ledger: "Ledger", snapshot: Snapshot, now: int
) -> ResponseBody:
    """Return the response of a page at a time (epoch ms), rendering it if it is not cached.

    Callers that send another `since` get the same page if no row lies between the two.
    """
    arguments = (
        query.tier,
        query.ticker,
        query.asset_class,
        query.indicator,
        query.timeframe,
        query.direction,
        query.order,
        query.limit,
        query.offset,
    )
    feed: tuple[_FeedFilter, list[int]] | None = snapshot.feeds.get(arguments)
    if feed is None:
        feed = _find_feed(query, ledger, snapshot)
        if len(snapshot.feeds) >= MAX_FEEDS:
            del snapshot.feeds[next(iter(snapshot.feeds))]
        snapshot.feeds[arguments] = feed
    feed_filter, newest = feed
    if query.since is not None:
        since = parse_instant_ms("since", query.since)
        feed_filter = feed_filter._replace(
            since=since,
            after=max(since, feed_filter.after),
            alerts_after=max(since, feed_filter.alerts_after),
        )
    # How many rows follow `since` determines the page, unless it begins before the newest ones.
    following = len(newest) - bisect_right(newest, feed_filter.since or 0)
    page: tuple[list[int], bool] | None = None
    rows_key: tuple[int, ...] = (following,)
    if query.offset or (query.order == "oldest" and following > query.limit):
        page = ledger.find_page(_build_query(query, feed_filter, snapshot))
        # Times are unique, so with equal arguments no other rows can be between these.
        rows_key = (*ledger.get_times([page[0][0], page[0][-1]]), page[1]) if page[0] else (0,)
    key = arguments, rows_key, any(rows_key) or _classify_since(query, feed_filter, snapshot)
    response = snapshot.responses.get(key, now)
    if response is None:
        places, has_more = page or ledger.find_page(_build_query(query, feed_filter, snapshot))
        rows, times = ledger.encode_rows(places, snapshot), ledger.get_times(places)
        pagination = Pagination(
            limit=query.limit,
            offset=query.offset,
            returned=len(rows),
            has_more=has_more,
            next_cursor=format_instant(max(times)) if times else None,
        )
        meta = _find_meta(query, feed_filter, snapshot, now, has_rows=bool(rows))
        pagination_text = pagination.model_dump_json().encode()
        response = ResponseBody(PAGE_TEMPLATE % (b",".join(rows), pagination_text, meta.text))
        keep_response(snapshot, key, response, now)
    return response


def _find_feed(
    query: SignalsQuery, ledger: "Ledger", snapshot: Snapshot
) -> tuple[_FeedFilter, list[int]]:
    """Return the filter of a query without `since`, and the times of the newest rows, oldest first.

    They are one more than the rows of a page. ArgumentError names every argument that has no valid
    value.
    """
    tickers, indicator = _resolve(query, snapshot)
    feed_filter = _FeedFilter(
        since=None,
        after=snapshot.market_time - UNIVERSE_RETENTION_MS,
        alerts_after=snapshot.market_time - ALERTS_RETENTION_MS,
        tickers=tickers,
        asset_class=query.asset_class,
        indicator=indicator,
    )
    newest = replace(
        _build_query(query, feed_filter, snapshot),
        limit=query.limit + 1,
        offset=0,
        oldest_first=False,
    )
    places, _ = ledger.find_page(newest)
    return feed_filter, ledger.get_times(places[::-1])


def _build_query(query: SignalsQuery, feed_filter: _FeedFilter, snapshot: Snapshot) -> FeedQuery:
    tickers = feed_filter.tickers
    if tickers is None and feed_filter.asset_class is not None:
        tickers = snapshot.list_tickers(feed_filter.asset_class)
    return FeedQuery(
        query.tier,
        feed_filter.after,
        feed_filter.alerts_after,
        # Rows committed after the snapshot was read stay out, so that they agree with `meta`.
        snapshot.stored.last_created_at,
        query.limit,
        query.offset,
        query.order == "oldest",
        tickers,
        feed_filter.indicator,
        query.timeframe,
        query.direction,
    )


def _find_meta(
    query: SignalsQuery,
    feed_filter: _FeedFilter,
    snapshot: Snapshot,
    now: int,
    *,
    has_rows: bool,
) -> ResponseBody:
    """Return `meta` as JSON, which many pages of a snapshot share."""
    end = _explain_end(query, feed_filter, snapshot)
    note = end if has_rows else _explain_empty(query, feed_filter, snapshot, end)
    # A held alert is published when its window ends, so every hour may bring one.
    timeframe = query.timeframe if query.tier == "universe" else None
    kind = _MetaKind(note, timeframe, has_rows, query.tier != "universe")
    meta = snapshot.responses.get(kind, now)
    if meta is None:
        meta = (_build_meta if has_rows else _build_empty_meta)(kind, snapshot, now)
        keep_response(snapshot, kind, meta, now)
    return meta


def _build_meta(kind: _MetaKind, snapshot: Snapshot, now: int) -> ResponseBody:
    notes = [kind.note] * bool(kind.note)
    model = SignalsMeta(
        **build_freshness(snapshot, now, *notes, timeframe=kind.timeframe),
        retention_days=RETENTION_DAYS,
        timing=" ".join([TIMING_NOTE, *list_timing_exceptions(snapshot.coverage)]),
        cooldown=COOLDOWN_NOTE if kind.has_alerts else None,
        close=CLOSE_NOTE if kind.has_alerts else None,
    )
    return ResponseBody(model.model_dump_json(by_alias=True).encode())


def _build_empty_meta(kind: _MetaKind, snapshot: Snapshot, now: int) -> ResponseBody:
    """Return `meta` of a page without rows: only what says when to call again."""
    fields = build_freshness(snapshot, now, kind.note, timeframe=kind.timeframe, has_data=False)
    needless = ROW_FIELDS | {name for name in CALL_LISTS if not fields[name]}
    model = SignalsMeta(**fields)
    return ResponseBody(model.model_dump_json(by_alias=True, exclude=needless).encode())


def _resolve(
    query: SignalsQuery, snapshot: Snapshot
) -> tuple[tuple[str, ...] | None, IndicatorId | None]:
    """Return the tickers and the indicator of a query; ArgumentError as `_find_feed`."""
    with ProblemCollector() as problems:
        tickers = problems.attempt(
            lambda text: _find_tickers(text, query.asset_class, snapshot), query.ticker
        )
        indicator = problems.attempt(
            lambda text: find_indicator(text, snapshot.coverage), query.indicator
        )
        problems.attempt(lambda text: parse_instant_ms("since", text), query.since)
    return tickers, indicator


def _find_tickers(text: str, asset_class: AssetClass | None, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the tickers of a list that are of a class; ArgumentError names unknown ones."""
    # Most pollers name one ticker.
    assets = (
        find_assets(text, snapshot.assets, asset_class).values()
        if "," in text
        else [find_asset(text, snapshot.assets, asset_class)]
    )
    return tuple(a.ticker for a in assets if asset_class in (None, a.asset_class))


async def _check_filter(query: SignalsQuery, context: Context) -> None:
    _resolve(query, await context.snapshot())


def _find_matching_tiers(query: SignalsQuery) -> Literal["universe", "alerts", "all"] | None:
    """Return the tiers that can have a matching row, None for neither."""
    only = TIERS_BY_DIRECTION.get(query.direction or "")
    if only is None or only == query.tier:
        return query.tier
    if query.tier != "all":
        return None
    return "universe" if only == "universe" else "alerts"


def _explain_end(query: SignalsQuery, feed_filter: _FeedFilter, snapshot: Snapshot) -> str:
    """Return why no more rows of the requested tickers will come, empty if they may."""
    if not feed_filter.tickers:
        return ""
    assets = _list_assets(feed_filter, snapshot)
    # A held alert is published when its window ends, even if no bar has come since.
    may_hold = query.tier != "universe" and any(asset.alerts for asset in assets)
    if may_hold and not is_recording_over(snapshot):
        return ""
    reasons = [explain_end(snapshot, asset) for asset in assets]
    if None in reasons:
        return ""
    if len(reasons) > MAX_NAMED_TICKERS:
        return f"No bars of any of the {len(reasons)} requested tickers will come. {NO_CALL}"
    return " ".join(map(str, reasons))


def _explain_empty(
    query: SignalsQuery, feed_filter: _FeedFilter, snapshot: Snapshot, end: str
) -> str:
    assets = _list_assets(feed_filter, snapshot)
    if not assets and feed_filter.tickers is not None:
        kind = feed_filter.asset_class
        return f"None of the requested tickers is a {kind} asset; omit asset_class. {NO_CALL}"
    named = describe_assets(feed_filter.tickers, feed_filter.asset_class)
    uncovered = explain_coverage(snapshot, assets, named, None)
    if impossible := uncovered or _explain_impossible(query, feed_filter, snapshot):
        return impossible
    if reason := end or explain_coverage(snapshot, assets, named, query.timeframe):
        offset = f"No row matched at offset {query.offset}; lower offset. " * bool(query.offset)
        return f"{offset}{reason}"
    if _classify_since(query, feed_filter, snapshot) == "ahead":
        reason = "since is after the last compute (as_of), so no row can match yet."
        return f"{reason} {explain_next_call(snapshot)}"
    if query.offset:
        return f"No row matched at offset {query.offset}; lower offset."
    readings = (snapshot.stored.readings.get(asset.ticker, {}).values() for asset in assets)
    if not any(query.timeframe in (None, *cells) for own in readings for cells in own):
        return f"No row matched. {explain_missing_reading(snapshot, assets)}"
    if _classify_since(query, feed_filter, snapshot) == "recent":
        again = explain_next_call(snapshot)
        # nothing_new_before says the same, and pollers read this most of the time.
        return "No such row has come since then." + f" {again}" * (again != NEXT_CALL)
    kept_ms = _get_retention_ms(query)
    return (
        f"No row matched in the {kept_ms // DAY_MS} days that are kept. "
        f"{explain_next_call(snapshot)}"
    )


def _classify_since(
    query: SignalsQuery, feed_filter: _FeedFilter, snapshot: Snapshot
) -> Literal["ahead", "recent", "old"]:
    """Return the facts on which the reason of an empty page depends."""
    since = feed_filter.since or 0
    if since > snapshot.newest_at:
        return "ahead"
    return "recent" if since > snapshot.market_time - _get_retention_ms(query) else "old"


def _get_retention_ms(query: SignalsQuery) -> int:
    return RETENTION_MS["alerts" if query.tier == "alerts" else "universe"]


def _explain_impossible(
    query: SignalsQuery, feed_filter: _FeedFilter, snapshot: Snapshot
) -> str | None:
    """Return why no row can ever match the filters; None if one can."""
    if _find_matching_tiers(query) is None and query.direction == "exit":
        reason = "exit is a direction of the alerts tier only; no universe row can match."
    elif _find_matching_tiers(query) is None:
        reason = "neutral is a direction of the universe tier only; no alert can match."
    elif query.tier == "universe" and feed_filter.indicator in {
        each.id for each in snapshot.coverage.indicators if not each.logged
    }:
        reason = (
            f"Changes of {feed_filter.indicator} are not logged on the universe tier; "
            "read its current readings from state and its actions from tier=alerts."
        )
    elif query.tier == "alerts" and not _is_followed(
        _list_assets(feed_filter, snapshot), query.timeframe
    ):
        reason = (
            f"No alert engine follows this ticker and timeframe; {_describe_followed(snapshot)}"
        )
    else:
        return None
    return f"{reason} {NO_CALL}"


def _list_assets(feed_filter: _FeedFilter, snapshot: Snapshot) -> Collection[CoveredAsset]:
    if feed_filter.tickers is not None:
        return [snapshot.assets[ticker] for ticker in feed_filter.tickers]
    asset_class = feed_filter.asset_class
    return [a for a in snapshot.assets.values() if asset_class in (None, a.asset_class)]


def _is_followed(assets: Iterable[CoveredAsset], timeframe: Timeframe | None) -> bool:
    followed = merge_timeframes(asset.alerts for asset in assets)
    return bool(followed) if timeframe is None else timeframe in followed


def _describe_followed(snapshot: Snapshot) -> str:
    """Return a sentence on the tickers and timeframes that the alert engines follow."""
    tickers = [asset.ticker for asset in snapshot.coverage.assets if asset.alerts]
    if not tickers:
        return "this deployment has no data for any asset with alert engines."
    timeframes = merge_timeframes(asset.alerts for asset in snapshot.coverage.assets)
    return f"the engines follow {', '.join(tickers)} on {' and '.join(timeframes)}."


GET_SIGNALS = Tool(
    name="signals_get_signals",
    title="Feed of changes and alerts",
    description=DESCRIPTION,
    query=SignalsQuery,
    result=SignalsResponse,
    handler=render_signals,
    render_at_once=render_signals_at_once,
    check=_check_filter,
    meta={"anthropic/maxResultSizeChars": 500_000},
)
