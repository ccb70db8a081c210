"""The pages of three tools: their words, and their rows as CSV."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_flips import GET_FLIPS, WINDOW_HOURS
from mcp_server.tools.get_signals import GET_SIGNALS
from schemas.confluence import ConfluenceResponse
from schemas.flips import FlipsResponse
from schemas.signals import Signal, SignalsQuery, SignalsResponse
from schemas.vocabulary import HOUR_MS, INDICATOR_IDS, Instant, format_instant
from serving.argument_values import find_assets, find_indicator, parse_instant_ms
from serving.context import Context
from serving.freshness import format_removed_note
from serving.tool_runner import AnyTool
from web.board_model import CLASS_NAMES
from web.csv_text import Cell
from web.filter_form import FormTexts
from web.pages import format_minute

# A header and its rows.
Table = tuple[Sequence[str], Iterable[Sequence[Cell]]]


@dataclass(frozen=True, slots=True)
class View:
    """A page that shows one tool's result.

    `list_rows` returns what the page lists. `build_table` returns the header and rows of the CSV
    file. `wider` has, by argument, values that may match more than the one that was chosen, best
    first; the default of an argument is always one of them. `explain` returns texts for errors of
    arguments whose range depends on others or on the data. `explain_nothing` returns why no row
    can match a query, empty if one may.
    """

    path: str
    title: str
    description: str
    tool: AnyTool
    texts: FormTexts
    list_rows: Callable[[Any], Sequence[Any]]
    build_table: Callable[[Any], Table]
    wider: Callable[[Any], Mapping[str, Sequence[Any]]]
    nothing: str
    explain: Callable[[Mapping[str, Any], Context], Mapping[str, str]] = lambda sent, context: {}
    explain_nothing: Callable[[Any, Context], str] = lambda query, context: ""


def _build_feed_table(result: SignalsResponse) -> Table:
    header = (
        *("created_at", "tier", "ticker", "asset_class", "indicator", "timeframe", "direction"),
        *("from", "to", "change_type", "action", "price", "id", "source"),
    )
    rows = (
        (
            *(row.created_at, row.tier, row.ticker, row.asset_class, row.indicator),
            *(row.timeframe, row.direction),
            *((row.transition.from_, row.transition.to) if row.transition else (None, None)),
            *(row.change_type, row.action, row.price, row.id, result.meta.source),
        )
        for row in result.signals
    )
    return header, rows


def _build_flips_table(result: FlipsResponse) -> Table:
    header = (
        *("created_at", "ticker", "name", "asset_class", "timeframe", "indicator", "from", "to"),
        *("change_type", "price", "dominant", "score", "as_of", "source"),
    )
    rows = (
        (
            *(flip.created_at, group.ticker, group.name, group.asset_class),
            *(result.query.timeframe, flip.indicator, flip.from_, flip.to),
            *(flip.change_type, flip.price, group.dominant, group.score),
            *(result.as_of, result.meta.source),
        )
        for group in result.groups
        for flip in group.flips
    )
    return header, rows


def _build_confluence_table(result: ConfluenceResponse) -> Table:
    keys = list_vote_keys(result)
    header = (
        *("ticker", "name", "asset_class", "timeframe", "direction", "agree"),
        *("total_reporting", "score", *keys, "as_of", "source"),
    )
    rows = (
        (
            *(one.ticker, one.name, one.asset_class, result.query.timeframe),
            *(result.query.direction, one.agree, one.total_reporting, one.score),
            *(one.votes.get(key) for key in keys),
            *(result.as_of, result.meta.source),
        )
        for one in result.results
    )
    return header, rows


def _explain_hours(sent: Mapping[str, Any], context: Context) -> Mapping[str, str]:
    timeframe = sent.get("timeframe", "1d")
    if timeframe not in WINDOW_HOURS:
        return {}
    longest = WINDOW_HOURS[timeframe].max
    return {"hours": f"Enter a whole number from 1 to {longest} for {timeframe}."}


def _explain_past(sent: Mapping[str, Any], context: Context) -> Mapping[str, str]:
    latest = context.snapshots.last
    if latest is None:
        return {}
    first, last = map(format_minute, context.find_history_bounds(latest))
    return {"as_of": f"Choose a time from {first} to {last}."}


def _explain_no_rows(query: SignalsQuery, context: Context) -> str:
    snapshot = context.snapshots.last
    if snapshot is None:
        return ""
    indicator = query.indicator and find_indicator(query.indicator, snapshot.coverage)
    is_logged = indicator is None or indicator in {one.id for one in snapshot.coverage.logged}
    if query.tier == "universe" and not is_logged:
        return "Changes of this indicator are not recorded, only its alerts."
    selected = {} if query.ticker is None else find_assets(query.ticker, snapshot.assets)
    if len(selected) != 1:
        return ""
    (asset,) = selected.values()
    if snapshot.is_removed(asset):
        return format_removed_note(asset)
    if not asset.timeframes:
        return f"This service has no data for {asset.ticker}."
    if query.tier == "alerts" and not asset.alerts:
        return f"No alert engine follows {asset.ticker}."
    return ""


def find_firing(row: Signal) -> Instant | None:
    """Return when a held alert fired; None for an alert that the next run published."""
    # The id of an alert has the close of the bar on which it fired, in seconds.
    fired_at = 1000 * int(row.id.rsplit(".", 3)[1])
    is_held = parse_instant_ms("created_at", row.created_at) - fired_at > HOUR_MS
    return format_instant(fired_at) if is_held else None


def list_vote_keys(result: ConfluenceResponse) -> list[Any]:
    """Return the columns of votes: the current indicators, and outdated ones that voted."""
    return [*INDICATOR_IDS, *result.meta.legacy_keys]


_DIRECTIONS = {"": "Any", "exit": "Exit (CLOSE)"}
_TIMEFRAMES = {"": "Any", "1h": "1h", "4h": "4h", "1d": "1d"}
FEED = View(
    path="feed",
    title="Feed",
    description="Every change of a reading and every alert, newest first.",
    tool=GET_SIGNALS,
    texts=FormTexts(
        labels={"tier": "Show", "ticker": "Asset", "since": "Since (UTC)", "limit": "Rows a page"},
        values={
            "tier": {"universe": "Changes", "alerts": "Alerts", "all": "Changes and alerts"},
            "timeframe": _TIMEFRAMES,
            "direction": _DIRECTIONS,
            "order": {"newest": "Newest first", "oldest": "Oldest first"},
        },
        main=("tier", "ticker", "indicator", "timeframe", "direction"),
    ),
    list_rows=lambda result: result.signals,
    build_table=_build_feed_table,
    wider=lambda query: {"tier": ["all"]},
    nothing="No change or alert matches.",
    explain_nothing=_explain_no_rows,
)
FLIPS = View(
    path="flips",
    title="Flips",
    description="The latest change of each indicator, by asset; most changes first.",
    tool=GET_FLIPS,
    texts=FormTexts(
        labels={"hours": "Hours back"},
        values={"timeframe": _TIMEFRAMES, "direction": {"all": "Any"}},
        main=("timeframe", "direction", "hours"),
    ),
    list_rows=lambda result: result.groups,
    build_table=_build_flips_table,
    wider=lambda query: {"hours": [WINDOW_HOURS[query.timeframe].max]},
    nothing="No reading changed in these hours.",
    explain=_explain_hours,
)
CONFLUENCE = View(
    path="confluence",
    title="Confluence",
    description="Assets on which several indicators agree. A count of readings, not a forecast.",
    tool=GET_CONFLUENCE,
    texts=FormTexts(
        labels={"min_agree": "Agreeing", "asset_class": "Class", "as_of": "At a past time (UTC)"},
        values={
            "timeframe": _TIMEFRAMES,
            "min_agree": {str(count): f"{count} or more" for count in range(1, 10)},
            "asset_class": {"": "All", **{str(kind): name for kind, name in CLASS_NAMES.items()}},
        },
        main=("timeframe", "direction", "min_agree", "asset_class"),
    ),
    list_rows=lambda result: result.results,
    build_table=_build_confluence_table,
    wider=lambda query: {"min_agree": range(query.min_agree - 1, 0, -1)},
    nothing="No asset has so many agreeing indicators.",
    explain=_explain_past,
)
VIEWS = (FEED, FLIPS, CONFLUENCE)
