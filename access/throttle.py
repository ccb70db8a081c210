"""Limits attempts per client address in a sliding window."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Literal, Self

from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS
from store.sql.access_store import AccessStore

AttemptKind = Literal["checkout", "access-request", "sign-in", "sign-in-mail"]
# Maintenance deletes attempts after a day, so a longer window would forget some.
MAX_WINDOW_S = DAY_MS // 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `attempts` attempts in any `window_s` seconds."""

    attempts: int
    window_s: int

    def __str__(self) -> str:
        return f"{self.attempts}/{self.window_s}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `ATTEMPTS/SECONDS`; raise ValueError naming the accepted form."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        attempts, window_s = map(int, match.groups()) if match else (0, 0)
        if attempts < 1 or not 1 <= window_s <= MAX_WINDOW_S:
            raise ValueError(
                f"expected ATTEMPTS/SECONDS, such as 20/600; at most {MAX_WINDOW_S} seconds"
            )
        return cls(attempts, window_s)


DEFAULT_LIMIT = Limit(20, 600)


class Throttle:
    """Counts one kind of attempt per client address, across all serving processes."""

    def __init__(self, store: AccessStore, clock: Clock, kind: AttemptKind, limit: Limit) -> None:
        self._store = store
        self._clock = clock
        self._kind = kind
        self._limit = limit

    async def take_attempt(self, address: str) -> None:
        """Record an attempt of a client address; raise ApiError 429 if none is left."""
        now, limit = self._clock(), self._limit
        free_at = await self._store.record_attempt(
            self._kind, to_network(address), now, limit.attempts, limit.window_s * 1000
        )
        if free_at is None:
            return
        retry_after_s = max(-(-(free_at - now) // 1000), 1)
        raise ApiError(
            "rate_limited",
            f"Too many {self._kind} submissions from this address: at most {limit.attempts} in "
            f"{limit.window_s} seconds are accepted. Retry after {retry_after_s} seconds.",
            429,
            retry_after_s=retry_after_s,
        )


def to_network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    # A provider assigns at least a /64 to each customer, who could use a new address per attempt.
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip)
