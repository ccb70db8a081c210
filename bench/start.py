"""How soon a year-old store is served, what a command loads, and what a day of load holds.

`python -m bench.start [--store FILE]` starts `signals serve` again and again; then the same service
runs on a clock that is moved hour by hour, while all the tools are called.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx

from bench.calls import MCP_HEADERS, MCP_PATH, build_bearer_header
from bench.midnight import serve_movable
from bench.served import SIGNALS, copy_store, run_alone, run_command, start_service
from bench.table import Row
from mcp_server.tools.registry import TOOLS

STARTS, SHORT_RUNS, DAY_H, WARM_H, CALLS_AN_HOUR = 3, 5, 24, 12, 10
START_S, MEMORY_MIB, GROWTH_MIB = 3.0, 300, 20
COMMANDS = (("keys", "list"), ("connect", "cursor"), ("stdio",))


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on a copy of a store where there is one."""
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
    """Serve a store; return the seconds to the first answer, and the MiB held then."""
    began = time.perf_counter()
    with start_service([SIGNALS, "serve"], store) as (running, _):
        return time.perf_counter() - began, read_resident_mib(running.pid)


def read_resident_mib(pid: int) -> float:
    """Return what a process holds in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    held = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(held.split()[1]) / 1024


def _time_command(store: Path, arguments: tuple[str, ...]) -> Row:
    """Return what a command takes that does next to nothing: its imports, the best of some."""
    durations = []
    for _ in range(SHORT_RUNS):
        began = time.perf_counter()
        run_command(store, *arguments)
        durations.append(time.perf_counter() - began)
    return Row(f"`signals {' '.join(arguments)}`, start to end", f"{min(durations):.2f} s")


def _measure_day(store: Path) -> Iterator[Row]:
    """Yield what the service holds after a day of runs and calls, and what its end added."""
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
    """Call every tool some times."""
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
    run_alone(rows, __doc__)


if __name__ == "__main__":
    main()
