"""The real service signs a log that a stranger's program verifies, on both databases."""

import json
import math
from pathlib import Path

import httpx
import pytest
import rfc8785
from tlog_scales.backend import HttpBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey
from tlog_scales.tiles import leaf_hash
from tlog_scales.tlog import Checkpoint

from tests.rest_shim.test_log import COVERED, parse_proof
from tests.service.commands.test_cli import HEADER
from tests.support.signals_command import find_free_port, run_signals, start_signals
from tests.support.store_homes import StoreHome, build_database_url

pytestmark = pytest.mark.clause("proof")

KEY_FILE = "log-key.json"


def write_waves(folder: Path, count: int) -> Path:
    """Write hourly bars whose trend turns again and again, so that readings change."""
    folder.mkdir(exist_ok=True)
    closes = [100 + 20 * math.sin(hour / 15) for hour in range(count)]
    lines = [
        f"{1_735_689_600 + 3600 * hour},{close},{close + 1},{close - 1},{close},1"
        for hour, close in enumerate(closes)
    ]
    (folder / "BTC_1h.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


def compute(folder: Path, count: int, **settings: str) -> None:
    """Compute so many hours of recorded bars, or the hours that are new."""
    bars = write_waves(folder / "bars", count)
    done = run_signals(folder, "replay", "--bars", str(bars), **settings)
    assert done.returncode == 0, done.stderr


def read_log(address: str) -> tuple[Checkpoint, TilesReader]:
    """Return the verified checkpoint of a service, and a reader of its tiles."""
    reader = TilesReader(HttpBackend(f"{address}/api/v1/log"))
    checkpoint = reader.get_checkpoint()
    checkpoint.verify(Vkey.from_string(httpx.get(f"{address}/api/v1/log/key").text.strip()))
    assert reader.calculate_root_hash() == checkpoint.root_hash
    return checkpoint, reader


@pytest.mark.clause("21.1", "21.2", "21.7", "21.8")
@pytest.mark.sampled(2)
def test_a_stranger_verifies_rows_and_growth(home: StoreHome, tmp_path: Path) -> None:
    settings = {"database_url": build_database_url(home), "log_key_file": KEY_FILE}
    compute(tmp_path, 300, **settings)
    api_key = run_signals(tmp_path, "keys", "create", "--label", "me", **settings).stdout.strip()
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, **settings) as process:
        process.wait_for_line("Listening on ")
        address = f"http://127.0.0.1:{port}"
        before, _ = read_log(address)
        compute(tmp_path, 400, **settings)
        after, reader = read_log(address)
        proof = reader.get_consistency_proof(before.size, after.size)
        proof.check(before.root_hash, after.root_hash)
        assert 0 < before.size < after.size
        rows = httpx.get(
            f"{address}/api/v1/signals",
            params={"tier": "all", "order": "oldest", "since": "2020-01-01"},
            headers={"X-Api-Key": api_key},
        ).json()["signals"]
        assert len(rows) > 3
        for row in rows[:3]:
            shown = httpx.get(
                f"{address}/api/v1/log/proof",
                params={"id": row["id"]},
                headers={"X-Api-Key": api_key},
            )
            salt, inclusion, signed = parse_proof(shown.text)
            assert signed == after
            text = rfc8785.dumps({name: row[name] for name in COVERED})
            inclusion.check(leaf_hash(salt + text), after.root_hash)
        assert process.stop() == 0


@pytest.mark.clause("21.7", "21.13")
def test_a_restored_backup_is_published_but_not_signed(tmp_path: Path) -> None:
    settings = {"log_key_file": KEY_FILE}
    compute(tmp_path, 300, **settings)
    run_signals(tmp_path, "backup", "copy", **settings)
    compute(tmp_path, 400, **settings)
    signed = json.loads((tmp_path / KEY_FILE).read_text())["size"]
    restored = {**settings, "database_url": f"sqlite:///{tmp_path / 'restored.db'}"}
    assert run_signals(tmp_path, "restore", "copy", **restored).returncode == 0
    # The same hours are computed again: equal rows, but with other salts.
    compute(tmp_path, 400, **restored)
    assert json.loads((tmp_path / KEY_FILE).read_text())["size"] == signed
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, **restored) as process:
        process.wait_for_line("Listening on ")
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/log/checkpoint")
        assert answer.status_code == 503
        assert f"the first {signed} rows are not those that were signed" in answer.text
        assert process.stop() == 0
    assert run_signals(tmp_path, "log", "restart", **restored).returncode == 0
    with start_signals(tmp_path, "serve", "--no-compute", port=port, **restored) as process:
        process.wait_for_line("Listening on ")
        checkpoint, _ = read_log(f"http://127.0.0.1:{port}")
        assert checkpoint.origin.endswith("/api/v1/log/2")
        assert process.stop() == 0
