"""The processes of a service: one that computes, its port for the operator, and their memory."""

import asyncio
import ctypes
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from schemas.vocabulary import Clock
from service.commands.compute_command import NICENESS
from service.commands.serve import serve
from service.config.settings import Settings
from service.processes.child_process import create_compute_process
from tests.scaling.nodes import ProcessClocks
from tests.service.commands.test_serve import (
    HOUR_MS,
    MovedClock,
    served_here,
    settings_of,
    stored,
    wait_for_output,
)
from tests.service.http.test_metrics import place, samples
from tests.service.processes.test_supervisor import LOCK, Service, processes, until
from tests.support.signals_command import (
    ForkedCommand,
    RunningCommand,
    build_environment,
    find_free_port,
    run_signals,
    start_signals,
    write_cut_universe,
)

WITHIN_S = 120.0
ONE = ("serve", "--workers=1")


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    port, operations = find_free_port(), find_free_port()
    given = {"port": port, "metrics_port": operations, "universe": str(folder / "universe.toml")}
    (folder / LOCK).write_text("")
    with start_signals(folder, *ONE, **given) as process:
        process.wait_for_line("--header")
        until(lambda: (folder / LOCK).read_text().endswith("\n"))
        yield Service(folder, port, operations, process)


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
def test_it_computes_in_one_more_process_of_lower_priority(market: Path) -> None:
    with serving(market) as service:
        assert service.children == {service.computing}
        parent = os.getpriority(os.PRIO_PROCESS, service.running.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, service.computing) == min(parent + NICENESS, 19)
        assert service.running.stop(signal.SIGTERM) == 0


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
def test_a_killed_compute_process_restarts_while_calls_are_answered(market: Path) -> None:
    with serving(market) as service:
        api_key, killed = service.new_key(), service.computing
        headers = {"X-Api-Key": api_key}
        os.kill(killed, signal.SIGKILL)
        state = httpx.get(f"{service.api}/state", headers=headers, timeout=WITHIN_S)
        assert state.status_code == 200
        service.running.wait_for_event("compute_restarted", died=killed, status=-signal.SIGKILL)
        until(lambda: service.children != {killed} and len(service.children) == 1)
        (again,) = service.children
        # It computes again once it has the lock of the killed one.
        until(lambda: (market / LOCK).read_text() == f"{again}\n")
        state = httpx.get(f"{service.api}/state", headers=headers, timeout=WITHIN_S)
        assert state.status_code == 200
        assert service.running.stop(signal.SIGTERM) == 0


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.prove
def test_both_processes_end_together(market: Path, number: int) -> None:
    with serving(market) as service:
        process, children = service.running, service.children
        if number == signal.SIGINT:
            # A terminal signals its whole process group.
            os.killpg(process.process.pid, number)
        else:
            process.process.send_signal(number)
        assert process.wait_for_exit() == (-number if number == signal.SIGKILL else 0)
        until(lambda: not children & processes().keys())
        assert "Traceback" not in "".join(process.printed)
        assert "compute_restarted" not in "".join(process.printed)


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
async def test_a_run_is_counted_by_the_serving_process(market: Path) -> None:
    """On a clock that both processes share."""
    computed, port = stored(market)[0], find_free_port()
    rows_before = count_published(market)
    clocks = ProcessClocks(computed + 60_000, 1)
    settings = settings_of(market, metrics_port=port)
    (market / LOCK).write_text("")
    running = asyncio.create_task(serve_in_two(settings, clocks.get_clock(0)))
    metrics, runs = f"http://127.0.0.1:{port}/metrics", "signals_run_duration_seconds_count"
    async with httpx.AsyncClient(timeout=WITHIN_S) as client, asyncio.timeout(2 * WITHIN_S):
        lock = market / LOCK
        while not lock.read_text().endswith("\n"):
            await asyncio.sleep(0.02)
        clocks.now = computed + 2 * 60_000
        seen = samples((await client.get(metrics)).text)
        hours = 0
        # The catch-up at the start is not a run, so the first hour may not count.
        while not seen[place(runs)]:
            if stored(market)[0] >= computed + hours * HOUR_MS:
                hours += 1
                clocks.now = computed + hours * HOUR_MS + 60_000
            await asyncio.sleep(0.05)
            seen = samples((await client.get(metrics)).text)
    rows = seen[place("signals_feed_rows_total", tier="universe")]
    assert rows == count_published(market) - rows_before
    assert seen[place("signals_run_duration_seconds_sum")] > 0
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, WITHIN_S) == 0


