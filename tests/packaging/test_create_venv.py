"""tools/create_venv.sh, run through make with interpreters that only print a version."""

import subprocess
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("operation")

# Answers `-c` with its version, and `-m venv` with a folder that holds a copy of itself.
INTERPRETER = """#!/bin/sh
case "$1" in
-c) echo {version} ;;
-m) mkdir -p .venv/bin && touch .venv/pyvenv.cfg && cp "$0" .venv/bin/python &&
    echo "#!$(pwd -P)/.venv/bin/python" > .venv/bin/pip ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "tools/create_venv.sh"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tools" / "create_venv.sh").chmod(0o755)
    return folder


def write_python(folder: Path, version: str) -> str:
    path = folder / f"python{version}"
    path.write_text(INTERPRETER.format(version=version))
    path.chmod(0o755)
    return str(path)


def make_venv(checkout: Path, *variables: str, **environment: str) -> tuple[int, list[str]]:
    """Return make's status and the lines printed, without those of make itself."""
    made = subprocess.run(
        ["make", *variables, ".venv/pyvenv.cfg"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return made.returncode, [x for x in made.stderr.splitlines() if not x.startswith("make: ")]


def read_version(checkout: Path) -> str:
    return subprocess.check_output([checkout / ".venv/bin/python", "-c", ""], text=True).strip()


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10"])
def test_an_old_python_is_refused_in_one_line_that_names_both_versions(
    checkout: Path, version: str
) -> None:
    python = write_python(checkout, version)
    status, (line,) = make_venv(checkout, f"PYTHON={python}")
    assert status != 0
    assert line.startswith(f"signals needs Python 3.11 or newer, and {python} is {version};")
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_reported_in_one_line(checkout: Path) -> None:
    status, (line,) = make_venv(checkout, "PYTHON=python3.99")
    assert status != 0
    assert line.startswith(
        "signals needs Python 3.11 or newer, and python3.99 is not a working Python;"
    )


@pytest.mark.parametrize("version", ["3.11", "3.14", "4.0"])
def test_a_new_enough_python_creates_the_environment_once(checkout: Path, version: str) -> None:
    python = write_python(checkout, version)
    assert make_venv(checkout, f"PYTHON={python}") == (0, [])
    (checkout / ".venv" / "installed").touch()
    assert make_venv(checkout, f"PYTHON={python}") == (0, [])
    assert (checkout / ".venv" / "installed").exists()
    assert read_version(checkout) == version


def test_another_version_is_installed_only_on_request(checkout: Path) -> None:
    (first, second) = (write_python(checkout, version) for version in ("3.12", "3.13"))
    make_venv(checkout, PYTHON=first)
    assert make_venv(checkout) == (0, [])
    assert read_version(checkout) == "3.12"
    status, (line,) = make_venv(checkout, PYTHON=second)
    assert (status, line) == (0, "recreating .venv: its Python is 3.12, not 3.13")
    assert read_version(checkout) == "3.13"


@pytest.mark.parametrize("content", ["", "#!/gone/python3\n", INTERPRETER.format(version="3.10")])
def test_an_environment_with_an_unusable_python_is_recreated(checkout: Path, content: str) -> None:
    python = write_python(checkout, "3.12")
    make_venv(checkout, PYTHON=python)
    (checkout / ".venv" / "bin" / "python").write_text(content)
    (checkout / ".venv" / "installed").touch()
    status, (line,) = make_venv(checkout, PYTHON=python)
    assert status == 0
    assert line.startswith("recreating .venv: its Python ")
    assert read_version(checkout) == "3.12"
    assert not (checkout / ".venv" / "installed").exists()


def test_an_environment_that_was_moved_is_recreated(checkout: Path, tmp_path: Path) -> None:
    python = write_python(tmp_path, "3.12")
    make_venv(checkout, PYTHON=python)
    moved = checkout.rename(tmp_path / "moved")
    assert make_venv(moved, PYTHON=python) == (0, ["recreating .venv: it was moved"])
