"""Addresses: how a database's reads to an operator, and which are this machine; no engine loads."""

import ipaddress
from urllib.parse import urlsplit


def redact_database_url(url: str) -> str:
    """Return a PostgreSQL database's address without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{host}{parts.path}"


def is_loopback(host: str) -> bool:
    """Tell whether a host to listen on, or of an address, is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
