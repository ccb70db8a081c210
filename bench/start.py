"""Measure the start on a year-old store, short commands, and memory over a day of load.

`python -m bench.start [--store FILE]` starts `signals serve` repeatedly. For the day of load, the
service runs with a settable clock, which is advanced hour by hour while all tools are called.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import httpx

from bench.calls import MCP_HEADERS, MCP_PATH, build_bearer_header
from bench.midnight import serve_movable
from bench.served import (
    SIGNALS,
    STORE,
    build_environment,
    copy_store,
    free_port,
    run_command,
    run_module,
    run_process,
    start_service,
)
from bench.table import Row
from mcp_server.tools.registry import TOOLS

STARTS, SHORT_RUNS, DAY_H, WARM_H, CALLS_AN_HOUR = 3, 5, 24, 12, 10
START_S, FIRST_START_S, FIRST_RESPONSE_S = 3.0, 10.0, 2.0
MEMORY_MIB, GROWTH_MIB = 300, 20
# Short commands import only what they need; this shows if one imports the service or NumPy.
COMMANDS = (("keys", "list"), ("connect", "cursor"), ("stdio",))


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy:
        return [
            *_measure_first_start(),
            *_measure_starts(copy),
            *(_time_command(copy, arguments) for arguments in COMMANDS),
            *_measure_day(copy),
        ]


def _measure_first_start() -> Iterator[Row]:
    """Yield the durations of a first start of the simulated market, and its memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / STORE
        began, port, peaks = time.perf_counter(), free_port(), dict[int, float]()
        ports = {"SIGNALS_PORT": str(port), "SIGNALS_METRICS_PORT": "0"}
        # Needs no key, which nobody can create before there is a store.
        url = f"http://127.0.0.1:{port}/api/v1/stats"
        with run_process([SIGNALS, "serve"], build_environment(store) | ports) as running:
            answered_after: list[float] = []
            while True:
                with suppress(httpx.HTTPError):
                    answer = httpx.get(url, timeout=1)
                    answered_after.append(time.perf_counter() - began)
                    if answer.status_code == 200:
                        break
                if running.poll() is not None or time.perf_counter() - began > FIRST_START_S * 20:
                    raise SystemExit("the first start did not end")
                peaks |= {pid: read_peak_mib(pid) for pid in list_processes(running.pid)}
                time.sleep(0.05)
    target, took = f"< {FIRST_START_S:.0f} s", answered_after[-1]
    yield Row(
        "first start of the simulated market, first response",
        f"{answered_after[0]:.1f} s",
        target=f"< {FIRST_RESPONSE_S:g} s",
        is_met=answered_after[0] < FIRST_RESPONSE_S,
    )
    yield Row(
        "the same, first full response",
        f"{took:.1f} s",
        target=target,
        is_met=took < FIRST_START_S,
    )
    yield _build_memory_row("the same, peak memory of its largest process", max(peaks.values()))


def list_processes(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *(one for child in children for one in list_processes(int(child)))]
    return []


def read_peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process in MiB, 0 if it has ended."""
    with suppress(OSError, StopIteration):
        return _read_status_mib(pid, "VmHWM")
    return 0.0


def _measure_starts(store: Path) -> Iterator[Row]:
    durations, memory = zip(*(time_start(store) for _ in range(STARTS)), strict=True)
    yield Row(
        "first answer of a year-old store, 251 assets",
        f"{median(durations):.2f} s",
        target=f"< {START_S:.0f} s",
        is_met=median(durations) < START_S,
    )
    yield _build_memory_row("resident memory after that start", median(memory))


def time_start(store: Path) -> tuple[float, float]:
    """Serve a store; return the seconds until the first response and the resident MiB then."""
    began = time.perf_counter()
    with start_service([SIGNALS, "serve"], store) as (running, _):
        return time.perf_counter() - began, read_resident_mib(running.pid)


def read_resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return _read_status_mib(pid, "VmRSS")


def _read_status_mib(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    held = next(line for line in status.splitlines() if line.startswith(name))
    return int(held.split()[1]) / 1024


def _time_command(store: Path, arguments: tuple[str, ...]) -> Row:
    """Return the best time of a short command, which is mostly its imports."""
    durations = []
    for _ in range(SHORT_RUNS):
        began = time.perf_counter()
        run_command(store, *arguments)
        durations.append(time.perf_counter() - began)
    return Row(f"`signals {' '.join(arguments)}`, start to end", f"{min(durations):.2f} s")


def _measure_day(store: Path) -> Iterator[Row]:
    """Yield the memory of the service after a day of runs and calls, and its late growth."""
    memory = []
    with (
        serve_movable(store) as service,
        httpx.Client(base_url=service.ours.url, timeout=60) as client,
    ):
        client.headers.update(MCP_HEADERS | build_bearer_header(service.ours))
        for _ in range(DAY_H):
            service.advance_hour("hour")
            _call_all_tools(client)
            memory.append(read_resident_mib(service.ours.pid))
    # Bounded caches fill in the first hours; only growth after that would be a leak.
    growth = memory[-1] - memory[WARM_H - 1]
    yield _build_memory_row(
        f"resident memory after {DAY_H} simulated hours of all tools", memory[-1]
    )
    yield Row(
        f"growth after the first {WARM_H} of them, in which bounded caches fill",
        f"{growth:.0f} MiB",
        target=f"< {GROWTH_MIB} MiB",
        is_met=growth < GROWTH_MIB,
    )


def _call_all_tools(client: httpx.Client) -> None:
    """Call every tool CALLS_AN_HOUR times."""
    for name in [tool.name for tool in TOOLS] * CALLS_AN_HOUR:
        call = {"name": name, "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = client.post(MCP_PATH, json=body)
        if "error" in answer.raise_for_status().json():
            raise SystemExit(f"{name}: {answer.text[:300]}")


def _build_memory_row(what: str, mib: float) -> Row:
    target = f"< {MEMORY_MIB} MiB"
    return Row(what, f"{mib:.0f} MiB", target=target, is_met=mib < MEMORY_MIB)


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
