"""Environments for clients whose versions conflict with each other's and with ours.

Made once for each content of their lists, under `.interop` beside the code, and kept.
"""

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
# What npm and pip say where they reach no package registry.
OFFLINE = re.compile(
    "ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT"
    "|NewConnectionError|ConnectTimeoutError|NameResolutionError"
)


def get_python_environment(name: str) -> Path:
    """Return the interpreter of an environment with what `python/NAME.txt` pins."""
    listed = INTEROP_FOLDER / "python" / f"{name}.txt"

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", str(folder))
        python = str(folder / "bin" / "python")
        _run(python, "-m", "pip", "install", "--quiet", "-r", str(listed))

    return _get_or_build(name, [listed], make) / "bin" / "python"


def get_node_environment() -> Path:
    """Return a folder with `node/*.mjs` and, in `node_modules`, what `package-lock.json` pins."""
    listed = [INTEROP_FOLDER / "node" / file for file in ("package.json", "package-lock.json")]

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        for file in listed:
            shutil.copy(file, folder)
        _run("npm", "ci", "--ignore-scripts", "--loglevel=error", "--prefix", str(folder))

    folder = _get_or_build("node", listed, make)
    for script in (INTEROP_FOLDER / "node").glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def _get_or_build(name: str, listed: list[Path], make: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in listed)).hexdigest()[:12]
    folder = CACHE_FOLDER / f"{name}-{digest}"
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
            pytest.skip(f"{Path(command[0]).name} reaches no package registry")
        raise RuntimeError(f"{' '.join(command)}: {said[-4000:]}")
