"""Third-party clients list the tools, call all of them and receive every kind of error.

Frameworks rewrite tool schemas for model providers without losing constraints. The printed programs
that register the server with a framework run unchanged.

A client is a script that reads a plan and writes a report, both JSON, of these shapes:

    {"url": ..., "bridge": [words of the command for stdio], "sessions": [
        {"api_key": text or null, "calls": [{"tool": ..., "arguments": ...}]}]}
    {"client": name, "version": ..., "sessions": [{"tools": [name], "results": [
        {"is_error": bool, or null if only the text shows it,
         "text": the text for the model, "structured": the result or null}]}]}
"""

import asyncio
import json
import os
import signal
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server.registration import CLIENTS_BY_NAME
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from tests.support.example_market import make_coverage
from tests.support.legacy_record import serve_later_version
from tests.support.response_schemas import ADDED_FIELD
from tests.support.running_service import (
    RunningService,
    run_service,
    serve_app,
)
from tests.support.signals_command import COMMAND, ROOT
from tools.client_environments import INTEROP_FOLDER, get_node_environment, get_python_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]

ENDS_WITHIN_S = 600
DAILY_LIMIT = 50
CATALOG, USAGE = "signals_get_catalog", "signals_get_usage"
STATE, SIGNALS = "signals_get_state", "signals_get_signals"
CONFLUENCE = "signals_get_confluence"


MODERN_VERSION = "2026-07-28"
PAGE = (ROOT / "docs" / "agents.md").read_text()


@dataclass(frozen=True)
class Client:
    """A client script, and its mode if it has several.

    `is_structured` says that it passes on structured results, `is_modern` that it uses revision
    2026-07-28.
    """

    name: str
    mode: str = ""
    is_structured: bool = True
    is_modern: bool = False

    def command(self) -> tuple[list[str], Path]:
        """Return the command of the client and its working folder."""
        script = INTEROP_FOLDER / "python" / f"{self.name}.py"
        if script.exists():
            python = get_python_environment(self.name)
            return [str(python), str(script), *self.mode.split()], INTEROP_FOLDER
        folder = get_node_environment()
        node = str(folder / "node_modules" / ".bin" / "node")
        return [node, f"{self.name}.mjs", *self.mode.split()], folder


CLIENTS = [
    Client("mcp_1"),
    Client("mcp_2", "auto", is_modern=True),
    Client("mcp_2", "legacy"),
    Client("mcp_2", MODERN_VERSION, is_modern=True),
    Client("fastmcp_4", "auto", is_modern=True),
    Client("fastmcp_4", "legacy"),
    Client("fastmcp_4", MODERN_VERSION, is_modern=True),
    Client("langchain_tools"),
    Client("openai_agents", is_structured=False, is_modern=True),
    Client("pydantic_agent", is_structured=False, is_modern=True),
    Client("sdk_1"),
    Client("client_2", "auto", is_modern=True),
    Client("client_2", "legacy"),
    Client("client_2", MODERN_VERSION, is_modern=True),
    Client("mcp_remote", "auto", is_modern=True),
    Client("mcp_remote", "legacy"),
    Client("inspector", "auto", is_modern=True),
    Client("inspector", "legacy"),
    Client("inspector", "modern", is_modern=True),
    Client("stdio"),
    Client("inspector_stdio", "modern", is_modern=True),
]


# Each program once: how it checks a result does not depend on its mode.
LIBRARIES = [*{client.name: client for client in CLIENTS}.values()]


async def reported(
    client: Client,
    served: RunningService,
    *sessions: tuple[str | None, list[tuple[str, Any]]],
    base_url: str | None = None,
) -> Any:
    """Run a client on a plan of sessions (key, tools and arguments) and return its report."""
    base_url = base_url or served.base_url
    plan = {
        "url": f"{base_url}/api/v1/mcp",
        "bridge": [*COMMAND, "stdio", "--url", base_url],
        "sessions": [
            {
                "api_key": api_key,
                "calls": [{"tool": tool, "arguments": arguments} for tool, arguments in calls],
            }
            for api_key, calls in sessions
        ],
    }
    command, folder = await asyncio.to_thread(client.command)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await asyncio.wait_for(
        process.communicate(json.dumps(plan).encode()), ENDS_WITHIN_S
    )
    assert process.returncode == 0, complaints.decode()[-4000:]
    return json.loads(said)


