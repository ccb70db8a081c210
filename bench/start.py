"""Measure how soon a year-old store is served, what a command loads, and what a day of load holds.

`python -m bench.start` builds a simulated market of all assets (or takes `--store FILE` that
`signals serve` made) and starts `signals serve` on copies of it. A second process then runs the
same service on a clock that the bench moves hour by hour, while it calls all the tools.
"""

import argparse
import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import IO

import httpx

from access.keys import Keys
from bench.table import Row, table
from compute.indicators.registry import INDICATORS
from compute.schedule import market_ms
from mcp_server.tools.registry import TOOLS
from schemas.vocabulary import instant
from service.serve import serve
from service.settings import Settings
from store.sqlite_access import SqliteAccessStore

PORT = 8898
ADDRESS = f"http://127.0.0.1:{PORT}/api/v1"
SIGNALS = (sys.executable, "-c", "from service.cli import main; raise SystemExit(main())")
MOVED = (sys.executable, "-m", "bench.start", "--serve-from")
STARTS, SHORT_RUNS, DAY_H, WARM_H, CALLS_AN_HOUR = 3, 5, 24, 12, 10
START_S, MEMORY_MIB, GROWTH_MIB = 3.0, 300, 20
HOUR_MS = 3_600_000
COMMANDS = (("keys", "list"), ("connect", "cursor"), ("stdio",))


def rows(store: Path | None = None) -> list[Row]:
    """Return the figures; a store that is given is copied and left as it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signals.db"
        if store is None:
            started(path)
        else:
            _copy(store, path)
        starts, resting = zip(*(started(path) for _ in range(STARTS)), strict=True)
        found = [
            Row(
                "first answer of a year-old store, 251 assets",
                f"{median(starts):.2f} s",
                target=f"< {START_S:.0f} s",
                is_met=median(starts) < START_S,
            ),
            _memory("resident memory after that start", median(resting)),
            *(_short(path, arguments) for arguments in COMMANDS),
        ]
        return found + asyncio.run(_day(path))


def _copy(store: Path, path: Path) -> None:
    """Copy a store that may be in use."""
    with closing(sqlite3.connect(store)) as kept, closing(sqlite3.connect(path)) as copied:
        kept.backup(copied)


def started(path: Path) -> tuple[float, float]:
    """Serve a store; return the seconds to the first answer, and the MiB held then."""
    began = time.perf_counter()
    with _process((*SIGNALS, "serve"), path) as process:
        _first_answer(process)
        return time.perf_counter() - began, resident_mib(process.pid)


def _first_answer(process: subprocess.Popen[bytes]) -> None:
    """Wait for an answer; who connects before the service is ready waits in its queue."""
    while process.poll() is None:
        try:
            httpx.get(ADDRESS, timeout=300).raise_for_status()
            return
        except httpx.ConnectError:
            time.sleep(0.01)
    raise SystemExit("the service ended before it answered")


def resident_mib(pid: int) -> float:
    """Return what a process holds in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    held = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(held.split()[1]) / 1024


@contextmanager
def _process(
    command: tuple[str, ...], path: Path, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on a store until the block ends."""
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=_environment(path), stdin=stdin, stdout=nothing, stderr=nothing
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _environment(path: Path) -> dict[str, str]:
    return os.environ | {
        "SIGNALS_DATABASE_URL": f"sqlite:///{path}",
        "SIGNALS_PORT": str(PORT),
        "SIGNALS_DAILY_LIMIT": "1000000000",
    }


def _short(path: Path, arguments: tuple[str, ...]) -> Row:
    """Return what a command takes that does next to nothing: its imports, the best of some."""
    took = [_timed(path, arguments) for _ in range(SHORT_RUNS)]
    return Row(f"`signals {' '.join(arguments)}`, start to end", f"{min(took):.2f} s")


def _timed(path: Path, arguments: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run(
        SIGNALS + arguments,
        env=_environment(path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - began


async def _day(path: Path) -> list[Row]:
    """Return what the service holds after a day of runs and calls, and what its end added."""
    with closing(sqlite3.connect(path)) as db:
        (computed,) = db.execute("SELECT market_time FROM clock").fetchone()
    access = await SqliteAccessStore.open(path.with_name(path.name + "-access"))
    headers = {"X-Api-Key": await Keys(access, lambda: int(computed)).create("bench")}
    await access.close()
    hours = range(computed // HOUR_MS + 1, computed // HOUR_MS + 1 + DAY_H)
    with _process((*MOVED, str(market_ms(computed // 1000))), path, subprocess.PIPE) as process:
        assert process.stdin is not None
        held = []
        _first_answer(process)
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            for hour in hours:
                await _hour(client, process.stdin, hour * HOUR_MS // 1000)
                held.append(resident_mib(process.pid))
    growth = held[-1] - held[WARM_H - 1]
    return [
        _memory(f"resident memory after {DAY_H} simulated hours of all tools", held[-1]),
        Row(
            f"growth after the first {WARM_H} of them, in which bounded caches fill",
            f"{growth:.0f} MiB",
            target=f"< {GROWTH_MIB} MiB",
            is_met=growth < GROWTH_MIB,
        ),
    ]


async def _hour(client: httpx.AsyncClient, clock: IO[bytes], hour_s: int) -> None:
    """Move the clock to an hour's run, wait for it, and call every tool."""
    due = market_ms(hour_s)
    clock.write(f"{due + 60_000}\n".encode())
    clock.flush()
    while True:
        state = await client.get(ADDRESS + "/state", params={"ticker": "BTC"})
        if state.raise_for_status().json()["meta"]["as_of"] >= instant(due):
            break
        await asyncio.sleep(0.02)
    for name in [tool.name for tool in TOOLS] * CALLS_AN_HOUR:
        call = {"name": name, "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = await client.post(ADDRESS + "/mcp", json=body)
        assert "error" not in answer.raise_for_status().json(), answer.text


def _memory(what: str, mib: float) -> Row:
    target = f"< {MEMORY_MIB} MiB"
    return Row(what, f"{mib:.0f} MiB", target=target, is_met=mib < MEMORY_MIB)


async def _serve_from(now_ms: int) -> None:
    """Serve on a clock that each line of standard input moves."""
    times = [now_ms]
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: times.append(int(sys.stdin.readline())))
    await serve(Settings.read(), INDICATORS, lambda: times[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="a store to copy and start on")
    parser.add_argument("--serve-from", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_from is not None:
        asyncio.run(_serve_from(given.serve_from))
        return
    print(table(rows(given.store)))
    print(f"\nLoad {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
