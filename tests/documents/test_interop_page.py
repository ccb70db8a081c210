"""docs/interop.md names the clients that tests/interop runs, with their pinned versions."""

import json
import re

import pytest

from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents", "interop")

PAGE = (ROOT / "docs" / "interop.md").read_text()
PINS = ROOT / "tests" / "interop"


def test_the_table_has_every_client_in_the_version_that_the_tests_pin():
    # The first line of a list pins the client, the others what it needs; one list is of a server.
    lists = [path for path in (PINS / "python").glob("*.txt") if path.stem != "fastmcp_server"]
    pinned = {re.match(r"([\w-]+)(?:\[\w+\])?==(\S+)", path.read_text()).groups() for path in lists}
    packages = json.loads((PINS / "node" / "package.json").read_text())["dependencies"]
    for name, version in packages.items():
        alias = re.fullmatch(r"npm:(.+)@(.+)", version)
        pinned.add(alias.groups() if alias else (name, version))
    shown = re.findall(r"^\| (\S+?)(?:, .+?)? \| (\S+) \| .+ \| passed \|$", PAGE, re.MULTILINE)
    assert set(shown) == pinned
