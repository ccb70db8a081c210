"""Query and result of signals_get_state: current readings, or those of a past time."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import AsOf, ClassFilter, Query, TickerList
from schemas.result import Count, Freshness, LegacyKeys, Lines, Result, View, is_none, is_usual
from schemas.vocabulary import AssetClass, IndicatorId, Instant, Reading, StoredKey, Timeframe

Detail = Annotated[
    Literal["readings", "changes"],
    Field(
        description="changes adds when each reading began, the price then and the move since. "
        "Default readings."
    ),
]


class ReadingChange(Result):
    """The stored change that set a reading."""

    since: Instant = Field(description="When the reading was published.")
    price: float = Field(description="The asset's price then, as in the feed.")
    change_percent: float | None = Field(
        description="Change of the last close since, in percent; null if hidden."
    )


class LastBar(Result):
    """The newest bar; its close is null if the operator hides prices."""

    closed_at: Instant
    close: float | None


class StateQuery(Query):
    """Filters of the readings. A reading is returned if it matches all of them."""

    ticker: TickerList = None
    asset_class: ClassFilter = None
    timeframe: Timeframe | None = Field(default=None, description="Only this timeframe.")
    indicator: IndicatorId | None = Field(default=None, description="Only this indicator.")
    direction: Reading | None = Field(
        default=None, description="Only readings that are in this state."
    )
    view: View = "full"
    as_of: AsOf = None
    detail: Detail = "readings"


class AssetState(Result):
    """The current readings of one asset."""

    ticker: str
    name: str
    asset_class: AssetClass
    signals: dict[StoredKey, dict[Timeframe, Reading]] = Field(
        description="Indicator id to timeframe to reading; some assets have dexter."
    )
    changes: dict[StoredKey, dict[Timeframe, ReadingChange]] | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="Since when each reading holds; only if detail is changes.",
    )
    last_bar: LastBar | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Only if detail is changes."
    )


class StateCounts(Result):
    """The number of assets and readings in this result."""

    assets: Count
    readings: Count


class LastBars(Result):
    """The assets in this result whose newest bar closed at the same time."""

    closed_at: Instant = Field(description="When the newest bar of these assets closed.")
    tickers: list[str]


class StateMeta(Freshness):
    """`meta` of state."""

    last_bars: list[LastBars] = Field(
        default=[],
        exclude_if=is_usual,
        description="Assets whose newest bar did not close at the last full hour, newest first.",
    )
    not_covered: list[str] = Field(
        default=[],
        exclude_if=is_usual,
        description="Requested tickers without data in this deployment.",
    )
    legacy_keys: LegacyKeys = Field(
        default={},
        exclude_if=is_usual,
        description="Outdated key in this result to its replacement.",
    )

    def get_last_bar(self, ticker: str) -> Instant:
        """Return when the newest bar of an asset in this result closed."""
        hour = f"{self.as_of[:14]}00:00.000Z"
        return next((bars.closed_at for bars in self.last_bars if ticker in bars.tickers), hour)


class StateResponse(Result):
    """The readings as of one compute."""

    as_of: Instant
    assets: list[AssetState] = Field(description="Readings by asset; empty if view is not full.")
    lines: Lines = None
    counts: StateCounts
    meta: StateMeta
