"""The guides for users, members and operators name only what exists, and their commands work.

The README is short, and the service that it starts answers its calls in the shape it shows.
"""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from access.billing.provider import PRICES_USD
from access.billing.stripe_api import EVENT_TYPES
from compute.indicators.registry import INDICATORS
from mcp_server.registration import CLIENTS
from mcp_server.server_card import EXAMPLE_PROMPTS
from rest_shim.endpoints import ENDPOINTS
from schemas.vocabulary import INDICATOR_IDS
from service.commands.cli import _build_parser
from service.config.settings import CLIENT_VARIABLES, PREFIX, STRIPE_PREFIX, Settings
from tests.end_to_end.test_stripe_purchase import assert_nowhere, stored
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_serve import served_process
from tests.support.signals_command import ROOT, create_store, run_signals, write_cut_universe
from tools.generate_docs import FIRST_CLIENTS

pytestmark = pytest.mark.clause("documents")


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
PRINT_SECRETS = """printf '\\n%s\\n%s\\n' "$api_key" "$claim_token"\n"""
SHELL = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def extract_purchase(page: str) -> str:
    (block,) = (one for one in re.findall(r"```sh\n(.*?)```", PAGES[page], re.S) if "pay" in one)
    return str(block)


@pytest.mark.clause("1.37")
@SHELL
def test_the_purchase_by_curl_ends_in_a_working_key(tmp_path):
    bars = write_bars(tmp_path / "bars")
    with served_process(tmp_path, source=f"files:{bars}") as (address, printed):
        done = subprocess.run(
            [
                "sh",
                "-eu",
                "-c",
                extract_purchase("members").replace(ADDRESS, address) + PRINT_SECRETS,
            ],
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


def test_the_stripe_set_up_names_every_event_and_every_setting():
    page = PAGES["selling"]
    assert set(re.findall(r"`((?:customer|charge)\.[a-z._]+)`", page)) == set(EVENT_TYPES)
    settings = {
        PREFIX + name.upper() for name in Settings.model_fields if name.startswith(STRIPE_PREFIX)
    }
    assert settings - set(re.findall(r"SIGNALS_\w+", page)) == {"SIGNALS_STRIPE_API_BASE"}
    for billing, price in PRICES_USD.items():
        assert f"{price}.00 every {billing.removesuffix('ly')}" in " ".join(page.split())


def test_every_setting_that_a_page_names_exists():
    known = {PREFIX + name.upper() for name in Settings.model_fields} | CLIENT_VARIABLES
    for name, page in PAGES.items():
        assert set(re.findall(r"SIGNALS_[A-Z_]+[A-Z]", page)) - known == set(), name


def test_every_command_that_a_guide_runs_exists():
    commands = next(action for action in _build_parser()._actions if action.choices).choices
    for name in (*GUIDES, "deployment"):
        command = r"(?:as_signals|bin/signals|`signals|^signals) ([a-z][a-z-]+)"
        assert set(re.findall(command, PAGES[name], re.M)) - set(commands) == set(), name


def test_the_page_explains_every_indicator_in_one_line():
    section = PAGES["indicators"].split("## In one line each")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| .+ \|$", section, re.MULTILINE)
    assert rows == ["indicator", *(indicator.name for indicator in INDICATORS)]


def test_the_index_lists_every_page_once():
    listed = re.findall(r"^\| \[.+?\]\(([\w-]+)\.md\)", PAGES["README"], re.MULTILINE)
    assert sorted(listed) == sorted(PAGES.keys() - {"README"})


def test_no_page_installs_the_distribution_from_a_package_index():
    pages = {**PAGES, "readme": (ROOT / "README.md").read_text()}
    # No package index has either.
    assert [n for n, page in pages.items() if "signals[" in page or "signals-mcp[" in page] == []


GUIDE = PAGES["deployment"]


def test_the_settings_of_the_deployment_guide_are_valid():
    block = re.search(r"```sh\n((?:SIGNALS_\w+=\S+\n)+)```", GUIDE)
    assert block is not None
    given = dict(line.split("=", 1) for line in block[1].splitlines())
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
    api_key = run_signals(folder, "keys", "create", "--label", "me").stdout.strip()
    with served_process(folder, universe=write_cut_universe(folder, TICKERS)) as (address, _):
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


def test_the_readme_is_short_and_names_its_clients_prompts_and_registry():
    assert len(README.splitlines()) <= 130
    assert {f"{ADDRESS}/api/v1/mcp" in line for line in CALLS} == {True, False}
    assert f"has {len(CLIENTS) - len(FIRST_CLIENTS)} more clients" in README
    assert all(f"\n- {prompt}\n" in README for prompt in EXAMPLE_PROMPTS)
    name = json.loads((ROOT / "server.json").read_text())["name"]
    assert re.findall(r"mcp-name: (\S+)", README) == [name]


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


def test_the_registration_file_names_the_default_address_and_the_key_variable():
    server = json.loads((ROOT / "mcp.json").read_text())["mcpServers"]["signals"]
    assert server["url"] == ADDRESS + "/api/v1/mcp"
    assert server["headers"] == {"Authorization": "Bearer ${SIGNALS_API_KEY}"}


def test_every_open_address_without_a_tool_is_named():
    paths = {e.path for e in ENDPOINTS if e.tag == "open" and e.tool is None}
    assert paths <= set(re.findall(r"`GET (/\S+)`", README))
