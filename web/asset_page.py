"""The list of all assets, and the page of each: live for members, else the sample or facts.

The chart of an asset shows one snapshot: time axis, candles, lanes of readings and marks.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogQuery
from schemas.coverage import CoveredAsset
from schemas.errors import ApiError
from schemas.query import Query
from schemas.state import StateQuery
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    ALERTS_RETENTION_MS,
    COOLDOWN_CANDLES,
    DAY_MS,
    HOUR_MS,
    INDICATOR_IDS,
    LEGACY_KEYS,
    LOGGED_IDS,
    READING_NAMES,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    AssetClass,
    Direction,
    IndicatorId,
    Reading,
    StoredKey,
    Timeframe,
    compute_midnight_s,
    find_latest_run,
)
from serving.argument_values import find_asset
from serving.context import Context, find_history_start
from serving.freshness import format_removed_note
from serving.http import CACHE_ONE_MINUTE
from serving.prices import NO_COLUMNS, BarColumns
from serving.signal_rows import FeedQuery, build_signal
from serving.tool_runner import ToolRunner
from store.market_rows import AlertRow, ChangeRow, FeedRow
from web.board import BADGES, CLASS_NAMES, AssetPageQuery, parse_page_query, read_one_version
from web.pages import build_page_route, format_minute, render_page, respond_with_page
from web.sessions import FindViewer
from web.value_texts import format_age, format_price

MAX_TICKS = 9
HOURS_PER_TICK = (1, 3, 6, 12, 24, 48, 120, 168, 336)
MONTHS_PER_TICK = (1, 2, 3, 6, 12)


# A label of the axis and its position.
Tick = tuple[float, str]
# A reading, and where its stretch of the axis begins and ends.
Span = tuple[Reading, float, float]


class TimeAxis:
    """Bars side by side, each one unit wide, so that hours without trading take no room."""

    def __init__(self, opens: Sequence[int], timeframe: Timeframe) -> None:
        self.opens = opens
        # The engine closes bars by the same rule: a bar that ends off its boundary closes at the
        # next one.
        period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
        self.closes = [-(-(at + period) // period) * period for at in opens]

    def __len__(self) -> int:
        return len(self.opens)

    @property
    def size(self) -> int:
        """The length of the axis in bars, with room after the last one for the current readings."""
        # So that a change at the last close is seen.
        return len(self) + max(1, round(0.02 * len(self)))

    def place(self, at: int) -> float:
        """Return the position of a time, between 0 and the number of bars."""
        index = bisect_left(self.closes, at)
        if index == len(self):
            return float(index)
        opened, closed = self.opens[index], self.closes[index]
        return round(index + max(0.0, (at - opened) / (closed - opened)), 3)

    def find_bar(self, closed_at: int) -> int | None:
        """Return the index of the bar that closes at a time."""
        index = bisect_left(self.closes, closed_at)
        return index if index < len(self) and self.closes[index] == closed_at else None

    def list_ticks(self) -> list[Tick]:
        """Return evenly spaced ticks at full hours, days or months, at most `MAX_TICKS`."""
        days = [datetime.fromtimestamp(at / 1000, UTC) for at in self.opens]
        for hours in HOURS_PER_TICK:
            starts = self._list_starts([at // (hours * HOUR_MS) for at in self.opens])
            if len(starts) <= MAX_TICKS:
                # The date at the first bar of a day, the time at any other.
                return [
                    (
                        i,
                        f"{days[i]:%H:%M}"
                        if days[i].date() == days[i - 1].date()
                        else f"{days[i]:%b} {days[i].day}",
                    )
                    for i in starts
                ]
        months = [day.year * 12 + day.month - 1 for day in days]
        for number in MONTHS_PER_TICK:
            starts = self._list_starts([month // number for month in months])
            if len(starts) <= MAX_TICKS:
                break
        return [(i, f"{days[i]:%b %Y}") for i in starts]

    def _list_starts(self, periods: Sequence[int]) -> list[int]:
        """Return the bars that begin a new period; the first bar may lie inside one."""
        return [i for i, (one, next_) in enumerate(pairwise(periods), 1) if one != next_]


def build_lanes(
    rows: Sequence[ChangeRow],
    now: Mapping[StoredKey, Reading],
    indicators: Sequence[IndicatorId],
    axis: TimeAxis,
    begins: int,
    ends: int,
) -> dict[IndicatorId, list[Span]]:
    """Return the lane of each indicator: its readings over time, empty if it has none.

    `rows` are all changes of one asset and timeframe from `begins` to `ends`, oldest first; `now`
    holds the readings at the end. A reading changes at the close of the bar that changed it.
    """
    lanes = {}
    for indicator in indicators:
        own = [row for row in rows if row.indicator == indicator]
        # The reading before the first change is its `before`, None if it is the very first reading.
        before = own[0].before if own else None
        first = None if before is None else READING_NAMES[before]
        readings: list[Reading | None] = [first if own else now.get(indicator)]
        readings += [READING_NAMES[row.after] for row in own]
        times = [begins, *(min(max(row.close_time * 1000, begins), ends) for row in own)]
        positions = [*(axis.place(at) for at in times), float(axis.size)]
        lanes[indicator] = [
            (reading, start, end)
            for reading, (start, end) in zip(readings, pairwise(positions), strict=True)
            if reading is not None and start < end
        ]
    return lanes


# Heights in pixels. The width of a bar is in units that the browser stretches to the page.
PRICE_HEIGHT, PADDING, VOLUME_HEIGHT = 260, 18, 36
LANE_HEIGHT, LANE_STEP = 16, 22
BAR_WIDTH = 10
MARK_STEP, ALERT_STEP = 9, 5
# Half the height of the largest mark, so that none is cut at an edge.
MARK_HEIGHT = 9
PRICE_TICKS = 7
# A change or alert at the close of the bar that fired it, see `build_marks`.
Mark = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """The parts of a chart; positions on the axis are in bars, heights in pixels.

    `bars` is empty without prices. Up to `silent`, the readings were computed afterwards and never
    published; 0 if all were published.
    """

    axis: TimeAxis
    bars: BarColumns
    lanes: Mapping[IndicatorId, Sequence[Span]]
    marks: Sequence[Mark]
    names: Mapping[str, str]
    silent: float

    @property
    def price_height(self) -> int:
        """The height of the pane above the lanes."""
        return PRICE_HEIGHT if self.bars.opens else 0

    @property
    def ticks(self) -> list[Tick]:
        """The labels of the time axis; `x` is a percentage."""
        return [(self.to_percent(x), label) for x, label in self.axis.list_ticks()]

    def to_percent(self, x: float) -> float:
        """Return a position as a percentage of the chart's width."""
        return round(100 * x / self.axis.size, 2)

    def list_price_ticks(self) -> list[tuple[float, str]]:
        """Return the height and label of round prices."""
        low, high = self._price_range
        step = find_step(high - low)
        decimals = max(0, -math.floor(math.log10(step)))
        first = math.ceil(low / step)
        prices = [step * n for n in range(first, math.floor(high / step) + 1)]
        return [(self.find_y(price), f"{price:,.{decimals}f}") for price in prices]

    @cached_property
    def _price_range(self) -> tuple[float, float]:
        low, high = min(self.bars.lows), max(self.bars.highs)
        # A market that has not moved still needs a range.
        return (low, high) if low < high else (low * 0.99, high * 1.01)

    def find_y(self, price: float) -> float:
        """Return the height of a price from the top."""
        low, high = self._price_range
        room = PRICE_HEIGHT - 2 * PADDING
        return round(PADDING + (high - price) / (high - low) * room, 1)

    def find_mark_y(self, mark: Mark) -> float:
        """Return the height of a mark: bullish ones stand below their bar, the others above it."""
        bar: int = mark["bar"]
        away: float = (
            PADDING / 2 + MARK_STEP * mark["level"] + ALERT_STEP * (mark["kind"] != "change")
        )
        if mark["direction"] == "bullish":
            return min(self.find_y(self.bars.lows[bar]) + away, PRICE_HEIGHT - MARK_HEIGHT)
        return max(self.find_y(self.bars.highs[bar]) - away, MARK_HEIGHT)

    def draw_candles(self, *, rising: bool) -> str:
        """Return the path of the candles that closed higher, or of the others."""
        path = []
        for i, (open_, high, low, close) in enumerate(zip(*self.bars[1:5], strict=True)):
            if (close >= open_) == rising:
                top, bottom = self.find_y(max(open_, close)), self.find_y(min(open_, close))
                x = BAR_WIDTH * i
                path.append(f"M{x + 5} {self.find_y(high)}V{self.find_y(low)}")
                path.append(f"M{x + 2} {top}h6V{bottom}h-6z")
        return "".join(path)

    def draw_line(self) -> str:
        """Return the path through the closes, for screens too narrow for candles."""
        points = [f"{BAR_WIDTH * i + 5} {self.find_y(c)}" for i, c in enumerate(self.bars.closes)]
        return "M" + "L".join(points)

    def draw_volumes(self) -> str:
        """Return the path of the volumes at the bottom of the pane."""
        scale = VOLUME_HEIGHT / (max(self.bars.volumes) or 1)
        return "".join(
            f"M{BAR_WIDTH * i + 2} {PRICE_HEIGHT}h6v-{round(volume * scale, 1)}h-6z"
            for i, volume in enumerate(self.bars.volumes)
        )

    def to_json(self) -> str:
        """Return the script's words on each bar."""
        document = {
            "size": self.axis.size,
            "opens": [at // 1000 for at in self.axis.opens],
            "closes": [at // 1000 for at in self.axis.closes],
            # Enough digits for every price of the universe, and half as long as the shortest exact
            # text.
            "bars": [[float(f"{v:.8g}") for v in column] for column in self.bars[1:]]
            if self.bars.opens
            else None,
            "lanes": [
                {"name": self.names[indicator], "spans": spans}
                for indicator, spans in self.lanes.items()
            ],
        }
        return json.dumps(document, separators=(",", ":"))


def build_marks(
    changes: Sequence[ChangeRow],
    alerts: Sequence[AlertRow],
    axis: TimeAxis,
    names: Mapping[str, str],
    begins: int,
) -> list[Mark]:
    """Return the marks of changes and alerts from `begins` (epoch ms) on, oldest first.

    `alerts` include those of one cooldown before `begins`, newest first. Of a mark, `kind` is
    change, alert or held, and `bar` is None if the chart has no such bar. `level` counts the
    earlier marks on the same side of that bar.
    """
    held = find_held_alerts(alerts)
    described: list[tuple[str, Direction, ChangeRow | AlertRow, str]] = []
    for row in changes:
        if row.before is not None:
            before, after = READING_NAMES[row.before], READING_NAMES[row.after]
            text = f"{names.get(row.indicator, row.indicator)}: {before} → {after}"
            described.append(("change", after, row, text))
    for alert in alerts:
        text = f"Alert {alert.action} of {names.get(alert.indicator, alert.indicator)}"
        if alert.id in held:
            hours = round((alert.created_at - alert.close_time * 1000) / HOUR_MS)
            text += f", held {hours} hours until {format_minute(alert.created_at)}"
        kind = "held" if alert.id in held else "alert"
        described.append((kind, ACTION_DIRECTIONS[alert.action], alert, text))
    levels: dict[tuple[int | None, bool], int] = {}
    marks = []
    for kind, direction, fired, text in sorted(described, key=lambda one: one[2].close_time):
        at = fired.close_time * 1000
        if at < begins or not len(axis) or at > axis.closes[-1]:
            continue
        bar = axis.find_bar(at)
        side = (bar, direction == "bullish")
        levels[side] = levels.get(side, -1) + 1
        shape = {"bullish": "up", "bearish": "down"}.get(direction, "flat")
        marks.append(
            {
                "kind": kind,
                "direction": direction,
                "shape": shape if kind == "change" else f"alert-{shape}",
                "indicator": fired.indicator,
                "x": axis.place(at),
                "bar": bar,
                "level": levels[side],
                "text": f"{format_minute(at)}\n{text}\nPrice {format_price(fired.price)}",
            }
        )
    return marks


def find_held_alerts(alerts: Sequence[AlertRow]) -> set[str]:
    """Return the ids of the alerts that the cooldown held; `alerts` are newest first.

    The same action was published before, and its cooldown had not ended when the alert fired.
    """
    ends: dict[tuple[str, str, str], int] = {}
    held = set()
    for row in reversed(alerts):
        cell = (row.indicator, row.timeframe, row.action)
        if row.close_time * 1000 < ends.get(cell, 0):
            held.add(row.id)
        hour = find_latest_run(row.created_at) - RUN_DELAY_MS
        ends[cell] = hour + COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[row.timeframe] * 1000
    return held


def find_step(size: float) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that gives about `PRICE_TICKS` ticks."""
    rough = size / PRICE_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next((n for n in (1, 2, 5) if n * power >= rough), 10)


CHART_DAYS: dict[Timeframe, int] = {"1h": 14, "4h": 60, "1d": 365}
# An asset has about 90 changes on a chart; the page lists the newest of them.
MAX_ROWS = 30
MAX_ALERTS = 1000


async def load_asset_model(
    asset: CoveredAsset, timeframe: Timeframe, context: Context
) -> dict[str, Any]:
    """Return the current readings of an asset, its chart, and the newest rows of its feed.

    `changed_at` has the close (epoch ms) of the bar that changed a reading last, by key and
    timeframe; `fired_at` that of each row in `rows`. `held` are the ids of the rows that the
    cooldown held. `chart` is None without bars and readings, `price` without prices. ApiError
    `unavailable` before the first run.
    """
    snapshot = await context.snapshot()
    state = await get_state(StateQuery(ticker=asset.ticker, detail="changes"), context)
    catalog = await get_catalog(CatalogQuery(ticker=asset.ticker), context)
    names: dict[str, str] = {indicator.id: indicator.name for indicator in catalog.indicators}
    for legacy in catalog.legacy_indicator_keys:
        if legacy.alias_of in names:
            names[legacy.id] = f"{legacy.name} (outdated, now {names[legacy.alias_of]})"
    # The readings hold until now, until the removal, or until the end of the bars.
    ends = min(snapshot.market_time, asset.outdated_from or snapshot.market_time)
    if asset.removed_on is not None:
        ends = min(ends, compute_midnight_s(asset.removed_on) * 1000)
    begins = ends - CHART_DAYS[timeframe] * DAY_MS
    bars, prices = NO_COLUMNS, None
    if context.prices is not None:
        bars = await context.prices.load_bars(asset.ticker, timeframe, begins)
        prices = await context.prices.load_summaries()
    ledger, until = await context.snapshots.ledger(snapshot), snapshot.stored.last_created_at
    history = ledger.find_history(asset.ticker, timeframe, begins, until)
    # The alerts of one cooldown before the chart decide which of its alerts were held.
    cooldown = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[timeframe] * 1000
    after = max(begins - cooldown, snapshot.market_time - ALERTS_RETENTION_MS)
    wanted = FeedQuery(
        *("alerts", after, after, until, MAX_ALERTS), tickers=(asset.ticker,), timeframe=timeframe
    )
    places, _ = ledger.find_page(wanted)
    alerts = [row for row in ledger.build_rows(places) if isinstance(row, AlertRow)]
    changes = [row for row in history if row.timeframe == timeframe and row.created_at > begins]
    readings, begun = {}, {}
    if state.assets:
        readings, begun = state.assets[0].signals, state.assets[0].changes or {}
    now = {key: cells[timeframe] for key, cells in readings.items() if timeframe in cells}
    published_from = find_history_start(snapshot)
    chart = build_chart(changes, alerts, now, names, bars, timeframe, begins, ends, published_from)
    # The newest rows of the feed of both tiers, by the bars that fired.
    shown: list[FeedRow] = [row for row in changes if row.published]
    shown += [row for row in alerts if row.created_at > begins]
    newest = sorted(shown, key=lambda row: row.created_at)[-MAX_ROWS:]
    rows = sorted(newest, key=lambda row: (row.close_time, row.created_at), reverse=True)
    return {
        "meta": state.meta,
        "readings": readings,
        # The price at which each reading began and the move since, if it has changed.
        "changes": begun,
        "names": names,
        "as_of": snapshot.market_time,
        "changed_at": {(row.indicator, row.timeframe): row.close_time * 1000 for row in history},
        "chart": chart,
        "rows": [
            build_signal(
                row,
                snapshot.assets[row.ticker].asset_class,
                snapshot.get_indicator_name(row.indicator),
            )
            for row in rows
        ],
        "fired_at": {row.id: row.close_time * 1000 for row in rows},
        "held": frozenset(find_held_alerts(alerts)),
        "price": None if prices is None else prices.get(asset.ticker),
    }


def build_chart(
    changes: Sequence[ChangeRow],
    alerts: Sequence[AlertRow],
    now: Mapping[StoredKey, Reading],
    names: Mapping[str, str],
    bars: BarColumns,
    timeframe: Timeframe,
    begins: int,
    ends: int,
    published_from: int,
) -> Chart | None:
    """Return the chart of bars up to `ends`, and of readings from `begins` on; None if empty.

    Without bars, the axis covers the time of the readings. Changes are marked from `published_from`
    (epoch ms) on.
    """
    if not bars.opens:
        # That of a market that never closes.
        period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
        first = -(-begins // period) * period
        axis = TimeAxis(range(first, ends - period + 1, period), timeframe)
    else:
        axis = TimeAxis(bars.open_times, timeframe)
    if not len(axis) or (not bars.opens and not now):
        return None
    # A first start computes its history in silence, and a later universe that of its new assets.
    turns = [row for row in changes if row.before is not None and row.indicator in LOGGED_IDS]
    silent_until = [row.close_time * 1000 for row in turns if not row.published]
    published_from = max([published_from, *silent_until])
    lanes = build_lanes(changes, now, INDICATOR_IDS, axis, begins, ends) if begins < ends else {}
    marks = build_marks(changes, alerts, axis, names, max(published_from, axis.opens[0]))
    shown = {indicator: spans for indicator, spans in lanes.items() if spans}
    # One bar more or less is not worth a mention.
    silent = axis.place(published_from)
    if not shown or silent - min(spans[0][1] for spans in shown.values()) < 1:
        silent = 0.0
    elif silent >= len(axis):
        silent = axis.size
    return Chart(axis, bars, shown, marks, names, silent)


class AssetListQuery(Query):
    """The filters of the list; an asset must match both."""

    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")


@dataclass(frozen=True, slots=True)
class AssetPages:
    """The list and the page of each asset; visitors see the `sample`."""

    context: Context
    sample: Context
    find_viewer: FindViewer

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        return [
            build_page_route("/assets", runner, self.show_list),
            build_page_route("/assets/{ticker}", runner, self.show_asset),
        ]

    async def show_asset(self, request: Request) -> Response:
        """Return the page of an asset; ApiError 404 for an unknown ticker."""
        timeframe = parse_page_query(request, AssetPageQuery).timeframe
        coverage = await self.context.coverage()
        try:
            asset = find_asset(
                request.path_params["ticker"], {asset.ticker: asset for asset in coverage.assets}
            )
        except ApiError as unknown:
            # The tools answer 400 for a wrong argument; here the ticker is part of the path.
            raise ApiError(unknown.code, unknown.message, 404) from None
        viewer = await self.find_viewer(request)

        async def draw() -> Response:
            is_member = viewer is not None and viewer.is_member
            context = self.context if is_member else self.sample
            # The sample lacks most assets.
            held = (await context.snapshot()).assets
            shown, model = asset if is_member else held.get(asset.ticker), None
            if shown is not None:
                model = await read_one_version(
                    context, lambda: load_asset_model(shown, timeframe, context)
                )
            values = build_asset_values(asset, timeframe, model)
            # In the order of the board.
            classes = [*CLASS_NAMES]
            assets = sorted(coverage.assets, key=lambda a: (classes.index(a.asset_class), a.ticker))
            is_sample = values["is_sample"]
            listed = [None, *(a for a in assets if not is_sample or a.ticker in held), None]
            place = next(i for i, each in enumerate(listed) if each and each.ticker == asset.ticker)
            return render_page(
                request,
                "asset.html",
                viewer=viewer,
                path=f"assets/{asset.ticker}",
                assets=assets,
                previous=listed[place - 1],
                next=listed[place + 1],
                **values,
            )

        # The page contains no text from the URL but the names of its asset and timeframe.
        key = f"assets/{asset.ticker}?{timeframe}"
        return await respond_with_page(request, self.context, viewer, key, draw)

    async def show_list(self, request: Request) -> Response:
        """Return the list of all assets that match the filters."""
        query = parse_page_query(request, AssetListQuery)
        is_unfiltered = query == AssetListQuery()
        viewer = await self.find_viewer(request)

        async def draw() -> Response:
            tracked = (await self.context.coverage()).tracked
            text = (query.text or "").casefold().strip()
            found = [
                asset
                for asset in tracked
                if query.asset_class in (None, asset.asset_class)
                and text in f"{asset.ticker} {asset.name}".casefold()
            ]
            groups = [
                (kind, name, [asset for asset in found if asset.asset_class == kind])
                for kind, name in CLASS_NAMES.items()
            ]
            response = render_page(
                request,
                "asset_list.html",
                title="Assets",
                description="All assets that the service covers: crypto assets, stocks and "
                "metals, with their timeframes.",
                here="assets",
                is_wide=True,
                is_public=is_unfiltered,
                viewer=viewer,
                query=query,
                is_unfiltered=is_unfiltered,
                classes=CLASS_NAMES,
                groups=[group for group in groups if group[2]],
                shown=len(found),
                total=len(tracked),
            )
            if viewer is None and is_unfiltered:
                response.headers["Cache-Control"] = CACHE_ONE_MINUTE
            return response

        key = "assets" if is_unfiltered else None
        return await respond_with_page(request, self.context, viewer, key, draw)


def build_asset_values(
    asset: CoveredAsset, timeframe: Timeframe, model: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the values with which a template renders an asset; `model` is None without data."""
    source = None if model is None else model["meta"].source
    title = asset.name if f"({asset.ticker})" in asset.name else f"{asset.name} ({asset.ticker})"
    return {
        "title": title,
        "description": f"Indicator readings of {asset.name} on 1h, 4h and 1d.",
        "badge": BADGES[source] if source else "",
        "is_wide": True,
        "is_public": source in (None, "sample"),
        "is_sample": source == "sample",
        "covered": asset,
        "kind": CLASS_NAMES[asset.asset_class],
        "removed": format_removed_note(asset) if asset.removed_on else None,
        "timeframe": timeframe,
        "timeframes": TIMEFRAMES,
        "addresses": [(each, f"timeframe={each}") for each in TIMEFRAMES],
        "legacy": LEGACY_KEYS,
        "days": CHART_DAYS[timeframe],
        "bar_width": BAR_WIDTH,
        "lane_height": LANE_HEIGHT,
        "lane_step": LANE_STEP,
        "format_age": format_age,
        "model": model,
    }
