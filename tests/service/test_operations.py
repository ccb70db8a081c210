"""The operations port: what a scrape tells, and that it neither needs nor troubles the main one."""

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from mcp_server.tools.registry import TOOLS_BY_NAME
from service.config.settings import Settings, SettingsError
from service.http.health import Readiness
from service.http.metrics import SHARED_VARIABLE, Metrics, counted_together
from service.http.metrics_server import MOST_CONNECTIONS, Operations, operations_port, watch_loop
from service.http.server import listen
from service.processes.shutdown import beside
from serving.snapshot_cache import Boards
from tests.bad_inputs import STATE
from tests.serving import HOUR_MS, NOON, Served, coverage, serving

pytestmark = pytest.mark.clause("monitoring")

EMAIL = "nobody@example.com"


class Operated(NamedTuple):
    """A service, and a client of its operations port."""

    served: Served
    client: httpx.AsyncClient

    async def value(self, name: str, **labels: str) -> float | None:
        """Return a sample of the next scrape, None where it has none such."""
        return samples((await self.client.get("/metrics")).text).get(place(name, **labels))


def place(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what a scrape holds, as Prometheus' own client library reads it."""
    families = text_string_to_metric_families(text)
    return {place(s.name, **s.labels): s.value for family in families for s in family.samples}


@asynccontextmanager
async def operating(folder: Path) -> AsyncIterator[Operated]:
    """Serve a seeded store, and its operations port beside it."""
    metrics = Metrics(TOOLS_BY_NAME)
    async with serving(folder, coverage(), metrics=metrics) as served:
        readiness = Readiness(Boards(served.market), served.access, served.clock)
        with listen("127.0.0.1", 0) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                Operations(listener).watching(metrics, readiness),
                httpx.AsyncClient(base_url=address, verify=False, timeout=30) as client,
            ):
                yield Operated(served, client)


