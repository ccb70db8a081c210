"""How long does a call wait while a midnight run computes all timeframes at once?

`python -m bench.midnight TIME` is the service with a clock that stands at TIME (epoch ms), until
the next TIME is read from standard input.
"""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.calls import STATE_OF_ONE
from bench.load import watch
from bench.served import Server, build_settings, copy_store, create_key, run_server
from bench.table import Row, format_percentiles
from compute.schedule import to_market_ms
from service.commands.serve import serve
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.processes.child_process import create_compute_process

HOUR_S, DAY_S = 3600, 86_400
# Each move goes past the batches for late assets, so that an hour is complete after one move.
AFTER_LATE_MS = 300_000
MIDNIGHTS, RATE, WATCHED_S, LEAD_S, MAX_WAIT_S, MAX_RATIO = 5, 200, 5, 1, 60, 2


async def serve_by_clock(now_ms: int) -> None:
    # The serving and the compute process share it.
    shared = get_context("spawn").RawValue("q", now_ms)
    clock = partial(getattr, shared, "value")

    asyncio.get_running_loop().add_reader(
        sys.stdin.fileno(),
        lambda: setattr(shared, "value", int(sys.stdin.readline() or shared.value)),
    )
    settings = Settings.read()
    with create_compute_process(settings, clock, None) as compute_process:
        await serve(settings, clock, compute_process=compute_process)


def read_market_time(store: Path) -> int:
    with closing(sqlite3.connect(store)) as db:
        return int(db.execute("SELECT market_time FROM clock").fetchone()[0])


def move_to(server: Server, store: Path, hour: int) -> None:
    """Move the clock behind an hour, and wait until its run is committed."""
    print(to_market_ms(hour) + AFTER_LATE_MS, file=server.process.stdin, flush=True)
    give_up = time.monotonic() + MAX_WAIT_S
    # The store is polled from outside, because a request to the service would disturb it.
    while read_market_time(store) < to_market_ms(hour):
        if time.monotonic() > give_up:
            raise SystemExit(f"nothing was computed {MAX_WAIT_S} s after the clock was moved")
        time.sleep(0.01)


def rows() -> Iterator[Row]:
    quiet, during, runs_s = list[np.ndarray](), list[np.ndarray](), list[float]()
    with copy_store() as store:
        # The first 23:03 that it has not computed.
        evening = (read_market_time(store) // 1000 // DAY_S + 1) * DAY_S - HOUR_S
        command = [sys.executable, "-m", "bench.midnight", str(to_market_ms(evening))]
        with (
            run_server(command, build_settings(store), stdin=subprocess.PIPE) as server,
            ThreadPoolExecutor() as pool,
        ):
            server.wait_for("/readyz", 200)
            move_to(server, store, evening)
            calls = STATE_OF_ONE.list_calls("MCP", create_key(store), number=RATE * WATCHED_S)
            for midnight in range(evening + HOUR_S, evening + MIDNIGHTS * DAY_S, DAY_S):
                watching = pool.submit(watch, server.url, calls, RATE, WATCHED_S)
                time.sleep(LEAD_S)
                began = time.time()
                move_to(server, store, midnight)
                ended, seen = time.time(), watching.result()
                if seen.failed.any():
                    raise SystemExit(f"{seen.failed.sum()} calls failed")
                due, done = seen.due_at, seen.due_at + seen.took_s
                quiet.append(seen.took_s[done < began])
                during.append(seen.took_s[(due < ended) & (done > began)])
                runs_s.append(ended - began)
                move_to(server, store, midnight + DAY_S - HOUR_S)
    before_s, during_s = np.concatenate(quiet), np.concatenate(during)
    ratio = np.percentile(during_s, 99) / np.percentile(before_s, 99)
    yield Row(
        f"MCP state of one while {MIDNIGHTS} midnight runs commit, {sum(runs_s):.1f} s in all: "
        "p50 / p99 / max",
        format_percentiles(during_s),
        f"{format_percentiles(before_s)} (no run)",
        f"{ratio:.1f} (p99)",
        f"<= {MAX_RATIO} (p99)",
        bool(ratio <= MAX_RATIO),
    )


if __name__ == "__main__":
    # Else each call would also log a debug line.
    log_to_standard_error("info", "json")
    asyncio.run(serve_by_clock(int(sys.argv[1])))
