"""signals_get_signals: the feed of both tiers, changes of readings and actions of alert engines."""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from mcp_server.tools.empty_results import (
    MAX_NAMED_TICKERS,
    NEXT_CALL,
    describe_assets,
    explain_coverage,
    explain_end,
    explain_missing_reading,
    explain_next_call,
)
from mcp_server.tools.lines import build_lines
from schemas.coverage import CoveredAsset, merge_timeframes
from schemas.signals import Pagination, SignalsMeta, SignalsQuery, SignalsResponse
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    READING_NAMES,
    RETENTION_MS,
    UNIVERSE_RETENTION_MS,
    IndicatorId,
    format_instant,
)
from serving.argument_values import find_assets, find_indicator, parse_instant_ms
from serving.arguments import ProblemCollector
from serving.context import Context
from serving.freshness import (
    NO_CALL,
    NOTED_CHARS,
    build_freshness,
    format_size_note,
    is_recording_over,
    keep_response,
    list_timing_exceptions,
)
from serving.json_text import to_json, to_utf8
from serving.response_cache import ResponseBody
from serving.signal_rows import FeedQuery
from serving.snapshot import Snapshot
from serving.tool import Tool
from store.market_rows import AlertRow, FeedRow

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from serving.feed_ledger import Ledger

MAX_FEEDS = 256
PAGE_TEMPLATE = b'{"signals":[%b],%b"pagination":%b,"meta":%b}'
TIMING_NOTE = "created_at is when a row was written, 3 to 5 minutes after its candle closed."
DESCRIPTION = (
    "The log of trading signals, most recent first, with time and price: each change of direction"
    " (tier universe), and the alerts of a strategy to buy (long), sell (short) or close its "
    "position (tier alerts). Use it for the last signal or the history of an asset, and to watch "
    "for new alerts and trend changes: poll with since = next_cursor. 200 rows have 69,000 "
    "characters, with view=lines 14,000."
)


async def render_signals(query: SignalsQuery, context: Context) -> ResponseBody:
    """Return one page of the feed; the rows and `meta` are of the same snapshot."""
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
        query.until,
        query.view,
    )
    feed: tuple[FeedQuery, list[int]] | None = snapshot.feeds.get(arguments)
    if feed is None:
        feed = _find_feed(query, ledger, snapshot)
        if len(snapshot.feeds) >= MAX_FEEDS:
            del snapshot.feeds[next(iter(snapshot.feeds))]
        snapshot.feeds[arguments] = feed
    wanted, newest = feed
    since = 0 if query.since is None else parse_instant_ms("since", query.since)
    if since:
        wanted = wanted._replace(
            after=max(since, wanted.after), alerts_after=max(since, wanted.alerts_after)
        )
    # How many rows follow `since` determines the page, unless it begins before the newest ones.
    following = len(newest) - bisect_right(newest, since)
    page: tuple[list[int], bool] | None = None
    rows_key: tuple[int, ...] = (following,)
    if query.offset or (query.order == "oldest" and following > query.limit):
        page = ledger.find_page(wanted)
        # Times are unique, so with equal arguments no other rows can be between these.
        rows_key = (*ledger.get_times([page[0][0], page[0][-1]]), page[1]) if page[0] else (0,)
    begin = _find_beginning(query, snapshot)
    is_early = query.since is not None and since < begin
    # The reason of an empty page depends on these.
    reason = any(rows_key) or (
        since > snapshot.newest_at,
        since > begin,
        since >= wanted.until,
    )
    key = arguments, rows_key, reason, is_early
    response = snapshot.responses.get(key, now)
    if response is None:
        places, has_more = page or ledger.find_page(wanted)
        times, notes = ledger.get_times(places), []
        pagination = Pagination(
            limit=query.limit,
            offset=query.offset,
            returned=len(places),
            has_more=has_more,
            next_cursor=format_instant(max(times)) if times else None,
        )
        rows, lines = b"", b""
        if query.view == "lines":
            lines = b'"lines":%b,' % to_utf8(to_json(_build_lines(ledger.build_rows(places))))
        else:
            rows = ",".join(ledger.encode_rows(places, snapshot)).encode()
            if len(rows) > NOTED_CHARS:
                notes.append(format_size_note(len(rows)))
        if is_early:
            notes.append(f"since is too early: rows are kept from {format_instant(begin)}.")
        named = ledger.list_tickers(places) if places else wanted.tickers
        has_named = bool(places) or query.ticker is not None
        meta = _find_meta(
            query,
            wanted,
            since,
            snapshot,
            now,
            notes,
            has_rows=bool(places),
            tickers=snapshot.exceptional_tickers.intersection(named or ()) if has_named else None,
        )
        page_text = pagination.model_dump_json().encode()
        response = ResponseBody(PAGE_TEMPLATE % (rows, lines, page_text, meta.text))
        keep_response(snapshot, key, response, now)
    return response


