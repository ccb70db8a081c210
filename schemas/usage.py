"""signals_get_usage: an API key and its daily quota."""

from typing import NamedTuple

from pydantic import Field

from schemas.result import Count, NextChangeTime, Result
from schemas.vocabulary import Instant, Mode, SourceKind


class UsageKey(Result):
    """The key that was sent."""

    label: str | None


class Quota(Result):
    """What a key may still call today."""

    daily_limit: Count
    used_today: Count
    remaining_today: Count
    resets_at: Instant


class QuotaUsage(NamedTuple):
    """A quota as every keyed call carries it, which need not cost as much as a model."""

    daily_limit: int
    used_today: int
    remaining_today: int
    resets_at: Instant

    def to_json(self) -> str:
        """Write it as `Quota` is written."""
        return (
            f'{{"daily_limit":{self.daily_limit},"used_today":{self.used_today},'
            f'"remaining_today":{self.remaining_today},"resets_at":"{self.resets_at}"}}'
        )


class UsageMeta(Result):
    """`meta` of usage, which is there before anything is covered."""

    source: SourceKind | None
    simulated: bool = Field(description="True: the service shows no real market.")
    nothing_new_before: NextChangeTime
    counted: str = Field(description="Which calls count against the quota.")
    note: str | None


class UsageResponse(Result):
    """The key, the billing mode of the server, and the key's quota."""

    key: UsageKey
    mode: Mode | None
    quota: Quota | None
    meta: UsageMeta
