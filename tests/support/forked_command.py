"""Runs the `signals` command in a forked process, because importing it takes over a second.

It is a separate process in its own session and shares no state with the tests.
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

import service.commands.compute_command
import service.commands.serve  # noqa: F401 (`serve` imports it when it runs)
import store.postgres.market_engine  # noqa: F401 (so does whoever opens one)
from service.commands.cli import main

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload([__name__])


class ForkedCommand:
    """The part of the interface of `subprocess.Popen` that tests use."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], env: Mapping[str, str], messages: int
    ) -> None:
        """`messages` is a descriptor that becomes the child's standard error."""
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
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is still running."""
        if self.poll() is None:
            # It may have ended although its status has not arrived yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when it has ended; raise TimeoutExpired if it takes too long."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("signals", timeout or 0.0)
        return status


def _run(folder: Path, arguments: Sequence[str], env: dict[str, str], messages: Any) -> None:
    os.setsid()
    # Ignored if the tests run without a terminal.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, name in ((nothing, 0), (nothing, 1), (messages.detach(), 2)):
        os.dup2(descriptor, name)
    sys.stdin = os.fdopen(0)
    raise SystemExit(main(arguments))