@asynccontextmanager
async def record_versions(served: RunningService) -> AsyncIterator[tuple[str, set[str]]]:
    """Serve a service at another address; yield its base URL and the versions that POSTs name.

    The version of a request without the header is empty.
    """
    versions: set[str] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            versions.add(dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode())
        await served.app(scope, receive, send)

    async with serve_app(lambda _: app) as base_url:
        yield base_url, versions


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: f"{each.name} {each.mode}".rstrip())
async def test_it_calls_every_tool_and_every_error_reaches_the_model(client, tmp_path):
    narrow = {STATE: {"ticker": "BTC"}, SIGNALS: {"limit": 2}}
    calls = [(tool, narrow.get(tool, {})) for tool in TOOLS_BY_NAME]
    mistakes = [
        (STATE, {"ticker": "XBT"}, "unknown_ticker", "BTC (Bitcoin)"),
        (SIGNALS, {"indicator": "macd"}, "unknown_indicator", "macd"),
        (SIGNALS, {"limit": 1000}, "invalid_parameter", "limit"),
        (STATE, {"timeframes": "1d"}, "invalid_parameter", "timeframes"),
    ]
    async with (
        run_service(tmp_path, make_coverage(), daily_limit=DAILY_LIMIT) as served,
        record_versions(served) as (base_url, versions),
    ):
        spent = await served.keys.create("spent")
        for _ in range(DAILY_LIMIT):
            await served.client.get("/api/v1/state", headers={"X-Api-Key": spent})
        gone = await served.keys.create("gone")
        await served.keys.revoke(max(key.id for key in await served.keys.list()))
        report = await reported(
            client,
            served,
            (served.api_key, calls),
            (served.api_key, [(tool, arguments) for tool, arguments, *_ in mistakes]),
            (None, [(CATALOG, {}), (STATE, {})]),
            ("ek_wrong", [(STATE, {})]),
            (gone, [(STATE, {})]),
            (spent, [(STATE, {}), (USAGE, {})]),
            base_url=base_url,
        )
        called, refused, keyless, wrong, revoked, at_limit = report["sessions"]
        for (tool, arguments), result in zip(calls, called["results"], strict=True):
            expected = await served.fetch_answer("mcp", tool, **arguments)
            if tool == USAGE:
                expected["quota"] = json.loads(result["text"])["quota"]
            assert not result["is_error"], (tool, result)
            assert json.loads(result["text"]) == expected, tool
            if client.is_structured:
                assert result["structured"] == expected, tool
    assert versions == {MODERN_VERSION} if client.is_modern else MODERN_VERSION not in versions
    name = report["client"].partition(",")[0]
    assert f"| {name} | {report['version']} |" in PAGE
    assert called["tools"] == list(TOOLS_BY_NAME)
    for (*_, code, word), result in zip(mistakes, refused["results"], strict=True):
        assert parse_error(result)[0] == code
        assert word in parse_error(result)[1]
    assert not keyless["results"][0]["is_error"]
    assert not at_limit["results"][1]["is_error"]
    codes = [
        parse_error(result)[0]
        for session, place in ((keyless, 1), (wrong, 0), (revoked, 0), (at_limit, 0))
        for result in (session["results"][place],)
    ]
    assert codes == ["missing_key", "invalid_key", "revoked_key", "rate_limited"]


@pytest.mark.clause("9.21")
@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)
async def test_it_accepts_results_to_which_fields_were_added(client, served):
    calls = [
        (STATE, {"ticker": "BTC", "view": "lines"}),
        (SIGNALS, {"limit": 2}),
        (CONFLUENCE, {"as_of": "2026-09-30T12:06:20Z"}),
        *[(tool, {}) for tool in TOOLS_BY_NAME if tool not in (STATE, SIGNALS, CONFLUENCE)],
    ]
    async with serve_later_version(served) as base_url:
        report = await reported(client, served, (served.api_key, calls), base_url=base_url)
    (session,) = report["sessions"]
    for (tool, _), result in zip(calls, session["results"], strict=True):
        assert not result["is_error"], (tool, result)
        assert ADDED_FIELD in json.loads(result["text"]), tool


