"""The files of deploy/ name only what exists, and the programs that read them accept them.

The checks by nginx, Caddy and promtool are part of `make prove`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from service.commands.cli import _build_parser
from service.config.setting_types import split_commas
from service.config.settings import CLIENT_VARIABLES, PREFIX, Settings
from service.config.stores import BACKUP_NOTICE, CERTIFICATE_NOTICE
from store.access_rows import Notice
from tests.doubles.document_host import encode_key, issue_certificate
from tests.service.http.test_metrics import operating
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents", "monitoring")

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "signals.service"
COMPUTE_UNIT = DEPLOY / "signals-compute.service"
NOTIFY_UNIT = DEPLOY / "signals-notify.service"
UNITS = [UNIT, COMPUTE_UNIT, NOTIFY_UNIT, *DEPLOY.glob("signals-backup.*")]
METRIC = re.compile(r"\b(?:signals|process)_\w+")
# Variables of the compose file itself, not settings of the service.
COMPOSE_VARIABLES = {"SIGNALS_SITE", "SIGNALS_UPSTREAM"}


def test_the_image_is_built_with_the_files_that_the_packages_link_to():
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [ROOT / rule[1:] for rule in rules if rule.startswith("!")]
    links = [
        path
        for package in (marker.parent for marker in ROOT.glob("*/py.typed"))
        for path in package.rglob("*")
        if path.is_symlink()
    ]
    assert links
    for link in links:
        target = link.resolve(strict=True)
        assert any(target.is_relative_to(folder) for folder in kept), link


def read_alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return group["rules"]


def read_unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


async def test_alerts_and_panels_have_every_metric_of_a_scrape_and_no_other(tmp_path: Path) -> None:
    async with operating(tmp_path) as operated_service:
        order = {"contact_email": "a@example.com", "billing": "monthly"}
        await operated_service.served.client.post("/api/v1/access/checkout", json=order)
        for name in (BACKUP_NOTICE, CERTIFICATE_NOTICE):
            await operated_service.served.access.put_notice(Notice(name, "1", 1))
        scrape = (await operated_service.client.get("/metrics")).text
    alerts = " ".join(rule["expr"] for rule in read_alerts())
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    panels = " ".join(one["expr"] for panel in dashboard["panels"] for one in panel["targets"])
    named = {*METRIC.findall(f"{alerts} {panels}")}
    assert named - set(re.findall(r"^(\w+)(?:\{| )", scrape, re.MULTILINE)) == set()
    assert len(named) > 10
    families = set(re.findall(r"^# TYPE (signals_\w+) ", scrape, re.MULTILINE))
    assert {family for family in families if family not in alerts} == {"signals_build_info"}
    assert {family for family in families if family not in panels} == set()


def test_each_alert_has_a_severity_and_says_what_to_do() -> None:
    for rule in read_alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, rule["alert"]
        assert {"summary", "description"} == rule["annotations"].keys()


def test_every_setting_that_a_file_names_exists() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | CLIENT_VARIABLES
    for path in filter(Path.is_file, DEPLOY.rglob("*")):
        named = set(re.findall(r"\bSIGNALS_[A-Z_]+[A-Z]", path.read_text()))
        assert named - known - COMPOSE_VARIABLES == set(), path.name


def test_the_settings_of_the_image_are_accepted() -> None:
    environment = dict(re.findall(r"\b(SIGNALS_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()))
    settings = Settings.read(environment)
    assert (settings.host, settings.metrics_host, settings.billing) == ("0.0.0.0", "0.0.0.0", "off")


def test_compose_confines_the_service_and_mounts_files_that_exist() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    for name in ("signals", "notify"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    assert "profiles" not in services["signals"]
    # Prometheus calls the operations port by the name that its configuration has.
    [target] = re.findall(r'targets: \["(\w+):9464"\]', (DEPLOY / "prometheus.yml").read_text())
    hosts = services["signals"]["environment"]["SIGNALS_ALLOWED_HOSTS"]
    assert split_commas(hosts.replace("${SIGNALS_ALLOWED_HOSTS:-}", "")) == (target,)
    profiles = {name: service.get("profiles") for name, service in services.items()}
    del profiles["signals"]
    assert profiles == {
        **{"postgres": ["postgres"], "caddy": ["tls"], "prometheus": ["monitoring"]},
        "notify": ["notify"],
    }
    mounts = [mount for service in services.values() for mount in service["volumes"]]
    for source in (mount.split(":")[0] for mount in mounts):
        if source.startswith("./"):
            assert (DEPLOY / source).is_file(), source
        else:
            assert source in compose["volumes"]


def test_the_unit_confines_the_service_and_restarts_it() -> None:
    service, unit = read_unit(UNIT)["Service"], read_unit(UNIT)["Unit"]
    assert service["ExecStart"].endswith("/bin/signals serve")
    assert service["User"] == "signals"
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert service[name] == "yes"
    assert (service["ProtectSystem"], service["StateDirectory"]) == ("strict", "signals")
    assert (service["Restart"], service["KillSignal"]) == ("on-failure", "SIGTERM")
    assert int(service["TimeoutStopSec"]) > 3
    assert int(service["LimitNOFILE"]) >= 10_000 + 128
    # It waits until the clock is synchronised.
    assert "time-sync.target" in unit["Wants"].split()
    assert "time-sync.target" in unit["After"].split()


def test_the_unit_of_the_computing_process_differs_in_its_command_alone() -> None:
    unit, compute = read_unit(UNIT), read_unit(COMPUTE_UNIT)
    assert compute["Service"].pop("ExecStart") == "/opt/signals/.venv/bin/signals compute"
    del unit["Service"]["ExecStart"], unit["Unit"]["Description"], compute["Unit"]["Description"]
    assert {name: dict(unit[name]) for name in unit} == {
        name: dict(compute[name]) for name in compute
    }


def test_both_commands_of_messages_follow_with_a_cursor_and_name_no_secret() -> None:
    service = read_unit(NOTIFY_UNIT)["Service"]
    command = service["ExecStart"].removeprefix("/opt/signals/.venv/bin/signals ").split()
    assert command.pop() == "$OPTIONS"
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for arguments, folder in (
        (command, service["StateDirectory"]),
        (compose["services"]["notify"]["command"], "signals"),
    ):
        args = _build_parser().parse_args(arguments)
        # Without a value, the address comes from the environment.
        assert (args.view, args.follow, args.notify) == ("feed", True, "")
        assert args.cursor == Path("/var/lib") / folder / "cursor"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    require_program("systemd-analyze")
    for unit in UNITS:
        text = unit.read_text().replace("/opt/signals/.venv/bin/signals", sys.executable)
        (tmp_path / unit.name).write_text(text)
    paths = [str(tmp_path / unit.name) for unit in UNITS]
    assert run("systemd-analyze", "verify", "--man=no", *paths) == (0, "")


@pytest.mark.prove
@pytest.mark.parametrize("has_certificate", [False, True])
def test_nginx_accepts_the_site_before_and_after_there_is_a_certificate(
    has_certificate: bool, tmp_path: Path
) -> None:
    site = (DEPLOY / "nginx.conf").read_text()
    folder = "/etc/letsencrypt/live/signals.example.com"
    if has_certificate:
        write_certificate(tmp_path)
        site += (DEPLOY / "nginx-tls.conf").read_text()
        assert site.count(folder) == 2
    # Ports below 1024 need root.
    site = re.sub(
        r"(listen (?:\[::\]:)?)(80|443)\b", r"\g<1>20\2", site.replace(folder, str(tmp_path))
    )
    status, printed = run(*write_nginx_command(tmp_path, site), "-t")
    assert status == 0, printed
    assert "[warn]" not in printed


@pytest.mark.prove
def test_caddy_accepts_its_file() -> None:
    require_program("caddy")
    path = str(DEPLOY / "Caddyfile")
    status, printed = run("caddy", "validate", "--adapter", "caddyfile", "--config", path)
    assert status == 0, printed
    assert '"level":"warn"' not in printed


@pytest.mark.prove
def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    require_program("promtool")
    for name in ("alerts.yml", "prometheus.yml"):
        shutil.copy(DEPLOY / name, tmp_path)
    status, printed = run("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    assert status == 0, printed
    (tmp_path / "tests.yml").write_text(RULE_TESTS)
    status, printed = run("promtool", "test", "rules", str(tmp_path / "tests.yml"))
    assert status == 0, printed


RULE_TESTS = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="signals"}', values: 0x20}
      - {series: signals_late_assets, values: 0x20}
      - {series: 'process_open_fds{job="signals"}', values: 900x20}
      - {series: 'process_max_fds{job="signals"}', values: 1000x20}
    alert_rule_test:
      - eval_time: 1m
        alertname: SignalsDown
      - eval_time: 3m
        alertname: SignalsDown
        exp_alerts:
          - exp_labels: {job: signals, severity: critical}
            exp_annotations:
              summary: Prometheus can't scrape signals
              description: >-
                The service or its operations port is down. Check `systemctl status signals`.
      - eval_time: 15m
        alertname: SignalsLateAssets
      - eval_time: 15m
        alertname: SignalsFileDescriptors
        exp_alerts:
          - exp_labels: {job: signals, severity: warning}
            exp_annotations:
              summary: The limit of open files is near
              description: Raise LimitNOFILE in signals.service.
"""


