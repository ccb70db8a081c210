"""The operations port: the metrics of a scrape, and its independence of the main port."""

import asyncio
import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ctypes import c_bool
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from rest_shim.endpoints import CALL_NAMES
from service.config.settings import Settings, SettingsError
from service.config.stores import BACKUP_NOTICE, CERTIFICATE_NOTICE
from service.http.health import Readiness
from service.http.metrics import (
    MAX_METRICS_CONNECTIONS,
    MULTIPROCESS_VARIABLE,
    Metrics,
    MetricsServer,
    open_metrics_server,
    open_shared_metrics_folder,
    sample_loop_lag,
)
from service.http.server import open_listener
from service.processes.child_process import SPAWN_CONTEXT
from service.processes.lifecycle import run_in_background
from serving.http import HEALTH_PATHS
from serving.snapshot_cache import SnapshotCache
from store.access_rows import Notice
from store.market_rows import WatermarkRow
from tests.support.bad_inputs import STATE
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_coverage
from tests.support.running_service import RunningService, run_service
from tests.support.signals_command import find_free_port

pytestmark = pytest.mark.clause("monitoring")

EMAIL = "nobody@example.com"


class Operated(NamedTuple):
    """A service, and a client of its operations port."""

    served: RunningService
    client: httpx.AsyncClient

    async def value(self, name: str, **labels: str) -> float | None:
        """Return a sample of the next scrape, None if it is missing."""
        return samples((await self.client.get("/metrics")).text).get(place(name, **labels))

    async def values(self, *names: str) -> list[float | None]:
        """Return samples without labels of the next scrape."""
        seen = samples((await self.client.get("/metrics")).text)
        return [seen.get(place(f"signals_{name}")) for name in names]


def place(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {place(s.name, **s.labels): s.value for family in families for s in family.samples}


@asynccontextmanager
async def operating(folder: Path) -> AsyncIterator[Operated]:
    """Serve a seeded store with its operations port."""
    settings = Settings(database_url=SecretStr(f"sqlite:///{folder}/signals.db"))
    metrics = Metrics(CALL_NAMES)
    async with run_service(folder, make_coverage(), metrics=metrics) as served:
        readiness = Readiness(SnapshotCache(served.market), served.access, served.clock)
        with open_listener("127.0.0.1", 0) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                MetricsServer(settings, listener, c_bool(), None).serve_metrics(metrics, readiness),
                httpx.AsyncClient(base_url=address, verify=False, timeout=30) as client,
            ):
                yield Operated(served, client)


