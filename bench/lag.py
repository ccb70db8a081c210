"""Measure how late the event loop of a serving process is while hourly runs step and commit.

`python -m bench.lag` builds a simulated market of all assets (or takes `--store FILE` that
`signals serve` made), serves it, and moves its clock over a day and two midnights, hour by hour.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import structlog

from access.keys import Keys
from compute.indicators.registry import INDICATORS
from compute.schedule import RUN_DELAY_S, market_ms
from schemas.vocabulary import instant
from service.serve import serve
from service.settings import Settings
from store.sqlite_access import SqliteAccessStore

HOUR_S, DAY_S = 3600, 86_400
START = 1_790_812_800 - HOUR_S  # 2026-09-30T23:00:00Z
HOURS = 25
SAMPLE_S = 0.001
TARGET_MS = 50
PORT = 8899
CLIENT = f"""
import json, sys, time, httpx
times = []
with httpx.Client(headers={{"Authorization": "Bearer " + sys.argv[1]}}) as client:
    while not sys.stdin.closed:
        at = time.time()
        client.get("http://127.0.0.1:{PORT}/api/v1/state").raise_for_status()
        times.append((at, time.time() - at))
        print(*times[-1], flush=True)
        time.sleep(0.01)
"""


class Clock:
    """A clock that the bench moves, and when the compute side first saw where it stands."""

    def __init__(self, now_s: int) -> None:
        self.now_ms = now_s * 1000
        self.seen_at: float | None = None

    def move(self, now_ms: int) -> None:
        self.now_ms, self.seen_at = now_ms, None

    def __call__(self) -> int:
        if self.seen_at is None and sys._getframe(1).f_globals["__name__"].startswith("compute."):
            self.seen_at = time.time()
        return self.now_ms


class Sampler:
    """Sleeps for a millisecond again and again and notes how much later it woke.

    A long lag stands for all the sleeps that it swallowed: each counts with what it would have had.
    """

    def __init__(self) -> None:
        self.lags: list[tuple[float, float]] = []

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(SAMPLE_S)
            woke, lag = time.time(), time.perf_counter() - before - SAMPLE_S
            swallowed = range(max(1, round(lag / SAMPLE_S)))
            self.lags += [(woke, lag - number * SAMPLE_S) for number in swallowed]


def market_time(path: Path) -> int:
    """Return the market clock of a store, 0 before its first pass."""
    with closing(sqlite3.connect(path)) as db:
        row = db.execute("SELECT market_time FROM clock").fetchone()
        return int(row[0]) if row else 0


async def until_computed(path: Path, at: int) -> None:
    while market_time(path) < at:  # noqa: ASYNC110 (what is measured shall not tell)
        await asyncio.sleep(0.02)


async def measured(path: Path, kept: int, hours: int) -> None:
    settings = Settings.read(
        {"SIGNALS_DATABASE_URL": f"sqlite:///{path}", "SIGNALS_PORT": str(PORT)}
    )
    start = max((kept // DAY_S + 1) * DAY_S - HOUR_S, START)
    clock = Clock(start + RUN_DELAY_S)
    access = await SqliteAccessStore.open(settings.access_path)
    api_key = await Keys(access, clock).create("bench")
    await access.close()

    began = time.perf_counter()
    serving = asyncio.create_task(serve(settings, INDICATORS, clock))
    async with httpx.AsyncClient(timeout=300) as client:
        (await client.get(f"http://127.0.0.1:{PORT}/api/v1")).raise_for_status()
    took = time.perf_counter() - began
    print(f"Serving after {took:.1f} s, computed to {instant(market_ms(start))}.")

    sampler = Sampler()
    sampling = asyncio.create_task(sampler.run())
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, api_key, stdout=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(2)
    windows: dict[str, list[tuple[float, float]]] = {"idle": [(time.time() - 1, time.time())]}
    for hour in range(start + HOUR_S, start + (hours + 1) * HOUR_S, HOUR_S):
        due = market_ms(hour)
        clock.move(due + 60_000)
        await until_computed(path, due)
        await asyncio.sleep(0.1)
        assert clock.seen_at is not None
        kind = "midnight" if hour % DAY_S == 0 else "4-hourly" if hour % 14_400 == 0 else "hourly"
        windows.setdefault(kind, []).append((clock.seen_at, time.time()))
    client.kill()
    assert client.stdout is not None
    calls = [line.split() for line in (await client.stdout.read()).decode().splitlines()]
    await client.wait()
    sampling.cancel()
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    print_table(windows, sampler.lags, [(float(at), float(took)) for at, took in calls])


def print_table(
    windows: dict[str, list[tuple[float, float]]],
    lags: Sequence[tuple[float, float]],
    calls: Sequence[tuple[float, float]],
) -> None:
    print(f"Load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores. Milliseconds.")
    print(
        "| run | runs | longest | loop lag p50 | p99 | max | state call p50 | p99 | max | calls |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for kind, spans in windows.items():
        longest = max(end - start for start, end in spans)
        cells = []
        for samples in (lags, calls):
            took = [s for at, s in samples if any(start <= at <= end for start, end in spans)]
            ms = np.array(took or [0.0]) * 1e3
            cells += [f"{np.percentile(ms, 50):.1f}", f"{np.percentile(ms, 99):.1f}"]
            cells += [f"{ms.max():.1f}"]
        row = [kind, str(len(spans)), f"{longest * 1e3:.0f}", *cells, str(len(took))]
        print(f"| {' | '.join(row)} |")
    inside = [s for at, s in lags if any(a <= at <= b for a, b in windows.get("midnight", []))]
    p99 = float(np.percentile(np.array(inside) * 1e3, 99))
    print(f"Midnight p99 {p99:.1f} ms: {'under' if p99 < TARGET_MS else 'OVER'} {TARGET_MS} ms.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="a store to copy and go on from")
    parser.add_argument("--hours", type=int, default=HOURS)
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signals.db"
        if given.store is not None:
            shutil.copy(given.store, path)
        kept = market_time(path) // 1000 if given.store else 0
        asyncio.run(measured(path, kept, given.hours))


if __name__ == "__main__":
    main()
