"""The guides, the README, and the files for registries and hosts name only what exists.

Their commands work, and the service that the README starts answers its calls in the shape it shows.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from access.billing.provider import PRICES_USD
from access.billing.stripe_api import EVENT_TYPES
from access.oauth.parameters import RESOURCE_PATH
from compute.indicators.registry import INDICATORS
from mcp_server.endpoint import PATHS
from mcp_server.registration import CLIENTS
from mcp_server.server_card import EXAMPLE_PROMPTS, SUMMARY
from mcp_server.tools.tool_table import TOOLS, TOOLS_BY_NAME
from rest_shim.endpoints import CALL_MCP, ENDPOINTS
from rest_shim.error_catalog import ERROR_MEANINGS
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_IDS
from service.commands.cli import _build_parser
from service.config.settings import CLIENT_VARIABLES, PREFIX, STRIPE_PREFIX, Settings
from serving.json_schema import build_input_schema
from tests.end_to_end.test_stripe_purchase import assert_nowhere, stored
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_serve import served_process
from tests.support.example_market import make_coverage
from tests.support.signals_command import ROOT, create_key, create_store, write_cut_universe
from tools.generate_docs import FIRST_CLIENTS
from tools.output_schemas import build_output_schema

ADDRESS = "http://127.0.0.1:8000"
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}
GUIDES = (
    "getting-started",
    "connect",
    "members",
    "selling",
    "settings",
    "commands",
    "sources",
)


@pytest.mark.clause("documents")
@pytest.mark.clause("1.37")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_purchase_by_curl_ends_in_a_working_key(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", PAGES["members"], re.S)
    (purchase,) = (block for block in blocks if "pay" in block)
    show_secrets = """printf '\\n%s\\n%s\\n' "$api_key" "$claim_token"\n"""
    bars = write_bars(tmp_path / "bars")
    with served_process(tmp_path, source=f"files:{bars}") as (address, printed):
        done = subprocess.run(
            ["sh", "-eu", "-c", purchase.replace(ADDRESS, address) + show_secrets],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        answer, *secrets = done.stdout.splitlines()
        assert [secret[:3] for secret in secrets] == ["ek_", "ct_"]
        assert_nowhere(secrets, [stored(tmp_path)])
    assert_nowhere(secrets, ["".join(printed).encode()])
    usage = json.loads(answer)
    assert (usage["key"], usage["mode"]) == ({"label": None}, "test")
    assert usage["quota"]["used_today"] == 1
    assert any(line.startswith("Billing: sandbox") for line in printed)


@pytest.mark.clause("documents")
def test_the_stripe_set_up_names_every_event_and_every_setting():
    page = PAGES["selling"]
    assert set(re.findall(r"`((?:customer|charge)\.[a-z._]+)`", page)) == set(EVENT_TYPES)
    settings = {
        PREFIX + name.upper() for name in Settings.model_fields if name.startswith(STRIPE_PREFIX)
    }
    assert settings - set(re.findall(r"SIGNALS_\w+", page)) == {"SIGNALS_STRIPE_API_BASE"}
    for billing, price in PRICES_USD.items():
        assert f"{price}.00 every {billing.removesuffix('ly')}" in " ".join(page.split())


@pytest.mark.clause("documents")
def test_every_setting_that_a_page_names_exists():
    known = {PREFIX + name.upper() for name in Settings.model_fields} | CLIENT_VARIABLES
    for name, page in PAGES.items():
        assert set(re.findall(r"SIGNALS_[A-Z_]+[A-Z]", page)) - known == set(), name


@pytest.mark.clause("documents")
def test_every_command_that_a_guide_runs_exists():
    commands = next(action for action in _build_parser()._actions if action.choices).choices
    for name in (*GUIDES, "deployment"):
        command = r"(?:as_signals|bin/signals|`signals|^signals) ([a-z][a-z-]+)"
        assert set(re.findall(command, PAGES[name], re.M)) - set(commands) == set(), name


@pytest.mark.clause("documents")
def test_the_page_explains_every_indicator_in_one_line():
    section = PAGES["indicators"].split("## In one line each")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| .+ \|$", section, re.MULTILINE)
    assert rows == ["indicator", *(indicator.name for indicator in INDICATORS)]


@pytest.mark.clause("documents")
def test_the_index_lists_every_page_once():
    listed = re.findall(r"^\| \[.+?\]\(([\w-]+)\.md\)", PAGES["README"], re.MULTILINE)
    assert sorted(listed) == sorted(PAGES.keys() - {"README"})


@pytest.mark.clause("documents")
def test_no_page_installs_the_distribution_from_a_package_index():
    pages = {**PAGES, "readme": (ROOT / "README.md").read_text()}
    # No package index has either.
    assert [n for n, page in pages.items() if "signals[" in page or "signals-mcp[" in page] == []


@pytest.mark.clause("documents")
def test_the_settings_of_the_deployment_guide_are_valid():
    block = re.search(r"```sh\n((?:SIGNALS_\w+=\S+\n)+)```", PAGES["deployment"])[1]
    given = dict(line.split("=", 1) for line in block.splitlines())
    assert Settings.read(given).model_fields_set == {n.removeprefix(PREFIX).lower() for n in given}


README = (ROOT / "README.md").read_text()
TOUR = PAGES["getting-started"]
# A market of these few assets is built in seconds; MATIC makes the list of removed assets.
TICKERS = ("BTC", "ETH", "MATIC", "NVDA", "POL", "XAU")
# A key in the shell, then the calls of both transports.
CALLS = dict.fromkeys(re.findall(r"^curl .*?[^\\]\n(?=curl|```)", README + TOUR, re.S | re.M))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address and a key of a service on a simulated market, as `make serve` starts it."""
    folder = tmp_path_factory.mktemp("readme")
    create_store(folder)
    api_key = create_key(folder)
    with served_process(folder, universe=write_cut_universe(folder, TICKERS)) as (address, _):
        yield address, api_key


