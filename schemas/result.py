"""The base of every result: its counts, and the `meta` fields that say what it rests on."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.vocabulary import IndicatorId, Instant, SourceKind, StoredKey


class Result(BaseModel):
    """An answer or a part of one: its fields are always present, null where not applicable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


Count = Annotated[int, Field(ge=0)]


def is_none(value: object) -> bool:
    """Tell whether to leave an optional field out."""
    return value is None


class Origin(Result):
    """Where the data come from; `sample` marks fixed documentation rows."""

    source: SourceKind | Literal["sample"]
    simulated: bool = Field(description="True: prices and readings are not of a real market.")


NextChangeTime = Annotated[
    Instant | None,
    Field(description="Ask again then; null where more may come at any moment, or never."),
]


class NextUpdate(Result):
    """When each timeframe is next recomputed; null where nothing more will come."""

    hourly: Instant | None = Field(alias="1h")
    four_hourly: Instant | None = Field(alias="4h")
    daily: Instant | None = Field(alias="1d")


class Freshness(Origin):
    """What the answers that rest on the board have in common."""

    as_of: Instant = Field(description="When the underlying compute last ran.")
    next_update: NextUpdate
    nothing_new_before: NextChangeTime
    stale: bool = Field(description="True: a scheduled compute is overdue.")
    late_assets: list[str] = Field(description="Their bars were due at the last run, not there.")
    most_delay_seconds: int = Field(
        ge=0, description="Bars of some assets come so long after their close: not late by then."
    )
    removed_assets: list[str] = Field(description="Their last readings no longer change.")
    note: str | None = Field(description="What to tell the user, or why the answer is empty.")


LegacyKeys = dict[StoredKey, IndicatorId]
