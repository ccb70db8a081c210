"""`signals connect`: what registers the service with a client."""

import sys
from pathlib import Path

from mcp_server.client_registration import CLIENTS, DEFAULT_COMMAND, Client
from service.commands.console import echo


def print_registration(client: Client | None, address: str) -> int:
    """Print what registers a service with a client, or list the clients without one."""
    if client is None:
        for choice in CLIENTS:
            print(choice.name, f"{choice.title}, {choice.location}", sep="\t")
        return 0
    echo(client.instructions)
    program = Path(sys.argv[0])
    # Programs with a desktop search other folders for commands than shells do.
    command = str(program.absolute()) if program.name == DEFAULT_COMMAND else DEFAULT_COMMAND
    print(client.render_lines(address, command), end="")
    return 0
