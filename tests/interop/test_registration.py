"""The printed programs that register the server with a framework run unchanged."""

import asyncio
import json
import os
import signal
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from mcp_server.registration import CLIENTS_BY_NAME
from mcp_server.tools.registry import TOOLS_BY_NAME
from tools.client_environments import get_node_environment, get_python_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]

ENDS_WITHIN_S = 600
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "tests", "version": "0"},
}
CALLS = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "signals_get_usage"}},
]


@pytest.mark.parametrize(
    ("client", "pinned_as"),
    [
        ("openai-agents", "openai_agents"),
        ("langchain", "langchain_tools"),
        ("pydantic-ai", "pydantic_agent"),
    ],
)
async def test_a_program_lists_the_tools(served, client, pinned_as):
    python = await asyncio.to_thread(get_python_environment, pinned_as)
    done = await asyncio.to_thread(
        subprocess.run,
        [str(python), "-c", CLIENTS_BY_NAME[client].render_lines(served.base_url)],
        env={"SIGNALS_API_KEY": served.api_key},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert all(tool in done.stdout for tool in TOOLS_BY_NAME)


def build_shell_command(base_url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command for any host, and its environment without the key."""
    line = CLIENTS_BY_NAME["mcp-remote"].render_lines(base_url)
    return ["sh", "-c", line], {"SIGNALS_API_KEY": "KEY"}


def build_desktop_command(base_url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command in the file of Claude Desktop, and its environment without the key."""
    file = CLIENTS_BY_NAME["claude-desktop"].render_lines(base_url).replace("YOUR_API_KEY", "KEY")
    server = json.loads(file)["mcpServers"]["signals"]
    return [server["command"], *server["args"]], server["env"]


@pytest.mark.parametrize("build_command", [build_shell_command, build_desktop_command])
async def test_the_printed_bridge_calls_a_tool_with_the_key(served, tmp_path, build_command):
    folder = await asyncio.to_thread(get_node_environment)
    command, env = build_command(served.base_url, tmp_path)
    # In place of npx, which would install the package, a script starts the installed one.
    npx = tmp_path / "npx"
    npx.write_text(
        f'#!/bin/sh\nshift\ntest "$1" = mcp-remote && exec {folder}/node_modules/.bin/"$@"\n'
    )
    npx.chmod(0o755)
    env = {name: value.replace("KEY", served.api_key) for name, value in env.items()}
    process = await asyncio.create_subprocess_exec(
        *(str(npx) if word == "npx" else word for word in command),
        env={**env, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        # The shell starts the bridge as a child, which has to end too.
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{json.dumps(call)}\n" for call in CALLS).encode())
        answers = [
            json.loads(await asyncio.wait_for(process.stdout.readline(), ENDS_WITHIN_S))
            for _ in range(2)
        ]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["isError"] is False
    assert "signals/quota" in answers[1]["result"]["_meta"]