@pytest.fixture
async def operated_service(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operating(tmp_path) as running:
        yield running


@pytest.mark.prove
async def test_calls_are_counted_by_tool_and_outcome_over_both_transports(
    operated_service: Operated,
):
    served = operated_service.served
    await served.fetch_answer("mcp", STATE)
    await served.fetch_answer("rest", STATE)
    await served.fetch_refusal("rest", STATE, ticker="NOPE")
    await served.call(STATE, headers={})
    seen = samples((await operated_service.client.get("/metrics")).text)
    counted = {
        outcome: seen[place("signals_calls_total", tool=STATE, outcome=outcome)]
        for outcome in ("ok", "unknown_ticker", "missing_key", "rate_limited")
    }
    assert counted == {"ok": 2, "unknown_ticker": 1, "missing_key": 1, "rate_limited": 0}
    assert seen[place("signals_call_duration_seconds_count", tool=STATE)] == 4
    assert seen[place("signals_call_duration_seconds_sum", tool=STATE)] > 0


async def test_no_text_of_a_user_becomes_a_label(operated_service: Operated):
    served = operated_service.served
    await served.fetch_answer("rest", STATE, ticker="NVDA")
    await served.rpc("tools/call", {"name": "signals_made_up"}, **served.key_headers)
    await served.client.get("/api/v1/made_up")
    order = {"contact_email": EMAIL, "agent_name": "made_up_agent", "billing": "monthly"}
    await served.client.post("/api/v1/access/checkout", json=order)
    text = (await operated_service.client.get("/metrics")).text
    for sent in ("NVDA", "made_up", EMAIL, served.api_key, "127.0.0.1"):
        assert sent not in text
    assert {dict(labels).get("tool") for _, labels in samples(text)} == {None, *CALL_NAMES}


@pytest.mark.prove
async def test_a_purchase_is_counted_step_by_step(operated_service: Operated):
    client = operated_service.served.client
    order = {"contact_email": EMAIL, "billing": "monthly"}
    checkout = (await client.post("/api/v1/access/checkout", json=order)).json()
    claim = {"claim_token": checkout["claim_token"]}
    await client.post("/api/v1/access/claim", json=claim)
    await client.post(checkout["checkout_url"], data={"action": "pay"})
    for _ in range(2):
        await client.post("/api/v1/access/claim", json=claim)
    await client.post("/api/v1/access/claim", json={"claim_token": f"ct_{'x' * 43}"})
    seen = samples((await operated_service.client.get("/metrics")).text)
    for operation, outcome, expected in (
        ("checkout", "checkout_created", 1),
        *(("claim", *counted) for counted in (("pending", 1), ("active", 1))),
        ("claim", "invalid_parameter", 2),
    ):
        total = place("signals_billing_total", operation=operation, outcome=outcome)
        assert seen[total] == expected, outcome


async def test_a_scrape_has_snapshot_age_late_assets_and_readiness(
    operated_service: Operated,
):
    names = ("snapshot_age_seconds", "ready", "late_assets", "building_assets")
    operated_service.served.clock.now = NOON + 5000
    assert await operated_service.values(*names) == [5, 1, 1, 0]
    operated_service.served.clock.now = NOON + 2 * HOUR_MS
    assert await operated_service.values(*names[:2]) == [7200, 0]
    row = WatermarkRow("ETH", -1, history="building")
    await operated_service.served.market.commit(replace(make_batch(NOON, []), watermarks=[row]))
    assert await operated_service.values(*names[2:]) == [0, 1]


async def test_a_scrape_has_the_disk_and_what_the_notices_know(operated_service: Operated):
    served = operated_service.served
    names = ("backup_age_seconds", "certificate_seconds", "disk_free_bytes")
    *unknown, disk_free = await operated_service.values(*names)
    assert (unknown, disk_free is None) == ([None, None], False)
    now = served.clock()
    await served.access.put_notice(Notice(BACKUP_NOTICE, "there", now - 90_000))
    await served.access.put_notice(Notice(CERTIFICATE_NOTICE, str(now + 60_000), now))
    backup, certificate, disk_free = await operated_service.values(*names)
    assert (backup, certificate, (disk_free or 0) > 0) == (90, 60, True)


async def test_a_scrape_has_the_process_metrics(operated_service: Operated):
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert (await operated_service.value(name) or 0) > 0, name
    assert await operated_service.value("signals_build_info", version="0.1.0") == 1


async def test_a_scraper_gets_the_format_that_it_accepts(operated_service: Operated):
    plain = await operated_service.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    newer = await operated_service.client.get(
        "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")


async def test_the_port_has_health_and_metrics_and_nothing_else(operated_service: Operated):
    for path in ("/healthz", "/readyz", "/metrics"):
        for method in ("GET", "HEAD"):
            answer = await operated_service.client.request(method, path)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    for path in ("/", "/api/v1", "/api/v1/mcp", "/metrics/", "/web/page.css"):
        assert (await operated_service.client.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/nothing"])
@pytest.mark.sampled(2)
async def test_the_port_refuses_names_that_are_not_ours(operated_service: Operated, path: str):
    for name, value, status in (
        ("Host", "evil.example", 421),
        ("Host", "10.0.0.7", 421),
        ("Origin", "https://evil.example", 403),
    ):
        answer = await operated_service.client.get(path, headers={name: value})
        assert answer.headers["cache-control"] == "no-store"
        if name == "Host" and path in HEALTH_PATHS:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["error"]) == (status, "invalid_parameter")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("127.0.0.1:9464", 200), ("[::1]", 200), ("127.0.0.2:9464", 200)),
        *(("signals:9464", 200), ("signals.example", 200), ("127.0.0.3", 421), ("other", 421)),
    ],
)
@pytest.mark.sampled(4)
async def test_the_port_serves_the_called_address_and_configured_names(
    operated_service: Operated, host: str, status: int
):
    settings = Settings.read(
        {
            "SIGNALS_METRICS_HOST": "0.0.0.0",
            "SIGNALS_METRICS_PORT": find_free_port(),
            "SIGNALS_BASE_URL": "https://signals.example",
            "SIGNALS_ALLOWED_HOSTS": "signals",
        }
    )
    served = operated_service.served
    readiness = Readiness(SnapshotCache(served.market), served.access, served.clock)
    with open_metrics_server(settings) as server:
        async with (
            server.serve_metrics(Metrics(CALL_NAMES), readiness),
            httpx.AsyncClient() as c,
        ):
            url = f"http://127.0.0.2:{settings.metrics_port}/metrics"
            assert (await c.get(url, headers={"Host": host})).status_code == status


