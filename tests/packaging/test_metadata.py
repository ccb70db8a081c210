"""The metadata of the distribution, the lock files, what packages carry, and one HTTP library."""

import ast
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from schemas.version import VERSION
from tests.support.signals_command import ROOT

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
def test_every_installed_package_is_typed_and_covered() -> None:
    installed = {name.removesuffix("*") for name in find_included()}
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} == installed
    assert set(PYPROJECT["tool"]["coverage"]["run"]["source_pkgs"]) == installed


def find_included() -> list[str]:
    return list(PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"])


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
    folders = [ROOT / name.removesuffix("*") for name in find_included()]
    holding = [
        path.relative_to(ROOT)
        for folder in folders
        for path in folder.rglob("*.py")
        if f'"{VERSION}"' in path.read_text()
    ]
    assert holding == [Path("schemas/version.py")]


PACKAGES = (
    *("access", "compute", "mcp_server", "rest_shim", "schemas", "service", "serving", "store"),
    "web",
)
HTTP_CLIENTS = {
    "aiohttp",
    "http.client",
    "httpx",
    "httpx2",
    "requests",
    "urllib.request",
    "urllib3",
}


@pytest.mark.clause("tests")
@pytest.mark.prove
def test_every_package_imports_only_one_http_client() -> None:
    users: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            names = set[str | None]()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add(node.module)
            for name in names & HTTP_CLIENTS:
                users.setdefault(name, []).append(str(path.relative_to(ROOT)))
    # ccxt sends its requests by aiohttp, and its venue only translates the errors.
    assert users.pop("aiohttp") == ["compute/sources/ccxt_venue.py"]
    # Only its reader of NO_PROXY is used.
    assert users.pop("urllib.request") == ["service/config/settings.py"]
    assert set(users) == {"httpx2"}, users


@pytest.mark.clause("tests")
def test_the_locks_of_the_service_hold_no_other_client_that_only_we_need() -> None:
    for lock in ("requirements.lock", "deploy/requirements-live.lock"):
        names = set(
            re.findall(r"^([a-z0-9-]+)(?:\[.+\])?==", (ROOT / lock).read_text(), re.MULTILINE)
        )
        assert "httpx" not in names
        assert "httpx2" in names
