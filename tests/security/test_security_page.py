"""SECURITY.md names the tests of each promise, and its figures match the code."""

import re

import pytest

from service.config.settings import DEFAULT_IDLE_S
from service.http.gate import MAX_FRAMING_BYTES
from service.http.server import RESERVED_DESCRIPTORS
from serving.http import MAX_BODY_BYTES
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "SECURITY.md").read_text()
PROMISES = re.findall(
    r"^\| (?!promise|---)(.+) \| (.+) \|$",
    PAGE.split("## Promises")[1].split("\n## ")[0],
    re.MULTILINE,
)
ATTACKS = PAGE.split("## Attacks")[1].split("\n## ")[0]


def test_every_promise_names_test_files_that_exist():
    assert len(PROMISES) > 10
    for promise, tests_by_promise in PROMISES:
        files = re.findall(r"`(tests/[\w/]+/test_\w+\.py)`", tests_by_promise)
        assert ", ".join(f"`{file}`" for file in files) == tests_by_promise, promise
        for file in files:
            assert "\ndef test_" in (text := (ROOT / file).read_text()) or "async def test_" in text


def test_every_attack_names_a_test_that_exists():
    attacks = re.findall(r"^\| .+ \| `(test_\w+)` \|$", ATTACKS, re.MULTILINE)
    assert len(attacks) == len(re.findall(r"^\| ", ATTACKS, re.MULTILINE)) - 1 > 20
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in attacks if f"def {name}(" not in tests] == []


def test_every_security_test_is_named():
    ours = {f"tests/security/{path.name}" for path in (ROOT / "tests/security").glob("test_*.py")}
    assert ours - set(re.findall(r"tests/\w+/\w+\.py", PAGE)) == {
        "tests/security/test_security_page.py"
    }


def test_the_figures_of_the_page_match_the_code():
    assert f"waits for {DEFAULT_IDLE_S} seconds" in PAGE
    assert f"trailers of a body have {MAX_FRAMING_BYTES >> 10} KiB" in PAGE
    assert f"{RESERVED_DESCRIPTORS} files are reserved" in PAGE
    assert f"over {MAX_BODY_BYTES >> 10} KiB" in PAGE


def test_the_readme_links_the_page():
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text()
