"""Runs the `signals` command in its own environment, in this process or in a new one."""

import io
import json
import logging
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Self

import structlog
from structlog.typing import EventDict

from service.commands.cli import main
from service.config.logs import LogFormat, LogLevel, log_to_standard_error
from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, migrate

COMMAND = [
    sys.executable,
    "-c",
    "from service.commands.cli import main; raise SystemExit(main())",
]
ROOT = Path(__file__).parents[2]
Event = dict[str, Any]
# Only a command that hangs takes so long, however busy the machine is.
ENDS_WITHIN_S = 120
SAYS_WITHIN_S = 300


def build_environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a command; an empty `database_url` leaves the default one."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SIGNALS_")
    }
    signals_settings = {f"SIGNALS_{name.upper()}": value for name, value in settings.items()}
    variables = {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "SIGNALS_DATABASE_URL": f"sqlite:///{folder / 'signals.db'}",
        # Many services run at the same time, and each needs its own port.
        "SIGNALS_METRICS_PORT": "0",
        "XDG_STATE_HOME": str(folder / "state"),
        **signals_settings,
    }
    if not variables["SIGNALS_DATABASE_URL"]:
        del variables["SIGNALS_DATABASE_URL"]
    return variables


def run_signals(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in this process, since starting one each time is slow."""
    outer, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        _set_environment(build_environment(folder, **settings))
        try:
            status = main(choose_processes(arguments))
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            _set_environment(outer)
            structlog.reset_defaults()
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def create_key(folder: Path, label: str = "tests", **settings: str) -> str:
    return run_signals(folder, "keys", "create", "--label", label, **settings).stdout.strip()


def list_rows(folder: Path, *command: str, **settings: str) -> list[dict[str, Any]]:
    """Return the rows that a command lists as JSON, such as `keys list`."""
    done = run_signals(folder, *command, "--json", **settings)
    return [json.loads(line) for line in done.stdout.splitlines()]


def choose_processes(arguments: Sequence[str]) -> Sequence[str]:
    """Let `serve` run in a single process unless `--workers` or `--no-compute` is given.

    Its compute process takes more than a second of processor time to start.
    """
    is_chosen = any(one.startswith(("--workers", "--no-compute")) for one in arguments)
    return (
        arguments if arguments[:1] != ("serve",) or is_chosen else [*arguments, "--single-process"]
    )


def create_store(folder: Path) -> None:
    """Create the store of a service that has computed nothing yet, for commands that need one."""
    migrate(folder / "signals.db-access", ACCESS_MIGRATIONS)
    migrate(folder / "signals.db", MARKET_MIGRATIONS)


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


class RunningCommand:
    """A command that runs until it is stopped; `printed` holds the messages read so far."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedCommand", messages: int) -> None:
        """`messages` is the descriptor for reading its standard error."""
        self.process = process
        self.printed: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(messages,))
        self._reader.start()

    @classmethod
    def start(cls, folder: Path, *command: str, env: Mapping[str, str]) -> Self:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, os.dup(process.stderr.fileno()))

    @classmethod
    def fork(cls, folder: Path, *arguments: str, env: Mapping[str, str]) -> Self:
        ours, theirs = os.pipe()
        try:
            return cls(ForkedCommand(folder, arguments, env, theirs), ours)
        finally:
            os.close(theirs)

    def _read(self, messages: int) -> None:
        # A terminal raises OSError when its other end is closed.
        with suppress(OSError), open(messages, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, text: str, within_s: float = SAYS_WITHIN_S) -> str:
        """Wait for a line that contains a text and return it; each line has `within_s` seconds."""
        while True:
            line = self._lines.get(timeout=within_s)
            assert line is not None, f"it ended without {text!r}: {''.join(self.printed)}"
            self.printed.append(line)
            if text in line:
                return line

    def wait_for_event(self, name: str, within_s: float = SAYS_WITHIN_S, **fields: object) -> Event:
        """Wait at most `within_s` seconds for a line of the log with these fields."""
        # A process that logs the event again and again, but never with these fields, must not
        # keep the test waiting.
        ends_at = time.monotonic() + within_s
        while (remaining_s := ends_at - time.monotonic()) > 0:
            for event in select_events([self.wait_for_line(f'"{name}"', remaining_s)], name):
                if event.items() >= fields.items():
                    return event
        raise AssertionError(f"no {name!r} with {fields} within {within_s:g} s")

    def wait_until_caught_up(self) -> None:
        """Wait until a computing command has built its history, or caught up with the clock."""
        if not any("caught_up" in line for line in self.printed):
            self.wait_for_line("caught_up")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait_for_exit()

    def wait_for_exit(self) -> int:
        status = self.process.wait(ENDS_WITHIN_S)
        while (line := self._lines.get(timeout=SAYS_WITHIN_S)) is not None:
            self.printed.append(line)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextmanager
def start_signals(
    folder: Path, *arguments: str, clock_variables: Mapping[str, str] | None = None, **settings: str
) -> Iterator[RunningCommand]:
    """Run the command during the block; `clock_variables` are those that set its clock."""
    arguments = choose_processes(arguments)
    env = {**build_environment(folder, **settings), **(clock_variables or {})}
    if clock_variables:
        process = RunningCommand.start(folder, *COMMAND, *arguments, env=env)
    else:
        process = RunningCommand.fork(folder, *arguments, env=env)
    with process:
        yield process


def find_free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def write_cut_universe(folder: Path, tickers: Container[str]) -> str:
    """Write a universe file with some of the packaged assets; return its path."""
    text = (ROOT / "compute" / "universe.toml").read_text(encoding="utf-8")
    head, *entries = text.split("\n[[asset]]\n")
    wanted = [entry for entry in entries if tomllib.loads(entry)["ticker"] in tickers]
    path = folder / "universe.toml"
    path.write_text("\n[[asset]]\n".join([head, *wanted]), encoding="utf-8")
    return str(path)


def build_faketime_variables(at: str, rate: int) -> dict[str, str]:
    """Return variables that set a process's clock by libfaketime; {} if that is not installed.

    They replace the faketime command, which would not pass signals on to its child.
    """
    if shutil.which("faketime") is None:
        return {}
    shown = subprocess.run(
        ["faketime", "-m", "-f", "+0", "printenv", "LD_PRELOAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "LD_PRELOAD": shown.stdout.strip(),
        "FAKETIME": f"@{at} x{rate}",
        "NO_FAKE_STAT": "1",
        "TZ": "UTC",
    }


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
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended although its status has not arrived yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
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


def parse_events(lines: Iterable[str]) -> list[Event]:
    """Return the events among the lines of standard error; the others are messages."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def select_events(lines: Iterable[str], name: str) -> list[Event]:
    return [event for event in parse_events(lines) if event["event"] == name]


@contextmanager
def capture_log(level: LogLevel = "debug", log_format: LogFormat = "json") -> Iterator[io.StringIO]:
    """Log during the block as a command does that has these settings."""
    err, root = io.StringIO(), logging.getLogger()
    handlers = list(root.handlers)
    try:
        with redirect_stderr(err):
            log_to_standard_error(level, log_format)
            yield err
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers


def drop_requests(logger: object, method: str, event: EventDict) -> EventDict:
    """Leave out the lines of requests; a processor for structlog's `capture_logs`."""
    # A service in this process logs all that it can, and so do the doubles that it calls.
    if event["event"] in ("request", "refused"):
        raise structlog.DropEvent
    return event
