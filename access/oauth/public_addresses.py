"""Resolves host names to public IP addresses, and refuses all others."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address, ip_network

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host, best first; raises OSError or UnicodeError if it has none."""

# IANA's registries of special-purpose addresses, and 168.63.129.16, where Azure serves metadata.
# The metadata services of the other clouds have link-local, private or shared addresses. The
# `is_global` of the standard library differs between the releases of Python.
_SPECIAL_IPV4 = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16
192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
"""
# Teredo and other protocols, documentation, 6to4 (which leads to any IPv4 address), AS112.
_SPECIAL_IPV6 = "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20"
_SPECIAL_NETWORKS = [ip_network(each) for each in f"{_SPECIAL_IPV4} {_SPECIAL_IPV6}".split()]
# IPv4-mapped addresses, NAT64, and local, link-local and multicast ones are outside of it.
_GLOBAL_UNICAST = ip_network("2000::/3")
_MAX_LOOKUPS = 8


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return False
    return not any(ip in network for network in _SPECIAL_NETWORKS)


class HostResolver:
    """Resolves hosts in threads of its own, so that lookups that hang delay nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, "resolve-host")

    async def __call__(self, host: str) -> list[str]:
        """Return the IP addresses of a host, best first; raise OSError if it has none."""
        lookup = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, lookup)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
