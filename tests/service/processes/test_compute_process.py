"""`signals serve` computes in a process of its own, which ends and restarts with its parent."""

import asyncio
import os
import pty
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from schemas.vocabulary import Clock
from service.commands.compute_command import NICENESS
from service.commands.serve import serve
from service.config.settings import Settings
from service.processes.child_process import create_compute_process
from tests.scaling.nodes import ProcessClocks
from tests.service.commands.test_serve import HOUR_MS, settings_of, stored
from tests.service.http.test_metrics_server import place, samples
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

pytestmark = [pytest.mark.clause("operation"), pytest.mark.usefixtures("use_single_ca")]

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


def test_it_computes_in_one_more_process_of_lower_priority(market: Path) -> None:
    with serving(market) as service:
        assert service.children == {service.computing}
        parent = os.getpriority(os.PRIO_PROCESS, service.running.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, service.computing) == min(parent + NICENESS, 19)
        assert service.running.stop(signal.SIGTERM) == 0


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


@pytest.mark.prove
def test_a_failure_of_the_compute_process_ends_the_command_in_one_line(tmp_path: Path) -> None:
    with start_signals(tmp_path, *ONE, source="files:nowhere", port=find_free_port()) as process:
        process.wait_for_line("signals: ")
        assert process.wait_for_exit() == 1
    assert len(process.printed) == 1
    assert process.printed[0].startswith("signals: ")
    assert "nowhere" in process.printed[0]


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


def test_several_workers_exclude_a_single_process(tmp_path: Path) -> None:
    done = run_signals(tmp_path, "serve", "--workers", "2", "--single-process")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--single-process" in line
    assert "--workers" in line
