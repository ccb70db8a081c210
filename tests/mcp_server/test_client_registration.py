"""The registration snippets are valid for each client and never have the key in them."""

import asyncio
import json
import shlex
import tomllib

import pytest

from mcp_server.client_registration import CLIENTS, CLIENTS_BY_NAME, build_registration_file
from tests.support.signals_command import ROOT, run_signals

pytestmark = pytest.mark.clause("documents")

BASE = "https://signals.example.com"
URL = f"{BASE}/api/v1/mcp"
HTTP = {"type": "http", "url": URL}
PROGRAMS = [client for client in CLIENTS if client.language == "python"]


def row(name: str) -> str:
    return CLIENTS_BY_NAME[name].render_lines(BASE)


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


def test_claude_code_writes_the_variable_and_not_the_key():
    words = shlex.split(row("claude-code"))
    assert words[:6] == ["claude", "mcp", "add", "--transport", "http", "signals"]
    assert words[6:] == [URL, "--header", "Authorization: Bearer ${SIGNALS_API_KEY}"]


def test_claude_desktop_starts_the_bridge():
    made = json.loads(CLIENTS_BY_NAME["claude-desktop"].render_lines(BASE, "/bin/signals"))
    assert made["mcpServers"]["signals"] == {
        "command": "/bin/signals",
        "args": ["stdio", "--url", BASE],
        "env": {"SIGNALS_API_KEY": "YOUR_API_KEY"},
    }


def test_cursor_reads_the_variable_of_its_environment():
    server = json.loads(row("cursor"))["mcpServers"]["signals"]
    assert server == {"url": URL, "headers": bearer("${env:SIGNALS_API_KEY}")}


def test_vscode_prompts_for_the_key_like_a_password():
    made = json.loads(row("vscode"))
    (requested,) = made["inputs"]
    assert (requested["type"], requested["password"]) == ("promptString", True)
    assert made["servers"]["signals"] == HTTP | {"headers": bearer(f"${{input:{requested['id']}}}")}


def test_codex_reads_the_key_from_the_named_variable():
    server = tomllib.loads(row("codex"))["mcp_servers"]["signals"]
    assert server == {"url": URL, "bearer_token_env_var": "SIGNALS_API_KEY"}


@pytest.mark.parametrize("client", PROGRAMS, ids=lambda client: client.name)
def test_a_program_compiles_and_reads_the_variable(client):
    compile(client.render_lines(BASE), client.name, "exec")
    assert "{os.environ['SIGNALS_API_KEY']}" in client.render_lines(BASE)
    assert f'"{URL}"' in client.render_lines(BASE)


async def test_the_program_of_the_sdk_reads_the_state(served, monkeypatch, capsys):
    monkeypatch.setenv("SIGNALS_API_KEY", served.api_key)
    program = CLIENTS_BY_NAME["python-sdk"].render_lines(served.base_url)
    await asyncio.to_thread(exec, program, {})
    assert "trend_oracle" in capsys.readouterr().out


def test_the_registration_file_of_the_repository_equals_that_of_the_manifest():
    shown = json.loads((ROOT / "mcp.json").read_text())
    assert shown == build_registration_file("http://127.0.0.1:8000")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_command_prints_only_the_snippet(tmp_path, client):
    done = run_signals(
        tmp_path, "connect", client.name, "--url", f"{URL}/", api_key="ek_" + "k" * 43
    )
    assert (done.returncode, done.stdout) == (0, client.render_lines(BASE))
    assert done.stderr == f"{client.instructions}\n"


def test_the_command_without_a_client_lists_the_clients(tmp_path):
    listed = run_signals(tmp_path, "connect").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == [client.name for client in CLIENTS]


def test_an_unknown_client_is_refused_with_the_known_ones(tmp_path):
    done = run_signals(tmp_path, "connect", "emacs")
    assert done.returncode == 2
    assert all(client.name in done.stderr for client in CLIENTS)


def test_the_address_defaults_to_that_of_the_settings(tmp_path):
    done = run_signals(tmp_path, "connect", "codex", base_url=BASE)
    assert done.stdout == row("codex")
