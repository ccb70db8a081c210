"""Answers of the keyed reads; rows, groups, pagination and counts have exactly SPEC.md's fields."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.meta import ConfluenceMeta, FlipsMeta, Result, SignalsMeta, StateMeta, UsageMeta
from schemas.vocabulary import (
    Action,
    AssetClass,
    ChangeType,
    Direction,
    IndicatorId,
    Instant,
    LoggedId,
    Mode,
    Reading,
    Side,
    StoredKey,
    Tier,
    Timeframe,
)


def _is_none(value: object) -> bool:
    return value is None


Count = Annotated[int, Field(ge=0)]


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


class StateResponse(Result):
    """The board of readings, as of the compute it rests on."""

    as_of: Instant
    assets: list[AssetState] = Field(description="Empty where view is board.")
    board: Matrix | SkipJsonSchema[None] = Field(
        default=None, exclude_if=_is_none, description="The same readings, where view is board."
    )
    counts: StateCounts
    meta: StateMeta


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
    """Where this page lies in the feed."""

    limit: Count
    offset: Count
    returned: Count
    has_more: bool
    next_cursor: Instant | None = Field(
        description="Newest created_at of this page; not a continuation token."
    )


class SignalsResponse(Result):
    """One page of the feed, newest first."""

    signals: list[Signal]
    pagination: Pagination
    meta: SignalsMeta


class ConfluenceEcho(Result):
    """The query that was answered, defaults filled in."""

    timeframe: Timeframe
    direction: Side
    min_agree: Count
    asset_class: AssetClass | None
    as_of: Instant | SkipJsonSchema[None] = Field(
        default=None, exclude_if=_is_none, description="Where it was asked for."
    )


class ConfluenceResult(Result):
    """One asset on which enough indicators agree."""

    ticker: str
    name: str
    asset_class: AssetClass
    agree: Count = Field(description="Indicators currently in the requested direction.")
    total_reporting: Count = Field(description="Indicators with a reading.")
    score: float = Field(ge=0, le=1, description="agree / total_reporting, unrounded.")
    votes: dict[StoredKey, Reading] = Field(description="Every underlying vote.")


class ConfluenceResponse(Result):
    """Assets where several indicators agree, ranked best first."""

    as_of: Instant
    query: ConfluenceEcho
    results: list[ConfluenceResult]
    meta: ConfluenceMeta


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


class FlipsResponse(Result):
    """Recent changes grouped by asset and ranked best first; `as_of` ends the window."""

    as_of: Instant
    query: FlipsEcho
    groups: list[FlipGroup]
    counts: FlipsCounts
    capped: bool = Field(description="True: older changes inside the window may be missing.")
    meta: FlipsMeta


class UsageKey(Result):
    """The key that was sent."""

    label: str | None


class Quota(Result):
    """What a key may still call today."""

    daily_limit: Count
    used_today: Count
    remaining_today: Count
    resets_at: Instant


class Allowance(NamedTuple):
    """A quota as every keyed call carries it, which need not cost as much as a model."""

    daily_limit: int
    used_today: int
    remaining_today: int
    resets_at: Instant

    def text(self) -> str:
        """Write it as `Quota` is written."""
        return (
            f'{{"daily_limit":{self.daily_limit},"used_today":{self.used_today},'
            f'"remaining_today":{self.remaining_today},"resets_at":"{self.resets_at}"}}'
        )


class UsageResponse(Result):
    """The key, the billing mode of the server, and the key's quota."""

    key: UsageKey
    mode: Mode | None
    quota: Quota | None
    meta: UsageMeta
