"""The MCPB bundle, unpacked in an empty folder, bridges a host to a running service."""

import asyncio
import io
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import jsonschema
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from starlette.responses import JSONResponse, Response

from mcp_server.bundle import build_bundle, build_manifest
from mcp_server.tools.tool_table import TOOLS, TOOLS_BY_NAME
from schemas.operator import Operator
from schemas.version import VERSION
from tests.doubles.fixed_answers import answering
from tests.support.running_service import served as served
from tests.support.signals_command import ROOT
from tools.build_bundle import main

pytestmark = pytest.mark.clause("install")

NODE = shutil.which("node")
NEEDS_NODE = pytest.mark.skipif(NODE is None, reason="node is not installed here")
KEY = "ek_" + "k" * 43
ENDS_WITHIN_S = 60
SCHEMA = (
    "https://raw.githubusercontent.com/modelcontextprotocol/mcpb/main/schemas/"
    "mcpb-manifest-v0.3.schema.json"
)
OPERATOR = Operator(
    "Example Ltd",
    "help@signals.example",
    "https://signals.example/terms",
    "https://signals.example/privacy",
)


def fill_in(text: str, folder: Path, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"${{user_config.{name}}}", value)
    return text.replace("${__dirname}", str(folder))


def list_command(folder: Path, **values: str) -> tuple[str, list[str], dict[str, str]]:
    """Unpack the bundle into a folder, and return command, arguments and environment."""
    with ZipFile(io.BytesIO(build_bundle(None))) as archive:
        archive.extractall(folder)
    config = json.loads((folder / "manifest.json").read_text())["server"]["mcp_config"]
    env = {name: fill_in(text, folder, values) for name, text in config["env"].items()}
    arguments = [fill_in(text, folder, values) for text in config["args"]]
    # Nothing else of this machine's environment: a host passes on what it wants.
    return config["command"], arguments, {**env, "PATH": os.environ["PATH"]}


@asynccontextmanager
async def bridged(folder: Path, url: str, api_key: str = KEY) -> AsyncIterator[Process]:
    command, arguments, env = list_command(folder, url=url, api_key=api_key)
    process = await asyncio.create_subprocess_exec(
        command, *arguments, cwd=folder, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def exchange(process: Process, line: str) -> Any:
    process.stdin.write(line.encode() + b"\n")
    return json.loads(await asyncio.wait_for(process.stdout.readline(), ENDS_WITHIN_S))


def request(method: str, params: Any = None) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}})


def test_the_manifest_asks_for_the_key_as_a_secret():
    manifest = build_manifest("https://signals.example")
    assert (manifest["manifest_version"], manifest["version"]) == ("0.3", VERSION)
    fields = manifest["user_config"]
    assert (fields["api_key"]["sensitive"], fields["api_key"]["required"]) == (True, True)
    assert fields["url"]["default"] == "https://signals.example"
    assert "default" not in build_manifest(None)["user_config"]["url"]
    assert [tool["name"] for tool in manifest["tools"]] == [tool.name for tool in TOOLS]


def test_the_manifest_names_the_operator_and_the_policies():
    ours = build_manifest("https://signals.example")
    assert ours["privacy_policies"] == ["https://signals.example/legal"]
    assert "support" not in ours
    theirs = build_manifest("https://signals.example", OPERATOR)
    assert (theirs["author"], theirs["privacy_policies"], theirs["support"]) == (
        {"name": "Example Ltd"},
        ["https://signals.example/privacy"],
        "mailto:help@signals.example",
    )
    # Without an address there is no page to name.
    assert not {"homepage", "privacy_policies"} & set(build_manifest(None))


def test_make_bundle_writes_the_same_bytes_each_time(tmp_path, capsys):
    assert main(["--url", "https://signals.example/api/v1/mcp"], tmp_path) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / f"signals-{VERSION}.mcpb"
    assert path.read_bytes() == build_bundle("https://signals.example")
    build_bundle.cache_clear()
    assert path.read_bytes() == build_bundle("https://signals.example")
    assert "tools.build_bundle --url '$(URL)'" in (ROOT / "Makefile").read_text()


