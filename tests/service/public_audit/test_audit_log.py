"""`signals audit --public` keeps the customer's record of the log, and compares with it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.commands.test_serve import served_process
from tests.support.signals_command import run_signals
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars

pytestmark = [pytest.mark.clause("audit", "verify"), pytest.mark.usefixtures("use_single_ca")]


def audit(folder: Path, bars: Path, state: Path):
    """Serve a folder and audit it as a customer who keeps a record."""
    with served_process(folder, source=f"files:{bars}") as (address, _):
        api_key = run_signals(folder, "keys", "create", "--label", "me").stdout.strip()
        arguments = ("audit", "--public", address, "--state", str(state))
        return run_signals(folder, *arguments, api_key=api_key)


def test_a_second_audit_names_rows_that_were_deleted_or_changed(tmp_path):
    bars, service, state = tmp_path / "bars", tmp_path / "service", tmp_path / "mine"
    bars.mkdir()
    service.mkdir()
    write_bars(bars, "BTC", make_bars("BTC", list_opens(DENSE, DENSE + 300 * 3600)))
    first = audit(service, bars, state)
    assert first.stdout.splitlines()[-1] == "clean", first.stdout
    assert ", 1 signed checkpoint, " in first.stdout
    assert sorted(path.name for path in state.iterdir()) == ["checkpoint", "rows.jsonl", "vkey"]
    kept = shutil.copytree(state, tmp_path / "kept")
    with closing(sqlite3.connect(service / "signals.db")) as db:
        db.executescript("DROP TRIGGER changes_delete; DROP TRIGGER changes_update;")
        published = "SELECT created_at FROM changes WHERE published ORDER BY created_at"
        (deleted,), (raised,) = db.execute(f"{published} LIMIT 2").fetchall()
        db.execute("DELETE FROM changes WHERE created_at = ?", (deleted,))
        db.execute("UPDATE changes SET price = 1.2 * price WHERE created_at = ?", (raised,))
        db.commit()
    second = audit(service, bars, state)
    assert second.returncode == 1
    assert " was deleted: the feed no longer has it\n" in second.stdout
    assert ": price was " in second.stdout
    for note in (state / "checkpoint").read_text().split("\n\n"):
        assert note in second.stdout
    assert [path.read_bytes() for path in sorted(state.iterdir())] == [
        path.read_bytes() for path in sorted(Path(kept).iterdir())
    ]


def test_a_state_folder_needs_the_public_audit(tmp_path):
    done = run_signals(tmp_path, "audit", "--state", "mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("signals: --state needs --public URL")
