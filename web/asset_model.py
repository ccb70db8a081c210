"""The data of an asset's page, of one snapshot. Only members see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogQuery, CatalogResponse
from schemas.coverage import CoveredAsset
from schemas.signals import Signal
from schemas.state import StateQuery, StateResponse
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    COOLDOWN_CANDLES,
    DAY_MS,
    INDICATOR_IDS,
    TIMEFRAME_DURATIONS_S,
    Reading,
    StoredKey,
    Timeframe,
    compute_midnight_s,
)
from serving.context import Context, find_history_start
from serving.prices import BarColumns, PriceSummary
from serving.signal_rows import FeedQuery, to_signal
from serving.snapshot import Snapshot
from store.market_rows import AlertRow, ChangeRow, FeedRow
from web.asset_chart import Chart, build_marks, find_held_alerts
from web.timeline import TimeAxis, build_lanes

CHART_DAYS: dict[Timeframe, int] = {"1h": 14, "4h": 60, "1d": 365}
# An asset has about 90 changes on a chart; the page lists the newest of them.
MAX_ROWS = 30
MAX_ALERTS = 1000


@dataclass(frozen=True, slots=True)
class AssetModel:
    """The current readings of an asset, its chart, and the newest rows of its feed.

    `changed_at` has the close (epoch ms) of the bar that changed a reading last, by key and
    timeframe; `fired_at` that of each row in `rows`. `held` are the ids of the rows that the
    cooldown held. `chart` is None without bars and readings, `price` without prices.
    """

    state: StateResponse
    names: Mapping[str, str]
    as_of: int
    changed_at: Mapping[tuple[str, str], int]
    chart: Chart | None
    rows: Sequence[Signal]
    fired_at: Mapping[str, int]
    held: frozenset[str]
    price: PriceSummary | None

    @property
    def readings(self) -> Mapping[StoredKey, Mapping[Timeframe, Reading]]:
        """The readings by stored key and timeframe; empty if the asset has none."""
        return self.state.assets[0].signals if self.state.assets else {}


async def load_asset_model(
    asset: CoveredAsset, timeframe: Timeframe, context: Context
) -> AssetModel:
    """Return the data of the page; ApiError `unavailable` before the first run."""
    snapshot = await context.snapshot()
    state = await get_state(StateQuery(ticker=asset.ticker), context)
    names = build_names(await get_catalog(CatalogQuery(ticker=asset.ticker), context))
    ends = _find_end(snapshot.market_time, asset)
    begins = ends - CHART_DAYS[timeframe] * DAY_MS
    bars = await _load_bars(asset, timeframe, begins, context)
    ledger, until = await context.snapshots.ledger(snapshot), snapshot.stored.last_created_at
    history = ledger.find_history(asset.ticker, timeframe, begins, until)
    places, _ = ledger.find_page(_build_alerts_query(asset, timeframe, begins, snapshot))
    alerts = [row for row in ledger.build_rows(places) if isinstance(row, AlertRow)]
    lanes_begin = max(begins, find_history_start(snapshot))
    changes = [r for r in history if r.timeframe == timeframe and r.created_at > lanes_begin]
    readings = state.assets[0].signals if state.assets else {}
    now = {key: cells[timeframe] for key, cells in readings.items() if timeframe in cells}
    chart = build_chart(changes, alerts, now, names, bars, timeframe, lanes_begin, ends)
    prices = await context.prices.load_summaries() if context.prices else {}
    rows = _list_newest(changes, alerts, begins)
    return AssetModel(
        state=state,
        names=names,
        as_of=snapshot.market_time,
        changed_at={(row.indicator, row.timeframe): row.close_time * 1000 for row in history},
        chart=chart,
        rows=[to_signal(row, snapshot) for row in rows],
        fired_at={row.id: row.close_time * 1000 for row in rows},
        held=frozenset(find_held_alerts(alerts)),
        price=prices.get(asset.ticker),
    )


def build_chart(
    changes: Sequence[ChangeRow],
    alerts: Sequence[AlertRow],
    now: Mapping[StoredKey, Reading],
    names: Mapping[str, str],
    bars: BarColumns | None,
    timeframe: Timeframe,
    begins: int,
    ends: int,
) -> Chart | None:
    """Return the chart of bars up to `ends`, and of readings from `begins` on; None if empty.

    Without bars, the axis covers the time of the readings.
    """
    if bars is None:
        axis = TimeAxis.build_regular(begins, ends, timeframe)
    else:
        axis = TimeAxis(bars.open_times, timeframe)
    if not len(axis) or (bars is None and not now):
        return None
    lanes = build_lanes(changes, now, INDICATOR_IDS, axis, begins, ends) if begins < ends else []
    marks = build_marks(changes, alerts, axis, names, max(begins, axis.opens[0]))
    return Chart(axis, bars, [lane for lane in lanes if lane.spans], marks, names, begins)


async def _load_bars(
    asset: CoveredAsset, timeframe: Timeframe, begins: int, context: Context
) -> BarColumns | None:
    """Return the bars of the chart, None if there are none or the operator shows no prices."""
    if context.prices is None:
        return None
    bars = await context.prices.load_bars(asset.ticker, timeframe, begins)
    return bars if bars.open_times else None


def _build_alerts_query(
    asset: CoveredAsset, timeframe: Timeframe, begins: int, snapshot: Snapshot
) -> FeedQuery:
    """Return the query for the alerts from one cooldown before `begins` on.

    The earlier ones decide which alerts were held.
    """
    cooldown = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[timeframe] * 1000
    after = max(begins - cooldown, snapshot.market_time - ALERTS_RETENTION_MS)
    return FeedQuery(
        "alerts",
        after,
        after,
        snapshot.stored.last_created_at,
        limit=MAX_ALERTS,
        tickers=(asset.ticker,),
        timeframe=timeframe,
    )


def _list_newest(
    changes: Sequence[ChangeRow], alerts: Sequence[AlertRow], begins: int
) -> list[FeedRow]:
    """Return the newest rows of the feed of both tiers, by the bars that fired, newest first."""
    rows: list[FeedRow] = [row for row in changes if row.published]
    rows += [row for row in alerts if row.created_at > begins]
    newest = sorted(rows, key=lambda row: row.created_at)[-MAX_ROWS:]
    return sorted(newest, key=lambda row: (row.close_time, row.created_at), reverse=True)


def _find_end(as_of: int, asset: CoveredAsset) -> int:
    """Return until when (epoch ms) the readings hold: now, the removal or the end of the bars."""
    removed_at = as_of if asset.removed_on is None else compute_midnight_s(asset.removed_on) * 1000
    return min(as_of, removed_at, asset.outdated_from or as_of)


def build_names(catalog: CatalogResponse) -> dict[str, str]:
    """Return the name of each stored key; a legacy key's name points to its successor."""
    names: dict[str, str] = {indicator.id: indicator.name for indicator in catalog.indicators}
    outdated: dict[str, str] = {
        legacy.id: f"{legacy.name} (outdated, now {names[legacy.alias_of]})"
        for legacy in catalog.legacy_indicator_keys
        if legacy.alias_of in names
    }
    return {**names, **outdated}
