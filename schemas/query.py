"""The base of every query, and the arguments that several tools share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Query(BaseModel):
    """A flat set of arguments, validated strictly: no text passes for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AsOf = Annotated[
    str | None,
    Field(
        description="The board as it was served at this past ISO 8601 instant, zone required.",
        json_schema_extra={"format": "date-time"},
    ),
]


class NoArguments(Query):
    """For tools that take none."""
