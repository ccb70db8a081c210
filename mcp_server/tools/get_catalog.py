"""What is covered, made from what the compute job says of itself; no count here is typed."""

from collections.abc import Container, Iterable, Mapping

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
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator, together
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
    IndicatorId,
    IndicatorStatus,
    instant,
)
from serving.argument_values import several_tickers
from serving.context import Context
from serving.freshness import SIMULATED_NOTE, nothing_new_before, recorded_note, removed_note
from serving.snapshot_cache import Board
from serving.tool import Tool

STATE, SIGNALS = "/api/v1/state", "/api/v1/signals"
FLIPS, CONFLUENCE = "/api/v1/flips", "/api/v1/confluence"
RUN_MINUTE = f":{RUN_DELAY_MS // 60_000:02d}"

NOTE = (
    "What this service covers, as its compute job publishes it: the authority on coverage. "
    "Readings are informational, not investment advice."
)
COVERAGE_NOTE = (
    "The timeframes at which each tier covers an asset. An empty universe list: the source of this "
    "deployment has no data of it. An empty alerts list: universe only."
)
ALERTS_NOTE = (
    "An engine publishes the same action at most once per cooldown_candles candles, in clock time; "
    "one that fires sooner is held until then. BUY and SELL are legacy actions that older rows may "
    "carry."
)
STATUSES: dict[IndicatorStatus, str] = {
    "stable": "Its id and the meaning of its readings do not change without a changelog entry.",
    "experimental": "Published, but its formula may change at any time: do not build on it yet.",
    "legacy": "Kept for old clients and no longer updated: use what replaces it.",
}
DEXTER_NOTE = (
    "The former name of enzo. Assets tracked before the renaming carry it in stored state; since "
    "renamed_on it is not updated, so its readings are out of date. Use enzo."
)
FIELDS = {name: str(field.description) for name, field in CatalogIndicator.model_fields.items()}
CADENCE = Cadence.model_validate(
    {
        "schedule": f"A run every hour at minute {RUN_MINUTE} UTC.",
        "1h": "Every run.",
        "4h": f"The runs at 00{RUN_MINUTE}, 04{RUN_MINUTE} and so on every 4 hours, UTC.",
        "1d": f"The run at 00{RUN_MINUTE} UTC.",
        "publication": "A change is in the feed 3 to 5 minutes after the close of its candle.",
        "recommended_poll_interval_s": POLL_INTERVAL_S,
    }
)

DESCRIPTION = (
    "Returns what this service covers: every tracked asset, each indicator and where it appears, "
    "the timeframes of both tiers by asset, cadence and retention. "
    "Call it once, for it changes rarely; it holds no readings, which signals_get_state has. "
    "It needs no key; whole it is about 40,000 characters, so give ticker where few will do. "
    "An empty universe list in coverage.assets means no data of that asset here, an empty alerts "
    "list means universe only."
)


async def get_catalog(query: CatalogQuery, context: Context) -> CatalogResponse:
    """Return the published coverage, before the first compute too; `unavailable` without one."""
    board = await context.boards.board()
    published = await context.boards.coverage() if board is None else board.coverage
    coverage = published or (await context.board()).coverage
    known = {asset.ticker: asset for asset in coverage.assets}
    asked = known if query.ticker is None else several_tickers(query.ticker, known)
    return CatalogResponse(
        generated_at=instant(coverage.published_at),
        note=" ".join([NOTE, *_notes(coverage), *_notes_on(query, asked)]),
        assets=_assets(coverage, asked),
        timeframes=list(TIMEFRAMES),
        indicators=[_indicator(indicator) for indicator in coverage.indicators],
        indicator_fields=FIELDS,
        indicator_statuses=STATUSES,
        legacy_indicator_keys=[_dexter(coverage)],
        tiers=Tiers(universe=_universe(coverage), alerts=_alerts(coverage)),
        coverage=_coverage(coverage, asked),
        cadence=CADENCE,
        meta=_meta(coverage, board, context.clock()),
    )


def _notes(coverage: Coverage) -> Iterable[str]:
    if coverage.source == "simulated":
        yield SIMULATED_NOTE
    if coverage.recorded_until is not None:
        yield recorded_note(coverage.recorded_until)
    covered, tracked = sum(bool(a.timeframes) for a in coverage.tracked), len(coverage.tracked)
    if covered == 0:
        yield "Nothing is covered: the source has no data of any tracked asset."
    elif covered < tracked:
        yield f"The source has data of {covered} of the {tracked} assets; the rest is not covered."


