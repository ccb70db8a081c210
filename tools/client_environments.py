"""Environments for clients that need conflicting versions of libraries.

An environment is built once for each content of its requirements and kept in `.interop`.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.clauses import ROOT

INTEROP_FOLDER = ROOT / "tests" / "interop"
CACHE_FOLDER = ROOT / ".interop"
# Messages of npm and pip if they cannot reach a package registry. Tests are skipped then, while any
# other failure of an installation fails them.
OFFLINE = re.compile(
    "ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT"
    "|NewConnectionError|ConnectTimeoutError|NameResolutionError"
)


def get_python_environment(name: str) -> Path:
    """Return the interpreter of an environment with the versions pinned in `python/NAME.txt`."""
    listed = INTEROP_FOLDER / "python" / f"{name}.txt"

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", str(folder))
        python = str(folder / "bin" / "python")
        _run(python, "-m", "pip", "install", "--quiet", "-r", str(listed))

    return _get_or_build(name, [listed], make) / "bin" / "python"


def get_node_environment() -> Path:
    """Return a folder with the scripts `node/*.mjs` and the packages of `package-lock.json`."""
    listed = [INTEROP_FOLDER / "node" / file for file in ("package.json", "package-lock.json")]

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        for file in listed:
            shutil.copy(file, folder)
        _run("npm", "ci", "--ignore-scripts", "--loglevel=error", "--prefix", str(folder))

    folder = _get_or_build("node", listed, make)
    # Copied on every call: the digest covers only the lock file, so scripts may have changed.
    for script in (INTEROP_FOLDER / "node").glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def _get_or_build(name: str, listed: list[Path], make: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in listed)).hexdigest()[:12]
    folder = CACHE_FOLDER / f"{name}-{digest}"
    CACHE_FOLDER.mkdir(exist_ok=True)
    # Several test processes can need the same environment at once, and one of them builds it.
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The marker is written last, so an interrupted installation is repeated.
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "whole").touch()
    return folder


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stdout + done.stderr
        if OFFLINE.search(said):
            pytest.skip(f"{Path(command[0]).name} cannot reach a package registry")
        raise RuntimeError(f"{' '.join(command)}: {said[-4000:]}")
