"""Adding an indicator does not change the stored readings and rows of the others.

Tests of a store without it run in a copy of the repository to which an indicator was added.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("store")

FOLDERS = (
    *("schemas", "store", "access", "serving", "mcp_server", "rest_shim", "web", "compute"),
    *("service", "tests", "tools"),
)
NEW_FILES = {
    "momentum.py": "compute/indicators/momentum.py",
    "in_an_older_store.py": "tests/store/test_momentum.py",
}
# By file: an existing text, and the line to insert before it.
NEW_LINES = {
    "schemas/vocabulary.py": {
        "}\n# These have no rows": '    "momentum": (15, 16),\n',
    },
}


def copy_tree(parent: Path) -> Path:
    """Copy the repository, add an indicator to the copy and return its path."""
    tree = parent / "tree"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name, path in NEW_FILES.items():
        shutil.copy(ROOT / "tests" / "doubles" / "momentum" / name, tree / path)
    for name, lines in NEW_LINES.items():
        text = (tree / name).read_text(encoding="utf-8")
        for place, line in lines.items():
            assert text.count(place) == 1
            text = text.replace(place, line + place)
        (tree / name).write_text(text, encoding="utf-8")
    return tree


@pytest.mark.prove
def test_an_indicator_is_added_by_a_file_and_one_line(tmp_path: Path):
    tree = copy_tree(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-k",
            "postgres",
            NEW_FILES["in_an_older_store.py"],
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
