"""Services shared by test modules: a small simulated market, and generated bars."""

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.service.commands.test_serve import served_process
from tests.support.example_market import NOON, make_coverage
from tests.support.row_builders import run_sql
from tests.support.running_service import RunningService
from tests.support.signals_command import (
    find_free_port,
    run_signals,
    start_signals,
    write_cut_universe,
)

Service = tuple[str, str]


@contextmanager
def serve_bars(folder: Path, bars: Path) -> Iterator[Service]:
    """Replay bars and serve them; yield the address and a key."""
    assert run_signals(folder, "replay", "--bars", str(bars)).returncode == 0
    api_key = run_signals(folder, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(folder, source=f"files:{bars}") as (address, _):
        yield address, api_key


FirstStart = tuple[Path, list[str], dict[str, object], str]


@pytest.fixture(scope="session")
def first_start(tmp_path_factory) -> FirstStart:
    """A folder with a simulated market, the output of its first start, and its registration.

    The first of several test processes makes it, because the start takes seconds.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, said = shared / "first", shared / "first.json"
    with (shared / "first.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            said.write_text(json.dumps(make_first_start(folder)))
    printed, state, registration = json.loads(said.read_text())
    return folder, printed, state, registration


def make_first_start(folder: Path) -> tuple[list[str], dict[str, object], str]:
    folder.mkdir()
    port, universe = find_free_port(), write_cut_universe(folder, {"BTC", "NVDA"})
    with start_signals(folder, "serve", port=port, universe=universe) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()
        address = f"http://127.0.0.1:{port}/api/v1"
        api_key = run_signals(folder, "keys", "create", "--label", "tests").stdout.strip()
        state = httpx.get(f"{address}/state", headers={"X-Api-Key": api_key}).json()
        registration = httpx.get(address).json()["mcp"]["registration"]
        assert process.stop(signal.SIGTERM) == 0
    return process.printed, state, registration


@pytest.fixture
def market(first_start, tmp_path) -> Path:
    """A copy of that folder, without its keys."""
    folder = Path(shutil.copytree(first_start[0], tmp_path / "market"))
    for table in ("usage", "keys"):
        run_sql(folder / "signals.db-access", f"DELETE FROM {table}")
    return folder


@pytest.fixture
async def recording(served_alone: RunningService) -> RunningService:
    """A service whose data are a recording that has ended, so that following it ends too."""
    await served_alone.market.publish_coverage(make_coverage("recorded", recorded_until=NOON))
    return served_alone
