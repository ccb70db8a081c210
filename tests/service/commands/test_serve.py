import asyncio
import fcntl
import gc
import io
import os
import pty
import re
import signal
import socket
import sqlite3
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from compute.sources.source import NotReadyError
from mcp_server.tools.tool_table import TOOLS
from schemas.result import SIMULATED_NOTE
from schemas.vocabulary import format_instant
from service.commands import compute_command as computing
from service.commands.compute_command import CatchUp, compute
from service.commands.console import ProgressLog, echo, open_progress_bar
from service.commands.serve import serve
from service.config.settings import Settings
from store.failure_log import FailureLog
from tests.service.commands.test_cli import write_bars
from tests.support.bad_inputs import build_call
from tests.support.row_builders import run_sql
from tests.support.signals_command import (
    ForkedCommand,
    RunningCommand,
    build_environment,
    create_key,
    find_free_port,
    list_rows,
    run_signals,
    start_signals,
    write_cut_universe,
)
from tests.support.small_market import open_store

pytestmark = pytest.mark.clause("operation")


HOUR_MS = 3_600_000
STOPS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.prove)]


@contextmanager
def served_process(
    folder: Path, *arguments: str, **settings: str
) -> Iterator[tuple[str, list[str]]]:
    """Start `signals serve`, yield its address and what it printed until it listened."""
    port = find_free_port()
    with start_signals(folder, "serve", *arguments, port=port, **settings) as process:
        process.wait_for_line("Listening on ")
        if "--no-compute" not in arguments:
            process.wait_until_caught_up()
        yield f"http://127.0.0.1:{port}", process.printed
        assert process.stop() == 0, process.printed


@pytest.mark.usefixtures("use_single_ca")
def test_serve_computes_the_hours_after_the_replay(tmp_path):
    bars = write_bars(tmp_path / "bars", count=300)
    run_signals(tmp_path, "replay", "--bars", str(bars), "--until", "2025-01-01T12:30:00Z")
    api_key = create_key(tmp_path)
    with served_process(tmp_path, source="files:bars") as (address, _):
        state, refused = (
            httpx.get(f"{address}/api/v1/state", headers={"X-Api-Key": key})
            for key in (api_key, "ek_" + "A" * 43)
        )
    assert refused.status_code == 401
    assert [asset["ticker"] for asset in state.json()["assets"]] == ["BTC"]
    meta = state.json()["meta"]
    assert meta["as_of"] == "2025-01-13T12:03:00.000Z"
    assert meta["note"].startswith("Recorded market data, up to 2025-01-13T12:03:00.000Z.")
    assert (meta.get("next_update"), meta.get("stale", False)) == (None, False)


def stored(folder: Path) -> tuple[int, int]:
    """Return the market time of a store, and the number of its commits."""
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        times = db.execute("SELECT max(market_time), max(number) FROM passes").fetchone()
        return times[0], times[1]


@pytest.mark.usefixtures("use_single_ca")
def test_a_first_start_says_simulated_shows_progress_and_how_to_register(first_start):
    folder, printed, state, registration = first_start
    said = "".join(printed)
    # A busy machine may log something first, such as a clock that jumped.
    messages = [line.strip() for line in printed if not line.startswith("{")]
    assert messages[0] == f"{SIMULATED_NOTE} For real prices: make live."
    assert [line for line in printed if line.startswith("building history: ")][-1].endswith(
        "100%\n"
    )
    assert f"\n  {registration}\n" in said
    assert {"  signals keys create --label me\n", "  signals sign-in\n"} <= {*printed}
    assert not re.search("ek_|/sign-in/", said)
    meta, count = state["meta"], state["counts"]["assets"]
    assert (meta.get("simulated"), meta.get("stale", False), count) == (True, False, 2)
    # Room for a prune on a full disk.
    assert (folder / "signals.db-spare").stat().st_size == 16_000_000


