"""Renders the registration snippets and install links of clients.

Each follows the documentation that `mcp_server/clients.py` names for its client.
"""

import json
import shlex
from base64 import b64encode
from collections.abc import Callable
from textwrap import indent
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from access.oauth.parameters import RESOURCE_PATH
from mcp_server.client_registration import (
    KEY_PLACEHOLDER,
    KEY_VARIABLE,
    build_headers,
    build_server_entry,
    render_json,
)
from mcp_server.endpoint import PATHS

PASTE_NOTE = f"replace {KEY_PLACEHOLDER} with the key"
SIGN_IN_NOTE = "the host opens the service's sign-in page, and needs no key"
INPUT_ID = "signals_key"


def render_sign_in_address(base_url: str) -> str:
    """Return the address that a host asks for if it signs its user in with OAuth."""
    return base_url + RESOURCE_PATH


def _build_entry(
    base_url: str, api_key: str, *, url_field: str = "url", **fields: Any
) -> dict[str, Any]:
    """Return a server entry: `fields` first, then the address and the header with the key."""
    return {**fields, url_field: base_url + PATHS[0], "headers": build_headers(api_key)}


def create_json_renderer(
    root: str, api_key: str, *, url_field: str = "url", **fields: Any
) -> Callable[[str], str]:
    """Return a renderer of a JSON file that lists servers by name below `root`."""

    def render(base_url: str) -> str:
        entry = _build_entry(base_url, api_key, url_field=url_field, **fields)
        return render_json({root: {"signals": entry}})

    return render


def _build_bridge(base_url: str) -> dict[str, Any]:
    """Return the entry of a host that starts only local commands: it starts `mcp-remote`."""
    # The value stands in the environment, because some hosts on Windows split arguments at spaces.
    header = ["--header", "Authorization:${AUTH_HEADER}"]
    return {
        "command": "npx",
        "args": ["-y", "mcp-remote", base_url + PATHS[0], *header, *_list_http_options(base_url)],
        "env": {"AUTH_HEADER": f"Bearer {KEY_PLACEHOLDER}"},
    }


def _list_http_options(base_url: str) -> list[str]:
    """Return the option without which mcp-remote refuses a plain HTTP address in a network."""
    parts = urlsplit(base_url)
    is_safe = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1")
    return [] if is_safe else ["--allow-http"]


def render_claude_desktop(base_url: str) -> str:
    """Return the file of Claude Desktop, which accepts only local commands."""
    return render_json({"mcpServers": {"signals": _build_bridge(base_url)}})


def render_mcp_remote(base_url: str) -> str:
    """Return the command of a local MCP server that forwards to the service."""
    # Double quotes, so that the shell expands the variable: mcp-remote then gets the key itself.
    words = ["npx", "-y", "mcp-remote", shlex.quote(base_url + PATHS[0])]
    header = f'--header "Authorization: Bearer ${KEY_VARIABLE}"'
    return " ".join([*words, header, *_list_http_options(base_url)])


def render_vscode(base_url: str) -> str:
    """Return the file of VS Code, which prompts for the key."""
    return render_json(
        {
            "inputs": [_VSCODE_INPUT],
            "servers": {"signals": build_server_entry(base_url, f"${{input:{INPUT_ID}}}")},
        }
    )


# VS Code prompts for an input once and keeps it in its secret storage, so no environment variable
# is needed.
_VSCODE_INPUT = {
    "type": "promptString",
    "id": INPUT_ID,
    "description": "Signals API key",
    "password": True,
}


def render_vscode_link(base_url: str) -> str:
    """Return the link that installs the server in VS Code."""
    entry = build_server_entry(base_url, f"${{input:{INPUT_ID}}}")
    config = {"name": "signals", **entry, "inputs": [_VSCODE_INPUT]}
    return f"vscode:mcp/install?{_quote(json.dumps(config))}"


def render_base64_link(prefix: str, api_key: str, base_url: str) -> str:
    """Return an install link whose `config` is the server entry as Base64 of JSON."""
    entry = json.dumps(_build_entry(base_url, api_key))
    return f"{prefix}?name=signals&config={_quote(b64encode(entry.encode()).decode())}"


def render_goose_link(base_url: str) -> str:
    """Return the link that installs the server in Goose Desktop."""
    values = {
        "type": "streamable_http",
        "url": base_url + PATHS[0],
        "id": "signals",
        "name": "Signals",
        "description": "Readings of trading indicators",
        "header": f"Authorization=Bearer {KEY_PLACEHOLDER}",
    }
    return f"goose://extension?{urlencode(values, quote_via=quote, safe='')}"


def _quote(text: str) -> str:
    return quote(text, safe="")


def render_goose(base_url: str) -> str:
    """Return the entry in Goose's file, which reads the key from the keyring or the environment."""
    return (
        "extensions:\n"
        "  signals:\n"
        "    type: streamable_http\n"
        "    name: signals\n"
        "    enabled: true\n"
        f"    uri: {json.dumps(base_url + PATHS[0])}\n"
        f"    env_keys: [{KEY_VARIABLE}]\n"
        "    headers:\n"
        f'      Authorization: "Bearer ${{{KEY_VARIABLE}}}"\n'
        "    timeout: 300"
    )


def render_librechat(base_url: str) -> str:
    """Return the entry in LibreChat's file."""
    return (
        "mcpServers:\n"
        "  signals:\n"
        "    type: streamable-http\n"
        f"    url: {json.dumps(base_url + PATHS[0])}\n"
        "    headers:\n"
        f'      Authorization: "Bearer ${{{KEY_VARIABLE}}}"\n'
        "    serverInstructions: true"
    )


def render_opencode(base_url: str) -> str:
    """Return OpenCode's file, in which servers stand below `mcp.servers`."""
    entry = _build_entry(base_url, f"{{env:{KEY_VARIABLE}}}", type="remote")
    schema = {"$schema": "https://opencode.ai/config.json"}
    return render_json({**schema, "mcp": {"servers": {"signals": entry}}})


def render_codex(base_url: str) -> str:
    """Return the entry in Codex's file."""
    return (
        "[mcp_servers.signals]\n"
        f"url = {json.dumps(base_url + PATHS[0])}\n"
        f"bearer_token_env_var = {json.dumps(KEY_VARIABLE)}"
    )


def create_python_renderer(imports: str, body: str) -> Callable[[str], str]:
    """Return a renderer of a complete program from a framework's imports and the body of main."""

    def render(base_url: str) -> str:
        return (
            f"import asyncio\nimport os\n\n{imports}\n\n"
            f"URL = {json.dumps(base_url + PATHS[0])}\n"
            f'HEADERS = {{"Authorization": f"Bearer {{os.environ[\'{KEY_VARIABLE}\']}}"}}\n\n\n'
            f"async def main():\n{indent(body, '    ')}\n\n\nasyncio.run(main())"
        )

    return render
