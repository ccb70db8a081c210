"""The data of an asset's page, from the handlers of the tools. Only members see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_signals import get_signals
from mcp_server.tools.get_state import get_state
from mcp_server.tools.get_stats import get_stats
from schemas.catalog import CatalogQuery, CatalogResponse
from schemas.coverage import CoveredAsset
from schemas.query import NoArguments
from schemas.signals import SignalsQuery, SignalsResponse
from schemas.state import StateQuery, StateResponse
from schemas.stats import StatsResponse
from schemas.vocabulary import (
    DAY_MS,
    Instant,
    Reading,
    StoredKey,
    Timeframe,
    compute_midnight_s,
    format_instant,
)
from serving.argument_values import parse_instant_ms
from serving.context import Context
from web.timeline import Lane, build_lanes

# An asset has about 90 changes in this time, so one page of the feed (200 rows) holds them all.
TIMELINE_DAYS: dict[Timeframe, int] = {"1h": 14, "4h": 60, "1d": 365}
MAX_ROWS = 200


@dataclass(frozen=True, slots=True)
class AssetModel:
    """The current readings of an asset, and its changes between `begins` and `ends`.

    `unlogged` are the names of the indicators whose changes are not written to the feed.
    """

    state: StateResponse
    feed: SignalsResponse
    names: Mapping[StoredKey, str]
    unlogged: Sequence[str]
    begins: Instant
    ends: Instant
    lanes: list[Lane]

    @property
    def readings(self) -> Mapping[StoredKey, Mapping[Timeframe, Reading]]:
        """The readings by stored key and timeframe; empty if the asset has none."""
        return self.state.assets[0].signals if self.state.assets else {}


async def load_asset_model(
    asset: CoveredAsset, timeframe: Timeframe, context: Context
) -> AssetModel:
    """Return the data of the page; ApiError `unavailable` before the first run."""
    state = await get_state(StateQuery(ticker=asset.ticker), context)
    catalog = await get_catalog(CatalogQuery(ticker=asset.ticker), context)
    stats = await get_stats(NoArguments(), context)
    as_of = _to_ms(state.as_of)
    feed = await get_signals(
        _build_feed_query(as_of - TIMELINE_DAYS[timeframe] * DAY_MS, asset, timeframe), context
    )
    begins, ends = _find_start(as_of, timeframe, feed, stats), _find_end(as_of, asset)
    signals = state.assets[0].signals if state.assets else {}
    now = {key: cells[timeframe] for key, cells in signals.items() if timeframe in cells}
    logged = catalog.tiers.universe.indicators
    return AssetModel(
        state=state,
        feed=feed,
        names=_build_names(catalog),
        unlogged=[i.name for i in catalog.indicators if i.id not in logged],
        begins=format_instant(begins),
        ends=format_instant(ends),
        lanes=build_lanes(feed.signals, now, logged, begins, ends) if now and begins < ends else [],
    )


def _build_feed_query(since: int, asset: CoveredAsset, timeframe: Timeframe) -> SignalsQuery:
    return SignalsQuery(
        tier="all",
        ticker=asset.ticker,
        timeframe=timeframe,
        since=format_instant(since),
        limit=MAX_ROWS,
    )


def _find_start(
    as_of: int, timeframe: Timeframe, feed: SignalsResponse, stats: StatsResponse
) -> int:
    """Return the time (epoch ms) from which `feed` is complete, within the timeline's days."""
    started_at = stats.universe_tier.history_starts_at
    start = as_of if started_at is None else _to_ms(started_at)
    if feed.pagination.has_more:
        # Rows older than this page were not read, so the timeline begins with its oldest row.
        start = max(start, _to_ms(feed.signals[-1].created_at))
    return max(start, as_of - TIMELINE_DAYS[timeframe] * DAY_MS)


def _find_end(as_of: int, asset: CoveredAsset) -> int:
    """Return until when (epoch ms) the readings hold: now, the removal or the end of the bars."""
    removed_at = as_of if asset.removed_on is None else compute_midnight_s(asset.removed_on) * 1000
    return min(as_of, removed_at, asset.outdated_from or as_of)


def _build_names(catalog: CatalogResponse) -> dict[StoredKey, str]:
    """Return the name of each stored key; a legacy key's name points to its successor."""
    names: dict[StoredKey, str] = {indicator.id: indicator.name for indicator in catalog.indicators}
    outdated: dict[StoredKey, str] = {
        legacy.id: f"{legacy.name} (outdated, now {names[legacy.alias_of]})"
        for legacy in catalog.legacy_indicator_keys
        if legacy.alias_of in names
    }
    return {**names, **outdated}


def _to_ms(at: Instant) -> int:
    return parse_instant_ms("at", at)
