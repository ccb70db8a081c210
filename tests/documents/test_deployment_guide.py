"""The settings, metrics, commands and directives in the deployment guide and its unit exist."""

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
UNIT = ROOT / "docs" / "signals.service"
ALERTS = re.findall(r"^\| `([^`]+)` \| (?:\d+[mh])? ?\| .+ \|$", GUIDE, re.MULTILINE)


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


async def test_every_metric_of_an_alert_is_in_a_scrape(tmp_path: Path):
    names = {n for alert in ALERTS for n in re.findall(r"\b(?:signals|process)_\w+", alert)}
    async with operating(tmp_path) as operated_service:
        order = {"contact_email": "a@example.com", "billing": "monthly"}
        await operated_service.served.client.post("/api/v1/access/checkout", json=order)
        metrics = (await operated_service.client.get("/metrics")).text
    scraped = set(re.findall(r"^(\w+)(?:\{| )", metrics, re.MULTILINE))
    assert names - scraped == set()
    assert len(ALERTS) > 10


async def test_every_metric_of_ours_has_an_alert_or_is_listed_as_without(tmp_path: Path):
    async with operating(tmp_path) as operated_service:
        metrics = (await operated_service.client.get("/metrics")).text
    families = set(re.findall(r"^# TYPE (signals_\w+) ", metrics, re.MULTILINE))
    unnamed = {family for family in families if not any(family in alert for alert in ALERTS)}
    assert unnamed == {"signals_build_info"}


def test_every_setting_in_the_guide_and_the_unit_exists():
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(r"SIGNALS_[A-Z_]+[A-Z]", GUIDE + UNIT.read_text()))
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


def test_the_unit_confines_and_restarts_the_command():
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
