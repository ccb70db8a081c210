"""Each command loads only the modules that it needs: they are most of a short command's time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.signals_command import build_environment, create_store

pytestmark = pytest.mark.clause("operation")

COMMAND = """
import sys
from service.commands.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
SERVING = {"serving.tool_runner", "rest_shim.endpoints", "starlette", "uvicorn"}
COMPUTING = {"compute.hourly_pipeline", "compute.universe", "numpy"}
CALLING = {"httpx", "httpx2", "mcp", "mcp_types"}
NEVER = {"jsonschema", "pydantic_settings", "rich.progress", "stripe"}
SQLITE, POSTGRES = {"aiosqlite"}, {"asyncpg"}
ALL = SERVING | COMPUTING | CALLING | NEVER | SQLITE | POSTGRES


def loaded(folder: Path, *arguments: str, **settings: str) -> set[str]:
    """Return the modules that are loaded when a command ends in the folder of a store."""
    create_store(folder)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env=build_environment(folder, port="1", api_key="ek_none", **settings),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["keys", "create", "--label", "me"], SQLITE),
        pytest.param(["sign-in"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["--help"], set(), marks=pytest.mark.prove),
        pytest.param(["keys", "list"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["access-requests"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["backup"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["prune"], {"numpy"} | SQLITE, marks=pytest.mark.prove),
        (["verify", "--answers"], {"httpx2", "jsonschema"}),
        pytest.param(["verify"], {"httpx2"}, marks=pytest.mark.prove),
        pytest.param(["audit"], COMPUTING | SQLITE, marks=pytest.mark.prove),
        (["state", "BTC"], {"httpx2"}),
        pytest.param(["completion", "bash"], set(), marks=pytest.mark.prove),
        (["stdio"], CALLING - {"httpx"} | SERVING - {"rest_shim.endpoints"}),
        pytest.param(
            ["doctor"], COMPUTING | SQLITE | {"mcp_types", "starlette"}, marks=pytest.mark.prove
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
@pytest.mark.sampled(3)
def test_a_command_loads_only_the_libraries_that_it_needs(tmp_path, arguments, needed):
    assert loaded(tmp_path, *arguments) & ALL - needed == set()


@pytest.mark.clause("postgres")
@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["keys", "list"], set()),
        pytest.param(["prune"], set(), marks=pytest.mark.prove),
        pytest.param(["audit"], COMPUTING, marks=pytest.mark.prove),
        # For its operations port.
        pytest.param(
            ["compute"],
            COMPUTING | SERVING - {"rest_shim.endpoints"} | {"mcp_types"},
            marks=pytest.mark.prove,
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
@pytest.mark.prove
def test_a_command_on_postgresql_does_not_load_sqlite(tmp_path, arguments, needed):
    # A database that cannot be reached is waited for, and a wrong parameter ends the command.
    url = "postgresql://127.0.0.1:1/signals?sslmode=wrong"
    modules = loaded(tmp_path, *arguments, database_url=url)
    assert modules & ALL - needed == POSTGRES


def test_serving_loads_no_sdk_payment_or_progress_library(tmp_path):
    code = "import sys, service.commands.serve; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=build_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded_modules = set(done.stdout.split())
    assert loaded_modules & (NEVER | SQLITE | POSTGRES | {"mcp"}) == set()
    # Its compute process has them.
    assert not [name for name in loaded_modules if name.partition(".")[0] == "compute"]


@pytest.mark.prove
def test_the_compute_process_loads_no_server_and_no_tools(tmp_path):
    code = (
        "import sys, service.processes.child_process, service.commands.compute_command, "
        "service.http.resources; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=build_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    # Its resources include the HTTP client for the documents of OAuth clients.
    assert set(done.stdout.split()) & ALL == COMPUTING | {"httpx2"}
