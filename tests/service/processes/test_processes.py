"""The processes of a service: workers on one port, one that computes, and what each holds."""

import asyncio
import ctypes
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from schemas.vocabulary import Clock
from service.commands.compute_command import NICENESS
from service.commands.serve import serve
from service.config.settings import Settings
from service.http.metrics import MULTIPROCESS_VARIABLE
from service.processes.child_process import create_compute_process
from tests.scaling.nodes import ProcessClocks
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_serve import (
    HOUR_MS,
    settings_of,
    stored,
)
from tests.service.http.test_metrics import place, samples
from tests.support.signals_command import (
    ForkedCommand,
    RunningCommand,
    build_environment,
    create_key,
    find_free_port,
    run_signals,
    start_signals,
    write_cut_universe,
)

WITHIN_S = 120.0
# The compute process writes its pid into this file.
LOCK = "signals.db.lock"


class Process(NamedTuple):
    pid: int
    parent: int
    is_gone: bool
    command: str


def processes() -> dict[int, Process]:
    columns = ["ps", "-A", "-o", "pid=,ppid=,stat=,command="]
    shown = subprocess.run(columns, capture_output=True, text=True, check=True).stdout
    found = [line.split(maxsplit=3) for line in shown.splitlines()]
    rows = [
        Process(int(pid), int(parent), "Z" in s, *rest) for pid, parent, s, *rest in found if rest
    ]
    return {row.pid: row for row in rows if not row.is_gone}


