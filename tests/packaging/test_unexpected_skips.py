"""The rule of tests/conftest.py by which an unexpected skip fails in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("operation")

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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rules",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
    ]
    ran = subprocess.run(
        [*command, f"--rootdir={tmp_path}", tmp_path],
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
