"""What is measured, as processes of their own: `signals serve`, on a store that it made."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SIGNALS = str(Path(sys.executable).with_name("signals"))
TREE = Path(__file__).parents[1]
START_S = 120
STOP_S = 20
STORE = "signals.db"


@dataclass(frozen=True, slots=True)
class Ours:
    """The running service, a key, and when it began to serve."""

    url: str
    api_key: str
    served_at_ms: int


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def process(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path = TREE,
    **given: Any,
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command until the block ends, quietly; it sees this tree first."""
    paths = {"PYTHONPATH": str(TREE)} | dict(environment or {})
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | given
    running = subprocess.Popen(command, cwd=folder, env=os.environ | paths, text=True, **quiet)
    try:
        yield running
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(STOP_S)
        running.kill()
        running.wait()


def until_answers(running: "subprocess.Popen[str]", url: str) -> None:
    """Wait until anything at all is answered; an answer is waited for where the port is taken."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and running.poll() is None:
        with suppress(httpx.ConnectError):
            httpx.get(url, timeout=START_S)
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing answers at {url}")


def settings(store: Path, port: int) -> dict[str, str]:
    """Return the environment of `signals` on a store."""
    return {
        "SIGNALS_DATABASE_URL": f"sqlite:///{store}",
        "SIGNALS_PORT": str(port),
        "SIGNALS_BILLING": "off",
        "SIGNALS_DAILY_LIMIT": "1000000000",
    }


@contextmanager
def serving(store: Path) -> Iterator[Ours]:
    """Serve a store by the real command; the store is changed by it."""
    port = free_port()
    environment, url = settings(store, port), f"http://127.0.0.1:{port}"
    with process([SIGNALS, "serve"], environment) as running:
        until_answers(running, f"{url}/api/v1")
        yield Ours(url, made_key(environment), time.time_ns() // 1_000_000)


def made_key(environment: Mapping[str, str]) -> str:
    command = [SIGNALS, "keys", "create", "--label", "bench"]
    seen = os.environ | {"PYTHONPATH": str(TREE)} | dict(environment)
    done = subprocess.run(command, env=seen, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_store(folder: Path) -> Path:
    """Return a store as a first start leaves it: the whole simulated market up to now."""
    store = folder / STORE
    with serving(store):
        return store


@contextmanager
def copied(store: Path | None) -> Iterator[Path]:
    """Yield a copy of a store, or a new one where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        if store is None:
            yield make_store(Path(folder))
        else:
            for file in store.parent.glob(f"{store.name}*"):
                shutil.copy(file, folder)
            yield Path(folder) / store.name