@pytest.fixture
async def operated(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operating(tmp_path) as running:
        yield running


async def test_calls_are_counted_by_tool_and_outcome_over_both_faces(operated: Operated):
    served = operated.served
    await served.answer("mcp", STATE)
    await served.answer("rest", STATE)
    await served.refusal("rest", STATE, ticker="NOPE")
    await served.call(STATE, headers={})
    seen = samples((await operated.client.get("/metrics")).text)
    counted = {
        outcome: seen[place("signals_calls_total", tool=STATE, outcome=outcome)]
        for outcome in ("ok", "unknown_ticker", "missing_key", "rate_limited")
    }
    assert counted == {"ok": 2, "unknown_ticker": 1, "missing_key": 1, "rate_limited": 0}
    assert seen[place("signals_call_duration_seconds_count", tool=STATE)] == 4
    assert seen[place("signals_call_duration_seconds_sum", tool=STATE)] > 0


async def test_nothing_that_a_user_sends_becomes_a_label(operated: Operated):
    served = operated.served
    await served.answer("rest", STATE, ticker="NVDA")
    await served.rpc("tools/call", {"name": "signals_made_up"}, **served.key_headers)
    await served.client.get("/api/v1/made_up")
    order = {"contact_email": EMAIL, "agent_name": "made_up_agent", "billing": "monthly"}
    await served.client.post("/api/v1/access/checkout", json=order)
    told = (await operated.client.get("/metrics")).text
    for sent in ("NVDA", "made_up", EMAIL, served.api_key, "127.0.0.1"):
        assert sent not in told
    tools = {labels["tool"] for labels in labels_of(told) if "tool" in labels}
    assert tools == set(TOOLS_BY_NAME)


def labels_of(text: str) -> list[dict[str, str]]:
    return [s.labels for f in text_string_to_metric_families(text) for s in f.samples]


async def test_a_purchase_is_counted_step_by_step(operated: Operated):
    client = operated.served.client
    order = {"contact_email": EMAIL, "billing": "monthly"}
    checkout = (await client.post("/api/v1/access/checkout", json=order)).json()
    claim = {"claim_token": checkout["claim_token"]}
    await client.post("/api/v1/access/claim", json=claim)
    await client.post(checkout["checkout_url"], data={"action": "pay"})
    for _ in range(2):
        await client.post("/api/v1/access/claim", json=claim)
    assert (
        await operated.value(
            "signals_billing_total", operation="checkout", outcome="checkout_created"
        )
        == 1
    )
    for outcome in ("pending", "active", "invalid_parameter"):
        told = await operated.value("signals_billing_total", operation="claim", outcome=outcome)
        assert told == 1, outcome


async def test_a_scrape_tells_the_age_of_the_state_who_is_late_and_whether_it_is_ready(
    operated: Operated,
):
    operated.served.clock.now = NOON + 5000
    assert await operated.value("signals_snapshot_age_seconds") == 5
    assert await operated.value("signals_late_assets") == 1
    assert await operated.value("signals_ready") == 1
    operated.served.clock.now = NOON + 2 * HOUR_MS
    assert await operated.value("signals_snapshot_age_seconds") == 7200
    assert await operated.value("signals_ready") == 0


async def test_a_scrape_has_what_the_library_knows_of_the_process(operated: Operated):
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        value = await operated.value(name)
        assert value is not None, name
        assert value > 0, name
    assert await operated.value("signals_build_info", version="0.1.0") == 1


async def test_a_scraper_gets_the_format_that_it_asks_for(operated: Operated):
    plain = await operated.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    wanted = {"Accept": "application/openmetrics-text; version=1.0.0"}
    newer = await operated.client.get("/metrics", headers=wanted)
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")


async def test_the_port_has_health_and_metrics_for_any_host_and_nothing_else(operated: Operated):
    for path in ("/healthz", "/readyz", "/metrics"):
        for method in ("GET", "HEAD"):
            answer = await operated.client.request(method, path, headers={"Host": "10.0.0.7"})
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    for path in ("/", "/api/v1", "/api/v1/mcp", "/metrics/", "/web/page.css"):
        assert (await operated.client.get(path)).status_code == 404


async def test_many_connections_to_it_make_room_for_each_other_alone(operated: Operated):
    port = operated.client.base_url.port
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS + 1)]
    reader, _ = held[0]
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert (await operated.client.get("/healthz")).status_code == 200
    assert (await operated.served.client.get("/healthz")).status_code == 200
    for _, writer in held:
        writer.close()


async def test_a_loop_that_is_held_up_is_told_by_how_much():
    told = asyncio.Queue[float]()
    async with beside(watch_loop(told.put_nowait, step_s=0.0)):
        await asyncio.sleep(0)
        time.sleep(0.02)  # noqa: ASYNC251
        assert await asyncio.wait_for(told.get(), 10) >= 0.02


def taken_port() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_a_default_port_that_is_taken_is_done_without_and_told():
    with taken_port() as taken, structlog.testing.capture_logs() as logged:
        settings = Settings.model_construct(_fields_set=set(), metrics_port=taken.getsockname()[1])
        with operations_port(settings) as listener:
            assert listener is None
    (event,) = logged
    assert (event["event"], event["log_level"]) == ("no_metrics", "warning")
    assert "SIGNALS_METRICS_PORT" in event["why"]


def test_a_port_that_was_asked_for_and_is_taken_is_one_line_naming_the_setting():
    with taken_port() as taken:
        port = taken.getsockname()[1]
        settings = Settings.read({"SIGNALS_METRICS_PORT": str(port)})
        with pytest.raises(SettingsError, match="set SIGNALS_METRICS_PORT") as told:
            operations_port(settings).__enter__()
    assert re.fullmatch(rf"cannot listen on 127.0.0.1 port {port}: [^\n]+", str(told.value))


def test_port_0_takes_none():
    with operations_port(Settings.read({"SIGNALS_METRICS_PORT": "0"})) as listener:
        assert listener is None


def test_what_processes_count_in_ends_with_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SHARED_VARIABLE, raising=False)
    with counted_together() as folder:
        assert folder.is_dir()
        (folder / "counter_1.db").touch()
    assert not folder.exists()
    assert SHARED_VARIABLE not in os.environ
