"""The service with a clock that is told where to stand, and how late its event loop is.

`python -m bench.midnight TIME` is a process of its own: it serves as the environment says, takes
another TIME (epoch ms) a line on standard input, and when it is stopped prints as JSON when
the compute side saw each, and every lag of the loop with when it ended.
"""

import asyncio
import json
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
# No pass for late assets is waited for.
AFTER_LATE_MS = 300_000
SAMPLE_S = 0.001
MAX_WAIT_S = 60
Window = tuple[float, float]


class ManualClock:
    """Stands still between moves, and notes when the compute side first saw each."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._is_seen = True
        self.seen_at: list[float] = []

    def move(self) -> None:
        self._now_ms, self._is_seen = int(sys.stdin.readline() or self._now_ms), False

    def __call__(self) -> int:
        caller = sys._getframe(1).f_globals["__name__"]
        if not self._is_seen and caller.startswith("compute."):
            self._is_seen = True
            self.seen_at.append(time.time())
        return self._now_ms


async def sample_lag(lags: "array[float]") -> None:
    """Sleep for a millisecond again and again and note when it woke and how much too late.

    A long lag stands for all the sleeps that it swallowed: each counts with what it would have had.
    """
    while True:
        before = time.perf_counter()
        await asyncio.sleep(SAMPLE_S)
        woke, lag = time.time(), time.perf_counter() - before - SAMPLE_S
        swallowed = range(max(1, round(lag / SAMPLE_S)))
        for number in swallowed:
            lags.extend((woke, lag - number * SAMPLE_S))


async def serve_and_sample(now_ms: int) -> dict[str, Any]:
    # An array, so that the memory that is measured is the service's.
    clock, lags = ManualClock(now_ms), array("d")
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), clock.move)
    sampling = asyncio.create_task(sample_lag(lags))
    await serve(Settings.read(), INDICATORS, clock)
    sampling.cancel()
    return {"seen_at": clock.seen_at, "lags": lags.tolist()}


@dataclass
class MovableService:
    """The service on a store, its clock at 23:03 of some day; `moves` have a name and an end."""

    ours: Service
    process: "subprocess.Popen[str]"
    store: Path
    hour: int
    moves: list[tuple[str, float]] = field(default_factory=list)

    def advance_hour(self, name: str) -> None:
        """Let the next hour come, at 23:03 the first of a day, and wait until it is committed."""
        self._advance(name, self.hour + HOUR_S)

    def advance_to_evening(self) -> None:
        """Let the rest of the day pass, up to 23:03."""
        self._advance("to evening", self.hour + DAY_S - HOUR_S)

    def stop(self) -> tuple[np.ndarray, dict[str, list[Window]]]:
        """Stop the service; return its lags (when, how long) and when the moves were at work."""
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
        give_up = time.monotonic() + MAX_WAIT_S
        while read_market_time(self.store) < to_market_ms(hour):
            if time.monotonic() > give_up:
                raise SystemExit("the clock was moved and nothing was computed")
            time.sleep(0.02)
        self.moves.append((name, time.time()))
        self.hour = hour


def read_market_time(store: Path) -> int:
    """Return the market clock of a store, epoch ms."""
    with closing(sqlite3.connect(store)) as db:
        return int(db.execute("SELECT market_time FROM clock").fetchone()[0])


@contextmanager
def serve_movable(store: Path) -> Iterator[MovableService]:
    """Serve a store from the first 23:03 on that it has not computed."""
    stored_until = read_market_time(store) // 1000
    hour = (stored_until // DAY_S + 1) * DAY_S - HOUR_S
    now_ms = (hour + RUN_DELAY_S) * 1000
    command, pipe = [sys.executable, "-m", "bench.midnight", str(now_ms)], subprocess.PIPE
    with start_service(command, store, stdin=pipe, stdout=pipe) as (running, url):
        yield MovableService(
            Service(url, create_key(store), now_ms, running.pid), running, store, hour
        )


def main() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    print(json.dumps(asyncio.run(serve_and_sample(int(sys.argv[1])))))


if __name__ == "__main__":
    main()
