"""The deployment and monitoring pages name settings, metrics and commands that exist."""

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from service.commands.cli import _build_parser
from service.config.settings import PREFIX, Settings
from tests.service.http.test_metrics_server import operating
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents", "monitoring")

GUIDE = (ROOT / "docs" / "deployment.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
UNIT = ROOT / "deploy" / "signals.service"
ALERTS = re.findall(r"^\| `([^`]+)` \| (?:\d+[mh])? ?\| .+ \|$", MONITORING, re.MULTILINE)


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def test_the_page_lists_the_alerts_of_the_rules_file():
    rules = (ROOT / "deploy" / "alerts.yml").read_text()
    assert re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE) == ALERTS


async def test_every_metric_that_an_alert_names_is_in_a_scrape(tmp_path: Path):
    names = {n for alert in ALERTS for n in re.findall(r"\b(?:signals|process)_\w+", alert)}
    async with operating(tmp_path) as operated_service:
        order = {"contact_email": "a@example.com", "billing": "monthly"}
        await operated_service.served.client.post("/api/v1/access/checkout", json=order)
        scrape = (await operated_service.client.get("/metrics")).text
    scraped = set(re.findall(r"^(\w+)(?:\{| )", scrape, re.MULTILINE))
    assert names - scraped == set()
    assert len(ALERTS) > 10


async def test_every_metric_of_the_service_but_the_build_info_has_an_alert(tmp_path: Path):
    async with operating(tmp_path) as operated_service:
        scrape = (await operated_service.client.get("/metrics")).text
    families = set(re.findall(r"^# TYPE (signals_\w+) ", scrape, re.MULTILINE))
    unnamed = {family for family in families if not any(family in alert for alert in ALERTS)}
    assert unnamed == {"signals_build_info"}


def test_every_setting_that_the_pages_and_the_unit_name_exists():
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(r"SIGNALS_[A-Z_]+[A-Z]", GUIDE + MONITORING + UNIT.read_text()))
    assert named - known == set()
    assert named >= {"SIGNALS_BASE_URL", "SIGNALS_TRUSTED_PROXIES", "SIGNALS_METRICS_PORT"}


def test_the_settings_of_the_guide_are_valid():
    block = re.search(r"```sh\n((?:SIGNALS_\w+=\S+\n)+)```", GUIDE)
    assert block is not None
    given = dict(line.split("=", 1) for line in block[1].splitlines())
    settings = Settings.read(given)
    assert settings.model_fields_set == {n.removeprefix(PREFIX).lower() for n in given}


def test_every_command_that_the_guide_runs_exists():
    commands = next(action for action in _build_parser()._actions if action.choices).choices
    run = set(re.findall(r"(?:as_signals|bin/signals|`signals) ([a-z]+)", GUIDE))
    assert run - set(commands) == set()
    assert run >= {"serve", "backup", "doctor", "restore", "audit", "keys"}


def test_the_unit_confines_the_service_and_restarts_it():
    service = unit()["Service"]
    assert service["ExecStart"].endswith("/bin/signals serve")
    assert service["User"] == "signals"
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert service[name] == "yes"
    assert (service["ProtectSystem"], service["StateDirectory"]) == ("strict", "signals")
    assert (service["Restart"], service["KillSignal"]) == ("on-failure", "SIGTERM")
    assert int(service["TimeoutStopSec"]) > 3
    assert int(service["LimitNOFILE"]) >= 10_000 + 128


def test_systemd_accepts_the_unit(tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    here = UNIT.read_text().replace("/opt/signals/.venv/bin/signals", sys.executable)
    (tmp_path / UNIT.name).write_text(here)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, verified.stderr) == (0, "")
