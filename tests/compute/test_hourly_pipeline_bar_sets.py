"""Hard bars through the whole pipeline: replay, clean audit, and each asset stepped by itself."""

from pathlib import Path

import numpy as np
import pytest

from compute.indicators.contract import NO_READING, Bar
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.universe import load_universe
from tests.support.bar_sets import copy_newest_rows, list_full_folders, load_series, open_bar_set
from tests.support.one_bar import step_bar
from tests.support.small_market import audit_store, replay_bars

pytestmark = pytest.mark.clause("steps")

# Rows enough for a reading: of daily bars, on 4h of BTC's and on 4h of NVDA's, 7 of whom give 3.
SUBSET = {"AAPL_1d.csv": 240, "BTC_1h.csv": 840, "BTC_funding.csv": 840, "NVDA_1h.csv": 560}


def step_separately(folder: Path, end: int) -> set[tuple[str, str, str, int]]:
    """Step every series by itself, one bar after another; return its last readings."""
    found = set()
    for label, series in load_series(folder):
        ticker, timeframe = label.split()
        closed = series["close_time"] <= end
        columns = [series[field][closed] for field in Bar._fields]
        for indicator in INDICATORS:
            carry, reading = indicator.start(1), np.array([NO_READING])
            for at in range(int(closed.sum())):
                bar = Bar(*(column[at : at + 1] for column in columns))
                carry, reading = step_bar(indicator, carry, bar)
            if reading[0] != NO_READING:
                found.add((ticker, timeframe, indicator.id, int(reading[0])))
    return found


@pytest.mark.parametrize("name", ["generated newest", *list_full_folders()])
@pytest.mark.prove
async def test_a_replay_audits_clean_and_reads_as_each_asset_stepped_by_itself(
    name: str, tmp_path: Path
):
    universe, folder = load_universe(), open_bar_set(name).folder
    if name == "generated newest":
        generated, folder = folder, tmp_path / "bars"
        for file, rows in SUBSET.items():
            copy_newest_rows(generated, folder, (file,), rows)
    end = FilesSource(folder, universe).ends_at
    assert end is not None
    path = tmp_path / "market.db"
    held = await replay_bars(path, folder, universe, end)
    report = await audit_store(path, universe)
    assert report.findings == []
    assert not report.not_verifiable
    computed = {row for row in held["readings"] if row[2] != "dexter"}
    assert len(computed) > 20
    assert computed == step_separately(folder, end)
