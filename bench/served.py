"""Runs `signals` and other servers as separate processes, for modules that measure them."""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.table import Row, format_table

SIGNALS = str(Path(sys.executable).with_name("signals"))
TREE = Path(__file__).parents[1]
START_S = 120
STOP_S = 20
STORE = "signals.db"


@dataclass(frozen=True, slots=True)
class Service:
    """A running service: its URL, an API key, its start time (epoch ms) and its main process."""

    url: str
    api_key: str
    served_at_ms: int
    pid: int


def free_port() -> int:
    # Another process could take the port before it is used; then the caller fails and is rerun.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def run_process(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path = TREE,
    **options: Any,
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command until the block ends, without output and with this tree on its path."""
    seen = os.environ | {"PYTHONPATH": str(TREE)} | dict(environment or {})
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
    running = subprocess.Popen(command, cwd=folder, env=seen, text=True, **quiet)
    try:
        yield running
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.communicate(timeout=STOP_S)
        running.kill()
        running.wait()


def wait_until_answering(running: "subprocess.Popen[str]", url: str) -> None:
    """Wait until a server sends any response; SystemExit if it ends or START_S seconds pass."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and running.poll() is None:
        with suppress(httpx.ConnectError):
            httpx.get(url, timeout=START_S)
            return
        time.sleep(0.01)
    raise SystemExit(f"no response from {url} after {START_S} s")


def wait_until_ready(url: str) -> None:
    """Wait until a service has computed; SystemExit if START_S seconds pass."""
    give_up = time.monotonic() + START_S
    while httpx.get(f"{url}/readyz", timeout=START_S).status_code != 200:
        if time.monotonic() > give_up:
            raise SystemExit(f"{url} is not ready after {START_S} s")
        time.sleep(0.05)


# A SQLite file, or the URL of a PostgreSQL database.
Store = Path | str


def build_environment(store: Store) -> dict[str, str]:
    """Return the environment variables that run `signals` on a store, with ample limits."""
    # They are so large that no load exhausts them.
    return {
        "SIGNALS_DATABASE_URL": store if isinstance(store, str) else f"sqlite:///{store}",
        "SIGNALS_DAILY_LIMIT": "1000000000",
        **{
            f"SIGNALS_{kind}_LIMIT": "1000000/600"
            for kind in ("CHECKOUT", "ACCESS_REQUEST", "SIGN_IN", "OAUTH")
        },
    }


@contextmanager
def start_service(
    command: Sequence[str], store: Store, operations_port: int | None = None, **options: Any
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a serving command until the block ends; yield the process and its URL when it is up."""
    port, operations_port = free_port(), operations_port or free_port()
    ports = {"SIGNALS_PORT": str(port), "SIGNALS_METRICS_PORT": str(operations_port)}
    url = f"http://127.0.0.1:{port}"
    with run_process(command, build_environment(store) | ports, **options) as running:
        wait_until_answering(running, f"{url}/api/v1")
        yield running, url


@contextmanager
def serve_store(
    store: Store, *arguments: str, operations_port: int | None = None
) -> Iterator[Service]:
    """Run `signals serve` on a store, which it changes, until it has caught up."""
    with start_service([SIGNALS, "serve", *arguments], store, operations_port) as (running, url):
        if "--no-compute" not in arguments:
            wait_until_ready(url)
        yield Service(url, create_key(store), time.time_ns() // 1_000_000, running.pid)


def run_command(store: Store, *arguments: str) -> str:
    """Run a `signals` command on a store and return its output."""
    environment = os.environ | {"PYTHONPATH": str(TREE)} | build_environment(store)
    command, nothing = [SIGNALS, *arguments], subprocess.DEVNULL
    return subprocess.run(
        command, env=environment, stdin=nothing, check=True, capture_output=True, text=True
    ).stdout


def create_key(store: Store) -> str:
    return run_command(store, "keys", "create", "--label", "bench").strip()


def make_store(folder: Path) -> Path:
    """Create a store by a first start, with the whole simulated market up to now."""
    store = folder / STORE
    with start_service([SIGNALS, "serve"], store) as (_, url):
        wait_until_ready(url)
        return store


@contextmanager
def copy_store(store: Path | None) -> Iterator[Path]:
    """Yield a copy of a store, or a new store if none is given."""
    with tempfile.TemporaryDirectory() as folder:
        if store is None:
            yield make_store(Path(folder))
        else:
            # A store is several files: market, access and their write-ahead logs.
            for file in store.parent.glob(f"{store.name}*"):
                shutil.copy(file, folder)
            yield Path(folder) / store.name


def run_module(rows: Callable[[Path | None], list[Row]], about: str | None) -> None:
    """Run one module as a command with the option --store, and print its table."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--store", type=Path, help="copy a store that `signals serve` created")
    print(format_table(rows(parser.parse_args().store)))
