"""One server for all processes of a test run, owned by a process that ends with the run.

`python -m tests.support.postgres.shared_server MAJOR PID` runs it as long as process PID exists.
"""

import fcntl
import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.postgres.installations import find_installations
from tests.support.postgres.server import PostgresServer, ServerTemplate, make_private_folder

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
    keeper = [sys.executable, "-m", "tests.support.postgres.shared_server", major, str(run)]
    with subprocess.Popen(
        ["setsid", "--fork", *keeper], cwd=ROOT, stdout=subprocess.PIPE
    ) as keeping:
        assert keeping.stdout is not None
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
