"""The top-level `meta` of every answer: what it rests on, how old it is, when to come back."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.vocabulary import IndicatorId, Instant, SourceKind, StoredKey


class Result(BaseModel):
    """An answer or a part of one: its fields are always present, null where not applicable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Origin(Result):
    """Where the data come from; `sample` marks fixed documentation rows."""

    source: SourceKind | Literal["sample"]
    simulated: bool = Field(description="True: prices and readings are not of a real market.")


AskAgain = Annotated[
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
    nothing_new_before: AskAgain
    stale: bool = Field(description="True: a scheduled compute is overdue.")
    late_assets: list[str] = Field(description="Their bars were due at the last run, not there.")
    most_delay_seconds: int = Field(
        ge=0, description="Bars of some assets come so long after their close: not late by then."
    )
    removed_assets: list[str] = Field(description="Their last readings no longer change.")
    note: str | None = Field(description="What to tell the user, or why the answer is empty.")


LegacyKeys = dict[StoredKey, IndicatorId]


class StateMeta(Freshness):
    """`meta` of state."""

    not_covered: list[str] = Field(description="Asked tickers that this deployment has no data of.")
    legacy_keys: LegacyKeys = Field(description="Outdated keys shown here, and what to use.")


class RetentionDays(Result):
    """How long rows are kept, by tier."""

    universe: int = Field(ge=0)
    alerts: int = Field(ge=0)


class SignalsMeta(Freshness):
    """`meta` of signals."""

    retention_days: RetentionDays
    timing: str = Field(description="When rows are written.")
    cooldown: str = Field(description="How often an action is published, what is held back.")
    close: str = Field(description="What the action CLOSE says and what it does not.")


class ConfluenceMeta(Freshness):
    """`meta` of confluence."""

    legacy_keys: LegacyKeys = Field(description="Outdated keys that voted, and what to use.")
    rules: dict[str, str] = Field(description="How votes are counted and results ranked.")


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


class StatsMeta(Freshness):
    """`meta` of stats."""


class CatalogMeta(Origin):
    """`meta` of catalog, which is there before the first compute."""

    as_of: Instant | None = Field(description="When the compute last ran; null before the first.")
    nothing_new_before: AskAgain
    removed_assets: list[str] = Field(
        description="Known tickers outside every count, whatever the market clock says."
    )
    stand_ins: dict[str, str] = Field(
        description="Stocks and metals whose bars are those of a perpetual, and of which."
    )


class UsageMeta(Result):
    """`meta` of usage, which is there before anything is covered."""

    source: SourceKind | None
    simulated: bool = Field(description="True: the service shows no real market.")
    nothing_new_before: AskAgain
    counted: str = Field(description="Which calls count against the quota.")
    note: str | None
