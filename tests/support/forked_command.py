"""The `signals` command in a process that is forked ready to run: importing takes over a second.

It is a real process of its own, in a session of its own, with nothing of the tests' in it.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import service.commands.serve  # noqa: F401 (`serve` imports it when it runs)
import store.postgres.market_store  # noqa: F401 (so does whoever opens one)
from service.commands.cli import main

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload([__name__])


class ForkedCommand:
    """What `subprocess.Popen` offers of a process, as far as tests ask for it."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], env: Mapping[str, str], messages: int
    ) -> None:
        """`messages` is a descriptor that becomes its standard error."""
        given = (folder, arguments, dict(env), DupFd(messages))
        self._process: ForkServerProcess = FORKSERVER.Process(target=_run, args=given)
        self._process.start()
        self.stderr = None

    @property
    def pid(self) -> int:
        """The process id, also after its end."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the status, minus the signal's number where one ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs still."""
        if self.poll() is None:
            # It may be gone before its status is told.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without a word."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the status once it has ended; TimeoutExpired where it goes on for too long."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("signals", timeout or 0.0)
        return status


def _run(folder: Path, arguments: Sequence[str], env: dict[str, str], messages: Any) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, name in ((nothing, 0), (nothing, 1), (messages.detach(), 2)):
        os.dup2(descriptor, name)
    sys.stdin = os.fdopen(0)
    raise SystemExit(main(arguments))
