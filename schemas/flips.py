"""Query and result of signals_get_flips: recent changes, grouped by asset."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import ClassFilter, Query, TickerList
from schemas.result import Count, Freshness, Limit, Lines, Result, View, is_none
from schemas.vocabulary import AssetClass, ChangeType, Instant, LoggedId, Reading, Timeframe


class FlipsQuery(Query):
    """Selects the recent changes to group."""

    timeframe: Timeframe = Field(default="1d", description="Timeframe of the changes. Default 1d.")
    # The schema allows the largest of the three maxima. The handler checks each timeframe's own,
    # because a condition between two arguments does not fit a flat tool schema.
    hours: int | None = Field(
        default=None,
        ge=1,
        le=72,
        description="Window in hours. For 1h, 4h, 1d: default 3, 12, 48; maximum 6, 24, 72.",
    )
    direction: Literal["all", "bullish", "bearish"] = Field(
        default="all",
        description="Only changes that turned this way. Default all.",
    )
    ticker: TickerList = None
    asset_class: ClassFilter = None
    limit: Limit = None
    view: View = "full"


class Flip(Result):
    """The newest change of one indicator of an asset inside the window."""

    indicator: LoggedId
    indicator_name: str
    from_: Reading = Field(alias="from")
    to: Reading
    change_type: ChangeType | None
    price: float | None
    created_at: Instant = Field(description="When the service wrote the change.")


class FlipGroup(Result):
    """The flips of one asset."""

    ticker: str
    name: str
    asset_class: AssetClass
    dominant: Literal["bullish", "bearish", "mixed"] = Field(
        description="The larger side; mixed on a tie."
    )
    bullish: Count = Field(description="Indicators whose newest change turned bullish.")
    bearish: Count = Field(description="Indicators whose newest change turned bearish.")
    score: Count = Field(description="The larger of bullish and bearish; groups rank by it.")
    latest_at: Instant
    flips: list[Flip] = Field(description="Newest first, one per indicator.")


class FlipsEcho(Result):
    """The query as applied, with defaults."""

    timeframe: Timeframe
    hours: Count
    direction: Literal["all", "bullish", "bearish"]
    ticker: str | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Present only if the query has ticker."
    )
    asset_class: AssetClass | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Present only if the query has asset_class."
    )


class FlipsCounts(Result):
    """The number of groups and flips in the window, before limit."""

    groups: Count
    flips: Count


class HoursRule(Result):
    """The default and maximum window of one timeframe, in hours."""

    default: int
    max: int


class WindowRules(Result):
    """The default and maximum window of each timeframe."""

    hourly: HoursRule = Field(alias="1h")
    four_hourly: HoursRule = Field(alias="4h")
    daily: HoursRule = Field(alias="1d")


class FlipsRules(Result):
    """The rules of flips, so that a client can recompute the groups from the feed."""

    hours: WindowRules
    row_limit: int = Field(
        description="Maximum rows read, newest first; if there are more, capped is true."
    )
    window: str
    newest: str
    grouping: str
    direction: str
    ranking: str


class FlipsMeta(Freshness):
    """`meta` of flips."""

    rules: FlipsRules | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Only if view is full."
    )


class FlipsResponse(Result):
    """Recent changes grouped by asset and ranked best first; the window ends at `as_of`."""

    as_of: Instant
    query: FlipsEcho
    groups: list[FlipGroup] = Field(description="Empty if view is lines.")
    lines: Lines = None
    counts: FlipsCounts
    capped: bool = Field(description="True: older changes inside the window may be missing.")
    meta: FlipsMeta
