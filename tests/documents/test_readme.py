"""Runs the commands that the README shows, on the recorded bars if they are present."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from access.billing.stripe_events import EVENT_TYPES
from access.plan import PRICES_USD
from rest_shim.endpoints import ENDPOINTS
from service.commands.cli import _build_parser
from service.config.settings import PREFIX, STRIPE_PREFIX, Settings
from tests.end_to_end.test_stripe_purchase import assert_nowhere, stored
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_serve import served_process
from tests.support.recorded_bars import get_recorded_folder, require_recorded
from tests.support.signals_command import ROOT, run_signals

pytestmark = pytest.mark.clause("documents")

README = (ROOT / "README.md").read_text()
SELLING = README.split("## Selling access")[1].split("\n## ")[0]
ADDRESS = "http://127.0.0.1:8000"
SHOWN_AFTER = """printf '\\n%s\\n%s\\n' "$api_key" "$claim_token"\n"""
CALLS = re.findall(r"```sh\n(curl .*?)```\n.*?```json\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The service on the recorded bars of Bitcoin: its address and a key."""
    require_recorded()
    folder = tmp_path_factory.mktemp("readme")
    (folder / "bars").mkdir()
    for name in ("BTC_1h.csv", "BTC_funding.csv"):
        shutil.copy(get_recorded_folder() / name, folder / "bars")
    assert run_signals(folder, "replay", "--bars", "bars").returncode == 0
    api_key = run_signals(folder, "keys", "create", "--label", "me").stdout.strip()
    with served_process(folder, source="files:bars") as (address, _):
        yield address, api_key


def as_curl_does(line: str, address: str, api_key: str) -> httpx.Response:
    """Send the request of a curl command; supports only -H and -d."""
    given = iter(shlex.split(line.replace("\\\n", " ").replace("$SIGNALS_API_KEY", api_key))[1:])
    url, headers, body = "", {}, None
    for argument in given:
        if argument == "-H":
            name, value = next(given).split(": ")
            headers[name] = value
        elif argument == "-d":
            body = next(given)
        else:
            url = argument
    assert url.startswith(ADDRESS)
    method = "GET" if body is None else "POST"
    return httpx.request(method, url.replace(ADDRESS, address), headers=headers, content=body)


def test_the_readme_shows_one_call_per_transport():
    assert [ADDRESS + "/api/v1/mcp" in line for line, _ in CALLS] == [True, False]


def test_the_mcp_call_returns_its_result(recorded):
    line, shown = CALLS[0]
    result = as_curl_does(line, *recorded).json()["result"]
    assert result["structuredContent"] == json.loads(shown)
    assert json.loads(result["content"][0]["text"]) == json.loads(shown)


def test_the_rest_call_returns_its_result(recorded):
    line, shown = CALLS[1]
    response = as_curl_does(line, *recorded)
    assert response.status_code == 200
    assert response.json() == json.loads(shown)


@pytest.mark.clause("1.37")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_purchase_by_curl_alone_ends_in_a_working_key(tmp_path):
    code = re.search(r"```sh\n(.*?)```", SELLING, re.DOTALL)
    assert code
    bars = write_bars(tmp_path / "bars")
    with served_process(tmp_path, source=f"files:{bars}") as (address, printed):
        done = subprocess.run(
            ["sh", "-eu", "-c", code[1].replace(ADDRESS, address) + SHOWN_AFTER],
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
    assert "Billing: sandbox, no real payments.\n" in printed


def test_the_stripe_setup_names_every_handled_event_and_every_setting():
    named = set(re.findall(r"`((?:customer|charge)\.[a-z._]+)`", SELLING))
    assert named == set(EVENT_TYPES)
    settings = {
        PREFIX + name.upper() for name in Settings.model_fields if name.startswith(STRIPE_PREFIX)
    }
    assert settings - set(re.findall(r"SIGNALS_\w+", SELLING)) == {"SIGNALS_STRIPE_API_BASE"}
    for billing, price in PRICES_USD.items():
        assert f"{price}.00 every {billing.removesuffix('ly')}" in " ".join(SELLING.split())


def test_the_registration_file_names_the_default_address_and_the_key_variable():
    server = json.loads((ROOT / "mcp.json").read_text())["mcpServers"]["signals"]
    assert server["url"] == ADDRESS + "/api/v1/mcp"
    assert server["headers"] == {"Authorization": "Bearer ${SIGNALS_API_KEY}"}


def test_every_open_address_without_a_tool_is_named():
    paths = {e.path for e in ENDPOINTS if e.tag == "open" and e.tool is None}
    assert paths <= set(re.findall(r"`GET (/\S+)`", README))


def test_every_option_of_every_command_is_named():
    table = README.split("## Commands")[1].split("## ")[0]
    commands = next(a for a in _build_parser()._actions if a.choices)
    for name, command in commands.choices.items():
        for action in command._actions:
            for option in action.option_strings:
                if option not in ("-h", "--help"):
                    assert option in table, f"signals {name} {option}"
