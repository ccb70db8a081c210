"""Registration of the MCP server in its clients: hosts of agents, and frameworks for programs.

A snippet follows the page that its client names as `documentation`. It names the environment
variable that holds the key, or a placeholder, never the key itself, in the syntax of that page.
"""

import json
import shlex
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from textwrap import indent
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from access.oauth.parameters import RESOURCE_PATH
from mcp_server.endpoint import PATHS

KEY_VARIABLE: Final = "SIGNALS_API_KEY"
# For files in which a client expands no variables, as far as its documentation says.
KEY_PLACEHOLDER: Final = "YOUR_API_KEY"


@dataclass(frozen=True, slots=True)
class Client:
    """An agent host or framework, and the snippet that registers the server in it.

    `render` takes the base URL of the service. `documentation` is the page that describes the
    format. `tried` is the version that the snippet was tried with, empty if it was not.
    `render_link` returns a link that installs the server in the client.
    """

    name: str
    title: str
    location: str
    language: Literal["sh", "json", "toml", "yaml", "python", "text"]
    render: Callable[[str], str]
    documentation: str
    note: str = ""
    tried: str = ""
    render_link: Callable[[str], str] | None = None

    @property
    def instructions(self) -> str:
        """A heading that says where the snippet goes, with the client's note."""
        return f"{self.title}, {self.location}" + (f"; {self.note}" if self.note else "") + ":"

    @property
    def tried_with(self) -> str:
        """A sentence that says which version the snippet was tried with."""
        if not self.tried:
            return "Not tried, written by the documentation."
        return f"Tried with version {self.tried}."

    @property
    def signs_in(self) -> bool:
        """Whether the client needs only the address, because it signs its user in with OAuth."""
        return self.language == "text"

    def render_lines(self, base_url: str) -> str:
        """Return the registration snippet, ending with a newline."""
        return self.render(base_url) + "\n"


def build_server_entry(base_url: str, api_key: str = f"${{{KEY_VARIABLE}}}") -> dict[str, Any]:
    """Return the server entry that most JSON files accept.

    `api_key` is the reference or placeholder that stands for the key.
    """
    return {"type": "http", "url": base_url + PATHS[0], "headers": build_headers(api_key)}


def build_headers(api_key: str) -> dict[str, str]:
    """Return the header with the key; `api_key` is a reference or placeholder."""
    return {"Authorization": f"Bearer {api_key}"}


def build_registration_file(base_url: str) -> dict[str, Any]:
    """Return the content of the registration file that most hosts accept."""
    return {"mcpServers": {"signals": build_server_entry(base_url)}}


def render_claude_code(base_url: str) -> str:
    """Return the command that registers the server in Claude Code."""
    # Single quotes keep the shell from expanding the variable, so Claude Code stores its name and
    # the key stays out of the file that the command writes.
    return (
        f"claude mcp add --transport http signals {shlex.quote(base_url + PATHS[0])} "
        f"--header 'Authorization: Bearer ${{{KEY_VARIABLE}}}'"
    )


def render_json(value: Any) -> str:
    """Return indented JSON, as people keep it in files."""
    return json.dumps(value, indent=2)


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


def create_text_renderer(template: str) -> Callable[[str], str]:
    """Return a renderer of a text in which URL stands for the address and KEY for the variable."""
    text = template.replace("KEY", KEY_VARIABLE)
    return lambda base_url: text.replace("URL", json.dumps(base_url + PATHS[0]))


GOOSE_FILE = """extensions:
  signals:
    type: streamable_http
    name: signals
    enabled: true
    uri: URL
    env_keys: [KEY]
    headers:
      Authorization: "Bearer ${KEY}"
    timeout: 300"""
LIBRECHAT_FILE = """mcpServers:
  signals:
    type: streamable-http
    url: URL
    headers:
      Authorization: "Bearer ${KEY}"
    serverInstructions: true"""
CODEX_FILE = """[mcp_servers.signals]
url = URL
bearer_token_env_var = "KEY\""""


def render_opencode(base_url: str) -> str:
    """Return OpenCode's file, in which servers stand below `mcp.servers`."""
    entry = _build_entry(base_url, f"{{env:{KEY_VARIABLE}}}", type="remote")
    schema = {"$schema": "https://opencode.ai/config.json"}
    return render_json({**schema, "mcp": {"servers": {"signals": entry}}})


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


