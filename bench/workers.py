"""What a second serving process adds: `signals serve --workers 2` beside `signals serve`.

`python -m bench.workers` starts the command both ways on prepared stores and calls each by turns.
The load takes a part of the same cores, so what each side used of them is read from the kernel.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.quota import CALLS, loaded
from bench.table import Row, table
from tests.service.commands import COMMAND, environment, free_port, signals
from tests.service.test_cli import write_bars

WORKERS = (1, 2)
CONNECTIONS, SECONDS, ROUNDS = 64, 2, 3
HAS_WRK = shutil.which("wrk") is not None
TARGET = 1.7
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
SCRIPT = """
wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer {api_key}"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{body}]]
"""


@dataclass(frozen=True, slots=True)
class Round:
    """Calls a second that one round made, and the seconds of CPU that both sides used a second."""

    calls: float
    server: float
    load: float


@dataclass(frozen=True, slots=True)
class Served:
    """A running command and a key of its store."""

    pid: int
    port: int
    api_key: str

    def cpu_s(self) -> float:
        """Return the seconds of CPU that its processes have used."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(_cpu_s(pid) for pid in (str(self.pid), *children))


def _cpu_s(pid: str) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_A_SECOND


@contextmanager
def served(folder: Path, workers: int) -> Iterator[Served]:
    """Serve a played recording by so many processes, until the block ends."""
    folder.mkdir()
    bars = write_bars(folder / "bars", count=300)
    assert signals(folder, "replay", "--bars", str(bars)).returncode == 0
    api_key = signals(folder, "keys", "create", "--label", "bench").stdout.strip()
    port = free_port()
    env = environment(folder, source=f"files:{bars}", port=port, daily_limit="1000000000")
    process = subprocess.Popen(
        [*COMMAND, "serve", "--workers", str(workers)],
        env=env,
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        _answers(f"http://127.0.0.1:{port}/api/v1")
        yield Served(process.pid, int(port), api_key)
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> None:
    """Wait until a server answers."""
    for _ in range(300):
        with suppress(URLError, ConnectionError), closing(urlopen(address)):
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing answers at {address}")


def one_round(served: Served, tool: str, folder: Path) -> Round:
    """Call a tool over many connections for some seconds."""
    call = _called_by_wrk if HAS_WRK else _called_by_python
    ours, theirs, began = served.cpu_s(), _children_s(), time.monotonic()
    calls = call(served, tool, folder)
    took = time.monotonic() - began
    server, load = served.cpu_s() - ours, _children_s() - theirs
    return Round(calls / took, server / took, load / took)


def _called_by_wrk(served: Served, tool: str, folder: Path) -> int:
    """Return how many calls were answered, all of them with 200."""
    params = {"name": tool, "arguments": CALLS[tool]}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    script = folder / "calls.lua"
    script.write_text(SCRIPT.format(api_key=served.api_key, body=body))
    url = f"http://127.0.0.1:{served.port}/api/v1/mcp"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", str(script), url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in said, said
    made = re.search(r"(\d+) requests in", said)
    assert made is not None, said
    return int(made[1])


def _called_by_python(served: Served, tool: str, folder: Path) -> int:
    return len(loaded(served.port, tool, served.api_key, CONNECTIONS, SECONDS))


def _children_s() -> float:
    """Return the seconds of CPU of what this process has run and waited for."""
    used = os.times()
    return used.children_user + used.children_system


def measured(tool: str, running: Mapping[int, Served], folder: Path) -> Iterator[Row]:
    """Call both by turns; the fastest round of each counts, for others can only slow one down."""
    rounds: dict[int, list[Round]] = {workers: [] for workers in running}
    for _ in range(ROUNDS):
        for workers, server in running.items():
            rounds[workers].append(one_round(server, tool, folder))
    one, two = (max(rounds[workers], key=lambda one: one.calls) for workers in WORKERS)
    ratio = two.calls / one.calls
    yield Row(
        f"`{tool}`, 64 connections of {'wrk' if HAS_WRK else 'Python'}, 2 workers beside 1",
        f"{two.calls:,.0f} calls/s",
        f"{one.calls:,.0f} calls/s",
        f"{ratio:.2f}",
        f"{TARGET}",
        ratio >= TARGET,
    )
    a_call = {
        workers: statistics.median(1000 * each.server / each.calls for each in rounds[workers])
        for workers in WORKERS
    }
    free = len(WORKERS) * a_call[1] / a_call[2]
    yield Row(
        "the same by CPU of the servers a call, as with cores enough for the load too",
        f"{a_call[2]:.2f} ms",
        f"{a_call[1]:.2f} ms",
        f"{free:.2f}",
        f"{TARGET}",
        free >= TARGET,
    )
    yield Row(
        "cores used in those rounds: servers, load",
        f"{two.server:.2f}, {two.load:.2f}",
        f"{one.server:.2f}, {one.load:.2f}",
    )


def rows() -> list[Row]:
    """Measure each call."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        running = {n: opened.enter_context(served(folder / str(n), n)) for n in WORKERS}
        return [row for tool in CALLS for row in measured(tool, running, folder)]


def main() -> None:
    """Print the table."""
    sys.stdout.write(table(rows()) + "\n")


if __name__ == "__main__":
    main()