async def serve_in_two(settings: Settings, clock: Clock) -> int:
    with create_compute_process(settings, clock, None) as compute_process:
        return await serve(settings, clock, compute_process=compute_process)


def count_published(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        return int(db.execute("SELECT count(*) FROM changes WHERE published").fetchone()[0])


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.clause("7.37", "fresh")
@pytest.mark.prove
def test_a_first_start_answers_503_until_its_first_whole_answer(tmp_path: Path) -> None:
    port, universe = find_free_port(), write_cut_universe(tmp_path, {"BTC", "NVDA"})
    ours, theirs = pty.openpty()
    env = build_environment(tmp_path, port=port, universe=universe)
    process = RunningCommand(ForkedCommand(tmp_path, ["serve"], env, theirs), ours)
    os.close(theirs)
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: is_listening(address))
        answers = []
        while not answers or answers[-1].status_code != 200:
            answers.append(httpx.get(f"{address}/api/v1/stats", timeout=WITHIN_S))
        assert {answer.status_code for answer in answers[:-1]} == {503}
        assert answers[-1].json()["meta"].get("stale", False) is False
        process.wait_for_line("The history is complete.")
        assert process.stop() == 0
    finally:
        process.kill()
    # The serving process owns the terminal, and shows the progress of the other one.
    said = "".join(process.printed)
    assert "building history" in said
    assert "100%" in said
    assert "Traceback" not in said


def is_listening(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", timeout=WITHIN_S).status_code == 200
    except httpx.ConnectError:
        return False


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
def test_several_workers_exclude_a_single_process(tmp_path: Path) -> None:
    done = run_signals(tmp_path, "serve", "--workers", "2", "--single-process")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--single-process" in line
    assert "--workers" in line


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = (
    b"POST /api/v1/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    b"Expect: 100-continue\r\n\r\n"
) % len(PING)


@pytest.mark.clause("monitoring")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
async def test_a_run_is_counted_with_its_duration_and_rows(
    market: Path, capsys: pytest.CaptureFixture[str]
):
    computed, before = stored(market)[0], count_published(market)
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
    assert (
        seen[place("signals_feed_rows_total", tier="universe")]
        == count_published(market) - before
        > 0
    )


def is_closed(port: str) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port))):
        return False
    return True


@pytest.mark.clause("monitoring")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
def test_signals_compute_has_the_port_too(market: Path):
    port, universe = find_free_port(), str(market / "universe.toml")
    with start_signals(market, "compute", metrics_port=port, universe=universe) as process:
        process.wait_for_line("Computing ")
        response = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=WITHIN_S)
        assert response.json()["checks"] == {"market_store": "ok", "state": "fresh"}
        assert process.stop(signal.SIGTERM) == 0
    assert is_closed(port)


@pytest.mark.clause("monitoring")
@pytest.mark.usefixtures("use_single_ca")
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


THREADS = 4
HEAPS = f"""
import ctypes, sys, tempfile, threading
from service.processes.lifecycle import limit_malloc_arenas

libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    limit_malloc_arenas()
together = threading.Barrier({THREADS})

def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fdopen(file.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    file.seek(0)
    print(file.read().count(b"<heap nr="))
"""
GIVEN_BACK = """
import ctypes
from pathlib import Path
from service.processes.lifecycle import release_memory

def held_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = held_pages()
release_memory()
print((before - held_pages()) * 4096)
"""


COLLECTIONS = """
import gc
from service.processes.lifecycle import prepare_to_serve

before = gc.get_threshold()
prepare_to_serve()
collections = gc.get_stats()[2]["collections"]
# Objects that stay, such as those of many connections.
kept = [[] for _ in range(20 * before[0] * before[1] * before[2])]
print(gc.get_stats()[2]["collections"] - collections)
"""


def printed(program: str, *arguments: str) -> int:
    command = [sys.executable, "-c", program, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.clause("operation")
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc is file of heaps"
)
@pytest.mark.prove
def test_many_objects_that_stay_cause_no_full_collection_in_a_serving_process():
    assert printed(COLLECTIONS) == 0
    assert printed(COLLECTIONS.replace("prepare_to_serve()\n", "gc.collect()\n", 1)) > 0


@pytest.mark.clause("operation")
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc is file of heaps"
)
@pytest.mark.prove
def test_threads_share_one_arena():
    assert printed(HEAPS, "several") > 1
    assert printed(HEAPS, "one") == 1


@pytest.mark.clause("operation")
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc is file of heaps"
)
def test_memory_freed_by_a_catch_up_is_returned():
    assert printed(GIVEN_BACK) > 50_000_000
