"""The operations port: health and metrics for the operator, on a port of its own.

It checks Host and Origin but no key, so by default it listens only on this machine.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from ctypes import c_bool
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import NamedTuple

import structlog
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Metric,
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
from service.config.setting_types import split_commas
from service.config.settings import Settings, SettingsError
from service.config.stores import BACKUP_NOTICE
from service.http.health import NO_STORE_HEADERS, Readiness, build_health_routes, is_ready
from service.http.metrics import Metrics, open_shared_metrics_folder
from service.http.notices import CERTIFICATE_NOTICE
from service.http.server import build_server_config, open_listener, serve_in_background
from service.processes.child_process import SPAWN_CONTEXT
from service.processes.lifecycle import run_in_background
from serving.host_origin import HostOriginMiddleware
from serving.snapshot import Snapshot
from store.access_rows import Notice

LAG_SAMPLE_INTERVAL_S = 0.25
# Few, so that users keep theirs.
MAX_METRICS_CONNECTIONS = 16

log = structlog.get_logger("operations")


class MetricsServer(NamedTuple):
    """The operations port of a process, if any; all processes count in `shared_folder`.

    They also share `failing`, which is true while runs fail. The port serves local names, the host
    of `base_url` and the `allowed_hosts`. `store_folder` is the folder of a SQLite database.
    """

    listener: socket | None
    failing: c_bool
    shared_folder: Path | None = None
    base_url: str = "http://localhost"
    allowed_hosts: tuple[str, ...] = ()
    store_folder: Path | None = None

    @asynccontextmanager
    async def serve_metrics(self, metrics: Metrics, readiness: Readiness) -> AsyncIterator[None]:
        """Serve the port and sample the event loop's lag during the block."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(run_in_background(sample_loop_lag(metrics.on_lag)))
            if self.listener is not None:
                counters: Collector | CollectorRegistry = metrics.registry
                if self.shared_folder is not None:
                    # The sums of all processes that share the folder.
                    counters = MultiProcessCollector(None, str(self.shared_folder))  # type: ignore[no-untyped-call]
                app = build_metrics_app(readiness, counters, self.store_folder)
                app.add_middleware(
                    HostOriginMiddleware,
                    base_url=self.base_url,
                    docs=f"{self.base_url}/api/v1",
                    allowed_hosts=self.allowed_hosts,
                    allows_own_address=True,
                )
                config = build_server_config(
                    app, base_url=self.base_url, max_connections=MAX_METRICS_CONNECTIONS
                )
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
        hosts = split_commas(settings.allowed_hosts)
        store_folder = settings.market_path.parent if settings.is_sqlite else None
        failing = SPAWN_CONTEXT.RawValue(c_bool) if is_shared else c_bool()
        yield MetricsServer(listener, failing, folder, settings.address, hosts, store_folder)


def build_metrics_app(
    readiness: Readiness,
    counters: Collector | CollectorRegistry,
    store_folder: Path | None = None,
) -> Starlette:
    """Return the app of /healthz, /readyz and /metrics."""

    async def metrics(request: Request) -> Response:
        checks = await readiness.run_checks()
        gauges = CurrentGauges(
            readiness.snapshots.last,
            is_ready(checks),
            readiness.clock(),
            {notice.name: notice for notice in await readiness.list_notices()},
            store_folder,
        )
        registry = CollectorRegistry()
        for collector in (counters, gauges, PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={**NO_STORE_HEADERS, "Content-Type": media_type})

    app = Starlette(routes=[*build_health_routes(readiness), Route("/metrics", metrics)])
    app.router.redirect_slashes = False
    return app


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
