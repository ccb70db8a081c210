"""What the service counts of itself, by Prometheus' client library; nothing tells who a user is.

Every label has a closed vocabulary. The layers below report through callables that they are handed.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from schemas.vocabulary import RETENTION_MS, ErrorCode
from serving.tool_runner import OK
from store.market_rows import Batch

CALL_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
RUN_BUCKETS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
# Where the library finds the folder in which several processes count together. It decides so once,
# when it is first loaded.
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """The counts of one process, in a registry of their own; `tools` are all that may be called."""

    def __init__(self, tools: Iterable[str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        calls = Counter(
            "signals_calls",
            "Calls of tools over MCP and REST, by tool and by ok or the code of the refusal.",
            ["tool", "outcome"],
            registry=registry,
        )
        durations = Histogram(
            "signals_call_duration_seconds",
            "Time from a call's admission to its answer.",
            ["tool"],
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        # Bound beforehand: a call costs little more, and each series begins at 0, as rates need.
        self._calls = {
            (tool, outcome): (calls.labels(tool, outcome).inc, durations.labels(tool).observe)
            for tool in tools
            for outcome in (OK, *get_args(ErrorCode))
        }
        self._runs = Histogram(
            "signals_run_duration_seconds",
            "Time of an hourly run's first pass, from its fetch to its commit.",
            buckets=RUN_BUCKETS_S,
            registry=registry,
        )
        rows = Counter(
            "signals_feed_rows", "Rows written to the feed, by tier.", ["tier"], registry=registry
        )
        self._rows = {tier: rows.labels(tier) for tier in RETENTION_MS}
        self._sales = Counter(
            "signals_billing",
            "Checkouts and claims that were understood, by status or code of the refusal.",
            ["operation", "outcome"],
            registry=registry,
        )
        self._lag = Histogram(
            "signals_event_loop_lag_seconds",
            "How much later than asked a sleep of the event loop ends, sampled.",
            buckets=LAG_BUCKETS_S,
            registry=registry,
        )

    def on_call(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a call of a tool."""
        count, observe_duration = self._calls[tool, outcome]
        count()
        observe_duration(seconds)

    def on_run(self, seconds: float) -> None:
        """Count an hourly run."""
        self._runs.observe(seconds)

    def on_commit(self, batch: Batch) -> None:
        """Count what a pass published."""
        self._rows["universe"].inc(sum(row.published for row in batch.changes))
        self._rows["alerts"].inc(len(batch.alerts))

    def on_sale(self, operation: str, outcome: str) -> None:
        """Count what a checkout or a claim came to."""
        self._sales.labels(operation, outcome).inc()

    def on_lag(self, seconds: float) -> None:
        """Count one sample of the event loop's lag."""
        self._lag.observe(seconds)


@contextmanager
def open_shared_metrics_folder() -> Iterator[Path]:
    """Have the processes that the block starts count in one folder, which ends with it.

    What one has counted stays when it dies. All of it are sums, so no file needs to be forgotten.
    """
    with TemporaryDirectory(prefix="signals-metrics-") as folder:
        os.environ[MULTIPROCESS_VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[MULTIPROCESS_VARIABLE]
