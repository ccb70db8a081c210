"""The metrics of a process, kept with Prometheus' client library, and the operations port.

No metric identifies a user. Lower layers report through callables (`on_call`, `on_run`, ...), so
only `service` imports the library. The port has health and metrics for the operator. It checks Host
and Origin but no key, so by default it listens only on this machine.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from ctypes import c_bool
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import NamedTuple, cast, get_args

import structlog
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.version import VERSION
from schemas.vocabulary import RETENTION_MS, ErrorCode
from service.config.setting_types import split_commas
from service.config.settings import Settings, SettingsError
from service.config.stores import BACKUP_NOTICE, CERTIFICATE_NOTICE
from service.http.health import NO_STORE_HEADERS, Readiness, build_health_routes, is_ready
from service.http.server import build_server_config, open_listener, serve_in_background
from service.processes.child_process import SPAWN_CONTEXT
from service.processes.lifecycle import run_in_background
from serving.fair_share import TOO_MANY_CALLS
from serving.host_origin import HostOriginMiddleware
from serving.snapshot import Snapshot
from serving.tool_runner import OK
from store.access_rows import Notice

CALL_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
RUN_BUCKETS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
CHECKPOINT_OUTCOMES = ("signed", "refused", "cosigned")
# The folder in which several processes count together. The library reads it once, at its import.
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
FOLDER_PREFIX = "signals-metrics-"
LAG_SAMPLE_INTERVAL_S = 0.25
# Few, so that users keep theirs.
MAX_METRICS_CONNECTIONS = 16

log = structlog.get_logger("operations")


class DurationHistogram(Histogram):
    """A histogram that takes many values at a time."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe values as `observe` does each."""
        # Each increment costs half a microsecond, and two if several processes count together.
        self._sum.inc(sum(amounts))
        buckets = Multiset(bisect_left(self._upper_bounds, amount) for amount in amounts)
        for bucket, number in buckets.items():
            self._buckets[bucket].inc(number)