def run_curl(line: str, address: str, api_key: str) -> httpx.Response:
    """Send the request of a curl command, of which only -H and -d are known."""
    curl, *words = shlex.split(line.replace("\\\n", " ").replace("$SIGNALS_API_KEY", api_key))
    assert curl == "curl"
    parser = ArgumentParser()
    for option in ("url", "-H", "-d"):
        parser.add_argument(option, action="append" if option == "-H" else "store")
    args = parser.parse_args(words)
    assert args.url.startswith(ADDRESS)
    return httpx.request(
        "GET" if args.d is None else "POST",
        args.url.replace(ADDRESS, address),
        headers=dict(header.split(": ") for header in args.H or ()),
        content=args.d,
    )


def list_missing(shown: Any, answer: Any, path: str = "") -> list[str]:
    """Return the paths of the members that are shown and that an answer lacks."""
    if isinstance(shown, list):
        shown, answer = dict(enumerate(shown)), dict(enumerate(answer))
    if not isinstance(shown, dict):
        return []
    missing = [f"{path}.{name}" for name in shown if name not in answer]
    found = ((name, part) for name, part in shown.items() if name in answer)
    return missing + [
        one for name, part in found for one in list_missing(part, answer[name], f"{path}.{name}")
    ]


@pytest.mark.clause("documents")
def test_the_readme_is_short_and_names_its_clients_prompts_and_registry():
    assert len(README.splitlines()) <= 130
    assert {f"{ADDRESS}/api/v1/mcp" in line for line in CALLS} == {True, False}
    assert f"has {len(CLIENTS) - len(FIRST_CLIENTS)} more clients" in README
    assert all(f"\n- {prompt}\n" in README for prompt in EXAMPLE_PROMPTS)
    name = json.loads((ROOT / "server.json").read_text())["name"]
    assert re.findall(r"mcp-name: (\S+)", README) == [name]


@pytest.mark.clause("documents")
@pytest.mark.prove
def test_the_first_answer_has_the_members_that_the_readme_shows(simulated):
    call = re.search(r"^curl .*\n", README, re.MULTILINE)[0]
    response = run_curl(call, *simulated)
    assert response.status_code == 200
    shown = re.search(r"```json\n(.*?)```", README, re.DOTALL)[1]
    answer, expected = response.json(), json.loads(shown)
    assert list_missing(expected, answer) == []
    assert answer["meta"]["simulated"] is expected["meta"]["simulated"]
    assert set(INDICATOR_IDS) == set(expected["assets"][0]["signals"])


@pytest.mark.clause("documents")
@pytest.mark.parametrize("line", CALLS)
@pytest.mark.prove
def test_every_call_of_the_readme_and_the_tour_succeeds(simulated, line):
    answer = run_curl(line, *simulated).json()
    assert "error" not in answer
    result = answer.get("result", {"isError": False, "structuredContent": answer})
    assert result["isError"] is False
    assert result["structuredContent"]["meta"].get("simulated", False) is True


@pytest.mark.clause("documents")
def test_the_registration_file_names_the_default_address_and_the_key_variable():
    server = json.loads((ROOT / "mcp.json").read_text())["mcpServers"]["signals"]
    assert server["url"] == ADDRESS + "/api/v1/mcp"
    assert server["headers"] == {"Authorization": "Bearer ${SIGNALS_API_KEY}"}


@pytest.mark.clause("documents")
def test_every_open_address_without_a_tool_is_named():
    paths = {e.path for e in ENDPOINTS if e.tag == "open" and e.tool is None}
    assert paths <= set(re.findall(r"`GET (/\S+)`", README))


PATH = ROOT / "skills" / "signals" / "SKILL.md"
FRONT_MATTER, BODY = re.fullmatch(r"---\n(.*?)---\n(.*)", PATH.read_text(), re.S).groups()
SKILL_CALLS = [json.loads(block) for block in re.findall(r"```json\s+(.*?)\s+```", BODY, re.S)]
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
    assert {call["name"] for call in SKILL_CALLS} == {
        "signals_get_state",
        "signals_get_signals",
        "signals_get_confluence",
        "signals_get_flips",
    }


@pytest.mark.clause("install")
@pytest.mark.parametrize("call", SKILL_CALLS, ids=[json.dumps(call) for call in SKILL_CALLS])
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


HOSTS = {
    "claude": ("${user_config.url}", "${user_config.api_key}"),
    "cursor": ("${env:SIGNALS_URL}", "${env:SIGNALS_API_KEY}"),
}
CURSOR_SCHEMA = "https://raw.githubusercontent.com/cursor/plugins/main/schemas/plugin.schema.json"


def read_plugin(host: str, name: str = "plugin") -> dict[str, Any]:
    return json.loads((ROOT / f".{host}-plugin" / f"{name}.json").read_text())


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
