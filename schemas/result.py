"""The base class of results, and the `meta` fields on the source and age of their data."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from schemas.vocabulary import IndicatorId, Instant, SourceKind, StoredKey, Timeframe


class Result(BaseModel):
    """A result or a part of one. Its fields are always present, null if not applicable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


Count = Annotated[int, Field(ge=0)]


def is_none(value: object) -> bool:
    """Return true if the value is None, to omit an optional field from the result."""
    return value is None


def is_usual(value: object) -> bool:
    """Return true for null, false, 0 and empty values, which `meta` leaves out."""
    return not value


Lines = Annotated[
    str | SkipJsonSchema[None],
    Field(
        exclude_if=is_none,
        description="Only if view is lines.",
    ),
]
Limit = Annotated[
    int | None, Field(ge=1, le=400, description="Only the first so many. Default: all.")
]
View = Annotated[
    Literal["full", "lines"],
    Field(description="lines returns a short line per row. Default full."),
]


class Origin(Result):
    """The source of the data; `sample` marks fixed documentation rows."""

    source: Literal[SourceKind, "sample"]
    simulated: bool = Field(
        default=False,
        exclude_if=is_usual,
        description="True: prices and readings are not those of a real market.",
    )


NextChangeTime = Annotated[
    Instant | SkipJsonSchema[None],
    Field(exclude_if=is_usual, description="Call again then. Absent: data may come any time."),
]
LateAssets = dict[str, list[Timeframe]]


SIMULATED_NOTE = "Simulated market data: no price is real."


class Freshness(Origin):
    """The `meta` fields of every result that is built from a snapshot of readings.

    A field at its usual value is absent: null, false, 0 or empty. Lists have only assets of the
    result.
    """

    as_of: Instant = Field(description="When the underlying compute last ran.")
    next_update: dict[Timeframe, Instant] = Field(
        default={},
        exclude_if=is_usual,
        description="The next compute of each timeframe; absent if no more data will come.",
    )
    nothing_new_before: NextChangeTime = None
    stale: bool = Field(
        default=False,
        exclude_if=is_usual,
        description="True: a scheduled compute is overdue, or as_of is in the future.",
    )
    late_assets: LateAssets = Field(
        default={},
        exclude_if=is_usual,
        description="Ticker to timeframes whose last candle is not read yet; readings are older.",
    )
    building_assets: list[str] = Field(
        default=[],
        exclude_if=is_usual,
        description="Tickers whose history is being built; readings are missing or outdated.",
    )
    ended_assets: list[str] = Field(
        default=[],
        exclude_if=is_usual,
        description="Tickers whose recorded bars ended earlier; their readings are outdated.",
    )
    missing_bars: dict[str, Count] = Field(
        default={},
        exclude_if=is_usual,
        description="By ticker: bars of the last 330 days that its readings lack for good.",
    )
    most_delay_seconds: int = Field(
        default=0,
        ge=0,
        exclude_if=is_usual,
        description="Longest regular delay of an asset's bars; it does not count as late.",
    )
    removed_assets: list[str] = Field(
        default=[],
        exclude_if=is_usual,
        description="Removed tickers; their last readings no longer change.",
    )
    note: str | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_usual,
        description="Notes to pass on to the user, and why a result is empty.",
    )

    @property
    def page_note(self) -> str:
        """The note as people read it, who do not see the other fields."""
        simulated = SIMULATED_NOTE if self.source == "simulated" else ""
        return f"{simulated} {self.note or ''}".strip()


LegacyKeys = dict[StoredKey, IndicatorId]