class Metrics:
    """The metrics of one process; `tools` are the names of all tools.

    `failing` is true while runs fail; several processes share it.
    """

    def __init__(self, tools: Iterable[str], failing: c_bool | None = None) -> None:
        # `_created` series double a scrape, and a restart shows in process_start_time_seconds.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        calls = Counter(
            "signals_calls",
            "Tool calls over MCP and REST, by tool and outcome (ok, error code or call limit).",
            ["tool", "outcome"],
            registry=registry,
        )
        durations = DurationHistogram(
            "signals_call_duration_seconds",
            "Time from the arrival of a call to its response.",
            ["tool"],
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        # All series are created now, so that each starts at 0, which rate() needs. A lookup of
        # labels for each call would also cost more.
        outcomes = OK, *get_args(ErrorCode), TOO_MANY_CALLS
        self._calls = {
            (tool, each): calls.labels(tool, each) for tool in tools for each in outcomes
        }
        self._durations = {tool: durations.labels(tool) for tool in tools}
        self._ended_calls: list[tuple[str, str, float]] = []
        # Each takes a number, and counts it.
        self.on_run = Histogram(
            "signals_run_duration_seconds",
            "Time of an hourly run's first batch, from fetch to commit.",
            buckets=RUN_BUCKETS_S,
            registry=registry,
        ).observe
        self.on_calls_dropped = Counter(
            "signals_dropped_log_calls",
            "Calls missing in the call logs of keys: the store failed, or they were too many.",
            registry=registry,
        ).inc
        self.on_lag = Histogram(
            "signals_event_loop_lag_seconds",
            "Sampled delay of the event loop: how much too late a sleep ends.",
            buckets=LAG_BUCKETS_S,
            registry=registry,
        ).observe
        rows = Counter(
            "signals_feed_rows", "Rows written to the feed, by tier.", ["tier"], registry=registry
        )
        self._rows = {tier: rows.labels(tier) for tier in RETENTION_MS}
        self._held_bars = Counter(
            "signals_held_bars",
            "Implausible bars that were held back until the next run.",
            registry=registry,
        )
        checkpoints = Counter(
            "signals_log_checkpoints",
            "Checkpoints of the log of the feed, by outcome (signed, refused, or cosigned by a "
            "witness).",
            ["outcome"],
            registry=registry,
        )
        self._checkpoints = {each: checkpoints.labels(each) for each in CHECKPOINT_OUTCOMES}
        # Bodies that are rejected before billing are not counted, or anyone could inflate this.
        self._sales = Counter(
            "signals_billing",
            "Checkouts and claims with a valid body, by status or error code.",
            ["operation", "outcome"],
            registry=registry,
        )
        mails = Counter(
            "signals_mails",
            "Attempts to send mail: sent, delayed, refused for one mailbox, or failed.",
            ["outcome"],
            registry=registry,
        )
        self._mails = {
            each: mails.labels(each) for each in ("sent", "failed", "delayed", "refused")
        }
        self._failing = c_bool() if failing is None else failing

    def on_call(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a tool call before the next turn of the event loop."""
        if not self._ended_calls:
            asyncio.get_running_loop().call_soon(self._count_calls)
        self._ended_calls.append((tool, outcome, seconds))

    def _count_calls(self) -> None:
        """Count the calls that ended in one turn, of which there are up to a hundred."""
        ended, self._ended_calls = self._ended_calls, []
        for (tool, outcome), number in Multiset(call[:2] for call in ended).items():
            self._calls[tool, outcome].inc(number)
        for tool in {call[0] for call in ended}:
            self._durations[tool].observe_all([call[2] for call in ended if call[0] == tool])

    def on_rows(self, published: int, alerts: int, held_bars: int) -> None:
        """Count the feed rows that a batch published, and the bars that were held back."""
        self._rows["universe"].inc(published)
        self._rows["alerts"].inc(alerts)
        self._held_bars.inc(held_bars)

    def on_checkpoint(self, outcome: str) -> None:
        """Count a checkpoint of the log."""
        self._checkpoints[outcome].inc()

    def on_sale(self, operation: str, outcome: str) -> None:
        """Count the outcome of a checkout or a claim."""
        self._sales.labels(operation, outcome).inc()

    def on_mail(self, outcome: str) -> None:
        """Count an attempt to send a mail."""
        self._mails[outcome].inc()

    @property
    def are_runs_failing(self) -> bool:
        """Whether the newest attempt of the compute process to run failed."""
        return self._failing.value

    def on_failing(self, are_failing: bool) -> None:
        """Note whether runs fail; /readyz fails meanwhile."""
        self._failing.value = are_failing


@contextmanager
def open_shared_metrics_folder() -> Iterator[Path]:
    """Create a folder in which all processes started during the block count together."""
    # Files of dead processes stay: every shared metric is a sum, so their counts remain part of it.
    # Those of services that were killed, also of their processes at once.
    for abandoned in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        # Not ours to open, gone meanwhile, or locked by a service that runs.
        with suppress(OSError):
            lock = _lock_folder(abandoned)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(abandoned, ignore_errors=True)
            finally:
                os.close(lock)
    new_folder = Path(tempfile.mkdtemp(prefix="signals-new-metrics-"))
    # The kernel releases the lock when this process dies. Only a locked folder gets the final name,
    # so no other service takes it for an abandoned one.
    lock = _lock_folder(new_folder)
    folder = new_folder.rename(
        new_folder.with_name(new_folder.name.replace("signals-new-metrics-", FOLDER_PREFIX))
    )
    os.environ[MULTIPROCESS_VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        os.environ.pop(MULTIPROCESS_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock_folder(folder: Path) -> int:
    """Lock a folder; return the descriptor that holds the lock. OSError if another one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class MetricsServer(NamedTuple):
    """The operations port of a process, if any; all processes count in `shared_folder`.

    They also share `failing`, which is true while runs fail. The port serves local names, the host
    of the settings' address and the allowed hosts.
    """

    settings: Settings
    listener: socket | None
    failing: c_bool
    shared_folder: Path | None

    @asynccontextmanager
    async def serve_metrics(self, metrics: Metrics, readiness: Readiness) -> AsyncIterator[None]:
        """Serve /healthz, /readyz and /metrics, and sample the loop's lag during the block."""
        settings, counters = self.settings, cast(Collector, metrics.registry)
        if self.shared_folder is not None:
            # The sums of all processes that share the folder.
            counters = MultiProcessCollector(None, str(self.shared_folder))  # type: ignore[no-untyped-call]

        async def send_metrics(request: Request) -> Response:
            checks = await readiness.run_checks()
            gauges = CurrentGauges(
                readiness.snapshots.last,
                is_ready(checks),
                readiness.clock(),
                {notice.name: notice for notice in await readiness.list_notices()},
                settings.market_path.parent if settings.is_sqlite else None,
            )
            registry = CollectorRegistry()
            for each in (counters, gauges, PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
                registry.register(each)
            encode, media_type = choose_encoder(request.headers.get("accept", ""))
            headers = {**NO_STORE_HEADERS, "Content-Type": media_type}
            return Response(encode(registry), headers=headers)

        app = Starlette(routes=[*build_health_routes(readiness), Route("/metrics", send_metrics)])
        app.router.redirect_slashes = False
        app.add_middleware(
            HostOriginMiddleware,
            base_url=settings.address,
            docs=f"{settings.address}/api/v1",
            allowed_hosts=split_commas(settings.allowed_hosts),
            allows_own_address=True,
        )
        config = build_server_config(
            app, base_url=settings.address, max_connections=MAX_METRICS_CONNECTIONS
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(run_in_background(sample_loop_lag(metrics.on_lag)))
            if self.listener is not None:
                await stack.enter_async_context(serve_in_background(config, self.listener))
            yield


@contextmanager
def open_metrics_server(settings: Settings, *, is_shared: bool = False) -> Iterator[MetricsServer]:
    """Open the operations port for the block; all processes count together if `is_shared`.

    It has no listener if the port is disabled, or the default one is in use.
    """
    listener = folder = None
    with ExitStack() as stack:
        if settings.metrics_port != 0:
            try:
                listener = open_listener(
                    settings.metrics_host, settings.metrics_port, "SIGNALS_METRICS_"
                )
            except SettingsError as error:
                # Another service may use the default port. One that the operator set must be free.
                if {"metrics_host", "metrics_port"} & settings.model_fields_set:
                    raise
                log.warning("no_metrics", why=str(error))
            else:
                stack.enter_context(listener)
                if is_shared:
                    folder = stack.enter_context(open_shared_metrics_folder())
        failing = SPAWN_CONTEXT.RawValue(c_bool) if is_shared else c_bool()
        yield MetricsServer(settings, listener, failing, folder)


@dataclass(frozen=True, eq=False)
class CurrentGauges:
    """The values at the moment of a scrape; `now` is epoch ms."""

    snapshot: Snapshot | None
    is_ready: bool
    now: int
    notices: Mapping[str, Notice]
    store_folder: Path | None

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; those of a snapshot only if there is one."""
        version = GaugeMetricFamily(
            "signals_build_info", "Version of the service, always 1.", labels=["version"]
        )
        version.add_metric([VERSION], 1)
        yield version
        values: dict[str, tuple[str, float]] = {
            "ready": ("1 if /readyz returns 200, else 0.", self.is_ready)
        }
        if self.store_folder is not None:
            free = shutil.disk_usage(self.store_folder).free
            values["disk_free_bytes"] = "Free space at the database.", free
        if (backup := self.notices.get(BACKUP_NOTICE)) is not None:
            values["backup_age_seconds"] = (
                "Time since the last `signals backup` that was completed.",
                max(0, self.now - backup.at) / 1000,
            )
        if (certificate := self.notices.get(CERTIFICATE_NOTICE)) is not None:
            values["certificate_seconds"] = (
                "Time until the certificate of SIGNALS_BASE_URL ends.",
                (int(certificate.detail) - self.now) / 1000,
            )
        if self.snapshot is not None:
            age_s = max(0, self.now - self.snapshot.market_time) / 1000
            stored = self.snapshot.stored
            values |= {
                "snapshot_age_seconds": ("Time since the last hourly run.", age_s),
                "late_assets": ("Assets whose due bars have not arrived.", len(stored.late)),
                "missing_bars": (
                    "Bars of the last 330 days that the venues never delivered.",
                    sum(stored.missing_bars.values()),
                ),
                "building_assets": (
                    "Assets whose history is still being built.",
                    len(self.snapshot.building_tickers),
                ),
            }
        for name, (meaning, value) in values.items():
            yield GaugeMetricFamily(f"signals_{name}", meaning, value=value)


async def sample_loop_lag(
    on_lag: Callable[[float], None], step_s: float = LAG_SAMPLE_INTERVAL_S
) -> None:
    """Report every `step_s` by how many seconds a sleep ended too late."""
    get_time = asyncio.get_running_loop().time
    while True:
        before = get_time()
        await asyncio.sleep(step_s)
        on_lag(max(0.0, get_time() - before - step_s))