async def test_many_connections_to_it_close_only_each_other(operated_service: Operated):
    port = operated_service.client.base_url.port
    held = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_METRICS_CONNECTIONS + 1)
    ]
    reader, _ = held[0]
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert (await operated_service.client.get("/healthz")).status_code == 200
    assert (await operated_service.served.client.get("/healthz")).status_code == 200
    for _, writer in held:
        writer.close()


def block_loop() -> None:
    time.sleep(0.02)


async def test_the_lag_of_a_blocked_loop_is_sampled():
    samples = asyncio.Queue[float]()
    async with run_in_background(sample_loop_lag(samples.put_nowait, step_s=0.0)):
        await asyncio.sleep(0)
        block_loop()
        assert await asyncio.wait_for(samples.get(), 10) >= 0.02


def test_an_occupied_default_port_is_skipped_with_a_warning_and_port_0_without_one():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        structlog.testing.capture_logs() as logged,
    ):
        settings = Settings.model_construct(_fields_set=set(), metrics_port=taken.getsockname()[1])
        with open_metrics_server(settings) as server:
            assert server.listener is None
        with open_metrics_server(Settings.read({"SIGNALS_METRICS_PORT": "0"})) as server:
            assert server.listener is None
    (event,) = logged
    assert (event["event"], event["log_level"]) == ("no_metrics", "warning")
    assert "SIGNALS_METRICS_PORT" in event["why"]


def test_an_occupied_configured_port_fails_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings.read({"SIGNALS_METRICS_PORT": str(port)})
        with pytest.raises(SettingsError, match="set SIGNALS_METRICS_PORT") as caught:
            open_metrics_server(settings).__enter__()
    assert re.fullmatch(rf"cannot listen on 127.0.0.1 port {port}: [^\n]+", str(caught.value))


def test_folders_of_killed_services_are_removed_and_others_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv(MULTIPROCESS_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, other = tmp_path / "signals-metrics-1", tmp_path / "other"
    link, aimed = tmp_path / "signals-metrics-2", tmp_path / "aimed"
    for folder in (abandoned, other, aimed):
        folder.mkdir()
        (folder / "counter_1.db").touch()
    link.symlink_to(aimed)
    with open_shared_metrics_folder() as first, open_shared_metrics_folder() as second:
        assert {path for path in tmp_path.iterdir() if path.is_dir()} == {
            *(first, second, other, link, aimed)
        }
        assert (aimed / "counter_1.db").exists()
        (first / "counter_1.db").touch()
    assert {*tmp_path.iterdir()} == {other, link, aimed}
    assert MULTIPROCESS_VARIABLE not in os.environ


def test_every_process_of_a_service_knows_of_failing_runs() -> None:
    settings = Settings(metrics_port=int(find_free_port()))
    with open_metrics_server(settings, is_shared=True) as server:
        worker = Metrics((), server.failing)
        assert not worker.are_runs_failing
        # A target of the library, because the module of this test takes seconds to load.
        computing = SPAWN_CONTEXT.Process(target=setattr, args=(server.failing, "value", True))
        computing.start()
        computing.join()
        assert worker.are_runs_failing
