"""The environments of make and CI, the wheel, which is the whole service, and its metadata.

The environments are run with interpreters that only say their version or name.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mcp_server.tools.tool_table import TOOLS
from schemas.version import VERSION
from tests.support.bad_inputs import build_call
from tests.support.signals_command import (
    ROOT,
    RunningCommand,
    find_free_port,
)

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
    return copy_files(tmp_path / "checkout", "Makefile", "pyproject.toml", "tools/create_venv.sh")


def copy_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def write_python(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def write_version(folder: Path, version: str) -> str:
    return str(write_python(folder / f"python{version}", INTERPRETER.format(version=version)))


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


@pytest.mark.clause("operation")
@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10", None])
def test_an_old_or_missing_python_is_refused_in_one_line_that_names_both_versions(
    checkout: Path, version: str | None
) -> None:
    python = "python3.99" if version is None else write_version(checkout, version)
    status, (line,) = make_venv(checkout, f"PYTHON={python}")
    assert status != 0
    found = f"{python} is {version or 'not a working Python'};"
    assert line.startswith(f"signals needs Python 3.11 or newer, and {found}")
    assert not (checkout / ".venv").exists()


@pytest.mark.clause("operation")
@pytest.mark.parametrize("version", ["3.11", "3.14", "4.0"])
def test_a_new_enough_python_creates_the_environment_once(checkout: Path, version: str) -> None:
    python = write_version(checkout, version)
    assert make_venv(checkout, f"PYTHON={python}") == (0, [])
    (checkout / ".venv" / "installed").touch()
    assert make_venv(checkout, f"PYTHON={python}") == (0, [])
    assert (checkout / ".venv" / "installed").exists()
    assert read_version(checkout) == version


@pytest.mark.clause("operation")
@pytest.mark.parametrize("content", ["", "#!/gone/python3\n", INTERPRETER.format(version="3.10")])
def test_an_environment_with_an_unusable_python_is_recreated(checkout: Path, content: str) -> None:
    python = write_version(checkout, "3.12")
    make_venv(checkout, PYTHON=python)
    (checkout / ".venv" / "bin" / "python").write_text(content)
    (checkout / ".venv" / "installed").touch()
    status, (line,) = make_venv(checkout, PYTHON=python)
    assert status == 0
    assert line.startswith("recreating .venv: its Python ")
    assert read_version(checkout) == "3.12"
    assert not (checkout / ".venv" / "installed").exists()


@pytest.mark.clause("operation")
def test_an_environment_that_was_moved_is_recreated(checkout: Path, tmp_path: Path) -> None:
    python = write_version(tmp_path, "3.12")
    make_venv(checkout, PYTHON=python)
    moved = checkout.rename(tmp_path / "moved")
    assert make_venv(moved, PYTHON=python) == (0, ["recreating .venv: it was moved"])


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


@pytest.fixture
def ci_checkout(tmp_path: Path) -> Path:
    names = ("pyproject.toml", "tools/list_pythons.sh", ".ci/run")
    folder = copy_files(tmp_path / "a checkout", *names)
    (folder / "Makefile").write_text(MAKEFILE)
    write_python(folder / ".venv" / "bin" / "python", WORKING)
    for tool in ("bash", "dirname", "echo", "grep", "make", "sed"):
        (folder / "tools" / tool).symlink_to(shutil.which(tool))
    return folder


def run(ci_checkout: Path, *command: str) -> tuple[int, list[str], list[str]]:
    """Return the status and the lines of both outputs; PATH has only folders of the checkout."""
    done = subprocess.run(
        command,
        cwd=ci_checkout,
        env={
            "PATH": os.pathsep.join(
                f"{ci_checkout}/{name}" for name in ("tools", "first", "second")
            ),
            "PYENV_ROOT": f"{ci_checkout}/pyenv",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def list_pythons(ci_checkout: Path) -> tuple[list[str], list[str]]:
    status, listed, reported = run(ci_checkout, "tools/list_pythons.sh", OWN_VERSION)
    assert status == 0, reported
    return listed, reported


@pytest.mark.clause("tests")
@pytest.mark.prove
def test_the_first_interpreter_of_each_other_supported_version_is_listed(ci_checkout: Path) -> None:
    first, second, third = OTHER_VERSIONS
    for version in (OWN_VERSION, "3.10", "3.99", first):
        write_python(ci_checkout / "first" / f"python{version}", WORKING)
    for version in (first, second):
        write_python(ci_checkout / "second" / f"python{version}", WORKING)
    for version in (second, third):
        write_python(ci_checkout / "pyenv/versions" / version / f"bin/python{version}", WORKING)
    assert list_pythons(ci_checkout) == (
        [
            f"{first} {ci_checkout}/first/python{first}",
            f"{second} {ci_checkout}/second/python{second}",
            f"{third} {ci_checkout}/pyenv/versions/{third}/bin/python{third}",
        ],
        [],
    )


@pytest.mark.clause("tests")
def test_ci_runs_the_fast_tests_on_every_other_python_and_fails_if_one_fails(
    ci_checkout: Path,
) -> None:
    first, second, third = OTHER_VERSIONS
    for version in OTHER_VERSIONS:
        write_python(ci_checkout / "first" / f"python{version}", WORKING)
    expected = ["test", "check"]
    for version in OTHER_VERSIONS:
        python = ci_checkout / "first" / f"python{version}"
        expected += [
            f"Ran the fast tests on Python {version} ({python})",
            f"test-fast {python} .venv-{version}",
        ]
    status, lines, _ = run(ci_checkout, ".ci/run")
    assert lines == [*expected, f"Tests passed on Python {OWN_VERSION} {first} {second} {third}"]
    assert status == 0
    write_python(ci_checkout / "first" / f"python{second}", f"{WORKING}# failing")
    status, lines, _ = run(ci_checkout, ".ci/run")
    result = f"Tests passed on Python {OWN_VERSION} {first} {third}, failed on {second}"
    assert lines == [*expected, result]
    assert status == 1


BODIES = """
import pytest

