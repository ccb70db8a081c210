"""Since when readings have held, and at which prices: additions to state and confluence."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.result import Result
from schemas.vocabulary import Instant

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
