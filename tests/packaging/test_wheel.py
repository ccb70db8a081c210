"""The wheel, installed in an empty folder, is the whole service: `make prove`."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from mcp_server.tools.registry import TOOLS
from schemas.version import VERSION
from tests.support.signals_command import (
    ROOT,
    RunningCommand,
    find_free_port,
)

pytestmark = [pytest.mark.clause("pages", "operation"), pytest.mark.prove]

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


def test_served_from_an_empty_folder_it_answers_every_tool(wheel: Path, tmp_path: Path) -> None:
    signals = install(wheel, tmp_path / "venv")
    folder = tmp_path / "empty"
    folder.mkdir()
    port = find_free_port()
    env = {
        "PATH": os.environ["PATH"],
        "SIGNALS_PORT": port,
        "SIGNALS_METRICS_PORT": "0",
    }
    process = RunningCommand.start(folder, str(signals), "serve", env=env)
    try:
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
                assert call(client, tool.name).get("isError") is not True, tool.name
            for path in ("/", "/docs", "/legal", "/sign-in", "/api/v1/openapi.json"):
                assert client.get(path).status_code == 200, path
        assert process.stop() == 0
    finally:
        process.kill()


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


def call(client: httpx.Client, tool: str) -> dict[str, object]:
    params = {"name": tool, "arguments": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = client.post("/api/v1/mcp", json=body).raise_for_status()
    result: dict[str, object] = response.json()["result"]
    return result