def test_a():
    pytest.skip("faketime is not installed")

def test_b():
    pytest.skip("no recorded bars in /data")

@pytest.mark.skipif(True, reason="no such tool")
def test_c():
    pass

@pytest.mark.xfail
def test_d():
    raise AssertionError
"""


@pytest.mark.clause("operation")
@pytest.mark.parametrize(
    ("variable", "status", "skipped"),
    [pytest.param("", 0, 3, marks=pytest.mark.prove), ("1", 1, 1)],
)
@pytest.mark.prove
def test_an_unexpected_skip_fails_only_on_request(
    tmp_path: Path, variable: str, status: int, skipped: int
) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(
        "from tests.conftest import pytest_runtest_makereport as it\n"
        "pytest_runtest_makereport = it\n"
    )
    (tmp_path / "test_bodies.py").write_text(BODIES)
    command = f"{sys.executable} -m pytest -p rules -p no:cacheprovider -c /dev/null"
    ran = subprocess.run(
        [*command.split(), f"--rootdir={tmp_path}", tmp_path],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "FAIL_ON_SKIP": variable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert f"{skipped} skipped" in ran.stdout
    assert ("unexpected skip: " in ran.stdout) is bool(status)


NOT_OURS = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "node_modules")
PACKAGES = sorted(path.parent for path in ROOT.glob("*/py.typed"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy = shutil.copytree(ROOT, folder / "copy", symlinks=True, ignore=NOT_OURS)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, *offline, "-w", folder, copy], check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.clause("pages", "operation")
@pytest.mark.prove
def test_it_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    expected = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in PACKAGES
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with ZipFile(wheel) as archive:
        held = {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}
    assert held.keys() ^ expected.keys() == set()
    assert held == expected


@pytest.mark.clause("pages", "operation")
@pytest.mark.prove
def test_its_metadata_has_version_readme_license_and_links(wheel: Path) -> None:
    assert wheel.name == f"signals_mcp-{VERSION}-py3-none-any.whl"
    with ZipFile(wheel) as archive:
        info = f"signals_mcp-{VERSION}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    head, _, description = metadata.partition("\n\n")
    assert f"\nVersion: {VERSION}\n" in head
    assert "\nAuthor: the signals developers\n" in head
    assert "\nProject-URL: Changelog, " in head
    assert description.strip() == (ROOT / "README.md").read_text().strip()


@pytest.mark.clause("pages", "operation")
@pytest.mark.prove
def test_served_from_an_empty_folder_it_answers_every_tool(wheel: Path, tmp_path: Path) -> None:
    signals = install(wheel, tmp_path / "venv")
    (folder := tmp_path / "empty").mkdir()
    port = find_free_port()
    env = {"PATH": os.environ["PATH"], "SIGNALS_PORT": port, "SIGNALS_METRICS_PORT": "0"}
    with RunningCommand.start(folder, str(signals), "serve", env=env) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()
        created = subprocess.run(
            [signals, "keys", "create", "--label", "tests"],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        headers = {"Authorization": f"Bearer {created.stdout.strip()}"}
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
            for tool in TOOLS:
                answer = client.post("/api/v1/mcp", json=build_call(tool.name)).json()
                assert answer["result"]["isError"] is False, tool.name
            for path in ("/", "/docs", "/legal", "/sign-in", "/api/v1/openapi.json"):
                assert client.get(path).status_code == 200, path
        assert process.stop() == 0


def install(wheel: Path, folder: Path) -> Path:
    """Install only the wheel; return its command.

    The dependencies come from this interpreter's folder. A line of a .pth file adds it without
    reading the .pth files in it. Those would add the checkout, which must not be found.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, *quiet, wheel], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    show = "import service, web; print(service.__path__[0], web.__path__[0])"
    shown = subprocess.check_output([folder / "bin" / "python", "-c", show], cwd="/", text=True)
    assert shown.split() == [str(site / "service"), str(site / "web")]
    return folder / "bin" / "signals"


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOCKS = ("requirements.lock", "requirements-dev.lock", "deploy/requirements-live.lock")
PINNED = re.compile(r"^([\w.-]+)(?:\[([\w,-]+)\])?==(\S+)(?: ; ([^\\]+))?", re.MULTILINE)