def until(is_so: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait for a condition that no process prints."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


class Service:
    """The running command, its address and its processes."""

    def __init__(self, folder: Path, port: str, operations: str, process: RunningCommand) -> None:
        self.folder = folder
        self.port = int(port)
        self.api = f"http://127.0.0.1:{port}/api/v1"
        self.operations = f"http://127.0.0.1:{operations}"
        self.running = process
        self.computing = int((folder / LOCK).read_text())

    @property
    def children(self) -> set[int]:
        """Return its child processes, without Python's resource tracker."""
        ours = (p for p in processes().values() if p.parent == self.running.process.pid)
        return {process.pid for process in ours if "resource_tracker" not in process.command}

    @property
    def workers(self) -> list[int]:
        return sorted(self.children - {self.computing})

    def answered_by(self, worker: int) -> AbstractContextManager[None]:
        """Let only one worker accept connections; the others are stopped meanwhile."""
        return stopped(*{*self.workers} - {worker})

    def of_each_worker(self, path: str, api_key: str) -> list[httpx.Response]:
        """Send a request to every worker, one after the other."""
        answers = []
        for worker in self.workers:
            with self.answered_by(worker):
                key = {"Authorization": f"Bearer {api_key}"}
                answers.append(httpx.get(self.api + path, headers=key, timeout=WITHIN_S))
        return answers


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[Service]:
    port, source = find_free_port(), f"files:{folder / 'bars'}"
    operations = find_free_port()
    given = {"source": source, "port": port, "metrics_port": operations, **settings}
    (folder / LOCK).unlink(missing_ok=True)
    with start_signals(folder, "serve", "--workers", "2", **given) as process:
        process.wait_for_line("Listening on ")
        process.wait_until_caught_up()
        until(lambda: (folder / LOCK).exists() and (folder / LOCK).read_text().endswith("\n"))
        service = Service(folder, port, operations, process)
        until(lambda: len(service.workers) == 2)
        assert httpx.get(service.api, timeout=WITHIN_S).status_code == 200
        yield service


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    """A first start that has built its history; SIGTERM ends it."""
    folder = tmp_path_factory.mktemp("workers")
    write_bars(folder / "bars", count=300)
    with serving(folder, log_level="debug") as service:
        yield service
        assert service.running.stop(signal.SIGTERM) == 0, service.running.printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a complete recording, so that serving starts at once."""
    bars = write_bars(tmp_path / "bars")
    assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    return tmp_path


@pytest.mark.clause("operation")
@pytest.mark.prove
def test_a_first_start_serves_once_its_history_is_built(service: Service) -> None:
    said = [line.split(":")[0] for line in service.running.printed]
    assert said.index("Building history") < said.index("building history")
    answers = service.of_each_worker("/state", create_key(service.folder))
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.clause("operation")
@pytest.mark.clause("feed")
def test_a_commit_of_another_process_is_in_the_next_response_of_every_worker(
    service: Service,
) -> None:
    api_key = create_key(service.folder)
    before = service.of_each_worker("/state", api_key)
    bars = write_bars(service.folder / "bars", count=301)
    # The process that computed the recording may not have ended yet.
    until(lambda: run_signals(service.folder, "replay", "--bars", str(bars)).returncode == 0)
    after = service.of_each_worker("/state", api_key)
    assert [answer.json()["meta"]["as_of"] for answer in (*before, *after)] == [
        *["2025-01-13T12:03:00.000Z"] * 2,
        *["2025-01-13T13:03:00.000Z"] * 2,
    ]


@pytest.mark.clause("operation")
@pytest.mark.prove
def test_a_connection_waits_in_the_queue_while_all_workers_are_busy(service: Service) -> None:
    killed, other = service.workers
    os.kill(killed, signal.SIGKILL)
    service.running.wait_for_line("worker_restarted")
    with ExitStack() as opened:
        # Only a worker that has just started called listen() last.
        with stopped(service.running.process.pid, other):
            assert httpx.get(service.api, timeout=WITHIN_S).status_code == 200
            with stopped(*service.workers):
                asking = [
                    opened.enter_context(
                        socket.create_connection(("127.0.0.1", service.port), WITHIN_S)
                    )
                    for _ in range(100)
                ]
                for each in asking:
                    each.sendall(b"GET /api/v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert {each.recv(12) for each in asking} == {b"HTTP/1.1 200"}


@pytest.mark.clause("operation")
def test_killed_processes_are_restarted_while_others_serve(service: Service) -> None:
    killed = service.workers[0]
    os.kill(killed, signal.SIGKILL)
    assert httpx.get(service.api, timeout=WITHIN_S).status_code == 200
    service.running.wait_for_event("worker_restarted", died=killed, status=-9)
    until(lambda: len(service.workers) == 2)
    before = service.children
    os.kill(service.computing, signal.SIGKILL)
    service.running.wait_for_event("compute_restarted", died=service.computing, status=-9)
    (service.computing,) = service.children - before
    # It computes again once it has the lock of the killed one.
    until(lambda: (service.folder / LOCK).read_text() == f"{service.computing}\n")
    answers = service.of_each_worker("/usage", create_key(service.folder))
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.clause("operation")
@pytest.mark.clause("monitoring")
@pytest.mark.prove
def test_all_processes_log_requests_at_the_level_that_is_set(service: Service) -> None:
    missing = {
        answer.headers["x-request-id"]
        for answer in service.of_each_worker("/usage", "ek_" + "B" * 43)
    }
    while missing:  # Their lines come in any order.
        missing.discard(service.running.wait_for_event("request", status=401)["request_id"])
    probe = httpx.get(f"{service.operations}/healthz", timeout=WITHIN_S)
    request_id = probe.headers["x-request-id"]
    service.running.wait_for_event("request", request_id=request_id, route="/healthz", status=200)


@pytest.mark.clause("operation")
@pytest.mark.clause("monitoring")
@pytest.mark.prove
def test_one_scrape_includes_all_processes_and_dead_ones(service: Service) -> None:
    def counted() -> float:
        seen = samples(httpx.get(f"{service.operations}/metrics", timeout=WITHIN_S).text)
        return seen[place("signals_calls_total", tool="signals_get_usage", outcome="ok")]

    api_key, before = create_key(service.folder), counted()
    service.of_each_worker("/usage", api_key)
    assert counted() == before + 2
    os.kill(service.workers[0], signal.SIGKILL)
    service.running.wait_for_line("worker_restarted")
    until(lambda: len(service.workers) == 2)
    service.of_each_worker("/usage", api_key)
    assert counted() == before + 4
    assert httpx.get(f"{service.operations}/readyz", timeout=WITHIN_S).status_code == 200


def end_all(service: Service, number: int) -> None:
    """Send a signal as a user or a terminal does, and wait until no process is left."""
    process, children = service.running, service.children
    # A terminal signals its whole process group.
    send = os.killpg if number in (signal.SIGHUP, signal.SIGINT) else os.kill
    send(process.process.pid, number)
    assert process.wait_for_exit() == (-number if number == signal.SIGKILL else 0)
    until(lambda: not children & processes().keys())
    assert not re.search("Traceback|_restarted", "".join(process.printed))


@pytest.mark.clause("operation")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.prove
def test_no_process_is_left_however_it_ends(folder: Path, number: int) -> None:
    with serving(folder) as service:
        assert len(service.children) == 3
        environment = Path(f"/proc/{service.workers[0]}/environ").read_text()
        [metrics] = re.findall(rf"{MULTIPROCESS_VARIABLE}=([^\0]+)", environment)
        assert list(Path(metrics).glob("*.db"))
        end_all(service, number)
        # The next start removes the folder of a parent that was killed.
        assert Path(metrics).exists() is (number == signal.SIGKILL)


@pytest.mark.clause("operation")
@pytest.mark.parametrize(
    ("workers", "is_built", "source", "said"),
    [
        (1, False, "files:nowhere", "nowhere"),
        (2, False, "files:nowhere", "nowhere"),
        (1, True, "files:other", "holds bars of the source "),
        (2, True, "simulated", "holds bars of the source "),
    ],
)
@pytest.mark.prove
def test_an_error_of_the_compute_process_ends_the_command_in_one_line(
    tmp_path: Path, workers: int, is_built: bool, source: str, said: str
) -> None:
    bars = write_bars(tmp_path / "bars")
    write_bars(tmp_path / "other")
    if is_built:
        assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    with start_signals(
        tmp_path, "serve", f"--workers={workers}", source=source, port=find_free_port()
    ) as process:
        process.wait_for_line("signals: ")
        assert process.wait_for_exit() == 1
    assert re.match(f"signals: .*{said}", process.printed[-1])
    assert "Traceback" not in "".join(process.printed)


@pytest.mark.clause("operation")
@pytest.mark.prove
def test_a_worker_that_cannot_start_ends_the_command_with_status_1(folder: Path) -> None:
    with serving(folder) as service:
        killed = service.workers[0]
        (folder / "signals.db").rename(folder / "moved.db")
        (folder / "signals.db").mkdir()
        os.kill(killed, signal.SIGKILL)
        assert service.running.wait_for_exit() == 1


@contextmanager
def serving_beside(folder: Path) -> Iterator[Service]:
    port, operations = find_free_port(), find_free_port()
    universe = str(folder / "universe.toml")
    (folder / LOCK).write_text("")
    with start_signals(
        folder, "serve", "--workers=1", port=port, metrics_port=operations, universe=universe
    ) as process:
        process.wait_for_line("--header")
        until(lambda: (folder / LOCK).read_text().endswith("\n"))
        yield Service(folder, port, operations, process)


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
def test_it_computes_in_one_more_process_of_lower_priority(market: Path) -> None:
    with serving_beside(market) as service:
        assert service.children == {service.computing}
        parent = os.getpriority(os.PRIO_PROCESS, service.running.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, service.computing) == min(parent + NICENESS, 19)
        assert service.running.stop(signal.SIGTERM) == 0


@pytest.mark.clause("operation")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.prove
def test_both_processes_end_together(market: Path, number: int) -> None:
    with serving_beside(market) as service:
        end_all(service, number)


async def serve_in_two(settings: Settings, clock: Clock) -> int:
    with create_compute_process(settings, clock, None) as compute_process:
        return await serve(settings, clock, compute_process=compute_process)


@pytest.mark.clause("operation", "monitoring")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("run", [serve, serve_in_two])
@pytest.mark.prove
async def test_a_run_is_counted_with_its_duration_and_rows_by_the_serving_process(
    market: Path, run: Callable[[Settings, Clock], Awaitable[int]]
) -> None:
    """On a clock that both processes share."""
    computed, port = stored(market)[0], find_free_port()
    rows_before = count_published(market)
    clocks = ProcessClocks(computed + 60_000, 1)
    settings = settings_of(market, metrics_port=port)
    (market / LOCK).write_text("")
    running = asyncio.create_task(run(settings, clocks.get_clock(0)))
    metrics, runs = f"http://127.0.0.1:{port}/metrics", "signals_run_duration_seconds_count"
    async with httpx.AsyncClient(timeout=WITHIN_S) as client, asyncio.timeout(2 * WITHIN_S):
        lock = market / LOCK
        while not lock.read_text().endswith("\n"):
            await asyncio.sleep(0.02)
        clocks.now = computed + 2 * 60_000
        seen = samples((await client.get(metrics)).text)
        hours = 0
        rows = place("signals_feed_rows_total", tier="universe")
        # The catch-up at the start is not a run, and not every hour has a change.
        while not (seen[place(runs)] and 0 < seen[rows] == count_published(market) - rows_before):
            if stored(market)[0] >= computed + hours * HOUR_MS:
                hours += 1
                clocks.now = computed + hours * HOUR_MS + 60_000
            await asyncio.sleep(0.05)
            seen = samples((await client.get(metrics)).text)
    assert seen[place("signals_run_duration_seconds_sum")] > 0
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, WITHIN_S) == 0


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
    parts = ("building history", "100%", "Traceback")
    assert [part for part in parts if part in said] == ["building history", "100%"]


def is_listening(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", timeout=WITHIN_S).status_code == 200
    except httpx.ConnectError:
        return False


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = (
    b"POST /api/v1/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    b"Expect: 100-continue\r\n\r\n"
) % len(PING)


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
    with start_signals(
        market, "serve", port=port, metrics_port=operations, universe=str(market / "universe.toml")
    ) as process:
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
    assert (response.status_code, is_closed(operations)) == (200, True)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"jsonrpc":"2.0","id":1,"result":{}}')


needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has malloc_info"
)
THREADS = 4
HEAPS = f"""
import ctypes, sys, tempfile, threading
from service.processes.lifecycle import limit_malloc

libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    limit_malloc()
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

# The first block that is freed teaches glibc to keep blocks of its size.
LARGE_BLOCKS = """
import sys
from pathlib import Path
from service.processes.lifecycle import limit_malloc

def held_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

if sys.argv[1] == "limited":
    limit_malloc()
bytearray(20_000_000)
before = held_pages()
kept = []
for _ in range(20):
    block = b"1" * 5_000_000
    kept.append(b"2" * 1000)
    more = b"1" * 5_000_000
    del block, more
print((held_pages() - before) * 4096)
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
@needs_glibc
@pytest.mark.prove
def test_many_objects_that_stay_cause_no_full_collection_in_a_serving_process():
    assert printed(COLLECTIONS) == 0
    assert printed(COLLECTIONS.replace("prepare_to_serve()\n", "gc.collect()\n", 1)) > 0


@pytest.mark.clause("operation")
@needs_glibc
@pytest.mark.prove
def test_threads_share_one_arena():
    assert printed(HEAPS, "several") > 1
    assert printed(HEAPS, "one") == 1


@pytest.mark.clause("operation")
@needs_glibc
def test_memory_freed_by_a_catch_up_is_returned():
    assert printed(GIVEN_BACK) > 50_000_000


@pytest.mark.clause("operation")
@needs_glibc
def test_large_blocks_are_returned_once_they_are_free():
    assert printed(LARGE_BLOCKS, "as it is") > 5_000_000
    assert printed(LARGE_BLOCKS, "limited") < 1_000_000
