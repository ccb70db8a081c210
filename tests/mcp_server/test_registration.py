"""The registration snippets are valid for each client and never have the key in them."""

import asyncio
import json
import re
import shlex
import tomllib
from base64 import b64decode
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

from mcp_server.registration import (
    CLIENTS,
    CLIENTS_BY_NAME,
    FRAMEWORKS,
    HOSTS,
    Client,
)
from service.commands.cli import print_registration
from tests.support.signals_command import run_signals
from tools.client_environments import INTEROP_FOLDER

pytestmark = pytest.mark.clause("documents")

BASE = "https://signals.example.com"
URL = f"{BASE}/api/v1/mcp"
PLACEHOLDER = "YOUR_API_KEY"


def row(name: str, base_url: str = BASE) -> str:
    return CLIENTS_BY_NAME[name].render_lines(base_url)


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


# The server entry of each host in its documented format. The place is the list of keys that lead
# to it in the file.
ENTRIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "cursor": (("mcpServers",), {"url": URL, "headers": bearer("${env:SIGNALS_API_KEY}")}),
    "copilot-cli": (
        ("mcpServers",),
        {"type": "http", "tools": ["*"], "url": URL, "headers": bearer(PLACEHOLDER)},
    ),
    "codex": (("mcp_servers",), {"url": URL, "bearer_token_env_var": "SIGNALS_API_KEY"}),
    # In both, `url` is for the older transport with server-sent events.
    "gemini-cli": (("mcpServers",), {"httpUrl": URL, "headers": bearer("$SIGNALS_API_KEY")}),
    "qwen-code": (("mcpServers",), {"httpUrl": URL, "headers": bearer("$SIGNALS_API_KEY")}),
    "windsurf": (
        ("mcpServers",),
        {"serverUrl": URL, "headers": bearer("${env:SIGNALS_API_KEY}")},
    ),
    "zed": (("context_servers",), {"url": URL, "headers": bearer(PLACEHOLDER)}),
    "cline": (
        ("mcpServers",),
        {"type": "streamableHttp", "url": URL, "headers": bearer(PLACEHOLDER)},
    ),
    "goose": (
        ("extensions",),
        {
            "type": "streamable_http",
            "name": "signals",
            "enabled": True,
            "uri": URL,
            "env_keys": ["SIGNALS_API_KEY"],
            "headers": bearer("${SIGNALS_API_KEY}"),
            "timeout": 300,
        },
    ),
    "lm-studio": (("mcpServers",), {"url": URL, "headers": bearer(PLACEHOLDER)}),
    "opencode": (
        ("mcp", "servers"),
        {"type": "remote", "url": URL, "headers": bearer("{env:SIGNALS_API_KEY}")},
    ),
    "kiro": (("mcpServers",), {"url": URL, "headers": bearer("${SIGNALS_API_KEY}")}),
    "crush": (("mcp",), {"type": "http", "url": URL, "headers": bearer("$SIGNALS_API_KEY")}),
    "amp": (("amp.mcpServers",), {"url": URL, "headers": bearer("${SIGNALS_API_KEY}")}),
    "librechat": (
        ("mcpServers",),
        {
            "type": "streamable-http",
            "url": URL,
            "headers": bearer("${SIGNALS_API_KEY}"),
            "serverInstructions": True,
        },
    ),
    "claude-desktop": (
        ("mcpServers",),
        {
            "command": "npx",
            "args": ["-y", "mcp-remote", URL, "--header", "Authorization:${AUTH_HEADER}"],
            "env": {"AUTH_HEADER": f"Bearer {PLACEHOLDER}"},
        },
    ),
    "vscode": (
        ("servers",),
        {"type": "http", "url": URL, "headers": bearer("${input:signals_key}")},
    ),
}
PARSERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_file_has_the_entry_that_the_host_documents(name):
    place, entry = ENTRIES[name]
    found = PARSERS[CLIENTS_BY_NAME[name].language](row(name))
    for key in place:
        found = found[key]
    assert found == {"signals": entry}


def test_every_host_is_checked_here():
    commands = {"claude-code", "mcp-remote"}
    signing_in = {host.name for host in HOSTS if host.signs_in}
    assert {host.name for host in HOSTS} == ENTRIES.keys() | commands | signing_in
    assert len(HOSTS) >= 16


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "claude-code",
            [
                *("claude", "mcp", "add", "--transport", "http", "signals", URL),
                *("--header", "Authorization: Bearer ${SIGNALS_API_KEY}"),
            ],
        ),
        # A host without remote servers starts a bridge.
        (
            "mcp-remote",
            [
                *("npx", "-y", "mcp-remote", URL),
                *("--header", "Authorization: Bearer $SIGNALS_API_KEY"),
            ],
        ),
    ],
)
def test_a_command_names_the_variable_and_not_the_key(name, words):
    assert shlex.split(row(name)) == words


@pytest.mark.parametrize("name", ["mcp-remote", "claude-desktop"])
@pytest.mark.parametrize(
    ("base_url", "is_allowed"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://localhost:8000", False),
        ("https://signals.example.com", False),
        ("http://signals.lan:8000", True),
    ],
)
def test_mcp_remote_is_allowed_plain_http_only_where_it_refuses_it(name, base_url, is_allowed):
    assert ("--allow-http" in row(name, base_url)) is is_allowed


@pytest.mark.parametrize("client", HOSTS, ids=lambda client: client.name)
def test_no_registration_needs_a_command_that_only_the_operator_has(client):
    assert "stdio" not in client.render_lines(BASE)
    assert "signals " not in client.render_lines(BASE).replace("http signals ", "")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_snippet_tells_how_the_key_comes_in(client):
    lines = client.render_lines(BASE)
    if client.signs_in:
        assert lines == f"{BASE}/mcp\n"
    elif PLACEHOLDER in lines:
        assert f"replace {PLACEHOLDER} with the key" in client.note
    else:
        assert ("SIGNALS_API_KEY" in lines) or ("prompts for the key" in client.note)