HOSTS = (
    Client(
        "claude-code",
        "Claude Code",
        "in a shell",
        "sh",
        render_claude_code,
        "https://code.claude.com/docs/en/mcp",
        tried="2.1.197",
    ),
    Client(
        "claude",
        "Claude on the web, on phones and in Claude Desktop",
        "in Settings, Connectors, Add custom connector",
        "text",
        render_sign_in_address,
        "https://support.claude.com/en/articles/11175166-get-started-with-custom-connectors-using-remote-mcp",
        SIGN_IN_NOTE,
    ),
    Client(
        "claude-desktop",
        "Claude Desktop, with a key",
        "in `claude_desktop_config.json` (Settings, Developer, Edit Config)",
        "json",
        lambda base_url: render_json({"mcpServers": {"signals": _build_bridge(base_url)}}),
        "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        f"needs Node.js; {PASTE_NOTE}",
    ),
    Client(
        "chatgpt",
        "ChatGPT",
        "in Settings, Apps & Connectors, with developer mode on, Create",
        "text",
        render_sign_in_address,
        "https://developers.openai.com/apps-sdk/deploy/connect-chatgpt",
        SIGN_IN_NOTE,
    ),
    Client(
        "cursor",
        "Cursor",
        "in `.cursor/mcp.json`",
        "json",
        # Cursor's format for a remote server has no `type`; the `url` implies it.
        create_json_renderer("mcpServers", f"${{env:{KEY_VARIABLE}}}"),
        "https://cursor.com/docs/mcp",
        render_link=partial(
            render_base64_link,
            "cursor://anysphere.cursor-deeplink/mcp/install",
            f"${{env:{KEY_VARIABLE}}}",
        ),
    ),
    Client(
        "vscode",
        "VS Code",
        "in `.vscode/mcp.json`",
        "json",
        render_vscode,
        "https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
        "it prompts for the key once",
        render_link=render_vscode_link,
    ),
    Client(
        "copilot-cli",
        "GitHub Copilot CLI",
        "in `~/.copilot/mcp-config.json`",
        "json",
        create_json_renderer("mcpServers", KEY_PLACEHOLDER, type="http", tools=["*"]),
        "https://docs.github.com/en/copilot/how-tos/copilot-cli/customize-copilot/add-mcp-servers",
        PASTE_NOTE,
    ),
    Client(
        "codex",
        "Codex",
        "in `~/.codex/config.toml`",
        "toml",
        create_text_renderer(CODEX_FILE),
        "https://developers.openai.com/codex/mcp",
        tried="0.169.0",
    ),
    Client(
        "gemini-cli",
        "Gemini CLI",
        "in `~/.gemini/settings.json`",
        "json",
        create_json_renderer("mcpServers", f"${KEY_VARIABLE}", url_field="httpUrl"),
        "https://geminicli.com/docs/tools/mcp-server",
        tried="0.61.0",
    ),
    Client(
        "qwen-code",
        "Qwen Code",
        "in `~/.qwen/settings.json`",
        "json",
        create_json_renderer("mcpServers", f"${KEY_VARIABLE}", url_field="httpUrl"),
        "https://qwenlm.github.io/qwen-code-docs/en/users/features/mcp",
        tried="0.15.10",
    ),
    Client(
        "windsurf",
        "Windsurf",
        "in `~/.codeium/windsurf/mcp_config.json`",
        "json",
        create_json_renderer("mcpServers", f"${{env:{KEY_VARIABLE}}}", url_field="serverUrl"),
        "https://docs.windsurf.com/windsurf/cascade/mcp",
    ),
    Client(
        "zed",
        "Zed",
        "in `~/.config/zed/settings.json`",
        "json",
        create_json_renderer("context_servers", KEY_PLACEHOLDER),
        "https://zed.dev/docs/ai/mcp",
        PASTE_NOTE,
    ),
    Client(
        "cline",
        "Cline",
        "in `cline_mcp_settings.json` (MCP Servers, Configure)",
        "json",
        create_json_renderer("mcpServers", KEY_PLACEHOLDER, type="streamableHttp"),
        "https://docs.cline.bot/mcp/connecting-to-a-remote-server",
        PASTE_NOTE,
    ),
    Client(
        "goose",
        "Goose",
        "in `~/.config/goose/config.yaml`",
        "yaml",
        create_text_renderer(GOOSE_FILE),
        "https://goose-docs.ai/docs/guides/config-files",
        render_link=render_goose_link,
    ),
    Client(
        "lm-studio",
        "LM Studio",
        "in `mcp.json` (Program, Install, Edit mcp.json)",
        "json",
        create_json_renderer("mcpServers", KEY_PLACEHOLDER),
        "https://lmstudio.ai/docs/app/mcp",
        PASTE_NOTE,
        render_link=partial(render_base64_link, "lmstudio://add_mcp", KEY_PLACEHOLDER),
    ),
    Client(
        "opencode",
        "OpenCode",
        "in `opencode.json`",
        "json",
        render_opencode,
        "https://opencode.ai/docs/mcp-servers",
        tried="1.18.33",
    ),
    Client(
        "kiro",
        "Kiro",
        "in `~/.kiro/settings/mcp.json`",
        "json",
        create_json_renderer("mcpServers", f"${{{KEY_VARIABLE}}}"),
        "https://kiro.dev/docs/mcp/configuration",
    ),
    Client(
        "crush",
        "Crush",
        "in `crush.json`",
        "json",
        create_json_renderer("mcp", f"${KEY_VARIABLE}", type="http"),
        "https://github.com/charmbracelet/crush",
    ),
    Client(
        "amp",
        "Amp",
        "in `~/.config/amp/settings.json`",
        "json",
        create_json_renderer("amp.mcpServers", f"${{{KEY_VARIABLE}}}"),
        "https://ampcode.com/manual",
    ),
    Client(
        "librechat",
        "LibreChat",
        "in `librechat.yaml`",
        "yaml",
        create_text_renderer(LIBRECHAT_FILE),
        "https://www.librechat.ai/docs/configuration/librechat_yaml/object_structure/mcp_servers",
    ),
    Client(
        "mcp-remote",
        "Any host that starts only local commands",
        "as the command of the server",
        "sh",
        render_mcp_remote,
        "https://github.com/punkpeye/mcp-remote",
        "needs Node.js",
        tried="0.15.1",
    ),
)
FRAMEWORKS = (
    Client(
        "python-sdk",
        "Python, with the `mcp` package",
        "in a program",
        "python",
        create_python_renderer(
            "import httpx2\n"
            "from mcp import Client\n"
            "from mcp.client.streamable_http import streamable_http_client",
            "async with httpx2.AsyncClient(headers=HEADERS) as http:\n"
            "    async with Client(streamable_http_client(URL, http_client=http)) as signals:\n"
            '        print(await signals.call_tool("signals_get_state", {"ticker": "BTC"}))',
        ),
        "https://py.sdk.modelcontextprotocol.io",
        tried="2.3.0",
    ),
    Client(
        "openai-agents",
        "OpenAI Agents SDK",
        "in a program",
        "python",
        create_python_renderer(
            "from agents import Agent\nfrom agents.mcp import MCPServerStreamableHttp",
            'params = {"url": URL, "headers": HEADERS}\n'
            "async with MCPServerStreamableHttp(params) as signals:\n"
            '    agent = Agent("analyst", mcp_servers=[signals])\n'
            "    print(agent.name, [tool.name for tool in await signals.list_tools()])",
        ),
        "https://openai.github.io/openai-agents-python/mcp/",
        tried="0.24.0",
    ),
    Client(
        "langchain",
        "LangChain, with `langchain-mcp-adapters`",
        "in a program",
        "python",
        create_python_renderer(
            "from langchain_mcp_adapters.client import MultiServerMCPClient",
            'server = {"transport": "streamable_http", "url": URL, "headers": HEADERS}\n'
            'tools = await MultiServerMCPClient({"signals": server}).get_tools()\n'
            "print([tool.name for tool in tools])",
        ),
        "https://docs.langchain.com/oss/python/langchain/mcp",
        tried="0.3.2",
    ),
    Client(
        "pydantic-ai",
        "Pydantic AI",
        "in a program",
        "python",
        create_python_renderer(
            "from pydantic_ai import Agent\nfrom pydantic_ai.mcp import MCPToolset",
            "signals = MCPToolset(URL, headers=HEADERS)\n"
            'agent = Agent(name="analyst", toolsets=[signals])\n'
            "async with agent:\n"
            "    print(agent.name, [tool.name for tool in await signals.list_tools()])",
        ),
        "https://ai.pydantic.dev/mcp/client/",
        tried="2.68.0",
    ),
)
CLIENTS = (*HOSTS, *FRAMEWORKS)
CLIENTS_BY_NAME = {client.name: client for client in CLIENTS}