def parse_error(result: dict[str, Any]) -> tuple[str, str]:
    """Return code and message of an error, found in the text that the client wraps around it."""
    text = result["text"]
    assert result["is_error"] is not False, text
    error = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert error["docs"].startswith("http")
    return error["error"], error["message"]


Schemas = dict[str, dict[str, Any]]


async def converted(framework, served) -> tuple[Schemas, dict[str, Schemas]]:
    """Return the listed schemas, and those that a framework sends to models, by its modes."""
    tools = (await served.rpc("tools/list"))["result"]["tools"]
    report = await reported(Client(framework, "schemas"), served, (None, []))
    listed = {tool["name"]: tool["inputSchema"] for tool in tools}
    return listed, report["sessions"][0]["tools"]


def lost(schemas: Schemas, made: Schemas) -> list[tuple[str, str, str]]:
    """Return (tool, argument, keyword) of every constraint that got lost.

    One survives if its keyword is still in the schema, or if the description states it.
    """
    return [
        (tool, name, keyword)
        for tool, schema in schemas.items()
        for name, argument in schema["properties"].items()
        for keyword, value in argument.items()
        if not is_said(keyword, value, made[tool]["properties"].get(name, {}))
    ]


def is_said(keyword: str, value: Any, argument: dict[str, Any]) -> bool:
    words = argument.get("description", "")
    in_words = {
        "description": words.startswith(str(value)),
        "default": f"Default {value}." in words,
        "format": f"(format: {value})" in words,
        "maxLength": f"(maxLength={value})" in words,
    }
    return argument.get(keyword) == value or in_words.get(keyword, False)


def all_required(schemas: Schemas) -> Schemas:
    return {
        tool: {**schema, "required": list(schema["properties"])} for tool, schema in schemas.items()
    }


def without(schemas: Schemas, keyword: str) -> Schemas:
    return {
        tool: {key: value for key, value in schema.items() if key != keyword}
        for tool, schema in schemas.items()
    }


async def test_openais_agents_change_nothing_but_that_strict_mode_requires_every_argument(served):
    schemas, ways = await converted("openai_agents", served)
    assert ways["as it is"] == schemas
    assert ways["strict"] == all_required(schemas)


async def test_pydantic_ai_moves_unsupported_keywords_into_the_description(served):
    schemas, ways = await converted("pydantic_agent", served)
    assert ways["openai"] == schemas
    for made in ways.values():
        assert lost(schemas, made) == []
    required, rest = all_required(schemas), without(schemas, "properties")
    assert without(ways["openai strict"], "properties") == without(required, "properties")
    assert without(ways["google"], "properties") == rest
    assert without(ways["google live"], "properties") == without(rest, "additionalProperties")


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


@pytest.mark.parametrize("client", ["mcp-remote", "claude-desktop"])
async def test_the_printed_bridge_calls_a_tool_with_the_key(served, tmp_path, client):
    folder = await asyncio.to_thread(get_node_environment)
    lines = CLIENTS_BY_NAME[client].render_lines(served.base_url)
    command, env = ["sh", "-c", lines], {"SIGNALS_API_KEY": served.api_key}
    if client == "claude-desktop":
        server = json.loads(lines.replace("YOUR_API_KEY", served.api_key))["mcpServers"]["signals"]
        command, env = [server["command"], *server["args"]], server["env"]
    # In place of npx, which would install the package, a script starts the installed one.
    npx = tmp_path / "npx"
    npx.write_text(
        f'#!/bin/sh\nshift\ntest "$1" = mcp-remote && exec {folder}/node_modules/.bin/"$@"\n'
    )
    npx.chmod(0o755)
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
