"""`signals connect`: how to register the service with an MCP client."""

from access.oauth.parameters import can_serve_oauth
from mcp_server.registration import CLIENTS, Client
from service.commands.console import echo


def print_registration(client: Client | None, address: str) -> int:
    """Print the configuration that registers a service with a client, or list all clients."""
    if client is None:
        for choice in CLIENTS:
            print(choice.name, f"{choice.title}, {choice.location}", sep="\t")
        return 0
    echo(client.instructions)
    # It names the variable of the key, never the key: output is pasted and committed.
    print(client.render_lines(address), end="")
    if client.link:
        echo(f"Or open this link to install it: {client.render_link(address)}")
    if client.signs_in and not can_serve_oauth(address):
        echo("This address serves no OAuth, which needs https. Register a client with a key.")
    echo(f"{client.tried_with} The format: {client.documentation}")
    return 0
