"""A real PostgreSQL server on loopback, which ends with the process that started it.

For Linux, with util-linux: its `setpriv` makes root `nobody`, as whom alone PostgreSQL runs, and
asks the kernel to end the server with its parent.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGQUIT
from typing import Self

from tests.support.postgres.installations import Installation

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_wal_size": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "log_checkpoints": "off",
    # Nothing is left in /dev/shm by a server that was killed.
    "dynamic_shared_memory_type": "mmap",
}
# Below those that the kernel gives to whoever asks for any, so none is taken while it restarts.
PORTS = range(20_000, 32_000)
WITHIN_S = 30
FREEZE = """
kill -STOP "$1"
pids="$1 $(cat "/proc/$1/task/$1/children")"
kill -STOP $pids
echo
read _
kill -CONT $pids
"""


@dataclass(frozen=True, slots=True)
class ServerTemplate:
    """What servers start from: programs that they may run, and data that each takes a copy of."""

    programs: Path
    data: Path

    @classmethod
    def create(cls, installation: Installation, folder: Path) -> Self:
        """Make one in a private folder: 0.6 s."""
        origin = cls(make_runnable(installation.programs, folder), folder / "origin")
        _run(
            *(origin.programs / "initdb", "-D", origin.data, "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C.UTF-8", *installation.collation),
            *("--wal-segsize=1", "--no-sync", "--no-instructions"),
        )
        return origin


class PostgresServer:
    """A server that a test may harm: with a folder, a port and data of its own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._program = programs / "postgres"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def start_new(cls, origin: ServerTemplate) -> Iterator[Self]:
        """Run one on a copy of an origin's data until the block ends.

        It ends with its parent *thread*, so this is to be entered in one that lasts. Its folder is
        beside the origin, and goes with that at the latest.
        """
        with make_private_folder(origin.data.parent) as folder:
            server = cls(origin.programs, folder)
            _run("cp", "-r", origin.data, server.data)
            try:
                server.start()
                yield server
            finally:
                server.stop()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        command = build_unprivileged_command(
            self._program, "-D", self.data, "-p", self.port, *settings
        )
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
        deadline = time.monotonic() + WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.002)  # it tells in a file, as to pg_ctl, which looks ten times a second

    def stop(self) -> None:
        """End it at once, as a crash would: sessions are cut, data is recovered at the start."""
        if self._process is not None:
            self._process.send_signal(SIGQUIT)
            self._process.wait(WITHIN_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Have it do nothing within the block, not even refuse a connection."""
        # Thawed by a process of its own, also where this one is killed: else it could not end.
        with subprocess.Popen(
            ["sh", "-c", FREEZE, "sh", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as frozen:
            assert frozen.stdout is not None
            frozen.stdout.readline()
            yield

    def _is_ready(self) -> bool:
        with suppress(FileNotFoundError):
            told = (self.data / "postmaster.pid").read_text().splitlines()
            return told[:1] == [str(self.pid)] and told[7:8] == ["ready   "]
        return False


@contextmanager
def make_private_folder(inside: Path | None = None) -> Iterator[Path]:
    """Make a folder that a server may write to."""
    folder = Path(tempfile.mkdtemp(prefix="signals-postgres-", dir=inside))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        yield folder
    finally:
        while folder.exists():  # a server inside may still be about to end, and write
            shutil.rmtree(folder, ignore_errors=True)


def make_runnable(programs: Path, folder: Path) -> Path:
    """Return programs where `nobody` may run them: those, or a copy where root hides them."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    package = programs.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, folder / part.name)
    return folder / programs.relative_to(package.parent)


def build_unprivileged_command(*command: object) -> list[str]:
    """Return a command that ends with its parent, and is not root's."""
    drop = []
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        drop = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return ["setpriv", "--pdeathsig=QUIT", *drop, *map(str, command)]


def _run(*command: object) -> None:
    done = subprocess.run(
        build_unprivileged_command(*command), cwd="/", capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
