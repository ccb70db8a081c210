"""signals_get_flips: recent changes, grouped by asset."""

from typing import Literal

from pydantic import Field

from schemas.query import Query
from schemas.result import Count, Freshness, Result
from schemas.vocabulary import AssetClass, ChangeType, Instant, LoggedId, Reading, Timeframe


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
    """The query that was answered, defaults filled in."""

    timeframe: Timeframe
    hours: Count
    direction: Literal["all", "bullish", "bearish"]


class FlipsCounts(Result):
    """How much this answer holds."""

    groups: Count
    flips: Count


class HoursRule(Result):
    """The default and largest window of one timeframe, in hours."""

    default: int
    max: int


class WindowRules(Result):
    """The windows by timeframe."""

    hourly: HoursRule = Field(alias="1h")
    four_hourly: HoursRule = Field(alias="4h")
    daily: HoursRule = Field(alias="1d")


class FlipsRules(Result):
    """What flips does, so that a client can recompute it from the feed."""

    hours: WindowRules
    row_limit: int = Field(description="Newest rows read; beyond it the answer is capped.")
    window: str
    newest: str
    grouping: str
    direction: str
    ranking: str


class FlipsMeta(Freshness):
    """`meta` of flips."""

    rules: FlipsRules


class FlipsResponse(Result):
    """Recent changes grouped by asset and ranked best first; `as_of` ends the window."""

    as_of: Instant
    query: FlipsEcho
    groups: list[FlipGroup]
    counts: FlipsCounts
    capped: bool = Field(description="True: older changes inside the window may be missing.")
    meta: FlipsMeta
