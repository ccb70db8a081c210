"""The service sends its own requests by one HTTP library."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.clause("tests")

ROOT = Path(__file__).parents[2]
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


def list_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names & HTTP_CLIENTS


def test_every_package_imports_only_one_http_client() -> None:
    users: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in list_imports(path):
                users.setdefault(name, []).append(str(path.relative_to(ROOT)))
    # ccxt sends its requests by aiohttp, and its venue only translates the errors.
    assert users.pop("aiohttp") == ["compute/sources/ccxt_venue.py"]
    assert set(users) == {"httpx2"}, users


def test_the_locks_of_the_service_hold_no_other_client_that_only_we_need() -> None:
    for lock in ("requirements.lock", "deploy/requirements-live.lock"):
        names = set(
            re.findall(r"^([a-z0-9-]+)(?:\[.+\])?==", (ROOT / lock).read_text(), re.MULTILINE)
        )
        assert "httpx" not in names
        assert "httpx2" in names
