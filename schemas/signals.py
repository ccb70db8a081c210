"""Query and result of signals_get_signals: one page of the feed of both tiers."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import MAX_NAME_CHARS, ClassFilter, Query, TickerList
from schemas.result import Count, Freshness, Lines, Result, View, is_none
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
        description="Only rows after this ISO 8601 time or date, or yesterday, 24h, 7d.",
        json_schema_extra={"format": "date-time"},
    )
    limit: int = Field(default=50, ge=1, le=200, description="Rows per page. Default 50.")
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="Rows to skip. Default 0.")
    order: Literal["newest", "oldest"] = Field(
        default="newest",
        description="Order of the rows; oldest reads forward from since. Default newest.",
    )
    asset_class: ClassFilter = None
    until: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARS,
        description="Only rows up to this time; as since.",
        json_schema_extra={"format": "date-time"},
    )
    view: View = "full"


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


class SignalsMeta(Freshness):
    """`meta` of signals."""

    timing: str | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="When rows are written. Only with rows, if view is full.",
    )


class SignalsResponse(Result):
    """One page of the feed, newest first unless order is oldest."""

    signals: list[Signal] = Field(description="Empty if view is lines.")
    lines: Lines = None
    pagination: Pagination
    meta: SignalsMeta
