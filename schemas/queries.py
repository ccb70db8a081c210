"""Arguments of the tools, the same on both faces; unknown ones are refused."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.vocabulary import AssetClass, Direction, IndicatorId, Reading, Side, Timeframe


class Query(BaseModel):
    """A flat set of arguments, validated strictly: no text passes for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AsOf = Annotated[
    str | None,
    Field(
        description="The board as it was served at this past ISO 8601 instant, zone required.",
        json_schema_extra={"format": "date-time"},
    ),
]


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


class SignalsQuery(Query):
    """Filters and page of the feed of changes."""

    tier: Literal["universe", "alerts", "all"] = Field(
        default="universe", description="Pipeline; all merges both. Default universe."
    )
    ticker: str | None = Field(default=None, description="One ticker, any case. Example: BTC")
    indicator: str | None = Field(
        default=None, description="Indicator id, screener id or display name. Example: enzo"
    )
    timeframe: Timeframe | None = Field(default=None, description="Only this timeframe.")
    direction: Direction | None = Field(default=None, description="Only changes to this direction.")
    since: str | None = Field(
        default=None,
        description="Only rows strictly after this ISO 8601 instant, zone required.",
        json_schema_extra={"format": "date-time"},
    )
    limit: int = Field(default=50, ge=1, le=200, description="Rows a page. Default 50.")
    offset: int = Field(default=0, ge=0, description="Rows to skip. Default 0.")
    order: Literal["newest", "oldest"] = Field(
        default="newest",
        description="Which come first; with since, oldest reads forward. Default newest.",
    )


class ConfluenceQuery(Query):
    """Which agreement to look for."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the votes. Default 4h.")
    direction: Side = Field(default="bullish", description="Which way they agree. Default bullish.")
    min_agree: int = Field(
        default=3, ge=1, le=6, description="Least number of agreeing indicators. Default 3."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only this kind of asset.")
    as_of: AsOf = None


class FlipsQuery(Query):
    """Which recent changes to group."""

    timeframe: Timeframe = Field(default="1d", description="Timeframe of the changes. Default 1d.")
    hours: int | None = Field(
        default=None,
        ge=1,
        le=72,
        description="Window. Default 3, 12 or 48, at most 6, 24 or 72 for 1h, 4h or 1d.",
    )
    direction: Literal["all", "bullish", "bearish"] = Field(
        default="all", description="Only cells whose newest change turned this way. Default all."
    )


class CatalogQuery(Query):
    """Which assets to list."""

    ticker: str | None = Field(
        default=None, description="Only these comma-separated tickers, any case. Example: BTC,ETH"
    )


class NoArguments(Query):
    """For tools that take none."""
