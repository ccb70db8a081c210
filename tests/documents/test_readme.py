"""The README is short, and the service that it starts answers its calls in the shape it shows."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mcp_server.registration import CLIENTS
from mcp_server.server_card import EXAMPLE_PROMPTS
from rest_shim.endpoints import ENDPOINTS
from schemas.vocabulary import INDICATOR_IDS
from tests.service.commands.test_serve import served_process
from tests.support.signals_command import ROOT, create_store, run_signals, write_cut_universe
from tools.generate_docs import FIRST_CLIENTS

pytestmark = pytest.mark.clause("documents")

README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "getting-started.md").read_text()
ADDRESS = "http://127.0.0.1:8000"
MAX_LINES = 130
# A market of these few assets is built in seconds; MATIC makes the list of removed assets.
TICKERS = ("BTC", "ETH", "MATIC", "NVDA", "POL", "XAU")
# A key in the shell, then the calls of both transports.
CALLS = dict.fromkeys(re.findall(r"^curl .*?[^\\]\n(?=curl|```)", README + TOUR, re.S | re.M))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address and a key of a service on a simulated market, as `make serve` starts it."""
    folder = tmp_path_factory.mktemp("readme")
    create_store(folder)
    api_key = run_signals(folder, "keys", "create", "--label", "me").stdout.strip()
    universe = write_cut_universe(folder, TICKERS)
    with served_process(folder, universe=universe) as (address, _):
        yield address, api_key


def run_curl(line: str, address: str, api_key: str) -> httpx.Response:
    """Send the request of a curl command, of which only -H and -d are known."""
    arguments = iter(shlex.split(line.replace("\\\n", " ").replace("$SIGNALS_API_KEY", api_key)))
    assert next(arguments) == "curl"
    url, headers, body = "", {}, None
    for argument in arguments:
        if argument == "-H":
            name, value = next(arguments).split(": ")
            headers[name] = value
        elif argument == "-d":
            body = next(arguments)
        else:
            url = argument
    assert url.startswith(ADDRESS)
    method = "GET" if body is None else "POST"
    return httpx.request(method, url.replace(ADDRESS, address), headers=headers, content=body)


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


def test_the_readme_has_at_most_130_lines():
    assert len(README.splitlines()) <= MAX_LINES


@pytest.mark.prove
def test_the_first_answer_has_the_members_that_the_readme_shows(simulated):
    call = re.search(r"^curl .*\n", README, re.MULTILINE)
    shown = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert call
    assert shown
    response = run_curl(call[0], *simulated)
    assert response.status_code == 200
    answer, expected = response.json(), json.loads(shown[1])
    assert list_missing(expected, answer) == []
    assert answer["meta"]["simulated"] is expected["meta"]["simulated"]
    assert set(INDICATOR_IDS) == set(expected["assets"][0]["signals"])


@pytest.mark.parametrize("line", CALLS)
@pytest.mark.prove
def test_every_call_of_the_readme_and_the_tour_succeeds(simulated, line):
    answer = run_curl(line, *simulated).json()
    assert "error" not in answer
    result = answer.get("result", {"isError": False, "structuredContent": answer})
    assert result["isError"] is False
    assert result["structuredContent"]["meta"].get("simulated", False) is True


def test_the_calls_use_both_transports():
    assert {f"{ADDRESS}/api/v1/mcp" in line for line in CALLS} == {True, False}


def test_the_registration_file_names_the_default_address_and_the_key_variable():
    server = json.loads((ROOT / "mcp.json").read_text())["mcpServers"]["signals"]
    assert server["url"] == ADDRESS + "/api/v1/mcp"
    assert server["headers"] == {"Authorization": "Bearer ${SIGNALS_API_KEY}"}


def test_the_readme_counts_the_other_clients():
    assert f"has {len(CLIENTS) - len(FIRST_CLIENTS)} more clients" in README


def test_the_readme_has_the_example_prompts_of_the_server_card():
    assert all(f"\n- {prompt}\n" in README for prompt in EXAMPLE_PROMPTS)


def test_the_readme_holds_the_name_that_the_registry_looks_for():
    name = json.loads((ROOT / "server.json").read_text())["name"]
    assert re.findall(r"mcp-name: (\S+)", README) == [name]


def test_every_open_address_without_a_tool_is_named():
    paths = {e.path for e in ENDPOINTS if e.tag == "open" and e.tool is None}
    assert paths <= set(re.findall(r"`GET (/\S+)`", README))
