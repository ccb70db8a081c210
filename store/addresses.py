"""Database URLs without credentials, and loopback hosts; loads no database driver."""

import ipaddress
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
