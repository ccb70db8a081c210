"""Query and result of signals_get_signals: one page of the feed of both tiers."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import MAX_NAME_CHARS, Query, TickerList
from schemas.result import Count, Freshness, LateAssets, Result, is_none
from schemas.vocabulary import (
    Action,
    AssetClass,
    ChangeType,
    Direction,
    IndicatorId,
    Instant,
    Reading,
    Tier,
    Timeframe,
)

# Far more rows than a feed has; 32-bit integers can hold it.
MAX_OFFSET = 1_000_000_000


class SignalsQuery(Query):
    """Filters of the feed, and the page to return."""

    tier: Literal["universe", "alerts", "all"] = Field(
        default="universe", description="Feed to read; all merges both. Default universe."
    )
    ticker: TickerList = None
    indicator: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARS,
        description="Indicator id, screener id or display name. Example: enzo",
    )
    timeframe: Timeframe | None = Field(default=None, description="Only this timeframe.")
    direction: Direction | None = Field(default=None, description="Only changes to this direction.")
    since: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARS,
        description="Only rows strictly after this ISO 8601 time or date, UTC unless it has a "
        "zone.",
        json_schema_extra={"format": "date-time"},
    )
    limit: int = Field(default=50, ge=1, le=200, description="Rows per page. Default 50.")
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="Rows to skip. Default 0.")
    order: Literal["newest", "oldest"] = Field(
        default="newest",
        description="Order of the rows; oldest reads forward from since. Default newest.",
    )
    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")


class Transition(Result):
    """The two readings of a change."""

    from_: Reading = Field(alias="from")
    to: Reading


class Signal(Result):
    """One row of the feed."""

    id: str
    tier: Tier
    ticker: str
    asset_class: AssetClass
    indicator: IndicatorId
    indicator_name: str
    timeframe: Timeframe
    direction: Direction
    transition: Transition | None
    change_type: ChangeType | None
    action: Action | None
    price: float | None
    created_at: Instant = Field(description="When the service wrote the row.")


class Pagination(Result):
    """The position of this page in the feed."""

    limit: Count
    offset: Count
    returned: Count
    has_more: bool
    next_cursor: Instant | None = Field(
        description="Newest created_at of this page; not a continuation token."
    )


class RetentionDays(Result):
    """Days for which rows are kept, by tier."""

    universe: int = Field(ge=0)
    alerts: int = Field(ge=0)


class SignalsMeta(Freshness):
    """`meta` of signals; fields that only qualify rows are left out of a page without rows."""

    late_assets: LateAssets = Field(default={})
    building_assets: list[str] = Field(
        default=[], description="Tickers whose history is being built; rows are missing."
    )
    ended_assets: list[str] = Field(
        default=[], description="Tickers whose recorded bars ended earlier. Only with rows."
    )
    missing_bars: dict[str, Count] = Field(
        default={}, description="By ticker: bars of the last 330 days that it lacks. With rows."
    )
    most_delay_seconds: int = Field(
        default=0, ge=0, description="Longest regular delay of an asset's bars. Only with rows."
    )
    removed_assets: list[str] = Field(
        default=[], description="Tickers without further rows. Only with rows."
    )
    retention_days: RetentionDays | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Only with rows."
    )
    timing: str | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="When rows are written. Only with rows."
    )
    cooldown: str | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="How often an action is published. Only with rows, if tier includes alerts.",
    )
    close: str | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="The meaning of the action CLOSE. Only with rows, if tier includes alerts.",
    )


class SignalsResponse(Result):
    """One page of the feed, newest first unless order is oldest."""

    signals: list[Signal]
    pagination: Pagination
    meta: SignalsMeta