def _notes_on(query: CatalogQuery, asked: Mapping[str, CoveredAsset]) -> Iterable[str]:
    if query.ticker is not None:
        yield f"Both lists hold {', '.join(asked)} alone; every count is of all assets."
        yield from (removed_note(asset) for asset in asked.values() if asset.removed_on)


def _assets(coverage: Coverage, asked: Container[str]) -> CatalogAssets:
    tracked = coverage.tracked
    crypto = sum(asset.asset_class == "crypto" for asset in tracked)
    return CatalogAssets(
        total=len(tracked),
        crypto=crypto,
        equities_and_metals=len(tracked) - crypto,
        list=[
            CatalogAsset(ticker=asset.ticker, name=asset.name, asset_class=asset.asset_class)
            for asset in tracked
            if asset.ticker in asked
        ],
    )


def _indicator(indicator: CoveredIndicator) -> CatalogIndicator:
    return CatalogIndicator(
        id=indicator.id,
        name=indicator.name,
        available_in=["universe", "alerts"] if indicator.logged else ["alerts"],
        status=indicator.status,
        appears_in=[STATE, SIGNALS, *[FLIPS] * indicator.logged, CONFLUENCE],
        note=indicator.note,
    )


def _dexter(coverage: Coverage) -> LegacyIndicatorKey:
    return LegacyIndicatorKey(
        id="dexter",
        name="Dexter",
        status="legacy",
        alias_of=LEGACY_KEYS["dexter"],
        renamed_on=coverage.renamed_on,
        appears_in=[STATE, CONFLUENCE],
        note=DEXTER_NOTE,
    )


def _universe(coverage: Coverage) -> UniverseTier:
    covered = [asset.timeframes for asset in coverage.tracked if asset.timeframes]
    logged, everything = _ids(coverage.logged), _ids(coverage.indicators)
    return UniverseTier(
        assets=len(covered),
        timeframes=together(covered),
        indicators=logged,
        logged_combinations=sum(map(len, covered)) * len(logged),
        state_indicators=everything,
        state_readings=sum(map(len, covered)) * len(everything),
        retention_days=UNIVERSE_RETENTION_MS // DAY_MS,
    )


def _alerts(coverage: Coverage) -> AlertsTier:
    followed = {asset.ticker: asset.alerts for asset in coverage.tracked if asset.alerts}
    indicators = _ids(coverage.indicators)
    return AlertsTier(
        tickers=list(followed),
        timeframes=together(followed.values()),
        indicators=indicators,
        engines=sum(map(len, followed.values())) * len(indicators),
        actions=list(CURRENT_ACTIONS),
        cooldown_candles=COOLDOWN_CANDLES,
        retention_days=ALERTS_RETENTION_MS // DAY_MS,
        note=ALERTS_NOTE,
    )


def _coverage(coverage: Coverage, asked: Container[str]) -> CatalogCoverage:
    return CatalogCoverage(
        note=COVERAGE_NOTE,
        indicators_by_tier=IndicatorsByTier(
            universe=_ids(coverage.logged), alerts=_ids(coverage.indicators)
        ),
        assets=[
            CoverageAsset(
                ticker=asset.ticker,
                asset_class=asset.asset_class,
                universe=list(asset.timeframes),
                alerts=list(asset.alerts),
            )
            for asset in coverage.tracked
            if asset.ticker in asked
        ],
    )


def _meta(coverage: Coverage, board: Board | None, now: int) -> CatalogMeta:
    return CatalogMeta(
        source=coverage.source,
        simulated=coverage.source == "simulated",
        as_of=None if board is None else instant(board.market_time),
        nothing_new_before=None if board is None else nothing_new_before(board, now, "1h"),
        removed_assets=[] if board is None else board.removed,
        stand_ins=coverage.stand_ins,
    )


def _ids(indicators: Iterable[CoveredIndicator]) -> list[IndicatorId]:
    return [indicator.id for indicator in indicators]


GET_CATALOG = Tool(
    name="signals_get_catalog",
    title="What is covered",
    description=DESCRIPTION,
    query=CatalogQuery,
    result=CatalogResponse,
    handler=get_catalog,
    keyed=False,
)
