"""signals_get_catalog: the coverage of the service, with all counts from what compute published."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.catalog import (
    AlertsTier,
    Cadence,
    CatalogAsset,
    CatalogAssets,
    CatalogCoverage,
    CatalogIndicator,
    CatalogMeta,
    CatalogQuery,
    CatalogResponse,
    CoverageAsset,
    IndicatorsByTier,
    LegacyIndicatorKey,
    Tiers,
    UniverseTier,
)
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator, merge_timeframes
from schemas.result import SIMULATED_NOTE
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    COOLDOWN_CANDLES,
    CURRENT_ACTIONS,
    DAY_MS,
    LEGACY_KEYS,
    POLL_INTERVAL_S,
    RUN_DELAY_MS,
    TIMEFRAMES,
    UNIVERSE_RETENTION_MS,
    AssetClass,
    IndicatorId,
    IndicatorStatus,
    format_instant,
)
from serving.argument_values import find_assets
from serving.context import Context
from serving.freshness import (
    find_nothing_new_before,
    format_recorded_note,
    format_removed_note,
    list_timing_exceptions,
)
from serving.tool import Tool

STATE, SIGNALS = "/api/v1/state", "/api/v1/signals"
FLIPS, CONFLUENCE = "/api/v1/flips", "/api/v1/confluence"
RUN_MINUTE = f":{RUN_DELAY_MS // 60_000:02d}"

NOTE = (
    "The coverage of this service as published by its compute job, which is the authority on it. "
    "Readings are informational, not investment advice."
)
COVERAGE_NOTE = (
    "The timeframes of each asset by tier. An empty universe list means that this deployment has "
    "no data for the asset; an empty alerts list means universe only."
)
ALERTS_NOTE = (
    "An engine publishes the same action of a ticker, indicator and timeframe at most once per "
    f"cooldown_candles candles in clock time ({4 * COOLDOWN_CANDLES} hours on 4h, "
    f"{COOLDOWN_CANDLES} days on 1d). One that fires sooner is held until then, and published with "
    "the price at which it fired, or never if another alert of the engine comes first. CLOSE ends "
    "the strategy's open position without saying whether it was long or short; its entry may be "
    "missing or published late. BUY and SELL are legacy actions that older rows may have."
)
STATUSES: dict[IndicatorStatus, str] = {
    "stable": "Its id and the meaning of its readings change only with a changelog entry.",
    "experimental": "Published, but its formula may change at any time; do not build on it yet.",
    "legacy": "Kept for old clients and no longer updated; use its replacement.",
}
DEXTER_NOTE = (
    "The former name of enzo. Assets tracked before the rename still have it in stored state. It "
    "has not been updated since renamed_on, so its readings are out of date. Use enzo."
)
FIELDS = {name: str(field.description) for name, field in CatalogIndicator.model_fields.items()}
CADENCE = {
    "schedule": f"A run every hour at minute {RUN_MINUTE} UTC.",
    "1h": "Every run. The first candle of a stock's trading day has half an hour.",
    "4h": (
        f"The runs at 00{RUN_MINUTE}, 04{RUN_MINUTE} and so on every 4 hours, UTC. Stocks have the "
        "same boundaries, so a day has two or three candles (2.5 and 4 hours in summer; 1.5, 4 and "
        "1 in winter)."
    ),
    "1d": (
        f"The run at 00{RUN_MINUTE} UTC. A stock's candle is its trading day; a metal's Monday "
        "includes Sunday evening."
    ),
    "publication": (
        "A change appears in the feed 3 to 5 minutes after its candle closes, a held alert when "
        "its window ends. Rows of one run are milliseconds apart, even if they fired on different "
        "candles."
    ),
    "recommended_poll_interval_s": POLL_INTERVAL_S,
}

CONFLUENCE_RULES = {
    "votes": (
        "votes and total_reporting have every stored key with a reading on the timeframe, the "
        "outdated dexter too if present; a key without a reading is excluded. agree counts the "
        "votes in the requested direction. If dexter is one of them, current_agree counts the "
        "others. Removed assets are excluded. The votes depend on each other: "
        # docs/indicators.md explains the figure.
        "all seven are worth 2.1 to 2.6 independent votes."
    ),
    "score": "agree / total_reporting. An asset is listed if agree >= min_agree.",
    "ranking": "By score, then by agree, highest first; then by ticker, A to Z.",
}

DESCRIPTION = (
    "Lists which coins, stocks and metals are supported, with ticker symbol, available timeframes"
    " and alerts, what the indicators mean and how often they are updated. Use it to check "
    "whether an asset is covered: 350 characters with ticker and view=tickers; all take 4,000 "
    "with it, else 42,000. Needs no key."
)


async def get_catalog(query: CatalogQuery, context: Context) -> CatalogResponse:
    """Return the coverage, which is published before the first compute.

    ApiError `unavailable` if none has been published.
    """
    snapshot = await context.snapshots.snapshot()
    # A snapshot's own coverage comes first, so that counts and `meta` are of the same version.
    coverage = await context.coverage() if snapshot is None else snapshot.coverage
    selected = _select_assets(query, coverage)
    tracked = [asset for asset in coverage.tracked if asset.ticker in selected]
    crypto = sum(asset.asset_class == "crypto" for asset in coverage.tracked)
    notes = list[str]()
    if query.ticker is not None:
        removed = [asset for asset in selected.values() if asset.removed_on]
        notes = [
            f"Only {', '.join(selected)} listed; every count is of all assets.",
            *map(format_removed_note, removed),
        ]
    # The selected assets, and the counts of all.
    assets = CatalogAssets(
        total=len(coverage.tracked),
        crypto=crypto,
        equities_and_metals=len(coverage.tracked) - crypto,
        list=[
            CatalogAsset(ticker=asset.ticker, name=asset.name, asset_class=asset.asset_class)
            for asset in tracked
        ],
    )
    if query.view == "tickers":
        return _list_tickers(coverage, assets, tracked, notes)
    publication = [str(CADENCE["publication"]), *list_timing_exceptions(coverage)]
    as_of = next_at = None
    if snapshot is not None:
        as_of = format_instant(snapshot.market_time)
        next_at = find_nothing_new_before(snapshot, context.clock(), "1h")
    return CatalogResponse(
        generated_at=format_instant(coverage.published_at),
        note=" ".join([NOTE, *_list_notes(coverage), *notes]),
        assets=assets,
        timeframes=list(TIMEFRAMES),
        **_describe_indicators(coverage),
        tiers=Tiers(universe=_build_universe_tier(coverage), alerts=_build_alerts_tier(coverage)),
        coverage=_build_coverage(coverage, tracked),
        cadence=Cadence.model_validate(CADENCE | {"publication": " ".join(publication)}),
        meta=CatalogMeta(
            source=coverage.source,
            simulated=coverage.source == "simulated",
            as_of=as_of,
            nothing_new_before=next_at,
            removed_assets=[] if snapshot is None else snapshot.removed_tickers,
            stand_ins=coverage.stand_ins,
            confluence=CONFLUENCE_RULES,
        ),
    )


def _describe_indicators(coverage: Coverage) -> dict[str, Any]:
    return {
        "indicators": [
            CatalogIndicator(
                id=indicator.id,
                name=indicator.name,
                # Every indicator has alert engines; only logged ones have rows of the universe.
                available_in=["universe", "alerts"] if indicator.logged else ["alerts"],
                status=indicator.status,
                appears_in=[STATE, SIGNALS, *[FLIPS] * indicator.logged, CONFLUENCE],
                note=indicator.note,
            )
            for indicator in coverage.indicators
        ],
        "indicator_fields": FIELDS,
        "indicator_statuses": STATUSES,
        "legacy_indicator_keys": [
            LegacyIndicatorKey(
                id="dexter",
                name="Dexter",
                status="legacy",
                alias_of=LEGACY_KEYS["dexter"],
                renamed_on=coverage.renamed_on,
                appears_in=[STATE, CONFLUENCE],
                note=DEXTER_NOTE,
            )
        ],
    }


def _list_tickers(
    coverage: Coverage, assets: CatalogAssets, listed: Sequence[CoveredAsset], notes: list[str]
) -> CatalogResponse:
    """Return the listed assets as text, and of all else only the counts."""
    uncovered = [asset.ticker for asset in listed if not asset.timeframes]
    followed = [asset.ticker for asset in listed if asset.alerts]
    entries: dict[AssetClass, list[str]] = {}
    for asset in listed:
        entries.setdefault(asset.asset_class, []).append(f"{asset.ticker} {asset.name}")
    return CatalogResponse(
        generated_at=format_instant(coverage.published_at),
        note=" ".join(
            [
                f"No data for {', '.join(uncovered)}." if uncovered else "All listed are covered.",
                *[f"With alerts: {', '.join(followed)}."] * bool(followed),
                *notes,
            ]
        ),
        assets=assets.model_copy(update={"list": []}),
        tickers={name: ";".join(own) for name, own in entries.items()},
        timeframes=list(TIMEFRAMES),
        indicators=[],
        meta=CatalogMeta(source=coverage.source, simulated=coverage.source == "simulated"),
    )


def _select_assets(query: CatalogQuery, coverage: Coverage) -> dict[str, CoveredAsset]:
    assets_by_ticker = {asset.ticker: asset for asset in coverage.assets}
    return assets_by_ticker if query.ticker is None else find_assets(query.ticker, assets_by_ticker)


async def _check_tickers(query: CatalogQuery, context: Context) -> None:
    _select_assets(query, await context.coverage())


def _list_notes(coverage: Coverage) -> Iterable[str]:
    if coverage.source == "simulated":
        yield SIMULATED_NOTE
    if coverage.recorded_until is not None:
        yield format_recorded_note(coverage.recorded_until)
    covered, tracked = sum(bool(a.timeframes) for a in coverage.tracked), len(coverage.tracked)
    if covered == 0:
        yield "Nothing is covered: the source has no data for any tracked asset."
    elif covered < tracked:
        yield f"The source has data for {covered} of the {tracked} assets; the rest is not covered."


def _build_universe_tier(coverage: Coverage) -> UniverseTier:
    covered = [asset.timeframes for asset in coverage.tracked if asset.timeframes]
    logged, all_indicators = _list_ids(coverage.logged), _list_ids(coverage.indicators)
    return UniverseTier(
        assets=len(covered),
        timeframes=merge_timeframes(covered),
        indicators=logged,
        logged_combinations=sum(map(len, covered)) * len(logged),
        state_indicators=all_indicators,
        state_readings=sum(map(len, covered)) * len(all_indicators),
        retention_days=UNIVERSE_RETENTION_MS // DAY_MS,
    )


def _build_alerts_tier(coverage: Coverage) -> AlertsTier:
    followed = {asset.ticker: asset.alerts for asset in coverage.tracked if asset.alerts}
    indicators = _list_ids(coverage.indicators)
    return AlertsTier(
        tickers=list(followed),
        timeframes=merge_timeframes(followed.values()),
        indicators=indicators,
        engines=sum(map(len, followed.values())) * len(indicators),
        actions=list(CURRENT_ACTIONS),
        cooldown_candles=COOLDOWN_CANDLES,
        retention_days=ALERTS_RETENTION_MS // DAY_MS,
        note=ALERTS_NOTE,
    )


def _build_coverage(coverage: Coverage, listed: Sequence[CoveredAsset]) -> CatalogCoverage:
    return CatalogCoverage(
        note=COVERAGE_NOTE,
        indicators_by_tier=IndicatorsByTier(
            universe=_list_ids(coverage.logged), alerts=_list_ids(coverage.indicators)
        ),
        assets=[
            CoverageAsset(
                ticker=asset.ticker,
                asset_class=asset.asset_class,
                universe=list(asset.timeframes),
                alerts=list(asset.alerts),
            )
            for asset in listed
        ],
    )


def _list_ids(indicators: Iterable[CoveredIndicator]) -> list[IndicatorId]:
    return [indicator.id for indicator in indicators]


GET_CATALOG = Tool(
    name="signals_get_catalog",
    title="Coverage of the service",
    description=DESCRIPTION,
    query=CatalogQuery,
    result=CatalogResponse,
    handler=get_catalog,
    check=_check_tickers,
    requires_key=False,
)