@pytest.mark.usefixtures("use_single_ca")
def test_a_second_start_continues_from_the_store(first_start, market):
    _, _, before, _ = first_start
    api_key = run_signals(market, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(market, universe=str(market / "universe.toml")) as (address, printed):
        state = httpx.get(f"{address}/api/v1/state", headers={"X-Api-Key": api_key}).json()
    assert not [line for line in printed if "building history" in line]
    assert state["meta"]["as_of"] >= before["meta"]["as_of"]
    assert {row["ticker"] for row in state["assets"]} == {"BTC", "NVDA"}


@contextmanager
def on_a_terminal(
    folder: Path, mode: str = "--single-process", until: str = "--header", **settings: str
) -> Iterator[RunningCommand]:
    ours, theirs = pty.openpty()
    env = build_environment(folder, universe=str(folder / "universe.toml"), **settings)
    process = ForkedCommand(folder, ["serve", mode], env, theirs)
    os.close(theirs)
    started = RunningCommand(process, ours)
    try:
        started.wait_for_line(until)
        yield started
        assert started.stop() == 0
    finally:
        started.kill()


def sign_in_by_link(started: RunningCommand, address: str) -> None:
    """Sign in as owner by the link that a start has shown, which works once."""
    printed = "".join(started.printed)
    link = re.search(r"^  (http://\S+/sign-in/sl_[\w-]{43})\s", printed, re.M)
    assert link is not None, printed
    with httpx.Client(follow_redirects=True) as browser:
        assert "Board" in browser.post(link[1]).text
        assert browser.get(f"{address}/operations").status_code == 200
        assert browser.post(link[1]).status_code == 404


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.clause("13.1")
@pytest.mark.prove
def test_each_start_on_a_terminal_shows_a_link_and_only_the_first_one_a_working_key(market):
    port = find_free_port()
    address = f"http://127.0.0.1:{port}"
    with on_a_terminal(market, port=port) as first:
        sign_in_by_link(first, address)
        shown = re.search(r"export SIGNALS_API_KEY=(ek_[\w-]{43})\n", "".join(first.printed))
        assert shown is not None, first.printed
        headers = {"Authorization": f"Bearer {shown[1]}"}
        assert httpx.get(f"{address}/api/v1/state", headers=headers).status_code == 200
    (key,) = list_rows(market, "keys", "list")
    assert key["label"] == "first start"
    assert run_signals(market, "keys", "revoke", str(key["id"])).returncode == 0
    with on_a_terminal(market, port=port) as second:
        sign_in_by_link(second, address)
        assert "ek_" not in "".join(second.printed)


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0"}, False),
        pytest.param(
            {"base_url": "https://signals.example", "billing": "off"},
            False,
            marks=pytest.mark.prove,
        ),
    ],
)
@pytest.mark.prove
def test_a_key_is_shown_only_on_loopback_without_a_public_address(market, settings, is_shown):
    with on_a_terminal(market, port=find_free_port(), **settings) as process:
        assert ("ek_" in "".join(process.printed)) is is_shown
        assert ("/sign-in/sl_" in "".join(process.printed)) is is_shown


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(("host", "own"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
@pytest.mark.prove
def test_a_service_on_all_addresses_advertises_one_that_works(market, host, own):
    port, universe = find_free_port(), str(market / "universe.toml")
    with start_signals(
        market, "serve", port=port, host=host, universe=universe, billing="off"
    ) as process:
        process.wait_for_line("--header")
        manifest = httpx.get(f"http://{own}:{port}/api/v1").json()
        other = httpx.get(f"http://{own}:{port}/api/v1", headers={"Host": f"192.0.2.7:{port}"})
        assert process.stop() == 0
    printed = "".join(process.printed)
    assert f"Listening on http://{own}:{port}\n" in printed
    (line,) = [line for line in process.printed if "all addresses" in line]
    assert f"for example SIGNALS_BASE_URL=http://signals.example:{port}" in line
    assert manifest["mcp"]["url"] == f"http://{own}:{port}/api/v1/mcp"
    assert not re.search(r"0\.0\.0\.0|\[::\]", printed + str(manifest))
    assert other.status_code == 200


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.prove
def test_a_signal_while_building_history_keeps_committed_batches(tmp_path, number):
    source = f"files:{write_bars(tmp_path / 'bars', count=24 * 200)}"
    with start_signals(tmp_path, "serve", port=find_free_port(), source=source) as process:
        process.wait_for_line("building history: ")
        assert process.stop(number) == 0
    kept, _ = stored(tmp_path)
    last = process.printed[-1]
    assert last.startswith("Stopped while building history. The next start continues from ")
    assert format_instant(kept) in last
    with start_signals(tmp_path, "serve", port=find_free_port(), source=source) as process:
        process.wait_for_event("caught_up")
        assert process.stop(number) == 0
    assert not [line for line in process.printed if "Traceback" in line]
    assert stored(tmp_path)[0] > kept
    done = run_signals(tmp_path, "audit")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean")


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
def test_how_far_a_stopped_start_came_is_no_part_of_its_progress_bar(tmp_path):
    write_cut_universe(tmp_path, {"BTC"})
    source = f"files:{write_bars(tmp_path / 'bars', count=24 * 200)}"
    with on_a_terminal(
        *(tmp_path, "--workers=1", "building history "), source=source, port=find_free_port()
    ) as process:
        pass
    (last,) = [line for line in process.printed if "Stopped while" in line]
    # After what shows the cursor again.
    assert re.match(r"(\x1b\[[?\w]+)*Stopped while building history\.", last)


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.prove
def test_neither_a_client_that_never_ends_nor_a_second_signal_harms_the_end(market, number):
    port = find_free_port()
    with (
        start_signals(
            market, "serve", port=port, universe=str(market / "universe.toml")
        ) as process,
        socket.socket() as client,
    ):
        process.wait_for_line("--header")
        client.connect(("127.0.0.1", int(port)))
        head = f"POST /api/v1/mcp HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 9\r\n\r\n"
        client.sendall(head.encode())
        assert httpx.get(f"http://127.0.0.1:{port}/api/v1").status_code == 200
        process.process.send_signal(number)
        assert process.stop(number) == 0
    assert "Traceback" not in "".join(process.printed)


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
def test_a_second_serve_stands_by_and_takes_over_when_the_first_ends(market):
    universe = str(market / "universe.toml")
    api_key = run_signals(market, "keys", "create", "--label", "tests").stdout.strip()
    with start_signals(market, "compute", universe=universe) as first:
        first.wait_for_line("Computing ")
        port = find_free_port()
        with start_signals(market, "serve", port=port, universe=universe) as second:
            assert str(first.process.pid) in second.wait_for_line("Standing by")
            second.wait_for_line("--header")
            state = f"http://127.0.0.1:{port}/api/v1/state"
            assert httpx.get(state, headers={"X-Api-Key": api_key}).status_code == 200
            first.process.kill()
            second.wait_for_event("computing")
            port = find_free_port()
            with start_signals(market, "serve", port=port, universe=universe) as third:
                assert str(second.process.pid) in third.wait_for_line("Standing by")
                third.wait_for_line("--header")
                assert second.stop(signal.SIGTERM) == 0
                third.wait_for_event("computing")
                assert third.stop(signal.SIGTERM) == 0


@pytest.mark.usefixtures("use_single_ca")
def test_a_serve_that_stands_by_refuses_another_source_than_the_stores(market):
    bars = write_bars(market / "bars")
    with (market / "signals.db.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_signals(market, "serve", source=f"files:{bars}", port=find_free_port())
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "SIGNALS_SOURCE=simulated" in done.stderr


class MovedClock:
    """The wall clock of a service inside the test's own process; the test moves it."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.on_read: Callable[[], None] = lambda: None

    def __call__(self) -> int:
        self.on_read()
        return self.now_ms


def settings_of(folder: Path, **settings: str) -> Settings:
    given = build_environment(
        folder, port=find_free_port(), universe=str(folder / "universe.toml"), **settings
    )
    return Settings.read({n: v for n, v in given.items() if n.startswith("SIGNALS_")})


@asynccontextmanager
async def served_here(
    folder: Path, clock: MovedClock, **settings_given: str
) -> AsyncIterator[tuple[str, asyncio.Task[int]]]:
    """Serve a folder's simulated market in this process until it ends, or until SIGTERM."""
    settings = settings_of(folder, **settings_given)
    serving = asyncio.create_task(serve(settings, clock))
    await asyncio.sleep(0)
    address = f"{settings.address}/api/v1"
    async with httpx.AsyncClient(timeout=120) as client:
        assert (await client.get(address)).status_code == 200
    yield address, serving
    if not serving.done():
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(serving, 120) == 0


async def wait_for_output(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Wait until this process has printed a text; drop what it has printed so far."""
    async with asyncio.timeout(120):
        while text not in "".join(capsys.readouterr()):
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.prove
async def test_a_signal_during_a_run_leaves_no_partial_batch(market, capsys):
    computed, passes = stored(market)
    clock, loop = MovedClock(computed + 60_000), asyncio.get_running_loop()
    asked = []

    def on_read() -> None:
        """Request shutdown in the stepping thread; step on once the loop has handled it."""
        if threading.current_thread() is not threading.main_thread() and not asked:
            asked.append(clock.now_ms)
            os.kill(os.getpid(), signal.SIGTERM)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result(10)

    computing = asyncio.create_task(compute(settings_of(market), clock))
    await wait_for_output(capsys, "Computing on")
    clock.on_read = on_read
    clock.now_ms = computed + HOUR_MS
    assert await asyncio.wait_for(computing, 30) == 0
    assert asked == [computed + HOUR_MS]
    assert stored(market) == (computed, passes)
    with (market / "signals.db.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    done = await asyncio.to_thread(
        run_signals, market, "audit", universe=str(market / "universe.toml")
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean")


class Unforeseen(BaseException):
    """An error that no loop handles."""


@pytest.mark.usefixtures("use_single_ca")
async def test_a_server_ends_if_its_hourly_loop_dies(market):
    clock = MovedClock(stored(market)[0] + 60_000)

    def on_read() -> None:
        raise Unforeseen

    async with served_here(market, clock) as (address, serving):
        clock.on_read = on_read
        with pytest.raises(Unforeseen):
            await asyncio.wait_for(serving, 120)
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(address)


# After this many hours the bounded caches of sessions are full.
WARM_H = 12
HOURS = 10
CALLS_AN_HOUR = 5
GROWTH_BYTES = 100_000
ARGUMENTS = {
    "signals_get_state": [{}, {"ticker": "BTC"}],
    "signals_get_signals": [{}, {"limit": 9}],
}


@pytest.mark.prove
async def test_memory_does_not_grow_over_a_day_of_runs_and_calls(market):
    clock = MovedClock(stored(market)[0] + 60_000)
    async with (
        served_here(market, clock) as (address, _),
        httpx.AsyncClient(headers=await key_of(market)) as client,
    ):
        tracemalloc.start()
        try:
            held = [await held_after_an_hour(clock, client, address) for _ in range(WARM_H + HOURS)]
        finally:
            tracemalloc.stop()
    assert held[-1] - held[WARM_H - 1] < GROWTH_BYTES, held


async def held_after_an_hour(clock: MovedClock, client: httpx.AsyncClient, address: str) -> int:
    """Return the allocated bytes after an hour was computed and all tools were called."""
    clock.now_ms += HOUR_MS
    due = format_instant(clock.now_ms // HOUR_MS * HOUR_MS + 180_000)
    await until_state(client, address, lambda meta: meta["as_of"] >= due)
    for tool, _ in product(TOOLS, range(CALLS_AN_HOUR)):
        for arguments in ARGUMENTS.get(tool.name, [{}]):
            answer = await client.post(f"{address}/mcp", json=build_call(tool.name, arguments))
            assert not answer.raise_for_status().json()["result"]["isError"]
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


BEHIND_H = 50


@pytest.fixture
def serve_at_once(monkeypatch):
    """Start serving at once if there is a snapshot."""
    monkeypatch.setattr(computing, "MAX_CATCH_UP_WAIT_S", 0.01)


async def until_state(
    client: httpx.AsyncClient, address: str, is_so: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the meta of the first state that is so."""
    async with asyncio.timeout(120):
        while True:
            answer = await client.get(f"{address}/state")
            meta: dict[str, Any] = answer.raise_for_status().json()["meta"]
            if is_so(meta):
                return meta
            await asyncio.sleep(0.01)


def is_current(meta: dict[str, Any]) -> bool:
    return not meta.get("stale", False)


async def key_of(folder) -> dict[str, str]:
    return {"X-Api-Key": await asyncio.to_thread(create_key, folder)}


def in_the_thread_that_steps() -> bool:
    return threading.current_thread() is not threading.main_thread()


@pytest.mark.clause("fresh")
@pytest.mark.prove
async def test_responses_are_stale_while_it_catches_up_and_live_after(market, serve_at_once):
    computed, _ = stored(market)
    clock, may_step = MovedClock(computed + BEHIND_H * HOUR_MS + 60_000), threading.Event()

    def on_read() -> None:
        if in_the_thread_that_steps():
            may_step.wait(30)

    clock.on_read = on_read
    async with (
        served_here(market, clock) as (address, _),
        httpx.AsyncClient(headers=await key_of(market)) as client,
    ):
        try:
            before = await client.get(f"{address}/state")
            kept = stored(market)[0]
        finally:
            may_step.set()
        after = (await until_state(client, address, is_current))["as_of"]
    assert (kept, before.json()["meta"].get("stale", False)) == (computed, True)
    assert after > before.json()["meta"]["as_of"]
    assert stored(market)[0] == computed + BEHIND_H * HOUR_MS


@pytest.mark.clause("fresh")
@pytest.mark.prove
async def test_a_catch_up_that_fails_while_serving_is_retried(market, serve_at_once, capsys):
    computed, _ = stored(market)
    clock, may_fail = MovedClock(computed + BEHIND_H * HOUR_MS + 60_000), threading.Event()

    def on_read() -> None:
        if in_the_thread_that_steps() and not may_fail.is_set():
            may_fail.wait(30)
            raise OSError("the disk is gone")

    clock.on_read = on_read
    async with (
        served_here(market, clock) as (address, _),
        httpx.AsyncClient(headers=await key_of(market)) as client,
    ):
        await wait_for_output(capsys, "Still catching up: ")
        may_fail.set()
        await until_state(client, address, is_current)
    assert "run_failed" in capsys.readouterr().out
    assert stored(market)[0] == computed + BEHIND_H * HOUR_MS


@pytest.mark.clause("fresh")
async def test_a_catch_up_that_fails_before_serving_ends_the_command(market):
    clock = MovedClock(stored(market)[0] + BEHIND_H * HOUR_MS + 60_000)

    def on_read() -> None:
        if in_the_thread_that_steps():
            raise OSError("the disk is gone")

    clock.on_read = on_read
    with pytest.raises(OSError, match="the disk is gone"):
        await compute(settings_of(market), clock)


@pytest.mark.clause("fresh", "live")
async def test_the_reason_why_nothing_can_be_computed_is_stored_before_it_is_said(
    tmp_path, monkeypatch
):
    class WaitingPipeline:
        has_snapshot, building_tickers, due_hour, asset_count = False, (), 0, 1

        async def run_until(self, *args):
            raise NotReadyError("no venue answers")

        async def close(self):
            said.append("closed")

    said: list[object] = []

    def hear(text):
        reason = run_sql(tmp_path / "market.db", "SELECT value FROM facts WHERE key = 'outage'")
        said.append((text, reason))

    monkeypatch.setattr(computing, "echo", hear)
    async with open_store(tmp_path / "market.db") as store:
        given = (WaitingPipeline(), store, MovedClock(0), FailureLog(), lambda are_failing: None)
        assert await CatchUp(*given, is_long=True).run() is None
    assert said == [
        ("Nothing can be computed yet: no venue answers.", [("no venue answers",)]),
        # The next pipeline must not fetch beside this one.
        "closed",
    ]


@pytest.mark.clause("fresh")
def test_progress_lines_estimate_the_remaining_time(capsys):
    clock = MovedClock(0)
    lines = ProgressLog("building history", clock)
    for done, minutes in ((1, 2), (2, 4), (8, 16), (9, 18)):
        clock.now_ms = minutes * 60_000
        lines(done, 9)
    assert capsys.readouterr().err.splitlines() == [
        "building history: 11%, about 16 min left",
        "building history: 22%, about 14 min left",
        "building history: 88%, about 2 min left",
        "building history: 100%",
    ]


class Terminal(io.StringIO):
    """A terminal that keeps what is printed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_long_line_stays_whole_while_progress_is_shown(columns, monkeypatch):
    # A shell would run the parts of a broken line by themselves.
    line = f"  claude mcp add --header '{'x' * 150}'"
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress_bar("building history") as on_progress:
        on_progress(1, 2)
        echo(line)
    assert f"{line}\n" in terminal.getvalue()
