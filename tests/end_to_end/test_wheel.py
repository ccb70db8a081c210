"""The installed package contains all files of the pages: `make prove`."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.signals_command import ROOT

pytestmark = [pytest.mark.clause("pages"), pytest.mark.prove]
NOT_OURS = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "node_modules")


def test_the_wheel_holds_every_template_text_and_file_of_the_pages(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT, tmp_path / "copy", symlinks=True, ignore=NOT_OURS)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, *offline, "-w", tmp_path, copy], check=True, timeout=300)
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as wheel:
        for folder in ("static", "templates", "texts"):
            for path in (ROOT / "web" / folder).iterdir():
                assert wheel.read(f"web/{folder}/{path.name}") == path.read_bytes()
