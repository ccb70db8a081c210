"""The PostgreSQL servers for tests: empty databases, deliberate faults, clean removal."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres.server import (
    ROOT,
    SharedServer,
    build_unprivileged_command,
    find_installations,
    make_private_folder,
    make_runnable,
)

pytestmark = pytest.mark.clause("tests")

RUN = """
import os, sys
from pathlib import Path
from tests.support.postgres.server import PostgresServer
from tests.support.postgres.server import get_shared_server
shared = get_shared_server(sys.argv[1], Path(sys.argv[2]), os.getpid())
with PostgresServer.start_new(shared.template) as own, own.freeze():
    print(shared.template.data.parent, shared.pid, own.pid, flush=True)
    sys.stdin.read()
"""
WITHIN_S = 120


@pytest.mark.prove
def test_a_killed_run_leaves_no_server_and_no_folder(postgres: SharedServer, tmp_path: Path):
    arguments = [sys.executable, "-c", RUN, postgres.major, str(tmp_path)]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        folder, *pids = run.stdout.readline().decode().split()
        parent = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(") ")[2].split()[1]
        alive = [os.pidfd_open(int(pid)) for pid in (*pids, parent)]
        run.kill()
    for one in alive:
        assert select.select([one], [], [], WITHIN_S)[0] == [one]
        os.close(one)
    assert not Path(folder).exists()


@pytest.mark.prove
def test_programs_in_a_folder_of_roots_can_be_run(tmp_path: Path):
    *_, packaged = find_installations().values()
    package = packaged.programs.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        (tmp_path / part.name).symlink_to(part)
    hidden = tmp_path / packaged.programs.relative_to(package.parent)
    with make_private_folder() as folder:
        initdb = make_runnable(hidden, folder) / "initdb"
        version = subprocess.run(
            build_unprivileged_command(initdb, "--version"), stdout=subprocess.PIPE
        )
    assert version.stdout.decode().split()[2].startswith(f"{packaged.major}.")
