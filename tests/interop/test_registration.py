"""The printed programs that register the server with a framework run unchanged."""

import asyncio
import json
import subprocess

import pytest

from mcp_server.clients import CLIENTS_BY_NAME
from mcp_server.tools.registry import TOOLS_BY_NAME
from tools.client_environments import INTEROP_FOLDER, get_python_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]

ENDS_WITHIN_S = 120


@pytest.mark.parametrize(
    ("client", "pinned_as"),
    [
        ("openai-agents", "openai_agents"),
        ("langchain", "langchain_tools"),
        ("pydantic-ai", "pydantic_agent"),
    ],
)
async def test_a_program_lists_the_tools(served, client, pinned_as, record_property):
    python = await asyncio.to_thread(get_python_environment, pinned_as)
    done = await asyncio.to_thread(
        subprocess.run,
        [str(python), "-c", CLIENTS_BY_NAME[client].render_lines(served.base_url)],
        env={"SIGNALS_API_KEY": served.api_key},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert all(tool in done.stdout for tool in TOOLS_BY_NAME)
    package, version = (
        (INTEROP_FOLDER / "python" / f"{pinned_as}.txt").read_text().split()[0].split("==")
    )
    what = "registered as `signals connect` says"
    record_property("interop", json.dumps([package.split("[")[0], version, what]))
