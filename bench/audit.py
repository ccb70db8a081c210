"""Measure `signals audit` on a year-old store, on all cores of the machine.

`python -m bench.audit [--store FILE]`. `bench.blocks` compares executors.
"""

import os
import resource
import time
from pathlib import Path

from bench.served import copy_store, run_command, run_module
from bench.table import Row

TARGET_S = 10.0


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy:
        began, before = time.perf_counter(), measure_children_s()
        if not run_command(copy, "audit").endswith("clean\n"):
            raise SystemExit("the audit is not clean")
        took_s, cpu_s = time.perf_counter() - began, measure_children_s() - before
    cores = os.cpu_count() or 1
    return [
        Row(
            f"`signals audit` of a year-old store, 251 assets, {cores} cores",
            f"{took_s:.1f} s",
            target=f"< {TARGET_S:.0f} s",
            is_met=took_s < TARGET_S,
        ),
        Row("the same, processor time", f"{cpu_s:.1f} s"),
    ]


def measure_children_s() -> float:
    """Return the processor seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