def _build_lines(rows: Iterable[FeedRow]) -> str:
    return build_lines(
        "created_at ticker timeframe indicator change price",
        (
            [
                *(format_instant(row.created_at), row.ticker, row.timeframe, row.indicator),
                row.action
                if isinstance(row, AlertRow)
                else ">".join(
                    READING_NAMES[each] for each in (row.before, row.after) if each is not None
                ),
                row.price,
            ]
            for row in rows
        ),
    )


def _find_feed(
    query: SignalsQuery, ledger: "Ledger", snapshot: Snapshot
) -> tuple[FeedQuery, list[int]]:
    """Return a query without `since`, resolved, and the times of the newest rows, oldest first.

    They are one more than the rows of a page. ArgumentError names every argument that has no valid
    value.
    """
    tickers, indicator = _resolve(query, snapshot)
    wanted = FeedQuery(
        query.tier,
        after=snapshot.market_time - UNIVERSE_RETENTION_MS,
        alerts_after=snapshot.market_time - ALERTS_RETENTION_MS,
        # Rows committed after the snapshot was read stay out, so that they agree with `meta`.
        until=min(
            snapshot.stored.last_created_at,
            snapshot.newest_at if query.until is None else parse_instant_ms("until", query.until),
        ),
        limit=query.limit,
        offset=query.offset,
        oldest_first=query.order == "oldest",
        tickers=tickers,
        indicator=indicator,
        timeframe=query.timeframe,
        direction=query.direction,
    )
    newest = wanted._replace(limit=query.limit + 1, offset=0, oldest_first=False)
    places, _ = ledger.find_page(newest)
    return wanted, ledger.get_times(places[::-1])


def _find_meta(
    query: SignalsQuery,
    wanted: FeedQuery,
    since: int,
    snapshot: Snapshot,
    now: int,
    notes: list[str],
    *,
    has_rows: bool,
    tickers: frozenset[str] | None,
) -> ResponseBody:
    """Return `meta` as JSON, which many pages of a snapshot share."""
    end = _explain_end(query, wanted, snapshot)
    note = end if has_rows else _explain_empty(query, wanted, since, snapshot, end)
    # A held alert is published when its window ends, so every hour may bring one.
    timeframe = query.timeframe if query.tier == "universe" else None
    text = " ".join([*notes, *[note] * bool(note)])
    # What it depends on, except the snapshot and the time.
    key = "meta", text, timeframe, has_rows, tickers, query.view
    meta = snapshot.responses.get(key, now)
    if meta is None:
        freshness = build_freshness(
            snapshot,
            now,
            *[text] * bool(text),
            timeframe=timeframe,
            tickers=tickers,
            has_data=has_rows,
            as_lines=query.view == "lines",
        )
        has_timing = has_rows and query.view == "full"
        timing = " ".join([TIMING_NOTE, *list_timing_exceptions(snapshot.coverage)])
        model = SignalsMeta(**freshness, timing=timing if has_timing else None)
        meta = ResponseBody(model.model_dump_json(by_alias=True).encode())
        keep_response(snapshot, key, meta, now)
    return meta


def _resolve(
    query: SignalsQuery, snapshot: Snapshot
) -> tuple[tuple[str, ...] | None, IndicatorId | None]:
    """Return the tickers and the indicator of a query; ArgumentError as `_find_feed`."""
    with ProblemCollector() as problems:
        selected = problems.attempt(
            lambda text: find_assets(text, snapshot.assets, query.asset_class), query.ticker
        )
        indicator = problems.attempt(
            lambda text: find_indicator(text, snapshot.coverage), query.indicator
        )
        problems.attempt(lambda text: parse_instant_ms("since", text), query.since)
        problems.attempt(lambda text: parse_instant_ms("until", text), query.until)
    if selected is None and query.asset_class is None:
        return None, indicator
    assets = (snapshot.assets if selected is None else selected).values()
    wanted = (a.ticker for a in assets if query.asset_class in (None, a.asset_class))
    return tuple(wanted), indicator


async def _check_filter(query: SignalsQuery, context: Context) -> None:
    _resolve(query, await context.snapshot())


