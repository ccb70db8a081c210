"""Runs `signals` and other servers as separate processes, for modules that measure them."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

TREE = Path(__file__).parents[1]
SIGNALS = str(Path(sys.executable).with_name("signals"))
SERVE = (SIGNALS, "serve")
START_S, STOP_S = 300, 20
STORE = "signals.db"


class Server(NamedTuple):
    """A running server."""

    url: str
    process: Any

    def wait_for(self, path: str, status: int | None = None) -> None:
        """Wait for a response with the status, or with any if none is given."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self.process.poll() is None:
            with (
                suppress(httpx.TransportError),
                # Without its body: the SDK answers GET with a stream that never ends.
                httpx.stream("GET", self.url + path, timeout=START_S) as response,
            ):
                if status in (None, response.status_code):
                    return
            time.sleep(0.02)
        raise SystemExit(f"{self.url}{path} did not answer as expected in {START_S} s")


@contextmanager
def run_server(
    command: Sequence[str],
    settings: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[Server]:
    """Run a command that serves on the port SIGNALS_PORT until the block ends."""
    # Another process could take the port before it is used; then the caller fails and is rerun.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    seen = os.environ | {"PYTHONPATH": str(TREE), "SIGNALS_PORT": port} | dict(settings or {})
    quiet = {"stdin": stdin, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=TREE, env=seen, text=True, **quiet) as process:
        try:
            yield Server(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()


def build_settings(store: Path) -> dict[str, str]:
    """Return the settings of `signals` on a store, with limits that no load reaches."""
    kinds = ("CHECKOUT", "ACCESS_REQUEST", "SIGN_IN", "OAUTH")
    return {
        "SIGNALS_DATABASE_URL": f"sqlite:///{store}",
        "SIGNALS_METRICS_PORT": "0",
        "SIGNALS_DAILY_LIMIT": "1000000000",
        **{f"SIGNALS_{kind}_LIMIT": "1000000/600" for kind in kinds},
    }


@contextmanager
def serve_store(store: Path, *arguments: str, **settings: str) -> Iterator[Server]:
    """Run `signals serve` on a store, which it changes, until it is ready."""
    with run_server([*SERVE, *arguments], build_settings(store) | settings) as server:
        server.wait_for("/readyz", 200)
        yield server


def create_key(store: Path) -> dict[str, str]:
    """Create an API key and return the header that sends it."""
    created = subprocess.run(
        [SIGNALS, "keys", "create", "--label", "bench"],
        env=os.environ | {"PYTHONPATH": str(TREE)} | build_settings(store),
        check=True,
        capture_output=True,
        text=True,
    )
    return {"Authorization": f"Bearer {created.stdout.strip()}"}


@cache
def make_store() -> Path:
    """Return a store with the whole simulated market, which the first use of it computes."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    with serve_store(Path(folder) / STORE):
        return Path(folder) / STORE


@contextmanager
def copy_store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        # A store is several files: market, access and their write-ahead logs.
        for file in make_store().parent.glob(f"{STORE}*"):
            shutil.copy(file, folder)
        yield Path(folder) / STORE
