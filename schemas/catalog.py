"""Query and result of signals_get_catalog: the assets, indicators and timeframes covered."""

from datetime import date
from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import Query, TickerList
from schemas.result import (
    Count,
    NextChangeTime,
    Origin,
    Result,
    is_none,
    is_usual,
)
from schemas.vocabulary import (
    Action,
    AssetClass,
    IndicatorId,
    IndicatorStatus,
    Instant,
    Tier,
    Timeframe,
)


class CatalogQuery(Query):
    """Selects the assets that the catalog lists."""

    ticker: TickerList = None
    view: Literal["full", "tickers"] = Field(
        default="full",
        description="tickers returns only tickers with their names. Default full.",
    )


class CatalogAsset(Result):
    """One tracked asset."""

    ticker: str
    name: str
    asset_class: AssetClass


class CatalogAssets(Result):
    """The tracked assets, with counts by class."""

    total: Count
    crypto: Count
    equities_and_metals: Count
    list: list[CatalogAsset]


class CatalogIndicator(Result):
    """An indicator and its endpoints."""

    # The catalog returns these descriptions as `indicator_fields`, so every field needs one.
    id: IndicatorId = Field(description="Stable id: the value of the argument indicator.")
    name: str = Field(description="Display name; signals accepts it as well as the id.")
    available_in: list[Tier] = Field(description="Feeds that log this indicator's events.")
    status: IndicatorStatus = Field(description="How stable it is; see indicator_statuses.")
    appears_in: list[str] = Field(description="Endpoints whose results include the indicator.")
    note: str = Field(description="The meaning of its readings, in one sentence.")


class LegacyIndicatorKey(Result):
    """A former indicator name, still in stored state."""

    id: Literal["dexter"]
    name: str
    status: Literal["legacy"]
    alias_of: IndicatorId = Field(description="The indicator id to use instead.")
    renamed_on: date
    appears_in: list[str]
    note: str


class UniverseTier(Result):
    """Coverage of the universe tier."""

    assets: Count = Field(description="Tracked assets that the source has data for.")
    timeframes: list[Timeframe]
    indicators: list[IndicatorId] = Field(description="Indicators whose changes are logged.")
    logged_combinations: Count = Field(description="Asset x timeframe x logged indicator.")
    state_indicators: list[IndicatorId]
    state_readings: Count = Field(description="Asset x timeframe x state indicator.")
    retention_days: Count


class AlertsTier(Result):
    """Coverage of the alert engines."""

    tickers: list[str]
    timeframes: list[Timeframe]
    indicators: list[IndicatorId]
    engines: Count = Field(description="Ticker x timeframe x indicator.")
    actions: list[Action]
    cooldown_candles: Count
    retention_days: Count
    note: str | None


class Tiers(Result):
    """Coverage by tier."""

    universe: UniverseTier
    alerts: AlertsTier


class CoverageAsset(Result):
    """The timeframes of one asset in each tier; if `alerts` is empty, it is universe only."""

    ticker: str
    asset_class: AssetClass
    universe: list[Timeframe]
    alerts: list[Timeframe]


class IndicatorsByTier(Result):
    """The indicators that each tier logs."""

    universe: list[IndicatorId]
    alerts: list[IndicatorId]


class CatalogCoverage(Result):
    """Coverage by tier and asset."""

    note: str
    indicators_by_tier: IndicatorsByTier
    assets: list[CoverageAsset]


class Cadence(Result):
    """The schedule of computing readings and publishing rows."""

    schedule: str
    hourly: str = Field(alias="1h")
    four_hourly: str = Field(alias="4h")
    daily: str = Field(alias="1d")
    publication: str
    recommended_poll_interval_s: Count


class CatalogMeta(Origin):
    """`meta` of catalog, present even before the first compute."""

    as_of: Instant | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_usual,
        description="When the compute last ran; absent before its first run.",
    )
    nothing_new_before: NextChangeTime = None
    removed_assets: list[str] = Field(
        default=[],
        exclude_if=is_usual,
        description="Tickers that are no longer covered; no count includes them.",
    )
    stand_ins: dict[str, str] = Field(
        default={},
        exclude_if=is_usual,
        description="Stock or metal to the perpetual that supplies its bars, as venue and symbol.",
    )
    confluence: dict[str, str] = Field(
        default={}, exclude_if=is_usual, description="How confluence counts votes and ranks."
    )


class CatalogResponse(Result):
    """Coverage of the service, as the compute job published it."""

    generated_at: Instant
    note: str
    assets: CatalogAssets
    tickers: dict[AssetClass, str] | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="Class to its assets, separated by ;, each a ticker and its name. Only if "
        "view is tickers.",
    )
    timeframes: list[Timeframe]
    indicators: list[CatalogIndicator]
    indicator_fields: dict[str, str] = Field(
        default={}, exclude_if=is_usual, description="The meaning of each field of indicators."
    )
    indicator_statuses: dict[IndicatorStatus, str] = Field(
        default={}, exclude_if=is_usual, description="The promise of each status."
    )
    legacy_indicator_keys: list[LegacyIndicatorKey] = Field(default=[], exclude_if=is_usual)
    tiers: Tiers | SkipJsonSchema[None] = Field(default=None, exclude_if=is_usual)
    coverage: CatalogCoverage | SkipJsonSchema[None] = Field(default=None, exclude_if=is_usual)
    cadence: Cadence | SkipJsonSchema[None] = Field(default=None, exclude_if=is_usual)
    meta: CatalogMeta
