"""Finds the client's address behind trusted proxies, from X-Forwarded-For."""

import re
from collections.abc import Awaitable, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import describe_failure
from schemas.vocabulary import HOUR_MS, Clock
from serving.http import read_headers
from store.access_rows import Notice
from store.sql.access_store import AccessStore
from store.store_errors import StoreError

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

NOTICE_NAME = "untrusted_forwarded_for"
# Hops that are read of one request; no chain of proxies is longer.
MAX_HOPS = 20
# What a trusted network may lie in. A network of public addresses would let strangers write the
# header, and so choose the address that their limits count.
PRIVATE_NETWORKS = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.168.0.0/16", "fc00::/7", "fe80::/10"),
    )
)
# Some proxies add the port to the address; an IPv6 address is in brackets then.
HOP_PATTERN = re.compile(
    r"\[(?P<v6>[^\[\]]+)\](?::[0-9]{1,5})?|(?P<v4>[0-9.]+):[0-9]{1,5}", re.ASCII
)

log = structlog.get_logger("rest")


def parse_proxies(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Parse addresses and networks; ValueError quotes the first invalid one."""
    networks = []
    for text in texts:
        try:
            network = ip_network(text)
            mapped = getattr(network.network_address, "ipv4_mapped", None)
            if mapped is not None and network.prefixlen >= 96:
                network = ip_network((mapped, network.prefixlen - 96))
            ends = (network[0], network[-1])
            is_private = any(ends[0] in each and ends[1] in each for each in PRIVATE_NETWORKS)
            if network.num_addresses > 1 and not is_private:
                raise ValueError("it has public addresses; name each proxy by its own address")
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a valid proxy ({error}); give addresses such as 10.0.0.1 or "
                "networks such as 10.0.0.0/8"
            ) from None
        networks.append(network)
    return tuple(networks)


class ForwardedForMiddleware:
    """ASGI middleware that sets the client to the nearest hop that is not a trusted proxy.

    If the peer itself is untrusted, its header is ignored and recorded as a notice for the
    operator, at most once an hour. `clock` returns epoch ms.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        trusted: tuple[IpNetwork, ...],
        store: AccessStore,
        clock: Clock,
    ) -> None:
        self._app = app
        self._trusted = trusted
        self._store = store
        self._clock = clock
        self._quiet_until = 0

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on with its client's address."""
        forwarded = read_headers(scope).get(b"x-forwarded-for") if scope["type"] == "http" else None
        if forwarded is None:
            return self._app(scope, receive, send)
        return self._forward(forwarded.decode("latin-1"), scope, receive, send)

    async def _forward(self, forwarded: str, scope: Scope, receive: Receive, send: Send) -> None:
        peer = (scope.get("client") or ("unknown", 0))[0]
        if self._is_trusted(_parse_hop(peer)):
            # The header has no usable port; 0 stands for unknown. No copy of the scope, because the
            # server logs what the app adds to it.
            scope["client"] = (peer, 0)
            # Right to left: each proxy appends the address it saw, so everything to the left of the
            # first untrusted hop was written by the client and can be forged.
            for hop in reversed(forwarded.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
                address = _parse_hop(hop)
                if address is None:
                    break
                scope["client"] = (str(address), 0)
                if not self._is_trusted(address):
                    break
        elif not 0 < self._quiet_until - (now := self._clock()) <= HOUR_MS:
            # Set before the await, so that concurrent requests write one notice.
            self._quiet_until = now + HOUR_MS
            try:
                await self._store.put_notice(Notice(NOTICE_NAME, peer, now))
            except StoreError as error:
                log.warning("notice_not_kept", notice=NOTICE_NAME, **describe_failure(error))
        await self._app(scope, receive, send)

    def _is_trusted(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._trusted)


def _parse_hop(text: str) -> IpAddress | None:
    """Return the address of a hop, or None if it is malformed; IPv4-mapped IPv6 becomes IPv4."""
    text = text.strip()
    if match := HOP_PATTERN.fullmatch(text):
        text = match["v6"] or match["v4"]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
