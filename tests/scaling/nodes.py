"""Serving and computing processes of a service, each on a clock that the test moves.

They are forked as in tests/support/signals_command.py, and end when the tests end.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ctypes import Array, c_longlong
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from schemas.vocabulary import Clock
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from tests.support.signals_command import FORKSERVER

Work = Callable[[Settings, Clock], Awaitable[int]]

ENDS_WITHIN_S = 30
PR_SET_PDEATHSIG = 1  # From Linux's prctl.h.


class ProcessClocks:
    """The time (epoch ms) shared by all processes, and the offset of each."""

    def __init__(self, now: int, places: int) -> None:
        self._shared: Array[c_longlong] = FORKSERVER.RawArray(c_longlong, 1)
        self._offsets = [FORKSERVER.RawArray(c_longlong, 2) for _ in range(places)]
        self.now = now

    @property
    def now(self) -> int:
        return int(self._shared[0])

    @now.setter
    def now(self, at: int) -> None:
        self._shared[0] = at

    def get_clock(self, place: int) -> "ManualClock":
        return ManualClock(self._shared, self._offsets[place])


@dataclass
class ManualClock:
    """The clock of one process; counts how often it is read."""

    shared: "Array[c_longlong]"
    own: "Array[c_longlong]"

    def __call__(self) -> int:
        self.own[1] += 1
        return int(self.shared[0] + self.own[0])

    @property
    def looks(self) -> int:
        return int(self.own[1])

    def be_off(self, by_ms: int) -> None:
        self.own[0] = by_ms


class ServiceNode:
    """A process that a test can end, halt and restart; it logs to a file."""

    def __init__(self, work: Work, settings: Settings, clock: ManualClock, log: Path) -> None:
        self.settings = settings
        self.clock = clock
        self.log = log
        self._work = work
        self._process: ForkServerProcess

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.exitcode

    def start(self) -> None:
        given = self._work, self.settings, self.clock, self.log
        self._process = FORKSERVER.Process(target=_run, args=given)
        self._process.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    async def stop(self) -> int | None:
        self._process.terminate()
        await asyncio.to_thread(self._process.join, ENDS_WITHIN_S)
        return self.status

    @contextmanager
    def halt(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def _run(work: Work, settings: Settings, clock: ManualClock, log: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    log_to_standard_error(settings.log_level, settings.log_format)
    raise SystemExit(asyncio.run(work(settings, clock)))
