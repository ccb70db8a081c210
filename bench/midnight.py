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
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from bench.served import Service, create_key, start_service
from compute.indicators.registry import INDICATORS
from compute.schedule import RUN_DELAY_S, to_market_ms
from service.commands.serve import serve
from service.config.settings import Settings

HOUR_S, DAY_S = 3600, 86_400
# Each move goes past the batches for late assets, so that an hour is complete after one move.
AFTER_LATE_MS = 300_000
SAMPLE_S = 0.001
MAX_WAIT_S = 60
Window = tuple[float, float]


class ManualClock:
    """A clock that stands still between moves and records when compute code first saw each."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._is_seen = True
        self.seen_at: list[float] = []

    def move(self) -> None:
        self._now_ms, self._is_seen = int(sys.stdin.readline() or self._now_ms), False

    def __call__(self) -> int:
        # A run starts when compute reads the new time, not when the clock is moved.
        caller = sys._getframe(1).f_globals["__name__"]
        if not self._is_seen and caller.startswith("compute."):
            self._is_seen = True
            self.seen_at.append(time.time())
        return self._now_ms


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
    await serve(Settings.read(), INDICATORS, clock)
    sampling.cancel()
    return {"seen_at": clock.seen_at, "lags": lags.tolist()}


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
        # The store is polled from outside, because a request to the service would disturb it.
        print((hour + RUN_DELAY_S) * 1000 + AFTER_LATE_MS, file=self.process.stdin, flush=True)
        give_up = time.monotonic() + MAX_WAIT_S
        while read_market_time(self.store) < to_market_ms(hour):
            if time.monotonic() > give_up:
                raise SystemExit(f"nothing was computed {MAX_WAIT_S} s after the clock was moved")
            time.sleep(0.02)
        self.moves.append((name, time.time()))
        self.hour = hour


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
