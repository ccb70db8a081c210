"""Latency at half of the maximum throughput, also while midnight runs commit; event-loop lag.

`python -m bench.latency [--store FILE]`. Calls fall due on a schedule and count from there, so
that a stall is seen by every call that it holds up.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.calls import STATE, USAGE, Case, sampled
from bench.load import Arrivals, drive, drive_at
from bench.midnight import Moved, Window, moved
from bench.peers.started import AS_OURS, limits
from bench.served import copied
from bench.table import Row, table

CASES = (USAGE, STATE)
ROUNDS, ROUND_S = 2, 1.0
STEADY_S, MIDNIGHT_S, LEAD_S = 4.0, 4.0, 0.5
MIDNIGHTS = 2
IDLE_S = 2.0
LAG_P99_MS = 50.0


@dataclass
class Half:
    """A case at half of its maximum: with no run beside it, around midnights, and fixed bytes."""

    case: Case
    rate: float
    steady: Arrivals
    fixed: Arrivals
    around: list[Arrivals] = field(default_factory=list)

    def rows(self, windows: Sequence[Window]) -> list[Row]:
        if failed := sum(arrivals.failed for arrivals in (self.steady, *self.around)):
            raise SystemExit(f"{failed} calls failed: {self.case.name}")
        beside = np.concatenate([during(arrivals, windows) for arrivals in self.around])
        called = f"MCP {self.case.name} at half of the most, {self.rate:,.0f} calls/s"
        runs_s = sum(end - start for start, end in windows)
        return [
            latency_row(f"{called} / fixed bytes", self.steady.took_s, self.fixed.took_s),
            latency_row(
                f"the same during {len(windows)} midnight runs, {runs_s:.1f} s / without",
                beside,
                self.steady.took_s,
            ),
        ]


def latency_row(what: str, ours: np.ndarray, beside: np.ndarray) -> Row:
    ratio = np.percentile(ours, 99) / np.percentile(beside, 99)
    one, other = (percentiles(took, 50, 99, 99.9) for took in (ours, beside))
    return Row(f"{what}: p50 / p99 / p99.9", one, other, f"{ratio:.1f} (p99)")


def during(arrivals: Arrivals, windows: Sequence[Window]) -> np.ndarray:
    """Return how long the calls took that were waiting within any of the windows."""
    due, done = arrivals.due_at, arrivals.due_at + arrivals.took_s
    within = [(due < end) & (done > start) for start, end in windows]
    return arrivals.took_s[np.any(within, axis=0)]


def percentiles(seconds: np.ndarray, *shares: float) -> str:
    return " / ".join(f"{np.percentile(seconds, share) * 1e3:.1f}" for share in shares) + " ms"


def lag_row(what: str, lags: np.ndarray, windows: Sequence[Window]) -> Row:
    inside = np.any([(lags[:, 0] > start) & (lags[:, 0] <= end) for start, end in windows], axis=0)
    found = lags[inside, 1]
    return Row(
        f"Event-loop lag, {what}: p50 / p99 / max",
        percentiles(found, 50, 99, 100),
        target=f"p99 < {LAG_P99_MS:g} ms",
        is_met=bool(np.percentile(found, 99) * 1e3 < LAG_P99_MS),
    )


def half_of_most(service: Moved, case: Case, fixed_url: str) -> Half:
    """Find the maximum, then call at half of it: fixed bytes, ours, and ours around midnights."""
    url, call = service.ours.url, case.over_mcp(service.ours)
    fixed = replace(call, path=f"/{sampled(url, call).body_bytes}")
    rate = max(drive(url, call, ROUND_S).calls_s for _ in range(ROUNDS)) / 2
    limit = drive_at(fixed_url, fixed, rate, STEADY_S)
    half = Half(case, rate, drive_at(url, call, rate, STEADY_S), limit)
    for _ in range(MIDNIGHTS):
        with ThreadPoolExecutor() as beside:
            calling = beside.submit(drive_at, url, call, rate, MIDNIGHT_S)
            time.sleep(LEAD_S)
            service.over_midnight(case.name)
        half.around.append(calling.result())
        service.to_evening()
    return half


def unloaded(service: Moved) -> Window:
    """Let midnights come with no calls beside them; return a time in which nothing ran at all."""
    for _ in range(MIDNIGHTS):
        service.over_midnight("alone")
        service.to_evening()
    began = time.time() + LEAD_S
    time.sleep(IDLE_S + LEAD_S)
    return began, time.time()


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on a copy of a store where there is one."""
    with copied(store) as own, moved(own) as service, limits() as fixed:
        idle = unloaded(service)
        halves = [half_of_most(service, case, fixed[AS_OURS]) for case in CASES]
        lags, windows = service.stopped()
    loaded = [window for half in halves for window in windows[half.case.name]]
    return [
        *(row for half in halves for row in half.rows(windows[half.case.name])),
        lag_row("idle", lags, [idle]),
        lag_row("during midnight runs", lags, windows["alone"]),
        lag_row("the same under the calls above", lags, loaded),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="a store that `signals serve` made, to copy")
    print(table(rows(parser.parse_args().store)))


if __name__ == "__main__":
    main()