def _explain_end(query: SignalsQuery, wanted: FeedQuery, snapshot: Snapshot) -> str:
    """Return why no more rows of the requested tickers will come, empty if they may."""
    if query.ticker is None or not wanted.tickers:
        return ""
    assets = _list_assets(wanted, snapshot)
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
    query: SignalsQuery, wanted: FeedQuery, since: int, snapshot: Snapshot, end: str
) -> str:
    assets, begin = _list_assets(wanted, snapshot), _find_beginning(query, snapshot)
    if not assets and query.ticker is not None:
        kind = query.asset_class
        return f"None of the requested tickers is a {kind} asset; omit asset_class. {NO_CALL}"
    named = describe_assets(None if query.ticker is None else wanted.tickers, query.asset_class)
    uncovered = explain_coverage(snapshot, assets, named, None)
    if impossible := uncovered or _explain_impossible(query, wanted, snapshot):
        return impossible
    if reason := end or explain_coverage(snapshot, assets, named, query.timeframe):
        offset = f"No row matched at offset {query.offset}; lower offset. " * bool(query.offset)
        return f"{offset}{reason}"
    if query.until is not None and wanted.until < snapshot.stored.last_created_at:
        why = (
            "since is not before until, so no row can match"
            if since >= wanted.until
            else "No row matched up to until"
        )
        return f"{why}. {NO_CALL}"
    if since > snapshot.newest_at:
        reason = "since is after the last compute (as_of), so no row can match yet."
        return f"{reason} {explain_next_call(snapshot)}"
    if query.offset:
        return f"No row matched at offset {query.offset}; lower offset."
    readings = (snapshot.stored.readings.get(asset.ticker, {}).values() for asset in assets)
    if not any(query.timeframe in (None, *cells) for own in readings for cells in own):
        return f"No row matched. {explain_missing_reading(snapshot, assets)}"
    again = explain_next_call(snapshot)
    if since > begin:
        # nothing_new_before says the same, and pollers read this most of the time.
        return "No such row has come since then." + f" {again}" * (again != NEXT_CALL)
    return f"No row matched; rows are kept from {format_instant(begin)}. {again}"


def _find_beginning(query: SignalsQuery, snapshot: Snapshot) -> int:
    """Return the time (epoch ms) at which the rows of the requested tiers begin."""
    kept_ms = RETENTION_MS["alerts" if query.tier == "alerts" else "universe"]
    return max(snapshot.stored.history_starts_at or 0, snapshot.market_time - kept_ms)


def _explain_impossible(query: SignalsQuery, wanted: FeedQuery, snapshot: Snapshot) -> str | None:
    """Return why no row can ever match the filters; None if one can."""
    assets = _list_assets(wanted, snapshot) if query.tier == "alerts" else ()
    followed = merge_timeframes(asset.alerts for asset in assets)
    if (query.tier, query.direction) == ("universe", "exit"):
        reason = "exit is a direction of the alerts tier only; no universe row can match."
    elif (query.tier, query.direction) == ("alerts", "neutral"):
        reason = "neutral is a direction of the universe tier only; no alert can match."
    elif query.tier == "universe" and wanted.indicator in {
        each.id for each in snapshot.coverage.indicators if not each.logged
    }:
        reason = (
            f"Changes of {wanted.indicator} are not logged on the universe tier; "
            "read its current readings from state and its actions from tier=alerts."
        )
    elif query.tier == "alerts" and not (
        followed if query.timeframe is None else query.timeframe in followed
    ):
        engines = "this deployment has no data for any asset with alert engines."
        if tickers := [asset.ticker for asset in snapshot.coverage.assets if asset.alerts]:
            timeframes = merge_timeframes(asset.alerts for asset in snapshot.coverage.assets)
            engines = f"the engines follow {', '.join(tickers)} on {' and '.join(timeframes)}."
        reason = f"No alert engine follows this ticker and timeframe; {engines}"
    else:
        return None
    return f"{reason} {NO_CALL}"


def _list_assets(wanted: FeedQuery, snapshot: Snapshot) -> Collection[CoveredAsset]:
    if wanted.tickers is None:
        return snapshot.assets.values()
    return [snapshot.assets[ticker] for ticker in wanted.tickers]


GET_SIGNALS = Tool(
    name="signals_get_signals",
    title="Feed of changes and alerts",
    description=DESCRIPTION,
    query=SignalsQuery,
    result=SignalsResponse,
    handler=render_signals,
    render_at_once=render_signals_at_once,
    check=_check_filter,
    meta={"anthropic/maxResultSizeChars": 60_000},
)
