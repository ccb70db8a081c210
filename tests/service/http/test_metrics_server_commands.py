"""The operations port of long-running commands: their metrics and their shutdown."""

import asyncio
import signal
import socket
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.service.commands.test_serve import (
    HOUR_MS,
    MovedClock,
    served_here,
    stored,
    wait_for_output,
)
from tests.service.http.test_metrics_server import place, samples
from tests.service.processes.test_supervisor import until
from tests.support.signals_command import find_free_port, start_signals

pytestmark = [pytest.mark.clause("monitoring"), pytest.mark.usefixtures("use_single_ca")]

WITHIN_S = 120.0
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = (
    b"POST /api/v1/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    b"Expect: 100-continue\r\n\r\n"
) % len(PING)


def published(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        return int(db.execute("SELECT count(*) FROM changes WHERE published").fetchone()[0])


@pytest.mark.prove
async def test_a_run_is_counted_with_its_duration_and_rows(
    market: Path, capsys: pytest.CaptureFixture[str]
):
    computed, before = stored(market)[0], published(market)
    clock, port = MovedClock(computed + 60_000), find_free_port()
    metrics = f"http://127.0.0.1:{port}/metrics"
    async with served_here(market, clock, metrics_port=port), httpx.AsyncClient() as client:
        await wait_for_output(capsys, "caught_up")
        seen = samples((await client.get(metrics)).text)
        assert seen[place("signals_run_duration_seconds_count")] == 0
        clock.now_ms = computed + 24 * HOUR_MS
        async with asyncio.timeout(WITHIN_S):
            # The new snapshot is loaded after the run has been counted.
            while (
                not seen[place("signals_run_duration_seconds_count")]
                or seen[place("signals_snapshot_age_seconds")] >= 3600
            ):
                seen = samples((await client.get(metrics)).text)
    assert seen[place("signals_run_duration_seconds_sum")] > 0
    assert seen[place("signals_feed_rows_total", tier="universe")] == published(market) - before > 0


def is_closed(port: str) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port))):
        return False
    return True


@pytest.mark.prove
def test_signals_compute_has_the_port_too(market: Path):
    port, universe = find_free_port(), str(market / "universe.toml")
    with start_signals(market, "compute", metrics_port=port, universe=universe) as process:
        process.wait_for_line("Computing ")
        response = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=WITHIN_S)
        assert response.json()["checks"] == {"market_store": "ok", "state": "fresh"}
        assert process.stop(signal.SIGTERM) == 0
    assert is_closed(port)


@pytest.mark.prove
def test_a_call_in_flight_at_shutdown_is_answered_while_the_port_is_open(market: Path):
    port, operations = find_free_port(), find_free_port()
    given = {"port": port, "metrics_port": operations, "universe": str(market / "universe.toml")}
    with start_signals(market, "serve", **given) as process:
        process.wait_for_line("--header")
        with socket.create_connection(("127.0.0.1", int(port)), WITHIN_S) as client:
            client.sendall(HEAD)
            # The service waits for the body: the call is in flight.
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")
            process.process.send_signal(signal.SIGTERM)
            until(lambda: is_closed(port))
            response = httpx.get(f"http://127.0.0.1:{operations}/healthz", timeout=WITHIN_S)
            client.sendall(PING)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert process.wait_for_exit() == 0
    assert response.status_code == 200
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert is_closed(operations)
