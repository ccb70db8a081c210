"""Builds the MCPB bundle in `dist`: `python -m tools.build_bundle [--url URL]`, `make bundle`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mcp_server.bundle import build_bundle
from schemas.errors import OperatorError
from schemas.version import VERSION
from service.commands.cli import parse_base_address


def main(arguments: Sequence[str] | None = None, folder: Path = Path("dist")) -> int:
    """Write the bundle and print its path."""
    parser = argparse.ArgumentParser(prog="python -m tools.build_bundle", description=__doc__)
    parser.add_argument("--url", help="address of the service that the bundle suggests")
    url = parser.parse_args(arguments).url
    try:
        base_url = parse_base_address(url, "--url") if url else None
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    folder.mkdir(exist_ok=True)
    path = folder / f"signals-{VERSION}.mcpb"
    path.write_bytes(build_bundle(base_url))
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
