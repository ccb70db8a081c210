"""What a second serving process adds: `signals serve --workers 2` beside `signals serve`.

`python -m bench.workers [--store FILE]` calls both by turns. The load runs on the same cores: two
workers and it share what one worker and it need not, so the share that it took is told.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.calls import STATE_OF_ONE, USAGE, Case
from bench.load import Load, drive
from bench.served import Ours, copied, run_alone, serving
from bench.table import Row, compared

WORKERS = 2
CASES = (USAGE, STATE_OF_ONE)
CONNECTIONS, SECONDS, ROUNDS = 64, 2.0, 3
TARGET = 1.7
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Round:
    """What came of calling for some seconds, and the CPU of the servers for each call."""

    load: Load
    call_ms: float

    def cores(self) -> str:
        return f"{self.call_ms * self.load.calls_s / 1000:.2f}, {self.load.cpu_ratio:.2f}"


def one_round(ours: Ours, case: Case) -> Round:
    before = cpu_s(ours)
    load = drive(ours.url, case.over_mcp(ours), SECONDS, CONNECTIONS)
    if load.failed:
        raise SystemExit(f"{case.name}: {load.failed} failed")
    return Round(load, (cpu_s(ours) - before) * 1000 / (load.calls_s * SECONDS))


def cpu_s(ours: Ours) -> float:
    """Return the seconds of CPU that all processes of the service have used."""
    children = Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text().split()
    return sum(ticks(pid) for pid in (str(ours.pid), *children)) / TICKS_A_SECOND


def ticks(pid: str) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def measured(case: Case, alone: Ours, several: Ours) -> Iterator[Row]:
    """Call both by turns; the fastest round of each counts."""
    rounds = [(one_round(alone, case), one_round(several, case)) for _ in range(ROUNDS)]
    one, two = (max(of, key=lambda each: each.load.calls_s) for of in zip(*rounds, strict=True))
    what, rate, cores = f"MCP {case.name}, {WORKERS} workers", two.load.calls_s, os.cpu_count() or 1
    yield compared(f"{what} / 1", rate, one.load.calls_s)
    left = min(WORKERS, cores - two.load.cpu_ratio)
    yield compared(
        f"the same, had the load not taken {two.load.cpu_ratio:.2f} of {cores} cores",
        rate * WORKERS / left,
        one.load.calls_s,
        TARGET,
    )
    dearer = f"{two.call_ms / one.call_ms:.2f}"
    by_call = (f"{each.call_ms:.2f} ms" for each in (two, one))
    yield Row("the same, CPU of the servers a call", *by_call, dearer)
    yield Row("the same, cores used: servers, load", two.cores(), one.cores())


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on copies of a store where there is one."""
    with (
        copied(store) as first,
        copied(first) as second,
        serving(first) as alone,
        serving(second, "--workers", str(WORKERS)) as several,
    ):
        return [row for case in CASES for row in measured(case, alone, several)]


def main() -> None:
    run_alone(rows, __doc__)


if __name__ == "__main__":
    main()