def read_lock(name: str) -> set[tuple[str, str]]:
    return {(pin[1], pin[3]) for pin in PINNED.finditer((ROOT / name).read_text())}


@pytest.mark.clause("operation")
@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_file_has_a_hash_and_none_an_index(name: str) -> None:
    text = (ROOT / name).read_text()
    blocks = re.split(r"^(?=[\w.-]+(?:\[[\w,-]+\])?==)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > 30
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text
    assert "index" not in text.replace("importlib", "")


@pytest.mark.clause("operation")
def test_the_runtime_lock_is_part_of_the_others_and_holds_no_development_tools() -> None:
    runtime, development, live = map(read_lock, LOCKS)
    assert runtime < live < development
    names = {name for name, _ in runtime}
    assert (
        names & {"ccxt", "distributed", "hypothesis", "mypy", "pandas", "pytest", "ruff"} == set()
    )
    assert {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]} - names == set()


@pytest.mark.clause("operation")
@pytest.mark.prove
def test_the_lock_pins_each_package_with_the_extras_that_others_require() -> None:
    # pip looks for the newest version of `coverage[toml]` if the lock pins `coverage` alone, and
    # then refuses it for its missing hash.
    pinned = {
        pin[1]: set(pin[2].split(",")) if pin[2] else set()
        for pin in PINNED.finditer((ROOT / "requirements-dev.lock").read_text())
    }
    required = [
        (name, extra)
        for installed in distributions()
        if (package := canonicalize_name(installed.name)) in pinned
        for line in installed.requires or ()
        for name, extra in list_extras(line, pinned[package])
    ]
    assert ("coverage", "toml") in required
    assert [pair for pair in required if pair[1] not in pinned[pair[0]]] == []


def list_extras(line: str, extras: set[str]) -> list[tuple[str, str]]:
    """Return the (package, extra) pairs of a requirement, if it applies with one of the extras."""
    requirement = Requirement(line)
    applies = requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
    )
    name = canonicalize_name(requirement.name)
    return [(name, extra) for extra in requirement.extras] if applies else []


@pytest.mark.clause("operation")
def test_each_supported_python_is_named_and_tested_by_the_workflow() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if prefix in line]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r'"3\.(\d+)"', workflow.split("steps:")[0]) == named
    assert PROJECT["requires-python"] == f">=3.{named[0]}"


@pytest.mark.clause("operation")
def test_the_changelog_begins_with_the_changes_of_the_next_release() -> None:
    headings = re.findall(
        r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert headings[0] == ("Unreleased", "")
    assert all(day for _, day in headings[1:])


@pytest.mark.clause("operation")
def test_the_version_is_written_nowhere_else_in_the_code() -> None:
    assert "version" in PROJECT["dynamic"]
    modules = [path for package in PACKAGES for path in package.rglob("*.py")]
    holding = [path for path in modules if f'"{VERSION}"' in path.read_text()]
    assert holding == [ROOT / "schemas" / "version.py"]


@pytest.mark.clause("tests")
def test_the_locks_of_the_service_hold_no_other_client_that_only_we_need() -> None:
    for lock in ("requirements.lock", "deploy/requirements-live.lock"):
        assert {name for name, _ in read_lock(lock)} & {"httpx", "httpx2"} == {"httpx2"}
