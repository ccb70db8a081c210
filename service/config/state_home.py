"""The folder in which commands for customers keep what they remember between runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def find_verify_folder(address: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for the record that a customer keeps of the service at an address."""
    variables = os.environ if environment is None else environment
    home = variables.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    parts = urlsplit(address)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    # A service below a path has a record of its own.
    path = parts.path.strip("/").replace("/", "_")
    name = "_".join(filter(None, (parts.hostname, str(port), path)))
    return Path(home, "signals", "verify", name)