def test_an_invalid_address_is_refused(tmp_path, capsys):
    assert main(["--url", "signals.example"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("--url must be")
    assert list(tmp_path.iterdir()) == []


@NEEDS_NODE
@pytest.mark.prove
async def test_a_host_that_has_only_the_bundle_calls_every_tool(served, tmp_path):
    command, arguments, env = list_command(tmp_path, url=served.base_url, api_key=served.api_key)
    host = StdioServerParameters(command=command, args=arguments, env=env)
    with (tmp_path / "stderr").open("w") as errlog:
        async with Client(stdio_client(host, errlog=errlog), read_timeout_seconds=60) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS_BY_NAME)
            for tool in TOOLS_BY_NAME:
                assert (await client.call_tool(tool, {})).is_error is False
            refused = await client.call_tool("signals_get_state", {"ticker": "BTX"})
    assert refused.is_error is True
    assert (refused.meta or {})["signals/error"] == "unknown_ticker"
    assert (tmp_path / "stderr").read_text() == ""


@NEEDS_NODE
@pytest.mark.parametrize("suffix", ["", "/", "/api/v1", "/api/v1/mcp", "/mcp", "/api/v1/mcp/"])
async def test_the_address_may_be_that_of_an_endpoint(served, tmp_path, suffix):
    async with bridged(tmp_path, served.base_url + suffix, served.api_key) as process:
        assert (await exchange(process, request("ping")))["result"] == {}


@NEEDS_NODE
async def test_failures_reach_the_model_and_the_host_without_the_key(tmp_path):
    async with bridged(tmp_path, "http://127.0.0.1:9") as process:
        down = await exchange(process, request("initialize"))
        called = await exchange(process, request("tools/call", {"name": "signals_get_stats"}))
        assert (await exchange(process, "{]"))["error"]["code"] == -32700
        printed = await asyncio.wait_for(process.communicate(b""), ENDS_WITHIN_S)
    assert down["id"] == 7
    assert down["error"]["message"].startswith("http://127.0.0.1:9/api/v1/mcp did not answer: ")
    assert called["result"]["isError"] is True
    error = json.loads(called["result"]["content"][0]["text"])
    assert (error["error"], error["message"]) == ("unavailable", down["error"]["message"])
    assert KEY.encode() not in b"".join(printed)
    assert process.returncode == 0


@NEEDS_NODE
@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (Response(status_code=307, headers={"Location": "http://127.0.0.1:9/"}), "not followed"),
        (JSONResponse({"error": "unavailable", "message": f"Later,\n{KEY}."}, 503), "503: Later, "),
        (Response("no", 401), "check the API key."),
        (Response("<html>"), "without MCP; is that the address of a Signals service?"),
        (Response("null"), "without MCP; is that the address of a Signals service?"),
        (Response('{"jsonrpc":"2.0","id":7}'), "without MCP"),
    ],
)
async def test_an_answer_without_mcp_says_what_to_check(tmp_path, response, expected):
    async with answering(response) as (address, _), bridged(tmp_path, address) as process:
        error = (await exchange(process, request("tools/list")))["error"]
    assert error["message"].startswith(f"{address}/api/v1/mcp answered {response.status_code}")
    assert expected in error["message"]
    assert KEY not in error["message"]
    assert "\n" not in error["message"]


@NEEDS_NODE
async def test_a_request_of_the_newest_revision_gets_its_headers(tmp_path):
    version = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    answer = JSONResponse({"jsonrpc": "2.0", "id": None, "result": {"resultType": "complete"}})
    # Of a host that shows views.
    answer.headers["Mcp-Session-Id"] = "views-7"
    async with answering(answer) as (address, seen), bridged(tmp_path, address) as process:
        await exchange(process, request("tools/call", {"name": "naïve", "_meta": version}))
        await exchange(process, request("tools/list", {"_meta": version}))
        await exchange(process, request("tools/list"))
        uri = {"uri": "ui://signals/board.html", "_meta": version}
        await exchange(process, request("resources/read", uri))
    names = ("mcp-name", "mcp-method", "mcp-session-id", "mcp-protocol-version")
    assert [tuple(map(headers.get, names)) for headers, _ in seen] == [
        ("=?base64?bmHDr3Zl?=", "tools/call", None, "2026-07-28"),
        (None, "tools/list", "views-7", "2026-07-28"),
        (None, None, "views-7", None),
        ("ui://signals/board.html", "resources/read", "views-7", "2026-07-28"),
    ]


@pytest.mark.prove
def test_the_manifest_is_valid_by_the_published_schema():
    try:
        published = httpx.get(SCHEMA)
    except httpx.ConnectError:
        pytest.skip("the published schema cannot be reached from here")
    schema = published.raise_for_status().json()
    for base_url, operator in ((None, Operator()), ("https://signals.example", OPERATOR)):
        jsonschema.validate(build_manifest(base_url, operator), schema)
