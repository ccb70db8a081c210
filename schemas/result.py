"""The base class of results, and the `meta` fields on the source and age of their data."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.vocabulary import IndicatorId, Instant, SourceKind, StoredKey, Timeframe


class Result(BaseModel):
    """A result or a part of one. Its fields are always present, null if not applicable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


Count = Annotated[int, Field(ge=0)]


def is_none(value: object) -> bool:
    """Return true if the value is None, to omit an optional field from the result."""
    return value is None


class Origin(Result):
    """The source of the data; `sample` marks fixed documentation rows."""

    source: SourceKind | Literal["sample"]
    simulated: bool = Field(description="True: prices and readings are not those of a real market.")


NextChangeTime = Annotated[
    Instant | None,
    Field(
        description="Call again then. Null: new data may come any time, or never if note says so."
    ),
]


class NextUpdate(Result):
    """The next compute of each timeframe; null if no more data will come."""

    hourly: Instant | None = Field(alias="1h")
    four_hourly: Instant | None = Field(alias="4h")
    daily: Instant | None = Field(alias="1d")


LateAssets = Annotated[
    dict[str, list[Timeframe]],
    Field(
        description="Ticker to timeframes whose last candle is not read yet; readings are older."
    ),
]


class Freshness(Origin):
    """The `meta` fields of every result that is built from a snapshot of readings."""

    as_of: Instant = Field(description="When the underlying compute last ran.")
    next_update: NextUpdate
    nothing_new_before: NextChangeTime
    stale: bool = Field(
        description="True: a scheduled compute is overdue, or as_of is in the future."
    )
    late_assets: LateAssets
    building_assets: list[str] = Field(
        description="Tickers whose history is being built; readings are missing or outdated."
    )
    ended_assets: list[str] = Field(
        description="Tickers whose recorded bars ended earlier; their readings are outdated."
    )
    missing_bars: dict[str, Count] = Field(
        description="By ticker: bars of the last 330 days that its readings lack for good."
    )
    most_delay_seconds: int = Field(
        ge=0, description="Longest regular delay of an asset's bars; it does not count as late."
    )
    removed_assets: list[str] = Field(
        description="Removed tickers; their last readings no longer change."
    )
    note: str | None = Field(description="Notes to pass on to the user, and why a result is empty.")


LegacyKeys = dict[StoredKey, IndicatorId]
