"""`make serve` as a newcomer types it, in a checkout of its own; `make prove` times it."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support.signals_command import (
    ROOT,
    RunningCommand,
    build_environment,
    find_free_port,
)

pytestmark = pytest.mark.clause("operation")

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info", "*.db*"
)
INSTALLED_MB = 260


def serve_until_ready(checkout: Path, port: str) -> tuple[float, list[str]]:
    """Return how many seconds `make serve` takes until it answers, and what it printed."""
    env = {**build_environment(checkout, port=port), "PYTHONPATH": ""}
    del env["SIGNALS_DATABASE_URL"]
    began = time.monotonic()
    process = RunningCommand.start(checkout, "make", "--silent", "serve", env=env)
    try:
        process.wait_for_line("--header")
        process.wait_until_caught_up(120)
        manifest = httpx.get(f"http://127.0.0.1:{port}/api/v1").json()
        took = time.monotonic() - began
        assert f"  {manifest['mcp']['registration']}\n" in process.printed
        # A terminal sends its interrupt to make and to what make runs.
        os.killpg(process.process.pid, 2)
        process.wait_for_exit()
    finally:
        process.kill()
    assert "Traceback" not in "".join(process.printed)
    return took, process.printed


@pytest.mark.prove
@pytest.mark.long
def test_make_serve_builds_history_at_the_first_start_only(tmp_path):
    checkout = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=LEFT_OUT))
    installing = subprocess.run(
        ["make", ".venv/installed"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert installing.returncode == 0, installing.stderr
    installed = subprocess.check_output(["du", "-sm", checkout / ".venv"], text=True)
    assert int(installed.split()[0]) < INSTALLED_MB, installed
    port = find_free_port()
    first, printed = serve_until_ready(checkout, port)
    assert [line for line in printed if line.startswith("building history: ")]
    second, printed = serve_until_ready(checkout, port)
    assert not [line for line in printed if "building history" in line]
    print(f"\nmake serve, ready after: first start {first:.1f} s, second start {second:.1f} s")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(port)))
        taken.listen()
        refused = subprocess.run(
            ["make", "--silent", "serve"],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": "", "SIGNALS_PORT": port},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert refused.returncode != 0
    lines = [line for line in refused.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert f"port {port}" in lines[0]
