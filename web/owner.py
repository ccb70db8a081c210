"""Recognizes the owner of a service on their own machine.

The owner may connect programs without a plan and without signing in, so a request must prove that
it comes from a program of the owner on this machine.
"""

import sys
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path

from starlette.types import Scope

from serving.host_origin import LOCAL_HOSTS, parse_host
from serving.http import read_headers

# Linux's tables of TCP connections, with the user of each end that is on this machine. Systems
# without them recognize no owner, who then signs in.
CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# The columns local address, remote address, state and user id of a line, and the state of an open
# connection. A closed end belongs to no user, and the kernel writes 0 for it, as for root.
COLUMNS = (1, 2, 3, 7)
ESTABLISHED = "01"
PROXY_HEADERS = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)


def is_owner(scope: Scope, owner_uid: int | None) -> bool:
    """Return whether a program of the user `owner_uid` on this machine sent a request directly.

    False if `owner_uid` is None: the service then has other users than its owner.
    """
    # Any page can reach a loopback port, by a form or under a name of its own that it resolves to
    # 127.0.0.1 (DNS rebinding). The middleware refuses its Origin, the check of Host its name.
    # A proxy on this machine connects from loopback, too, for clients anywhere. It gives itself
    # away by a header, by the public Host, or by running as another user, as nginx does.
    # Other users of this machine reach the port as well; only the user id tells them apart.
    headers = read_headers(scope)
    if owner_uid is None or not PROXY_HEADERS.isdisjoint(headers):
        return False
    if parse_host(headers.get(b"host", b"").decode("latin-1")) not in LOCAL_HOSTS:
        return False
    return _find_peer_uid(scope) == owner_uid


def _find_peer_uid(scope: Scope) -> int | None:
    """Return the user id of the client's end of a loopback connection, None if it is not here."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server or not ip_address(client[0]).is_loopback:
        return None
    ends = _format_end(*client), _format_end(*server)
    for table in CONNECTION_TABLES:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            *found, uid = itemgetter(*COLUMNS)(line.split())
            if found == [*ends, ESTABLISHED]:
                return int(uid)
    return None


def _format_end(address: str, port: int) -> str:
    """Return an address and port as the tables write them: words of four bytes in native order."""
    packed = ip_address(address).packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{port:04X}"
