"""Query and result of signals_get_signals: one page of the feed of both tiers."""

from typing import Literal

from pydantic import Field

from schemas.query import MAX_NAME_CHARS, Query
from schemas.result import Count, Freshness, Result
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
    ticker: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARS,
        description="One ticker, any case. Example: BTC",
    )
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
        description="Only rows strictly after this ISO 8601 time with zone, or date (00:00Z).",
        json_schema_extra={"format": "date-time"},
    )
    limit: int = Field(default=50, ge=1, le=200, description="Rows per page. Default 50.")
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="Rows to skip. Default 0.")
    order: Literal["newest", "oldest"] = Field(
        default="newest",
        description="Order of the rows; oldest reads forward from since. Default newest.",
    )


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
    """`meta` of signals."""

    retention_days: RetentionDays
    timing: str = Field(description="When rows are written.")
    cooldown: str = Field(description="How often an action is published, and which are held back.")
    close: str = Field(description="The meaning of the action CLOSE.")


class SignalsResponse(Result):
    """One page of the feed, newest first unless order is oldest."""

    signals: list[Signal]
    pagination: Pagination
    meta: SignalsMeta
