"""signals_get_catalog: what the service covers."""

from datetime import date
from typing import Literal

from pydantic import Field

from schemas.query import Query
from schemas.result import (
    Count,
    NextChangeTime,
    Origin,
    Result,
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
    """Which assets to list."""

    ticker: str | None = Field(
        default=None, description="Only these comma-separated tickers, any case. Example: BTC,ETH"
    )


class CatalogAsset(Result):
    """One tracked asset."""

    ticker: str
    name: str
    asset_class: AssetClass


class CatalogAssets(Result):
    """The tracked assets and how many there are."""

    total: Count
    crypto: Count
    equities_and_metals: Count
    list: list[CatalogAsset]


class CatalogIndicator(Result):
    """One indicator and where it appears."""

    id: IndicatorId = Field(description="Stable id: the value of the argument indicator.")
    name: str = Field(description="Display name; signals accepts it as well as the id.")
    available_in: list[Tier] = Field(description="Feeds that log this indicator's events.")
    status: IndicatorStatus = Field(description="What to rely on; see indicator_statuses.")
    appears_in: list[str] = Field(description="Endpoints that carry the indicator.")
    note: str = Field(description="What its readings mean, in a sentence.")


class LegacyIndicatorKey(Result):
    """A former name that stored state still carries."""

    id: Literal["dexter"]
    name: str
    status: Literal["legacy"]
    alias_of: IndicatorId = Field(description="The indicator id to use instead.")
    renamed_on: date
    appears_in: list[str]
    note: str


class UniverseTier(Result):
    """What the universe tier covers."""

    assets: Count = Field(description="Tracked assets that the source has data of.")
    timeframes: list[Timeframe]
    indicators: list[IndicatorId] = Field(description="Indicators whose changes are logged.")
    logged_combinations: Count = Field(description="Asset x timeframe x logged indicator.")
    state_indicators: list[IndicatorId]
    state_readings: Count = Field(description="Asset x timeframe x state indicator.")
    retention_days: Count


class AlertsTier(Result):
    """What the alert engines cover."""

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
    """The timeframes at which each tier covers an asset; no alerts means universe only."""

    ticker: str
    asset_class: AssetClass
    universe: list[Timeframe]
    alerts: list[Timeframe]


class IndicatorsByTier(Result):
    """The indicators that each tier logs."""

    universe: list[IndicatorId]
    alerts: list[IndicatorId]


class CatalogCoverage(Result):
    """Which tier covers what."""

    note: str
    indicators_by_tier: IndicatorsByTier
    assets: list[CoverageAsset]


class Cadence(Result):
    """When readings are recomputed and rows appear."""

    schedule: str
    hourly: str = Field(alias="1h")
    four_hourly: str = Field(alias="4h")
    daily: str = Field(alias="1d")
    publication: str
    recommended_poll_interval_s: Count


class CatalogMeta(Origin):
    """`meta` of catalog, which is there before the first compute."""

    as_of: Instant | None = Field(description="When the compute last ran; null before the first.")
    nothing_new_before: NextChangeTime
    removed_assets: list[str] = Field(
        description="Known tickers outside every count, whatever the market clock says."
    )
    stand_ins: dict[str, str] = Field(
        description="Stocks and metals whose bars are those of a perpetual, and of which."
    )


class CatalogResponse(Result):
    """What the service covers, made from what the compute job says of itself."""

    generated_at: Instant
    note: str
    assets: CatalogAssets
    timeframes: list[Timeframe]
    indicators: list[CatalogIndicator]
    indicator_fields: dict[str, str] = Field(description="What each field of indicators means.")
    indicator_statuses: dict[IndicatorStatus, str] = Field(description="What each status promises.")
    legacy_indicator_keys: list[LegacyIndicatorKey]
    tiers: Tiers
    coverage: CatalogCoverage
    cadence: Cadence
    meta: CatalogMeta
