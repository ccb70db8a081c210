"""signals_get_state: the board of current readings."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import AsOf, Query
from schemas.result import Count, Freshness, LegacyKeys, Result, is_none
from schemas.vocabulary import AssetClass, IndicatorId, Instant, Reading, StoredKey, Timeframe


class StateQuery(Query):
    """Filters of the board of current readings; together they narrow it."""

    ticker: str | None = Field(
        default=None, description="Comma-separated tickers, any case. Example: BTC,ETH"
    )
    asset_class: AssetClass | None = Field(default=None, description="Only this kind of asset.")
    timeframe: Timeframe | None = Field(default=None, description="Only this timeframe.")
    indicator: IndicatorId | None = Field(default=None, description="Only this indicator.")
    direction: Reading | None = Field(
        default=None, description="Only readings that are in this state now."
    )
    view: Literal["full", "board"] = Field(
        default="full",
        description="board: a compact letter matrix with its legend. Default full.",
    )
    as_of: AsOf = None


class AssetState(Result):
    """The current readings of one asset."""

    ticker: str
    name: str
    asset_class: AssetClass
    signals: dict[StoredKey, dict[Timeframe, Reading]] = Field(
        description="Indicator id to timeframe to reading; legacy key dexter on some assets."
    )


class StateCounts(Result):
    """How much this answer holds."""

    assets: Count
    readings: Count


class Matrix(Result):
    """Readings as letters: a row an asset, a word a timeframe, a letter an indicator."""

    legend: dict[Literal["U", "D", "N", "."], str] = Field(description="What each letter says.")
    timeframes: list[Timeframe] = Field(description="Of the words of a row, after the ticker.")
    indicators: list[StoredKey] = Field(
        description="Of the letters of a word; dexter only where the asset has it."
    )
    rows: str = Field(description="Separated by semicolons: a ticker and its words, by spaces.")


class StateMeta(Freshness):
    """`meta` of state."""

    not_covered: list[str] = Field(description="Asked tickers that this deployment has no data of.")
    legacy_keys: LegacyKeys = Field(description="Outdated keys shown here, and what to use.")


class StateResponse(Result):
    """The board of readings, as of the compute it rests on."""

    as_of: Instant
    assets: list[AssetState] = Field(description="Empty where view is board.")
    board: Matrix | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="The same readings, where view is board."
    )
    counts: StateCounts
    meta: StateMeta
