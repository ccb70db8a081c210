"""Measure the gain of a second serving process: `signals serve --workers 2` against one.

`python -m bench.workers [--store FILE]` loads both in turn. The load generator runs on the same
cores, which two workers have to share with it while one worker does not, so its share is reported.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.calls import STATE_OF_ONE, USAGE, Case
from bench.load import Load, measure_load
from bench.served import Service, copy_store, run_module, serve_store
from bench.table import Row, compare_rates

WORKERS = 2
CASES = (USAGE, STATE_OF_ONE)
CONNECTIONS, SECONDS, ROUNDS = 64, 2.0, 3
TARGET = 1.8
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a load, and the CPU time of the servers per call in milliseconds."""

    load: Load
    call_ms: float

    def format_cores(self) -> str:
        return f"{self.call_ms * self.load.calls_s / 1000:.2f}, {self.load.cpu_ratio:.2f}"


def measure_round(ours: Service, case: Case) -> Round:
    before = measure_cpu_s(ours)
    load = measure_load(ours.url, case.build_mcp_call(ours), SECONDS, CONNECTIONS)
    if load.failed:
        raise SystemExit(f"{case.name}: {load.failed} failed")
    return Round(load, (measure_cpu_s(ours) - before) * 1000 / (load.calls_s * SECONDS))


def measure_cpu_s(ours: Service) -> float:
    """Return the CPU seconds used by the main process and its children."""
    # Workers are direct children, and the load generator is not one of them.
    children = Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text().split()
    return sum(read_cpu_ticks(pid) for pid in (str(ours.pid), *children)) / TICKS_A_SECOND


def read_cpu_ticks(pid: str) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def compare_turns(case: Case, alone: Service, several: Service) -> Iterator[Row]:
    """Load both in turn and compare the fastest round of each."""
    rounds = [(measure_round(alone, case), measure_round(several, case)) for _ in range(ROUNDS)]
    one, two = (max(of, key=lambda each: each.load.calls_s) for of in zip(*rounds, strict=True))
    what, rate, cores = f"MCP {case.name}, {WORKERS} workers", two.load.calls_s, os.cpu_count() or 1
    yield compare_rates(f"{what} / 1", rate, one.load.calls_s)
    # Corrected by the cores that the load left over, not by the servers' CPU time per call, which
    # would take waiting for the store's lock for idle cores.
    available = min(WORKERS, cores - two.load.cpu_ratio)
    yield compare_rates(
        f"the same, had the load not taken {two.load.cpu_ratio:.2f} of {cores} cores",
        rate * WORKERS / available,
        one.load.calls_s,
        TARGET,
    )
    cost_ratio = f"{two.call_ms / one.call_ms:.2f}"
    by_call = (f"{each.call_ms:.2f} ms" for each in (two, one))
    yield Row("the same, CPU of the servers per call", *by_call, cost_ratio)
    yield Row("the same, cores used: servers, load", two.format_cores(), one.format_cores())


def rows(store: Path | None = None) -> list[Row]:
    """Measure on copies of the store, or on a new store if none is given."""
    with (
        copy_store(store) as first,
        copy_store(first) as second,
        serve_store(first) as alone,
        serve_store(second, "--workers", str(WORKERS)) as several,
    ):
        return [row for case in CASES for row in compare_turns(case, alone, several)]


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
