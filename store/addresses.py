"""Database URLs without credentials, and kinds of hosts; loads no database driver."""

import ipaddress
import socket
from urllib.parse import urlsplit


def redact_database_url(url: str) -> str:
    """Return a PostgreSQL URL without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{host}{parts.path}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether listening on a host means listening on all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        return socket.inet_aton(host) == bytes(4)  # such as "0"
    except OSError:
        return False
