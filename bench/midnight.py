"""The service with a settable clock, and measurement of its event-loop lag.

`python -m bench.midnight TIME` serves with the settings of its environment and reads further TIMEs
(epoch ms), one per line, from standard input. When it is stopped, it prints JSON: when the compute
code first saw each time, and every lag of the event loop with its end.
"""

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from bench.served import Service, create_key, start_service
from compute.schedule import RUN_DELAY_S, to_market_ms
from service.commands.serve import serve
from service.config.settings import Settings
from service.processes.compute_process import ComputeProcess

HOUR_S, DAY_S = 3600, 86_400
# Each move goes past the batches for late assets, so that an hour is complete after one move.
AFTER_LATE_MS = 300_000
SAMPLE_S = 0.001
MAX_WAIT_S = 60
Window = tuple[float, float]


class ManualClock:
    """A clock that stands still between moves and records when compute code first saw each.

    The serving and the compute process share it.
    """

    def __init__(self, now_ms: int) -> None:
        # The time (epoch ms), and when compute code first saw it (epoch s), 0 if it has not.
        self._shared = get_context("spawn").RawArray("d", [now_ms, time.time()])
        self._is_moved = False
        self._seen_at: list[float] = []

    def move(self) -> None:
        if line := sys.stdin.readline():
            self._note_last_move()
            self._is_moved = True
            self._shared[1] = 0.0
            self._shared[0] = int(line)

    def list_seen(self) -> list[float]:
        """Return when compute code first saw each move (epoch s)."""
        self._note_last_move()
        return self._seen_at

    def _note_last_move(self) -> None:
        if self._is_moved and self._shared[1]:
            self._seen_at.append(self._shared[1])
        self._is_moved = False

    def __call__(self) -> int:
        # A run starts when compute reads the new time, not when the clock is moved.
        if not self._shared[1] and sys._getframe(1).f_globals["__name__"].startswith("compute."):
            self._shared[1] = time.time()
        return int(self._shared[0])


async def sample_lag(lags: "array[float]") -> None:
    """Sleep for a millisecond repeatedly, and record each wake-up time and its lag.

    A long lag also counts for every sleep that would have ended during it, with the lag that sleep
    would have had.
    """
    while True:
        before = time.perf_counter()
        await asyncio.sleep(SAMPLE_S)
        woke, lag = time.time(), time.perf_counter() - before - SAMPLE_S
        swallowed = range(max(1, round(lag / SAMPLE_S)))
        for number in swallowed:
            lags.extend((woke, lag - number * SAMPLE_S))


async def serve_and_sample(now_ms: int) -> dict[str, Any]:
    # An array is compact: the lags of a day must not show in the measured memory of the service.
    clock, lags = ManualClock(now_ms), array("d")
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), clock.move)
    sampling = asyncio.create_task(sample_lag(lags))
    settings = Settings.read()
    with ComputeProcess(settings, clock, None) as compute_process:
        await serve(settings, clock, compute_process=compute_process)
    sampling.cancel()
    return {"seen_at": clock.list_seen(), "lags": lags.tolist()}


@dataclass
class MovableService:
    """The service on a store, with its clock at 23:03; `moves` are (name, end in epoch s)."""

    ours: Service
    process: "subprocess.Popen[str]"
    store: Path
    hour: int
    moves: list[tuple[str, float]] = field(default_factory=list)

    def advance_hour(self, name: str) -> None:
        """Move to the next hour, which at 23:03 is midnight, and wait until it is committed."""
        self._advance(name, self.hour + HOUR_S)

    def advance_to_evening(self) -> None:
        """Move to 23:03 of the same day."""
        self._advance("to evening", self.hour + DAY_S - HOUR_S)

    def stop(self) -> tuple[np.ndarray, dict[str, list[Window]]]:
        """Stop the service; return its lags (end, seconds) and the windows of runs by move name."""
        self.process.terminate()
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.read())
        windows: dict[str, list[Window]] = {}
        for seen, (name, ended) in zip(found["seen_at"], self.moves, strict=True):
            windows.setdefault(name, []).append((seen, ended))
        return np.reshape(found["lags"], (-1, 2)), windows

    def _advance(self, name: str, hour: int) -> None:
        assert self.process.stdin is not None
        print((hour + RUN_DELAY_S) * 1000 + AFTER_LATE_MS, file=self.process.stdin, flush=True)
        wait_until_computed(self.store, hour)
        self.moves.append((name, time.time()))
        self.hour = hour


def wait_until_computed(store: Path, hour: int) -> None:
    """Wait until the run of an hour is committed."""
    # The store is polled from outside, because a request to the service would disturb it.
    give_up = time.monotonic() + MAX_WAIT_S
    while read_market_time(store) < to_market_ms(hour):
        if time.monotonic() > give_up:
            raise SystemExit(f"nothing was computed {MAX_WAIT_S} s after the clock was moved")
        time.sleep(0.02)


def read_market_time(store: Path) -> int:
    """Return the market time of a store (epoch ms)."""
    with closing(sqlite3.connect(store)) as db:
        return int(db.execute("SELECT market_time FROM clock").fetchone()[0])


@contextmanager
def serve_movable(store: Path) -> Iterator[MovableService]:
    """Serve a store, with the clock at the first 23:03 that it has not computed."""
    stored_until = read_market_time(store) // 1000
    hour = (stored_until // DAY_S + 1) * DAY_S - HOUR_S
    now_ms = (hour + RUN_DELAY_S) * 1000
    command, pipe = [sys.executable, "-m", "bench.midnight", str(now_ms)], subprocess.PIPE
    with start_service(command, store, stdin=pipe, stdout=pipe) as (running, url):
        wait_until_computed(store, hour)
        yield MovableService(
            Service(url, create_key(store), now_ms, running.pid), running, store, hour
        )


def main() -> None:
    # The level of `signals serve`; without one, each call would also log a debug line.
    level = structlog.make_filtering_bound_logger(logging.INFO)
    structlog.configure(wrapper_class=level, logger_factory=structlog.ReturnLoggerFactory())
    print(json.dumps(asyncio.run(serve_and_sample(int(sys.argv[1])))))


if __name__ == "__main__":
    main()
