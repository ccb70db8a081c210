"""Answers of the open reads: the catalog of what is covered, and 30 days of volume."""

from datetime import date
from typing import Literal

from pydantic import Field

from schemas.meta import CatalogMeta, Result, StatsMeta
from schemas.results import Count
from schemas.vocabulary import (
    Action,
    AssetClass,
    Direction,
    IndicatorId,
    IndicatorStatus,
    Instant,
    Tier,
    Timeframe,
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


class StatsWindow(Result):
    """The days that are counted: rows in (since, until]."""

    days: Count
    since: Instant
    until: Instant


class IndicatorCount(Result):
    """Rows of one indicator."""

    indicator: IndicatorId
    indicator_name: str
    signals: Count


class TimeframeCount(Result):
    """Rows of one timeframe."""

    timeframe: Timeframe
    signals: Count


class DirectionCount(Result):
    """Rows towards one direction."""

    direction: Direction
    signals: Count


class TierStats(Result):
    """Rows of one tier in the window; every by_* adds up to the total. Null: it covers nothing."""

    total_signals: Count | None
    signals_per_day: float | None = Field(description="total_signals / days, unrounded.")
    by_indicator: list[IndicatorCount]
    by_timeframe: list[TimeframeCount]
    by_direction: list[DirectionCount]
    history_starts_at: Instant | None = Field(
        description="created_at of the oldest row kept; null while there is none."
    )


class StatsResponse(Result):
    """How much was published in the last 30 days: volume alone."""

    window: StatsWindow
    universe_tier: TierStats
    alerts_tier: TierStats
    meta: StatsMeta
