"""How the address of a database reads to an operator; it loads no engine."""

from urllib.parse import urlsplit


def name_of(url: str) -> str:
    """Return a PostgreSQL database's address without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{host}{parts.path}"
