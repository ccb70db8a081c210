"""`signals connect`: what registers the service with a client."""

import sys
from pathlib import Path

from mcp_server.client_registration import CLIENTS, COMMAND, Client
from service.commands.console import tell


def connect(client: Client | None, address: str) -> int:
    """Print what registers a service with a client, or list the clients without one."""
    if client is None:
        for known in CLIENTS:
            print(known.name, f"{known.title}, {known.where}", sep="\t")
        return 0
    tell(client.told)
    called = Path(sys.argv[0])
    # Programs with a desktop search other folders for commands than shells do.
    command = str(called.absolute()) if called.name == COMMAND else COMMAND
    print(client.lines(address, command), end="")
    return 0
