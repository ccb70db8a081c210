"""signals_get_confluence: assets where several indicators agree."""

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.query import AsOf, Query
from schemas.result import Count, Freshness, LegacyKeys, Result, is_none
from schemas.vocabulary import AssetClass, Instant, Reading, Side, StoredKey, Timeframe


class ConfluenceQuery(Query):
    """Which agreement to look for."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the votes. Default 4h.")
    direction: Side = Field(default="bullish", description="Which way they agree. Default bullish.")
    min_agree: int = Field(
        default=3, ge=1, le=6, description="Least number of agreeing indicators. Default 3."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only this kind of asset.")
    as_of: AsOf = None


class ConfluenceEcho(Result):
    """The query that was answered, defaults filled in."""

    timeframe: Timeframe
    direction: Side
    min_agree: Count
    asset_class: AssetClass | None
    as_of: Instant | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Where it was asked for."
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


class ConfluenceMeta(Freshness):
    """`meta` of confluence."""

    legacy_keys: LegacyKeys = Field(description="Outdated keys that voted, and what to use.")
    rules: dict[str, str] = Field(description="How votes are counted and results ranked.")


class ConfluenceResponse(Result):
    """Assets where several indicators agree, ranked best first."""

    as_of: Instant
    query: ConfluenceEcho
    results: list[ConfluenceResult]
    meta: ConfluenceMeta
