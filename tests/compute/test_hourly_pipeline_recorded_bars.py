"""Recorded bars through the whole pipeline: replay, clean audit, the readings of single assets."""

from pathlib import Path

import numpy as np
import pytest

from compute.indicators.contract import NO_READING, Bar
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.universe import load_universe
from tests.support import recorded_bars as recorded
from tests.support.small_market import audit_store, replay_bars

pytestmark = pytest.mark.clause("steps")

# Rows enough for a reading: of daily bars, on 4h of BTC's and on 4h of NVDA's, 7 of whom give 3.
SUBSET = {"AAPL_1d.csv": 240, "BTC_1h.csv": 840, "BTC_funding.csv": 840, "NVDA_1h.csv": 560}


def step_separately(end: int) -> set[tuple[str, str, str, int]]:
    """Step every recorded series by itself, bar by bar; return its last readings."""
    found = set()
    for label, series in recorded.load_recorded_series.__wrapped__():
        ticker, timeframe = label.split()
        closed = series["close_time"] <= end
        columns = [series[field][closed] for field in Bar._fields]
        for indicator in INDICATORS:
            carry, reading = indicator.start(1), np.array([NO_READING])
            for at in range(int(closed.sum())):
                bar = Bar(*(column[at : at + 1] for column in columns))
                carry, reading = indicator.step(carry, bar)
            if reading[0] != NO_READING:
                found.add((ticker, timeframe, indicator.id, int(reading[0])))
    return found


@pytest.mark.parametrize(
    "subset", [SUBSET, pytest.param(None, marks=pytest.mark.prove)], ids=["subset", "everything"]
)
async def test_recorded_bars_replay_audit_clean_and_read_as_each_asset_does_by_itself(
    subset: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recorded.require_recorded()
    universe, folder = load_universe(), recorded.get_recorded_folder()
    if subset is not None:
        folder = tmp_path / "bars"
        for name, rows in subset.items():
            recorded.copy_newest_rows(folder, (name,), rows)
        monkeypatch.setenv("SIGNALS_TEST_BARS", str(folder))
    end = FilesSource(folder, universe).ends_at
    assert end is not None
    path = tmp_path / "market.db"
    held = await replay_bars(path, folder, universe, end)
    report = await audit_store(path, universe)
    assert report.findings == []
    assert not report.not_verifiable
    computed = {row for row in held["readings"] if row[2] != "dexter"}
    assert len(computed) > 20
    assert computed == step_separately(end)
