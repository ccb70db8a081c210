"""The version of this release, which every other place reads from here, and its extras."""

import shlex
import sys
from typing import Final

VERSION: Final = "0.1.0"


def describe_install(extra: str) -> str:
    """Return the command that adds the libraries of an extra to this environment.

    It names the libraries, because no package index has the distribution itself.
    """
    # Only here, because it loads slowly.
    from importlib.metadata import requires

    mark = f'extra == "{extra}"'
    found = [one.partition(";") for one in requires("signals-mcp") or ()]
    names = [shlex.quote(name.strip()) for name, _, condition in found if mark in condition]
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(names)}"
