"""Query and result of signals_get_confluence: assets on which several indicators agree."""

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import AsOf, ClassFilter, Query
from schemas.result import (
    Count,
    Freshness,
    LegacyKeys,
    Limit,
    Lines,
    Result,
    View,
    is_none,
    is_usual,
)
from schemas.state import Detail, LastBar, ReadingChange
from schemas.vocabulary import AssetClass, Instant, Reading, Side, StoredKey, Timeframe


class ConfluenceQuery(Query):
    """The direction, and how many indicators must agree on it."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the readings. Default 4h.")
    direction: Side = Field(
        default="bullish", description="Direction to agree on. Default bullish."
    )
    min_agree: int = Field(
        default=3, ge=1, le=6, description="Minimum number of agreeing votes. Default 3."
    )
    asset_class: ClassFilter = None
    as_of: AsOf = None
    detail: Detail = "readings"
    limit: Limit = None
    view: View = "full"


class ConfluenceEcho(Result):
    """The query as applied, with defaults."""

    timeframe: Timeframe
    direction: Side
    min_agree: Count
    asset_class: AssetClass | None
    as_of: Instant | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Present only if the query has as_of."
    )
    detail: Detail | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Present only if it is changes."
    )


class ConfluenceResult(Result):
    """One asset on which enough indicators agree."""

    ticker: str
    name: str
    asset_class: AssetClass
    agree: Count = Field(description="Votes in the requested direction, dexter too.")
    current_agree: Count | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="agree without the outdated dexter; present only if dexter agrees.",
    )
    total_reporting: Count = Field(description="All votes, dexter too if the asset has it.")
    score: float = Field(ge=0, le=1, description="agree / total_reporting.")
    votes: dict[StoredKey, Reading] = Field(
        description="Indicator to reading: every vote, dexter too."
    )
    changes: dict[StoredKey, ReadingChange] | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="Since when each vote holds; only if detail is changes.",
    )
    last_bar: LastBar | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Only if detail is changes."
    )


class ConfluenceMeta(Freshness):
    """`meta` of confluence."""

    legacy_keys: LegacyKeys = Field(
        default={},
        exclude_if=is_usual,
        description="Outdated key that voted to its replacement.",
    )


class ConfluenceResponse(Result):
    """Assets on which several indicators agree, ranked best first."""

    as_of: Instant
    query: ConfluenceEcho
    results: list[ConfluenceResult] = Field(description="Empty if view is lines.")
    lines: Lines = None
    meta: ConfluenceMeta
