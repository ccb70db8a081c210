"""docs/proof.md shows what customers read when an operator rewrites history.

The SQL of each scene on the page is executed, and the output of the real command is compared with
the page. Hashes, signatures, keys and the date of the record differ each time and are masked.
"""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service.commands.test_serve import served_process
from tests.support.signals_command import ROOT, run_signals
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars

pytestmark = [pytest.mark.clause("verify", "documents"), pytest.mark.usefixtures("use_single_ca")]

PAGE = (ROOT / "docs" / "proof.md").read_text()
SCENES = dict(re.findall(r"<!-- scene: (\w+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))
SQL = {
    name: code
    for code, name in re.findall(r"```sql\n(.*?)```\n\n<!-- scene: (\w+) -->", PAGE, re.DOTALL)
}
BASE_URL = "https://signals.example"
HOURS, LAST_DAY = 400, 24
MASKS = {
    r"\+[0-9a-f]{8}\+[A-Za-z0-9+/]{44}": "+KEYID+KEY",
    r"[A-Za-z0-9+/]{102}==": "TIMED SIGNATURE",
    r"[A-Za-z0-9+/]{91}=": "SIGNATURE",
    r"[A-Za-z0-9+/]{43}=": "ROOT",
    r"at \d{4}-\d\d-\d\d \d\d:\d\d UTC": "at DATE UTC",
    r"in \S+/evidence-\S+": "in STATE/evidence-TIME.json",
}


def mask(text: str) -> str:
    for pattern, name in MASKS.items():
        text = re.sub(pattern, name, text)
    return text


@dataclass(frozen=True)
class Operator:
    """A service in a folder, on bars outside of it, and the record of its customer."""

    folder: Path
    bars: Path

    def record_hours(self, count: int) -> None:
        rows = make_bars("BTC", list_opens(DENSE, DENSE + HOURS * 3600))
        write_bars(self.bars, "BTC", rows[:count])

    def verify(self) -> str:
        """Start the service, verify it, and return what the command prints."""
        source = f"files:{self.bars}"
        with served_process(self.folder, source=source, base_url=BASE_URL, billing="off") as (
            address,
            _,
        ):
            api_key = run_signals(self.folder, "keys", "create", "--label", "me").stdout.strip()
            state = str(self.folder / "state")
            done = run_signals(
                self.folder, "verify", "--url", address, "--state", state, api_key=api_key
            )
        return mask(f"{done.stdout.replace(address, BASE_URL)}(exit status {done.returncode})\n")

    def restore(self, backup: Path) -> None:
        """Replace the databases by those of a backup."""
        for path in self.folder.glob("signals.db*"):
            if not path.name.endswith("log-key.json"):
                path.unlink()
        assert run_signals(self.folder, "restore", str(backup)).returncode == 0


@pytest.fixture(scope="module")
def verified(tmp_path_factory) -> Operator:
    """A service whose recording ends a day early, which a customer has verified."""
    operator = Operator(tmp_path_factory.mktemp("service"), tmp_path_factory.mktemp("bars"))
    operator.record_hours(HOURS - LAST_DAY)
    assert operator.verify() == mask(SCENES["first"])
    return operator


@pytest.fixture
def operator(verified, tmp_path) -> Iterator[Operator]:
    """A copy of that service and of its customer's record."""
    yield Operator(Path(shutil.copytree(verified.folder, tmp_path / "service")), verified.bars)
    verified.record_hours(HOURS - LAST_DAY)


def test_a_change_by_the_operator_prints_what_the_page_shows(operator):
    with closing(sqlite3.connect(operator.folder / "signals.db")) as db:
        db.executescript(SQL["price"])
    assert operator.verify() == mask(SCENES["price"])


def test_a_restored_backup_and_a_new_log_end_as_the_page_says(operator, tmp_path):
    backup = tmp_path / "backup"
    assert run_signals(operator.folder, "backup", str(backup)).returncode == 0
    operator.record_hours(HOURS)
    assert operator.verify().endswith("verified\n(exit status 0)\n")
    operator.restore(backup)
    printed = operator.verify()
    assert "The log is not signed at the moment: the first 31 leaves are not those that" in printed
    assert printed.endswith("not verified\n(exit status 2)\n")
    settings = {"base_url": BASE_URL, "billing": "off"}
    assert run_signals(operator.folder, "log", "restart", **settings).returncode == 0
    printed = operator.verify()
    assert "the key of the log has changed" in printed
    assert "3 of 30 verified rows have lost their leaf" in printed
    assert printed.endswith("findings\n(exit status 1)\n")
