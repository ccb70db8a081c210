"""The guides for users, members and operators name only what exists, and their commands work."""

import json
import re
import shutil
import subprocess

import pytest

from access.billing.provider import PRICES_USD
from access.billing.stripe_api import EVENT_TYPES
from compute.indicators.registry import INDICATORS
from service.commands.cli import _build_parser
from service.config.settings import CLIENT_VARIABLES, PREFIX, STRIPE_PREFIX, Settings
from tests.end_to_end.test_stripe_purchase import assert_nowhere, stored
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_serve import served_process
from tests.support.signals_command import ROOT

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
    """Return the shell commands of a page that buy a key."""
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
    named = set(re.findall(r"`((?:customer|charge)\.[a-z._]+)`", page))
    assert named == set(EVENT_TYPES)
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
        run = re.findall(command, PAGES[name], re.M)
        assert set(run) - set(commands) == set(), name


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


GUIDE = (ROOT / "docs" / "deployment.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
ALERTS = re.findall(r"^\| `([^`]+)` \| (?:\d+[mh])? ?\| .+ \|$", MONITORING, re.MULTILINE)


def test_the_monitoring_page_lists_the_alerts_of_the_rules_file():
    rules = (ROOT / "deploy" / "alerts.yml").read_text()
    assert re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE) == ALERTS
    assert len(ALERTS) > 10


def test_the_settings_of_the_deployment_guide_are_valid():
    block = re.search(r"```sh\n((?:SIGNALS_\w+=\S+\n)+)```", GUIDE)
    assert block is not None
    given = dict(line.split("=", 1) for line in block[1].splitlines())
    settings = Settings.read(given)
    assert settings.model_fields_set == {n.removeprefix(PREFIX).lower() for n in given}
