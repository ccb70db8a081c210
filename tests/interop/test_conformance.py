"""The conformance suite of MCP, which acts as the client and checks the responses.

`conformance.yml` lists the scenarios that do not apply to a server with only tools and JSON
responses. The suite fails if one of them passes, or if any other scenario does not.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conformance_server import run_suite_server
from tools.client_environments import INTEROP_FOLDER, get_node_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]

SUITE, ALPHA = "@modelcontextprotocol/conformance", "@modelcontextprotocol/conformance-alpha"
EXPECTED_FAILURES = INTEROP_FOLDER / "conformance.yml"
ENDS_WITHIN_S = 120
Checks = dict[str, list[dict[str, Any]]]


async def passed(package: str, url: str, folder: Path, *chosen: str) -> tuple[str, Checks]:
    """Run a suite as expected to pass; return its version and the checks of each scenario."""
    installed = await asyncio.to_thread(get_node_environment) / "node_modules"
    process = await asyncio.create_subprocess_exec(
        str(installed / ".bin" / "node"),
        str(installed / package / "dist" / "index.js"),
        *("server", "--url", url, "--output-dir", str(folder)),
        *("--expected-failures", str(EXPECTED_FAILURES), *chosen),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
    assert process.returncode == 0, said.decode()[-4000:]
    version = json.loads((installed / package / "package.json").read_text())["version"]
    return version, recorded(folder)


def recorded(folder: Path) -> Checks:
    """Read the results of a suite: one folder per scenario, named server-NAME-TIME."""
    return {
        re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.+", file.parent.name)[1]: json.loads(
            file.read_text()
        )
        for file in folder.glob("*/checks.json")
    }


def schema_checks(scenarios: Checks) -> list[str]:
    """Return the results of the message schema check in all scenarios with messages."""
    every = (check for checks in scenarios.values() for check in checks)
    return [check["status"] for check in every if check["id"] == "wire-schema-valid"]


async def test_every_scenario_that_applies_to_a_tool_server_passes(tmp_path, record_property):
    async with run_suite_server(tmp_path) as url:
        version, scenarios = await passed(SUITE, url, tmp_path / "said", "--suite", "all")
    expected = re.findall(r"^  - (\S+)(?: # (.+))?$", EXPECTED_FAILURES.read_text(), re.MULTILINE)
    reasons = dict(expected)
    assert all(reasons.values())
    assert set(reasons) < set(scenarios)
    what = f"{', '.join(sorted(scenarios.keys() - reasons.keys()))}; {len(reasons)} do not apply"
    record_property("interop", json.dumps([SUITE, version, what]))


@pytest.mark.parametrize("spoken", ["2025-06-18", "2025-11-25"])
async def test_every_message_matches_the_schema_of_the_protocol(spoken, tmp_path, record_property):
    chosen = ("--suite", "all", "--spec-version", spoken)
    async with run_suite_server(tmp_path) as url:
        version, scenarios = await passed(ALPHA, url, tmp_path / "said", *chosen)
    ended = schema_checks(scenarios)
    assert set(ended) == {"SUCCESS"}
    what = f"wire-schema-valid of {spoken} in {len(ended)} scenarios"
    record_property("interop", json.dumps([SUITE, version, what]))


async def test_the_services_own_list_of_tools_passes(served, tmp_path, record_property):
    url = f"{served.base_url}/api/v1/mcp"
    version, scenarios = await passed(ALPHA, url, tmp_path / "said", "--scenario", "tools-list")
    assert schema_checks(scenarios) == ["SUCCESS"]
    what = "tools-list and wire-schema-valid over the service's own tools"
    record_property("interop", json.dumps([SUITE, version, what]))