def test_vscode_prompts_for_the_key_like_a_password():
    made = json.loads(row("vscode"))
    (requested,) = made["inputs"]
    assert (requested["type"], requested["password"]) == ("promptString", True)
    assert made["servers"]["signals"]["headers"] == bearer(f"${{input:{requested['id']}}}")


def parse_link(client: Client) -> tuple[str, Any]:
    """Return the address of an install link without its query, and the server that it names."""
    link = urlsplit(client.render_link(BASE))
    address = f"{link.scheme}://{link.netloc}{link.path}"
    if client.name == "vscode":
        return f"{link.scheme}:{link.path}", json.loads(unquote(link.query))
    query = parse_qs(link.query)
    if "config" in query:
        return address, {query["name"][0]: json.loads(b64decode(query["config"][0]))}
    return address, query


def test_install_links_have_the_documented_form():
    links = {client.name: parse_link(client) for client in HOSTS if client.link}
    assert {name: address for name, (address, _) in links.items()} == {
        "cursor": "cursor://anysphere.cursor-deeplink/mcp/install",
        "vscode": "vscode:mcp/install",
        "lm-studio": "lmstudio://add_mcp",
        "goose": "goose://extension",
    }
    for name in ("cursor", "lm-studio"):
        assert links[name][1] == {"signals": ENTRIES[name][1]}
    file = json.loads(row("vscode"))
    assert links["vscode"][1] == {
        "name": "signals",
        **file["servers"]["signals"],
        "inputs": file["inputs"],
    }
    goose = links["goose"][1]
    assert (goose["type"], goose["url"], goose["id"]) == (["streamable_http"], [URL], ["signals"])
    assert goose["header"] == [f"Authorization=Bearer {PLACEHOLDER}"]


def test_every_client_names_the_documentation_of_its_format():
    for client in CLIENTS:
        assert re.fullmatch(r"https://[\w.-]+(/[\w./-]*)?", client.documentation), client.name


def test_frameworks_were_tried_with_the_versions_that_the_tests_pin():
    pinned = {
        "python-sdk": "mcp_2",
        "openai-agents": "openai_agents",
        "langchain": "langchain_tools",
        "pydantic-ai": "pydantic_agent",
    }
    assert {client.name for client in FRAMEWORKS} == set(pinned)
    for name, file in pinned.items():
        requirement = (INTEROP_FOLDER / "python" / f"{file}.txt").read_text().split()[0]
        assert CLIENTS_BY_NAME[name].tried == requirement.split("==")[1]
    packages = json.loads((INTEROP_FOLDER / "node" / "package.json").read_text())["dependencies"]
    assert CLIENTS_BY_NAME["mcp-remote"].tried == packages["mcp-remote"]


@pytest.mark.parametrize("client", FRAMEWORKS, ids=lambda client: client.name)
def test_a_program_compiles_and_reads_the_variable(client):
    compile(client.render_lines(BASE), client.name, "exec")
    assert "{os.environ['SIGNALS_API_KEY']}" in client.render_lines(BASE)
    assert f'"{URL}"' in client.render_lines(BASE)


@pytest.mark.prove
async def test_the_program_of_the_sdk_reads_the_state(served, monkeypatch, capsys):
    monkeypatch.setenv("SIGNALS_API_KEY", served.api_key)
    await asyncio.to_thread(exec, CLIENTS_BY_NAME["python-sdk"].render_lines(served.base_url), {})
    assert "trend_oracle" in capsys.readouterr().out


@pytest.mark.parametrize(
    "client",
    [CLIENTS_BY_NAME[name] for name in ("claude-code", "cursor", "zed", "claude", "langchain")],
    ids=lambda client: client.name,
)
def test_the_command_prints_only_the_snippet(tmp_path, client):
    done = run_signals(
        tmp_path, "connect", client.name, "--url", f"{URL}/", api_key="ek_" + "k" * 43
    )
    assert (done.returncode, done.stdout) == (0, client.render_lines(BASE))
    lines = done.stderr.splitlines()
    assert lines[0] == client.instructions
    assert lines[-1] == f"{client.tried_with} The format: {client.documentation}"
    assert [client.render_link(BASE) in line for line in lines[1:-1]] == (
        [True] if client.link else []
    )


@pytest.mark.parametrize(
    ("base_url", "is_warned"), [("http://signals.lan:8000", True), (BASE, False)]
)
def test_the_command_warns_that_an_address_serves_no_oauth(base_url, is_warned, capsys):
    print_registration(CLIENTS_BY_NAME["claude"], base_url)
    assert ("serves no OAuth" in capsys.readouterr().err) is is_warned


def test_a_mark_says_whether_a_registration_was_tried():
    assert CLIENTS_BY_NAME["gemini-cli"].tried_with == "Tried with version 0.61.0."
    assert CLIENTS_BY_NAME["zed"].tried_with == "Not tried, written by the documentation."


def test_the_command_without_a_client_lists_the_clients(tmp_path):
    listed = run_signals(tmp_path, "connect").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == [client.name for client in CLIENTS]


def test_an_unknown_client_is_refused_with_the_known_ones(tmp_path):
    done = run_signals(tmp_path, "connect", "emacs")
    assert done.returncode == 2
    assert all(client.name in done.stderr for client in CLIENTS)


def test_the_address_defaults_to_that_of_the_settings(tmp_path):
    assert run_signals(tmp_path, "connect", "codex", base_url=BASE).stdout == row("codex")
