"""Measure latency at half of the maximum throughput, also during midnight runs; event-loop lag.

`python -m bench.latency [--store FILE]`. Calls are due on a schedule and latency counts from the
due time, so that a stall delays every call that is due in it.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.calls import STATE, USAGE, Case, sample_call
from bench.load import Arrivals, Call, measure_arrivals, measure_load
from bench.midnight import MovableService, Window, serve_movable
from bench.peers.started import DEFAULT, start_limits
from bench.served import copy_store, run_module
from bench.table import Row

# The smallest and the largest response.
CASES = (USAGE, STATE)
ROUNDS, ROUND_S = 3, 1.0
TURNS, STEADY_S, MIDNIGHT_S, LEAD_S = 2, 2.0, 4.0, 0.5
MIDNIGHTS = 2
IDLE_S = 2.0
# Compute, service and load share the cores during a run; fixed bytes show what that alone costs.
MAX_RUN_RATIO = 2.0
LAG_P99_MS = 20.0


@dataclass
class HalfLoad:
    """Latencies of a case at half of its maximum rate.

    `steady` is without runs, `around` with midnight runs; `fixed` and `fixed_around` are the same
    for fixed bytes of its size.
    """

    case: Case
    rate: float
    steady: list[Arrivals] = field(default_factory=list)
    fixed: list[Arrivals] = field(default_factory=list)
    around: list[Arrivals] = field(default_factory=list)
    fixed_around: list[Arrivals] = field(default_factory=list)

    @property
    def fixed_name(self) -> str:
        """The name of the runs under a load of fixed bytes."""
        return f"{self.case.name}, fixed bytes"

    def list_rows(self, windows_by_name: Mapping[str, Sequence[Window]]) -> list[Row]:
        if failed := sum(arrivals.failed for arrivals in (*self.steady, *self.around)):
            raise SystemExit(f"{failed} calls failed: {self.case.name}")
        steady, fixed = (
            np.concatenate([arrivals.took_s for arrivals in turns])
            for turns in (self.steady, self.fixed)
        )
        windows = windows_by_name[self.case.name]
        midnight = select_during(self.around, windows)
        fixed_midnight = select_during(self.fixed_around, windows_by_name[self.fixed_name])
        called = f"MCP {self.case.name} at half of the maximum, {self.rate:,.0f} calls/s"
        runs = f"the same while {len(windows)} midnight runs commit"
        runs_s = sum(end - start for start, end in windows)
        return [
            build_latency_row(called, steady, fixed, "fixed bytes"),
            build_latency_row(
                f"{runs}, {runs_s:.1f} s in all", midnight, steady, "no run", MAX_RUN_RATIO
            ),
            build_latency_row("fixed bytes meanwhile", fixed_midnight, fixed, "no run"),
        ]


def build_latency_row(
    what: str, ours: np.ndarray, baseline: np.ndarray, name: str, max_ratio: float | None = None
) -> Row:
    ratio = np.percentile(ours, 99) / np.percentile(baseline, 99)
    one, other = (format_percentiles(took, 50, 99, 99.9) for took in (ours, baseline))
    return Row(
        f"{what}: p50 / p99 / p99.9",
        one,
        f"{other} ({name})",
        f"{ratio:.1f} (p99)",
        target="" if max_ratio is None else f"<= {max_ratio:g} (p99)",
        is_met=None if max_ratio is None else bool(ratio <= max_ratio),
    )


def select_during(turns: Sequence[Arrivals], windows: Sequence[Window]) -> np.ndarray:
    """Return the seconds of the calls that were in progress within any of the windows."""
    due, took = (
        np.concatenate(each) for each in zip(*((t.due_at, t.took_s) for t in turns), strict=True)
    )
    within = [(due < end) & (due + took > start) for start, end in windows]
    return took[np.any(within, axis=0)]


def format_percentiles(seconds: np.ndarray, *shares: float) -> str:
    return " / ".join(f"{np.percentile(seconds, share) * 1e3:.1f}" for share in shares) + " ms"


def build_lag_row(what: str, lags: np.ndarray, windows: Sequence[Window]) -> Row:
    inside = np.any([(lags[:, 0] > start) & (lags[:, 0] <= end) for start, end in windows], axis=0)
    found = lags[inside, 1]
    return Row(
        f"Event-loop lag, {what}: p50 / p99 / max",
        format_percentiles(found, 50, 99, 100),
        target=f"p99 < {LAG_P99_MS:g} ms",
        is_met=bool(np.percentile(found, 99) * 1e3 < LAG_P99_MS),
    )


def run_at_half_load(service: MovableService, case: Case, fixed_url: str) -> HalfLoad:
    """Find the maximum rate, then measure at half of it: fixed bytes, ours, and during runs."""
    url, call = service.ours.url, case.build_mcp_call(service.ours)
    fixed = replace(call, path=f"/{sample_call(url, call).body_bytes}")
    rate = max(measure_load(url, call, ROUND_S).calls_s for _ in range(ROUNDS)) / 2
    half = HalfLoad(case, rate)
    for _ in range(TURNS):
        half.fixed.append(measure_arrivals(fixed_url, fixed, rate, STEADY_S))
        half.steady.append(measure_arrivals(url, call, rate, STEADY_S))
    for _ in range(MIDNIGHTS):
        half.around.append(measure_around_run(service, case.name, url, call, rate))
        half.fixed_around.append(
            measure_around_run(service, half.fixed_name, fixed_url, fixed, rate)
        )
    return half


def measure_around_run(
    service: MovableService, name: str, url: str, call: Call, rate: float
) -> Arrivals:
    """Make calls for some seconds, in which a midnight run begins; then move to the evening."""
    with ThreadPoolExecutor() as executor:
        calling = executor.submit(measure_arrivals, url, call, rate, MIDNIGHT_S)
        # The load has to be steady before the run starts.
        time.sleep(LEAD_S)
        service.advance_hour(name)
    service.advance_to_evening()
    return calling.result()


def run_idle(service: MovableService) -> Window:
    """Run midnights without calls; then return a window in which neither runs nor calls happen."""
    for _ in range(MIDNIGHTS):
        service.advance_hour("no calls")
        service.advance_to_evening()
    began = time.time() + LEAD_S
    time.sleep(IDLE_S + LEAD_S)
    return began, time.time()


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy, serve_movable(copy) as service, start_limits() as fixed:
        idle = run_idle(service)
        halves = [run_at_half_load(service, case, fixed[DEFAULT]) for case in CASES]
        lags, windows = service.stop()
    loaded = [window for half in halves for window in windows[half.case.name]]
    return [
        *(row for half in halves for row in half.list_rows(windows)),
        build_lag_row("idle", lags, [idle]),
        build_lag_row("during midnight runs", lags, windows["no calls"]),
        build_lag_row("the same under the calls above", lags, loaded),
    ]


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
