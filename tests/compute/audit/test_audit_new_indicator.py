"""An indicator that is new to a store is audited from the first bar that it read there."""

from pathlib import Path

import pytest

from compute.indicators.registry import INDICATORS
from compute.universe import Universe
from tests.compute.audit.test_audit import alter
from tests.support.small_market import DENSE, audit_store, replay_bars

pytestmark = pytest.mark.clause("audit")

NEW, NEW_CODE = "llnr", 5
CUT = DENSE + 12 * 86_400


@pytest.mark.prove
async def test_readings_from_before_its_first_epoch_are_not_reported_as_missing(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    path = tmp_path / "signals.db"
    known = [indicator for indicator in INDICATORS if indicator.id != NEW]
    assert (await replay_bars(path, bars_folder, universe, CUT, known))["changes"]
    upgraded = await audit_store(path, universe)
    assert (upgraded.findings, upgraded.not_verifiable) == ([], {})
    content = await replay_bars(path, bars_folder, universe)
    assert {row[6] for row in content["changes"] if row[2] == NEW} > {None}
    begun = await audit_store(path, universe)
    assert (begun.findings, begun.not_verifiable) == ([], {})
    assert any(row[9] for row in content["changes"] if row[2] == NEW)
    alter(path, f"UPDATE readings SET reading = -reading WHERE indicator = {NEW_CODE}")
    assert (await audit_store(path, universe)).findings
