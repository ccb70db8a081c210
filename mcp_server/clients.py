"""The clients that the service knows: hosts of agents, and frameworks for programs.

Each snippet follows the page that its client names as `documentation`.
"""

from functools import partial

from mcp_server.client_registration import KEY_PLACEHOLDER, KEY_VARIABLE, Client, render_claude_code
from mcp_server.client_snippets import (
    PASTE_NOTE,
    SIGN_IN_NOTE,
    create_json_renderer,
    create_python_renderer,
    render_base64_link,
    render_claude_desktop,
    render_codex,
    render_goose,
    render_goose_link,
    render_librechat,
    render_mcp_remote,
    render_opencode,
    render_sign_in_address,
    render_vscode,
    render_vscode_link,
)

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
        render_claude_desktop,
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
        render_codex,
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
        render_goose,
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
        render_librechat,
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
