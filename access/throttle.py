"""Limits attempts per client address, per network and in total, in a sliding window."""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal, Self

from schemas.errors import rate_limited_error
from schemas.vocabulary import DAY_MS, Clock
from store.access_rows import AttemptLimit, RefusedAttempt
from store.sql.access_store import AccessStore

AttemptKind = Literal[
    "checkout",
    "access-request",
    "sign-in",
    "sign-in-mail",
    "authorization",
    "token",
    "client-registration",
]
# Maintenance deletes attempts after a day, so a longer window would forget some.
MAX_WINDOW_S = DAY_MS // 1000
# The attempts of a network, as a multiple of those of a client, by prefix length. Providers usually
# assign one customer no more than a /48 or a /24.
IPV4_NETWORK_FACTORS = {24: 8}
IPV6_NETWORK_FACTORS = {56: 4, 48: 16}
# For all clients together; bounds the cost of an attacker who controls many networks.
TOTAL_FACTOR = 50
EVERY_CLIENT = "*"


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


DEFAULT_LIMIT = Limit(30, 600)
MAX_REFUSALS = 1000


class Throttle:
    """Counts one kind of attempt per client address and network, across all serving processes."""

    def __init__(self, store: AccessStore, clock: Clock, kind: AttemptKind, limit: Limit) -> None:
        self._store = store
        self._clock = clock
        self._kind = kind
        self._limit = limit
        # A refusal stays true until its limit is free, so repeated attempts read no store.
        self._refusals: dict[str, RefusedAttempt] = {}

    async def take_attempt(self, address: str, *, is_mailbox: bool = False) -> None:
        """Record an attempt of a client address, or for a mailbox, which counts for no other.

        Raise ApiError 429 if none is left.
        """
        attempts = self._limit.attempts
        limits = [AttemptLimit(address, attempts)] if is_mailbox else list_limits(address, attempts)
        client = limits[0]
        now, window_s = self._clock(), self._limit.window_s
        refused = self._refusals.pop(client.address, None)
        # Not beyond the window, in case the clock was set back.
        if refused is None or not now < refused.free_at <= now + window_s * 1000:
            refused = await self._store.record_attempt(self._kind, limits, now, window_s * 1000)
        if refused is None:
            return
        self._refusals[client.address] = refused
        if len(self._refusals) > MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        address, attempts = refused.limit
        source = (
            "this address"
            if refused.limit == client
            else "all clients together"
            if address == EVERY_CLIENT
            else f"the network {address}"
        )
        retry_after_s = max(-(-(refused.free_at - now) // 1000), 1)
        raise rate_limited_error(
            f"Too many {self._kind} submissions from {source}: at most {attempts} in "
            f"{window_s} seconds are accepted. Retry after {retry_after_s} seconds.",
            retry_after_s,
        )


@lru_cache(maxsize=1024)
def find_client(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 of an IPv6 one."""
    return list_limits(address, 1)[0].address


def list_limits(address: str, attempts: int) -> list[AttemptLimit]:
    """Return the limits of a client address, narrowest first: client, networks, all clients.

    A client is an IPv4 address or the /64 of an IPv6 one, and may make `attempts` attempts.
    """
    every_client = AttemptLimit(EVERY_CLIENT, attempts * TOTAL_FACTOR)
    try:
        ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return [AttemptLimit(address, attempts), every_client]
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    # A provider assigns at least a /64 to each customer, who could use a new address per attempt.
    factors = IPV4_NETWORK_FACTORS if ip.version == 4 else {64: 1} | IPV6_NETWORK_FACTORS
    networks = [
        AttemptLimit(str(ip_network(f"{ip}/{prefix}", strict=False)), attempts * factor)
        for prefix, factor in factors.items()
    ]
    client = [AttemptLimit(str(ip), attempts)] if ip.version == 4 else []
    return [*client, *networks, every_client]
