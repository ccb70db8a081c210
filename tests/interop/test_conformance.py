"""The conformance suite of MCP, which acts as the client and checks the responses.

`conformance.yml` and `conformance_2026_07_28.yml` list the scenarios that do not apply to a server
with only tools and JSON responses. The suite fails if one of them passes, or if any other scenario
does not.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from access.keys_and_quota import QuotaGuard
from mcp_server.endpoint import PATHS, McpEndpoint
from schemas.errors import invalid_parameter_error
from schemas.query import NoArguments
from schemas.vocabulary import DAILY_LIMIT
from serving.context import Context
from serving.host_origin import HostOriginMiddleware
from serving.snapshot_cache import SnapshotCache
from serving.tool import Tool
from serving.tool_runner import ToolRunner
from tests.support.running_service import ManualClock, open_stores, serve_app
from tools.client_environments import INTEROP_FOLDER, get_node_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]


SUITE, ALPHA = "@modelcontextprotocol/conformance", "@modelcontextprotocol/conformance-alpha"
EXPECTED_FAILURES = INTEROP_FOLDER / "conformance.yml"
MODERN_EXPECTED_FAILURES = INTEROP_FOLDER / "conformance_2026_07_28.yml"
# The only failures of two scenarios of which the other checks apply. Each is not testable without a
# diagnostic tool, or calls a method that server/discover does not offer.
MODERN_UNTESTABLE = {
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability": "Not testable",
        "sep-2575-missing-capability-http-400": "Not testable",
        "sep-2575-http-server-no-independent-requests-on-stream": "Not testable",
        "sep-2575-server-no-log-without-loglevel": "Not testable",
    },
    "caching": {
        "sep-2549-prompts-list-caching-hints": "prompts/list returned JSON-RPC error -32601",
        "sep-2549-resources-list-caching-hints": "resources/list returned JSON-RPC error -32601",
        "sep-2549-resources-templates-list-caching-hints": "resources/templates/list returned JSON",
    },
}
ENDS_WITHIN_S = 600
Checks = dict[str, list[dict[str, Any]]]


async def passed(
    package: str, url: str, folder: Path, *chosen: str, expected_failures: Path = EXPECTED_FAILURES
) -> Checks:
    """Run a suite as expected to pass; return the checks of each scenario."""
    installed = await asyncio.to_thread(get_node_environment) / "node_modules"
    process = await asyncio.create_subprocess_exec(
        str(installed / ".bin" / "node"),
        str(installed / package / "dist" / "index.js"),
        *("server", "--url", url, "--output-dir", str(folder)),
        *("--expected-failures", str(expected_failures), *chosen),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
    assert process.returncode == 0, said.decode()[-4000:]
    return recorded(folder)


def recorded(folder: Path) -> Checks:
    """Read the results of a suite: one folder per scenario, named server-NAME-TIME."""
    return {
        re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.+", file.parent.name)[1]: json.loads(
            file.read_text()
        )
        for file in folder.glob("*/checks.json")
    }


def schema_checks(scenarios: Checks) -> list[str]:
    every = (check for checks in scenarios.values() for check in checks)
    return [check["status"] for check in every if check["id"] == "wire-schema-valid"]


def list_failures(checks: list[dict[str, Any]]) -> dict[str, str]:
    return {
        check["id"]: check.get("errorMessage", "")
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    }


def read_reasons(expected_failures: Path) -> dict[str, str]:
    """Return the reason of each scenario in a file of expected failures; each has one."""
    found = re.findall(r"^  - (\S+)(?: # (.+))?$", expected_failures.read_text(), re.MULTILINE)
    assert all(reason for _, reason in found)
    return dict(found)


async def test_every_scenario_that_applies_to_a_tool_server_passes(tmp_path):
    async with run_suite_server(tmp_path) as url:
        scenarios = await passed(SUITE, url, tmp_path / "said", "--suite", "all")
    assert set(read_reasons(EXPECTED_FAILURES)) < set(scenarios)


@pytest.mark.clause("4.15.2", "4.15.4", "4.15.5", "4.15.6", "4.15.7", "4.15.8", "4.15.10")
async def test_the_requirements_of_the_newest_revision_are_met(tmp_path):
    async with run_suite_server(tmp_path) as url:
        scenarios = await passed(
            *(ALPHA, url, tmp_path / "said", "--requirements", "2026-07-28"),
            expected_failures=MODERN_EXPECTED_FAILURES,
        )
    assert set(read_reasons(MODERN_EXPECTED_FAILURES)) < set(scenarios)
    assert set(schema_checks(scenarios)) == {"SUCCESS"}
    for scenario, untestable in MODERN_UNTESTABLE.items():
        failures = list_failures(scenarios[scenario])
        assert failures.keys() == untestable.keys()
        assert all(failures[check].startswith(reason) for check, reason in untestable.items())
    # The suite runs this scenario without scoring it.
    assert list_failures(scenarios["http-header-validation"]) == {}


@pytest.mark.parametrize("spoken", ["2025-06-18", "2025-11-25"])
async def test_every_message_matches_the_schema_of_the_protocol(spoken, tmp_path):
    chosen = ("--suite", "all", "--spec-version", spoken)
    async with run_suite_server(tmp_path) as url:
        scenarios = await passed(ALPHA, url, tmp_path / "said", *chosen)
    assert set(schema_checks(scenarios)) == {"SUCCESS"}


async def test_the_services_own_list_of_tools_passes(served, tmp_path):
    url = f"{served.base_url}/api/v1/mcp"
    scenarios = await passed(ALPHA, url, tmp_path / "said", "--scenario", "tools-list")
    assert schema_checks(scenarios) == ["SUCCESS"]


class Text(BaseModel):
    text: str


async def answer_text(query: NoArguments, context: Context) -> Text:
    return Text(text="This is a simple text response for testing.")


async def answer_error(query: NoArguments, context: Context) -> Text:
    raise invalid_parameter_error("This tool intentionally returns an error for testing")


def make_open_tool(
    name: str, handler: Callable[[NoArguments, Context], Awaitable[Text]]
) -> Tool[NoArguments, Text]:
    return Tool(
        name=name,
        title=name,
        description=f"What the suite calls {name}.",
        query=NoArguments,
        result=Text,
        handler=handler,
        requires_key=False,
        depends_on_snapshot=False,
    )


SUITE_TOOLS = (
    make_open_tool("test_simple_text", answer_text),
    make_open_tool("test_error_handling", answer_error),
)


@asynccontextmanager
async def run_suite_server(folder: Path) -> AsyncIterator[str]:
    """Yield the URL of the endpoint."""
    clock = ManualClock()
    async with open_stores(folder) as (market, access):
        quota_guard = QuotaGuard(access, clock, mode=None, daily_limit=DAILY_LIMIT)

        def build(base_url: str) -> Starlette:
            context = Context(SnapshotCache(market), base_url, base_url, clock, None, DAILY_LIMIT)
            endpoint = McpEndpoint(ToolRunner(quota_guard, context), SUITE_TOOLS)
            return Starlette(
                routes=[Route(path, endpoint) for path in PATHS],
                middleware=[Middleware(HostOriginMiddleware, base_url=base_url, docs=base_url)],
            )

        async with serve_app(build) as base_url:
            yield f"{base_url}{PATHS[0]}"
