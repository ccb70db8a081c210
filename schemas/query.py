"""The base class of queries, and arguments that several tools share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from schemas.vocabulary import AssetClass


class Query(BaseModel):
    """A flat set of arguments, validated strictly: true is not accepted as a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# The longest name of an asset, indicator or instant has fewer than 40 characters.
MAX_NAME_CHARS = 64
# Room for a list of all tickers: those of the standard universe with ", " between them are 1,390.
MAX_LIST_CHARS = 2000

TickerList = Annotated[
    str | None,
    Field(
        max_length=MAX_LIST_CHARS,
        description="Tickers or names, comma-separated. Example: BTC,NVDA,gold",
    ),
]
ClassFilter = Annotated[AssetClass | None, Field(description="Only crypto, stocks or metals.")]

# A plain string with a format: parsing it here would reject with pydantic's message, while
# `parse_instant_ms` accepts more spellings and names an example in its error.
AsOf = Annotated[
    str | None,
    Field(
        max_length=MAX_NAME_CHARS,
        description="As served at this ISO 8601 time or date, or yesterday, 7d. Default: now.",
        json_schema_extra={"format": "date-time"},
    ),
]


class NoArguments(Query):
    """The query of tools without arguments."""
