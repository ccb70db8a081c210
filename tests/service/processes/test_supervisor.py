"""`signals serve --workers 2`: real processes on one port, each tested in turn."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
)
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import uvloop

from service.http.metrics import MULTIPROCESS_VARIABLE
from service.http.server import LISTEN_BACKLOG, open_listener
from tests.service.commands.test_cli import write_bars
from tests.service.http.test_metrics import place, samples
from tests.support.signals_command import (
    RunningCommand,
    find_free_port,
    list_rows,
    run_signals,
    start_signals,
)

pytestmark = pytest.mark.clause("operation")

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

    def new_key(self) -> str:
        return run_signals(self.folder, "keys", "create", "--label", "tests").stdout.strip()


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


@pytest.mark.prove
def test_a_first_start_serves_once_its_history_is_built(service: Service) -> None:
    said = [line.split(":")[0] for line in service.running.printed]
    assert said.index("Building history") < said.index("building history")
    answers = service.of_each_worker("/state", service.new_key())
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.clause("access")
@pytest.mark.prove
def test_a_revoked_key_is_refused_at_once_by_every_worker(service: Service) -> None:
    api_key = service.new_key()
    before = service.of_each_worker("/usage", api_key)
    number = str(list_rows(service.folder, "keys", "list")[-1]["id"])
    assert run_signals(service.folder, "keys", "revoke", number).returncode == 0
    after = service.of_each_worker("/usage", api_key)
    assert [answer.status_code for answer in (*before, *after)] == [200, 200, 403, 403]


@pytest.mark.clause("feed")
def test_a_commit_of_another_process_is_in_the_next_response_of_every_worker(
    service: Service,
) -> None:
    api_key = service.new_key()
    before = service.of_each_worker("/state", api_key)
    bars = write_bars(service.folder / "bars", count=301)
    # The process that computed the recording may not have ended yet.
    until(lambda: run_signals(service.folder, "replay", "--bars", str(bars)).returncode == 0)
    after = service.of_each_worker("/state", api_key)
    assert [answer.json()["meta"]["as_of"] for answer in (*before, *after)] == [
        *["2025-01-13T12:03:00.000Z"] * 2,
        *["2025-01-13T13:03:00.000Z"] * 2,
    ]


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


def test_a_worker_accepts_one_connection_per_turn() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(count_accepted_per_turn(LISTEN_BACKLOG)) == 1


async def count_accepted_per_turn(backlog: int) -> int:
    """Return how many of ten waiting connections a loop accepts in a turn, at most."""
    taken: list[asyncio.BaseTransport] = []

    class Taking(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(transport)

    most = 0
    with ExitStack() as opened:
        bound = opened.enter_context(open_listener("127.0.0.1", int(find_free_port())))
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Taking, sock=bound, backlog=backlog):
            for _ in range(10):
                opened.enter_context(socket.create_connection(bound.getsockname(), WITHIN_S))
            while len(taken) < 10:
                before = len(taken)
                await asyncio.sleep(0)
                most = max(most, len(taken) - before)
            for transport in taken:
                transport.close()
    return most


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
    answers = service.of_each_worker("/usage", service.new_key())
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.clause("monitoring")
@pytest.mark.prove
def test_all_processes_log_requests_at_the_level_that_is_set(service: Service) -> None:
    for answer in service.of_each_worker("/usage", "ek_" + "B" * 43):
        request_id = answer.headers["x-request-id"]
        service.running.wait_for_event("request", request_id=request_id, status=401)
    probe = httpx.get(f"{service.operations}/healthz", timeout=WITHIN_S)
    request_id = probe.headers["x-request-id"]
    service.running.wait_for_event("request", request_id=request_id, route="/healthz", status=200)


@pytest.mark.clause("monitoring")
@pytest.mark.prove
def test_one_scrape_includes_all_processes_and_dead_ones(service: Service) -> None:
    def counted() -> float:
        seen = samples(httpx.get(f"{service.operations}/metrics", timeout=WITHIN_S).text)
        return seen[place("signals_calls_total", tool="signals_get_usage", outcome="ok")]

    api_key, before = service.new_key(), counted()
    service.of_each_worker("/usage", api_key)
    assert counted() == before + 2
    os.kill(service.workers[0], signal.SIGKILL)
    service.running.wait_for_line("worker_restarted")
    until(lambda: len(service.workers) == 2)
    service.of_each_worker("/usage", api_key)
    assert counted() == before + 4
    assert httpx.get(f"{service.operations}/readyz", timeout=WITHIN_S).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.prove
def test_no_process_is_left_however_it_ends(folder: Path, number: int) -> None:
    with serving(folder) as service:
        process, children = service.running, service.children
        assert len(children) == 3
        environment = Path(f"/proc/{service.workers[0]}/environ").read_text()
        [metrics] = re.findall(rf"{MULTIPROCESS_VARIABLE}=([^\0]+)", environment)
        assert list(Path(metrics).glob("*.db"))
        if number == signal.SIGHUP:
            # A terminal signals its whole process group.
            os.killpg(process.process.pid, number)
        else:
            process.process.send_signal(number)
        assert process.wait_for_exit() == (-number if number == signal.SIGKILL else 0)
        until(lambda: not children & processes().keys())
        # The next start removes the folder of a parent that was killed.
        assert Path(metrics).exists() is (number == signal.SIGKILL)
        assert "Traceback" not in "".join(process.printed)


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
    assert process.printed[-1].startswith("signals: ")
    assert said in process.printed[-1]
    assert "Traceback" not in "".join(process.printed)


@pytest.mark.prove
def test_a_worker_that_cannot_start_ends_the_command_with_status_1(folder: Path) -> None:
    with serving(folder) as service:
        killed = service.workers[0]
        (folder / "signals.db").rename(folder / "moved.db")
        (folder / "signals.db").mkdir()
        os.kill(killed, signal.SIGKILL)
        assert service.running.wait_for_exit() == 1
