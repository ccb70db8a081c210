import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.service.commands import COMMAND, environment, signals
from tests.service.test_cli import write_bars


@contextmanager
def served_process(folder: Path, **settings: str) -> Iterator[tuple[str, list[str]]]:
    """Start `signals serve`, yield its address and what it printed until it listened."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = environment(folder, port=port, **settings)
    process = subprocess.Popen(
        [*COMMAND, "serve"], env=env, cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        printed = []
        for line in process.stderr:
            printed.append(line)
            if line.startswith("Listening on "):
                break
        yield f"http://127.0.0.1:{port}", printed
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 0


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    bars = write_bars(folder / "bars", count=300)
    assert signals(folder, "replay", "--bars", str(bars)).returncode == 0
    api_key = signals(folder, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(folder, source=f"files:{bars}") as (address, _):
        yield address, api_key


def test_a_script_reads_the_replayed_state(replayed):
    address, api_key = replayed
    headers = {"Authorization": f"Bearer {api_key}"}
    state = httpx.get(f"{address}/api/v1/state", headers=headers).json()
    assert [asset["ticker"] for asset in state["assets"]] == ["BTC"]
    assert state["meta"]["note"].startswith("recorded until 2025-01-13T12:03:00.000Z.")
    assert state["meta"]["next_update"] == {"1h": None, "4h": None, "1d": None}
    assert state["meta"]["stale"] is False


async def test_an_agent_reads_the_same_state_and_an_empty_feed(replayed):
    address, api_key = replayed
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{address}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
            state = await client.call_tool("signals_get_state", {"ticker": "btc"})
            feed = await client.call_tool("signals_get_signals", {"indicator": "Bayesian Trend"})
    assert state.structured_content["counts"]["assets"] == 1
    assert feed.structured_content["pagination"]["next_cursor"] is None


def test_an_unknown_key_is_refused_by_the_running_server(replayed):
    address, _ = replayed
    headers = {"X-Api-Key": "ek_" + "A" * 43}
    assert httpx.get(f"{address}/api/v1/state", headers=headers).status_code == 401


def test_serve_steps_what_the_replay_left_out(tmp_path):
    bars = write_bars(tmp_path / "bars", count=30)
    signals(tmp_path, "replay", "--bars", str(bars), "--until", "2025-01-01T12:30:00Z")
    api_key = signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(tmp_path, source="files:bars") as (address, _):
        state = httpx.get(
            f"{address}/api/v1/signals", headers={"Authorization": f"Bearer {api_key}"}
        ).json()
    assert state["meta"]["as_of"] == "2025-01-02T06:03:00.000Z"


def test_an_empty_store_listens_answers_503_and_says_how_to_replay(tmp_path):
    api_key = signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(tmp_path) as (address, printed):
        assert "  signals replay --bars DIR\n" in printed
        headers = {"Authorization": f"Bearer {api_key}"}
        answer = httpx.get(f"{address}/api/v1/state", headers=headers)
        revoked = signals(tmp_path, "keys", "revoke", "1").returncode
        refused = httpx.get(f"{address}/api/v1/state", headers=headers)
    assert answer.status_code == 503
    assert answer.json()["error"] == "unavailable"
    assert int(answer.headers["Retry-After"]) > 0
    assert (revoked, refused.status_code, refused.json()["error"]) == (0, 403, "revoked_key")
