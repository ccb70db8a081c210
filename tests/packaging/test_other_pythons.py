""".ci/run and tools/list_pythons.sh, with a Makefile and interpreters that only say their name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("tests")

OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER_VERSIONS = [f"3.{minor}" for minor in (11, 12, 13, 14) if f"3.{minor}" != OWN_VERSION]

MAKEFILE = """
test check:
	@echo $@
test-fast:
	@echo "$@ $(PYTHON) $(VENV)"
	@! grep -q failing "$(PYTHON)"
"""
# The probe runs in this interpreter, whatever version the file is named after.
WORKING = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
UNUSABLE = f"""#!/bin/sh
exec {sys.executable} -c 'import sys; FAULT; exec(sys.argv[1])' "$2"
"""
BROKEN = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    for name in ("pyproject.toml", "tools/list_pythons.sh", ".ci/run"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (folder / "Makefile").write_text(MAKEFILE)
    write_python(folder / ".venv" / "bin" / "python", WORKING)
    for tool in ("bash", "dirname", "echo", "grep", "make", "sed"):
        found = shutil.which(tool)
        assert found is not None
        (folder / "tools" / tool).symlink_to(found)
    return folder


def write_python(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def run(checkout: Path, *command: str) -> tuple[int, list[str], list[str]]:
    """Return the status and the lines of both outputs; PATH has only folders of the checkout."""
    done = subprocess.run(
        command,
        cwd=checkout,
        env={
            "PATH": os.pathsep.join(f"{checkout}/{name}" for name in ("tools", "first", "second")),
            "PYENV_ROOT": f"{checkout}/pyenv",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def list_pythons(checkout: Path) -> tuple[list[str], list[str]]:
    status, listed, reported = run(checkout, "tools/list_pythons.sh", OWN_VERSION)
    assert status == 0, reported
    return listed, reported


def test_the_first_interpreter_of_each_other_supported_version_is_listed(checkout: Path) -> None:
    first, second, third = OTHER_VERSIONS
    for version in (OWN_VERSION, "3.10", "3.99", first):
        write_python(checkout / "first" / f"python{version}", WORKING)
    for version in (first, second):
        write_python(checkout / "second" / f"python{version}", WORKING)
    for version in (second, third):
        write_python(checkout / "pyenv/versions" / version / f"bin/python{version}", WORKING)
    assert list_pythons(checkout) == (
        [
            f"{first} {checkout}/first/python{first}",
            f"{second} {checkout}/second/python{second}",
            f"{third} {checkout}/pyenv/versions/{third}/bin/python{third}",
        ],
        [],
    )


def test_an_interpreter_that_does_not_work_is_passed_over(checkout: Path) -> None:
    version = OTHER_VERSIONS[0]
    write_python(checkout / "first" / f"python{version}", BROKEN)
    assert list_pythons(checkout) == ([], [])
    working = write_python(checkout / "second" / f"python{version}", WORKING)
    assert list_pythons(checkout) == ([f"{version} {working}"], [])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ('sys.modules["ensurepip"] = None', "it has no module ensurepip"),
        (
            "import ensurepip, sysconfig, venv; "
            'sys.version_info = type("", (), {"releaselevel": "candidate"})',
            "it is a pre-release",
        ),
        (
            'import sysconfig; sysconfig.get_config_var = {"Py_GIL_DISABLED": 1}.get',
            "it is free-threaded",
        ),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_named_and_skipped(
    checkout: Path, fault: str, reason: str
) -> None:
    version = OTHER_VERSIONS[0]
    content = UNUSABLE.replace("FAULT", fault)
    unusable = write_python(checkout / "first" / f"python{version}", content)
    assert list_pythons(checkout) == ([], [f"skipping {unusable}: {reason}"])
    usable = write_python(checkout / "second" / f"python{version}", WORKING)
    assert list_pythons(checkout)[0] == [f"{version} {usable}"]


def test_ci_runs_the_fast_tests_on_every_other_python_and_fails_if_one_fails(
    checkout: Path,
) -> None:
    first, second, third = OTHER_VERSIONS
    for version in OTHER_VERSIONS:
        write_python(checkout / "first" / f"python{version}", WORKING)
    expected = ["test", "check"]
    for version in OTHER_VERSIONS:
        python = checkout / "first" / f"python{version}"
        expected += [
            f"Running the fast tests on Python {version} ({python})",
            f"test-fast {python} .venv-{version}",
        ]
    status, lines, _ = run(checkout, ".ci/run")
    assert lines == [*expected, f"Tests passed on Python {OWN_VERSION} {first} {second} {third}"]
    assert status == 0
    write_python(checkout / "first" / f"python{second}", f"{WORKING}# failing")
    status, lines, _ = run(checkout, ".ci/run")
    result = f"Tests passed on Python {OWN_VERSION} {first} {third}, failed on {second}"
    assert lines == [*expected, result]
    assert status == 1


def test_ci_needs_no_other_python(checkout: Path) -> None:
    passed = ["test", "check", f"Tests passed on Python {OWN_VERSION}"]
    assert run(checkout, ".ci/run") == (0, passed, [])
