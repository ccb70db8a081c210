"""The files for registries and hosts: skill, server.json, glama.json and plugins."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from access.oauth.parameters import RESOURCE_PATH
from mcp_server.endpoint import PATHS
from mcp_server.server_card import EXAMPLE_PROMPTS, SUMMARY
from mcp_server.tools.registry import TOOLS, TOOLS_BY_NAME
from rest_shim.endpoints import CALL_MCP
from rest_shim.error_catalog import ERROR_MEANINGS
from schemas.version import VERSION
from serving.json_schema import build_input_schema
from tests.support.example_market import make_coverage
from tests.support.signals_command import ROOT
from tools.output_schemas import build_output_schema

PATH = ROOT / "skills" / "signals" / "SKILL.md"
FRONT_MATTER, BODY = re.fullmatch(r"---\n(.*?)---\n(.*)", PATH.read_text(), re.S).groups()
CALLS = [json.loads(block) for block in re.findall(r"```json\s+(.*?)\s+```", BODY, re.S)]
CODE_WORDS = set(re.findall(r"`(\w+)`", BODY))


def list_names(schema: Any) -> set[str]:
    """Return the names of all fields of a schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(list_names, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", {})).union(*map(list_names, schema.values()))


@pytest.mark.clause("install")
def test_the_front_matter_has_the_fields_of_the_format():
    fields = yaml.safe_load(FRONT_MATTER)
    assert set(fields) == {"name", "description", "license", "compatibility"}
    assert fields["name"] == PATH.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024
    assert 0 < len(fields["compatibility"]) <= 500
    assert len(BODY.splitlines()) < 500


@pytest.mark.clause("install")
def test_every_tool_is_in_the_table_and_those_without_a_key_and_with_readings_are_named():
    assert sorted(re.findall(r"^\| .*\? \| `(\w+)` \|$", BODY, re.M)) == sorted(TOOLS_BY_NAME)
    assert {word for word in CODE_WORDS if word.startswith("signals_")} == set(TOOLS_BY_NAME)
    (sentence,) = re.findall(r"Only (.*) work without a key", BODY)
    named = set(re.findall(r"`(\w+)`", sentence))
    assert named == {tool.name for tool in TOOLS if not tool.requires_key}
    assert {call["name"] for call in CALLS} == {
        "signals_get_state",
        "signals_get_signals",
        "signals_get_confluence",
        "signals_get_flips",
    }


@pytest.mark.clause("install")
@pytest.mark.parametrize("call", CALLS, ids=[json.dumps(call) for call in CALLS])
def test_an_example_call_is_valid_by_the_schema_of_its_tool(call):
    tool = TOOLS_BY_NAME[call["name"]]
    schema = build_input_schema(tool.query, make_coverage())
    assert set(call["arguments"]) <= set(schema["properties"])
    jsonschema.Draft202012Validator(schema).validate(call["arguments"])
    tool.query.model_validate(call["arguments"])


@pytest.mark.clause("install")
def test_every_field_that_it_names_is_one_of_the_tools():
    fields = set().union(
        *(list_names(build_output_schema(tool.result)) for tool in TOOLS),
        *(list_names(build_input_schema(tool.query)) for tool in TOOLS),
    )
    codes = {meaning.error for meaning in ERROR_MEANINGS}
    assert fields | codes | set(TOOLS_BY_NAME) | {"isError", "CLOSE", "meta"} >= CODE_WORDS
    assert codes <= CODE_WORDS


SERVER = json.loads((ROOT / "server.json").read_text())


@pytest.mark.clause("documents")
def test_server_json_names_the_version_the_endpoint_of_any_host_and_a_key_that_is_a_secret():
    assert SERVER["version"] == VERSION
    assert SERVER["name"].endswith("/signals")
    # Registries reject remotes that are not https, or whose scheme is a variable.
    urls = ["https://{host}" + path for path in (RESOURCE_PATH, CALL_MCP.path)]
    assert [remote["url"] for remote in SERVER["remotes"]] == urls
    for remote in SERVER["remotes"]:
        assert remote["type"] == "streamable-http"
        assert remote["variables"]["host"]["isRequired"] is True
    assert "packages" not in SERVER
    oauth, keyed = SERVER["remotes"]
    assert "headers" not in oauth
    (header,) = keyed["headers"]
    assert (header["name"], header["value"]) == ("Authorization", "Bearer {api_key}")
    assert set(header["variables"]) == set(re.findall(r"\{(\w+)\}", header["value"]))
    assert header["isSecret"] is header["variables"]["api_key"]["isSecret"] is True


@pytest.mark.clause("documents")
def test_glama_json_names_its_schema_and_a_maintainer():
    claim = json.loads((ROOT / "glama.json").read_text())
    assert set(claim) == {"$schema", "maintainers"}
    assert claim["$schema"] == "https://glama.ai/mcp/schemas/server.json"
    # The same owner as in server.json.
    assert claim["maintainers"] == [SERVER["name"].removeprefix("io.github.").partition("/")[0]]


HOSTS = {"claude": ("${user_config.url}", "${user_config.api_key}")}
HOSTS["cursor"] = ("${env:SIGNALS_URL}", "${env:SIGNALS_API_KEY}")
CURSOR_SCHEMA = "https://raw.githubusercontent.com/cursor/plugins/main/schemas/plugin.schema.json"


def read_plugin(host: str, name: str = "plugin") -> dict[str, Any]:
    plugin: dict[str, Any] = json.loads((ROOT / f".{host}-plugin" / f"{name}.json").read_text())
    return plugin


@pytest.mark.clause("install")
@pytest.mark.parametrize("host", HOSTS)
def test_a_plugin_registers_the_server_at_an_address_that_its_user_sets(host):
    plugin, market = read_plugin(host), read_plugin(host, "marketplace")
    assert (plugin["version"], plugin["description"]) == (VERSION, SUMMARY)
    assert market["plugins"] == [{"name": plugin["name"], "source": "./", "description": SUMMARY}]
    servers = plugin["mcpServers"]
    if isinstance(servers, str):
        servers = json.loads((ROOT / servers).read_text())["mcpServers"]
    url, api_key = HOSTS[host]
    server = {"url": url + PATHS[0], "headers": {"Authorization": f"Bearer {api_key}"}}
    assert {**servers["signals"], "type": "http"} == {**server, "type": "http"}
    assert plugin.get("userConfig", {}).get("api_key", {}).get("sensitive", True)


@pytest.mark.clause("install")
def test_the_commands_of_the_plugins_are_the_example_prompts():
    texts = [path.read_text().split("---\n\n") for path in (ROOT / "commands").iterdir()]
    assert {body for _, body in texts} == {f"{prompt}\n" for prompt in EXAMPLE_PROMPTS}
    for front_matter, _ in texts:
        assert set(yaml.safe_load(front_matter.strip("-"))) == {"name", "description"}


@pytest.mark.clause("install")
@pytest.mark.prove
def test_claude_code_installs_the_plugin_with_its_commands(tmp_path: Path):
    claude = shutil.which("claude")
    if claude is None:
        pytest.skip("Claude Code is not installed here")
    # What a clone has of it; a folder would be copied with everything else in it.
    for folder in (".claude-plugin", "commands", "skills"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (home := tmp_path / "home").mkdir()
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def run(*words: str) -> str:
        command = [claude, "plugin", *words]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    for path in (".claude-plugin/marketplace.json", ".claude-plugin/plugin.json"):
        assert "Validation passed" in run("validate", "--strict", str(tmp_path / path))
    run("marketplace", "add", str(tmp_path))
    run("install", "signals@signals", "--config", "url=http://h", "--config", "api_key=ek_x")
    assert "agreement, changes, readings, signals" in run("details", "signals")


@pytest.mark.clause("install", "documents")
@pytest.mark.parametrize(
    ("file", "schema"),
    [(SERVER, SERVER["$schema"]), (read_plugin("cursor"), CURSOR_SCHEMA)],
    ids=["server.json", "the plugin of Cursor"],
)
@pytest.mark.prove
def test_a_file_is_valid_by_its_published_schema(file: dict[str, Any], schema: str):
    try:
        published = httpx.get(schema)
    except httpx.ConnectError:
        pytest.skip("the published schema cannot be reached from here")
    jsonschema.validate(file, published.raise_for_status().json())
