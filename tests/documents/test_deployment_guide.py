"""The deployment and monitoring pages name settings, alerts and commands that exist."""

import re

import pytest

from service.commands.cli import _build_parser
from service.config.settings import PREFIX, Settings
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents")

GUIDE = (ROOT / "docs" / "deployment.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
ALERTS = re.findall(r"^\| `([^`]+)` \| (?:\d+[mh])? ?\| .+ \|$", MONITORING, re.MULTILINE)


def test_the_page_lists_the_alerts_of_the_rules_file():
    rules = (ROOT / "deploy" / "alerts.yml").read_text()
    assert re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE) == ALERTS
    assert len(ALERTS) > 10


def test_every_setting_that_the_pages_name_exists():
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(r"SIGNALS_[A-Z_]+[A-Z]", GUIDE + MONITORING))
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
    run = set(re.findall(r"(?:as_signals|bin/signals|`signals) ([a-z-]+)", GUIDE))
    assert run - set(commands) == set()
    assert run >= {"serve", "backup", "doctor", "restore", "audit", "keys"}
