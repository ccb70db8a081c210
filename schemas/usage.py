"""Result of signals_get_usage: the API key and its daily quota."""

from typing import NamedTuple

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from schemas.result import Count, NextChangeTime, Result, is_none
from schemas.vocabulary import Instant, Mode, SourceKind


class UsageKey(Result):
    """The API key of this call."""

    label: str | None


class Quota(Result):
    """The daily quota of a key and its use today."""

    daily_limit: Count
    used_today: Count
    remaining_today: Count
    resets_at: Instant


# A named tuple with hand-written JSON: every keyed call builds one, and a pydantic model is slower.
# No value needs escaping, because the fields are three integers and an instant.
class QuotaUsage(NamedTuple):
    """The quota of a key, attached to every keyed call."""

    daily_limit: int
    used_today: int
    remaining_today: int
    resets_at: Instant

    def to_json(self) -> str:
        """Return the JSON of a `Quota` model with these values."""
        return (
            f'{{"daily_limit":{self.daily_limit},"used_today":{self.used_today},'
            f'"remaining_today":{self.remaining_today},"resets_at":"{self.resets_at}"}}'
        )


class UsageMeta(Result):
    """`meta` of usage, present even before coverage is published."""

    source: SourceKind | None
    simulated: bool = Field(description="True: the service's data are not those of a real market.")
    nothing_new_before: NextChangeTime = None
    counted: str = Field(description="The calls that count against the quota.")
    note: str | SkipJsonSchema[None] = Field(default=None, exclude_if=is_none)


class UsageResponse(Result):
    """The key, the billing mode of the server, and the key's quota."""

    key: UsageKey
    mode: Mode | None
    quota: Quota | None
    meta: UsageMeta
