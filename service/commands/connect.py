"""`signals connect`: how to register the service with an MCP client."""

import sys
from pathlib import Path

from mcp_server.client_registration import CLIENTS, DEFAULT_COMMAND, Client
from service.commands.console import echo


def print_registration(client: Client | None, address: str) -> int:
    """Print the configuration that registers a service with a client, or list all clients."""
    if client is None:
        for choice in CLIENTS:
            print(choice.name, f"{choice.title}, {choice.location}", sep="\t")
        return 0
    echo(client.instructions)
    program = Path(sys.argv[0])
    # Desktop programs search other folders for commands than a shell does, so give the full path.
    command = str(program.absolute()) if program.name == DEFAULT_COMMAND else DEFAULT_COMMAND
    # It names the variable of the key, never the key: output is pasted and committed.
    print(client.render_lines(address, command), end="")
    return 0
