"""Answers of the reads; rows, groups, pagination and counts have exactly SPEC.md's fields."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

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


class Result(BaseModel):
    """An answer or a part of one: its fields are always present, null where not applicable."""

    model_config = ConfigDict(extra="forbid")


class AssetState(Result):
    """The current readings of one asset."""

    ticker: str
    name: str
    asset_class: AssetClass
    signals: dict[str, dict[Timeframe, Reading]] = Field(
        description="Indicator id to timeframe to reading; legacy key dexter on some assets."
    )


class StateCounts(Result):
    """How much this answer holds."""

    assets: int
    readings: int


class StateResponse(Result):
    """The board of current readings, as of the last compute."""

    as_of: Instant
    assets: list[AssetState]
    counts: StateCounts
    meta: dict[str, Any]


class Transition(Result):
    """The two readings of a change."""

    from_: Reading = Field(alias="from")
    to: Reading

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


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

    limit: int
    offset: int
    returned: int
    has_more: bool
    next_cursor: Instant | None = Field(
        description="Newest created_at of this page; not a continuation token."
    )


class SignalsResponse(Result):
    """One page of the feed, newest first."""

    signals: list[Signal]
    pagination: Pagination
    meta: dict[str, Any]