def require_program(name: str) -> str:
    """Return the path of a program, also of one that is only in the administrator's PATH."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or pytest.skip(f"{name} is not installed")


def write_nginx_command(folder: Path, site: str, main: str = "") -> list[str]:
    """Write a configuration with a site, and return the command that runs nginx with it."""
    program, path = require_program("nginx"), folder / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path.write_text(
        f"{main}pid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    return [program, "-e", "stderr", "-p", str(folder), "-c", str(path)]


def run(*command: str) -> tuple[int, str]:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def write_certificate(folder: Path) -> None:
    """Write a self-signed certificate under the names that certbot uses."""
    key, name = ec.generate_private_key(ec.SECP256R1()), "signals.example.com"
    certificate = issue_certificate(name, key, key, [name], is_authority=False)
    (folder / "fullchain.pem").write_bytes(certificate)
    (folder / "privkey.pem").write_bytes(encode_key(key))


@pytest.mark.clause("verify")
def test_the_workflow_of_a_customer_runs_the_command_and_keeps_what_it_writes() -> None:
    workflow = yaml.safe_load((DEPLOY / "verify" / "github-actions.yml").read_text())
    steps = workflow["jobs"]["verify"]["steps"]
    (verify,) = [step["run"] for step in steps if step.get("id") == "verify"]
    assert _build_parser().parse_args(shlex.split(verify)[1:]).state == Path("record")
    assert workflow["permissions"] == {"contents": "write"}
    assert (steps[-1]["if"][:8], "git add --all record" in steps[-1]["run"]) == ("always()", True)
