"""Registration snippets of the MCP server for each client.

The README, the manifest and `signals connect` all use them. A snippet names the environment
variable that holds the key, never the key itself, in the syntax of the client's documentation.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import Any, Final, Literal

from mcp_server.endpoint import PATHS

KEY_VARIABLE: Final = "SIGNALS_API_KEY"
DEFAULT_COMMAND: Final = "signals"


@dataclass(frozen=True, slots=True)
class Client:
    """An agent host or framework, and the snippet that registers the server in it.

    `render` takes the base URL of the service and the command that starts its stdio bridge.
    """

    name: str
    title: str
    location: str
    language: Literal["sh", "json", "toml", "python"]
    render: Callable[[str, str], str]
    note: str = ""

    @property
    def instructions(self) -> str:
        """A heading that says where the snippet goes, with the client's note."""
        return f"{self.title}, {self.location}" + (f"; {self.note}" if self.note else "") + ":"

    def render_lines(self, base_url: str, command: str = DEFAULT_COMMAND) -> str:
        """Return the registration snippet, ending with a newline."""
        return self.render(base_url, command) + "\n"


def build_server_entry(base_url: str, api_key: str = f"${{{KEY_VARIABLE}}}") -> dict[str, Any]:
    """Return the server entry that most JSON files accept.

    `api_key` is the placeholder that the client replaces with the key.
    """
    headers = {"Authorization": f"Bearer {api_key}"}
    return {"type": "http", "url": base_url + PATHS[0], "headers": headers}


def build_registration_file(base_url: str) -> dict[str, Any]:
    """Return the content of the registration file that most hosts accept."""
    return {"mcpServers": {"signals": build_server_entry(base_url)}}


def render_claude_code(base_url: str, command: str = DEFAULT_COMMAND) -> str:
    """Return the command that registers the server in Claude Code."""
    # Single quotes keep the shell from expanding the variable, so Claude Code stores its name and
    # the key stays out of the file that the command writes.
    return (
        f"claude mcp add --transport http signals {shlex.quote(base_url + PATHS[0])} "
        f"--header 'Authorization: Bearer ${{{KEY_VARIABLE}}}'"
    )


def _render_claude_desktop(base_url: str, command: str) -> str:
    # This file takes stdio servers only, so the entry starts the bridge. Claude Desktop expands no
    # variables in it, so the user has to write the key in place of the placeholder.
    arguments = ["stdio", "--url", base_url]
    server = {"command": command, "args": arguments, "env": {KEY_VARIABLE: "YOUR_API_KEY"}}
    return _format_json({"mcpServers": {"signals": server}})


def _render_cursor(base_url: str, command: str) -> str:
    server = build_server_entry(base_url, f"${{env:{KEY_VARIABLE}}}")
    # Cursor's format for a remote server has no `type`; the `url` implies it.
    del server["type"]
    return _format_json({"mcpServers": {"signals": server}})


def _render_vscode(base_url: str, command: str) -> str:
    # VS Code prompts for an input once and keeps it in its secret storage, so no environment
    # variable is needed.
    key_input = {
        "type": "promptString",
        "id": "signals_key",
        "description": "Signals API key",
        "password": True,
    }
    return _format_json(
        {
            "inputs": [key_input],
            "servers": {"signals": build_server_entry(base_url, "${input:signals_key}")},
        }
    )


def _render_codex(base_url: str, command: str) -> str:
    return (
        "[mcp_servers.signals]\n"
        f"url = {json.dumps(base_url + PATHS[0])}\n"
        f"bearer_token_env_var = {json.dumps(KEY_VARIABLE)}"
    )


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _create_python_renderer(imports: str, body: str) -> Callable[[str, str], str]:
    """Return a renderer of a complete program from a framework's imports and the body of main."""

    def render(base_url: str, command: str) -> str:
        return (
            f"import asyncio\nimport os\n\n{imports}\n\n"
            f"URL = {json.dumps(base_url + PATHS[0])}\n"
            f'HEADERS = {{"Authorization": f"Bearer {{os.environ[\'{KEY_VARIABLE}\']}}"}}\n\n\n'
            f"async def main():\n{indent(body, '    ')}\n\n\nasyncio.run(main())"
        )

    return render


CLIENTS = (
    Client("claude-code", "Claude Code", "in a shell", "sh", render_claude_code),
    Client(
        "claude-desktop",
        "Claude Desktop",
        "in `claude_desktop_config.json` (Settings, Developer, Edit Config)",
        "json",
        _render_claude_desktop,
        "it expands no variables, so replace YOUR_API_KEY with the key",
    ),
    Client("cursor", "Cursor", "in `.cursor/mcp.json`", "json", _render_cursor),
    Client(
        "vscode",
        "VS Code",
        "in `.vscode/mcp.json`",
        "json",
        _render_vscode,
        "it prompts for the key once",
    ),
    Client("codex", "Codex", "in `~/.codex/config.toml`", "toml", _render_codex),
    Client(
        "python-sdk",
        "Python, with the `mcp` package",
        "in a program",
        "python",
        _create_python_renderer(
            "import httpx2\n"
            "from mcp import Client\n"
            "from mcp.client.streamable_http import streamable_http_client",
            "async with httpx2.AsyncClient(headers=HEADERS) as http:\n"
            "    async with Client(streamable_http_client(URL, http_client=http)) as signals:\n"
            '        print(await signals.call_tool("signals_get_state", {"ticker": "BTC"}))',
        ),
    ),
    Client(
        "openai-agents",
        "OpenAI Agents SDK",
        "in a program",
        "python",
        _create_python_renderer(
            "from agents import Agent\nfrom agents.mcp import MCPServerStreamableHttp",
            'params = {"url": URL, "headers": HEADERS}\n'
            "async with MCPServerStreamableHttp(params) as signals:\n"
            '    agent = Agent("analyst", mcp_servers=[signals])\n'
            "    print(agent.name, [tool.name for tool in await signals.list_tools()])",
        ),
    ),
    Client(
        "langchain",
        "LangChain, with `langchain-mcp-adapters`",
        "in a program",
        "python",
        _create_python_renderer(
            "from langchain_mcp_adapters.client import MultiServerMCPClient",
            'server = {"transport": "streamable_http", "url": URL, "headers": HEADERS}\n'
            'tools = await MultiServerMCPClient({"signals": server}).get_tools()\n'
            "print([tool.name for tool in tools])",
        ),
    ),
    Client(
        "pydantic-ai",
        "Pydantic AI",
        "in a program",
        "python",
        _create_python_renderer(
            "from pydantic_ai import Agent\nfrom pydantic_ai.mcp import MCPToolset",
            "signals = MCPToolset(URL, headers=HEADERS)\n"
            'agent = Agent(name="analyst", toolsets=[signals])\n'
            "async with agent:\n"
            "    print(agent.name, [tool.name for tool in await signals.list_tools()])",
        ),
    ),
)
CLIENTS_BY_NAME = {client.name: client for client in CLIENTS}
