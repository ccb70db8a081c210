"""Measure the start on a year-old store, short commands, and memory over a day of load.

`python -m bench.start [--store FILE]` starts `signals serve` repeatedly. For the day of load, the
service runs with a settable clock, which is advanced hour by hour while all tools are called.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx

from bench.calls import MCP_HEADERS, MCP_PATH, build_bearer_header
from bench.midnight import serve_movable
from bench.served import SIGNALS, copy_store, run_command, run_module, start_service
from bench.table import Row
from mcp_server.tools.registry import TOOLS

STARTS, SHORT_RUNS, DAY_H, WARM_H, CALLS_AN_HOUR = 3, 5, 24, 12, 10
START_S, MEMORY_MIB, GROWTH_MIB = 3.0, 300, 20
# Short commands import only what they need; this shows if one imports the service or NumPy.
COMMANDS = (("keys", "list"), ("connect", "cursor"), ("stdio",))


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy:
        return [
            *_measure_starts(copy),
            *(_time_command(copy, arguments) for arguments in COMMANDS),
            *_measure_day(copy),
        ]


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
    status = Path(f"/proc/{pid}/status").read_text()
    held = next(line for line in status.splitlines() if line.startswith("VmRSS"))
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
