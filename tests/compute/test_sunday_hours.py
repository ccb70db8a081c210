"""Sunday's hours of the metals belong to Monday's daily bar, in stores of earlier versions too.

Earlier versions gave Sundays a daily bar of their own, as for assets that trade around the clock.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from compute.schedule import to_market_ms
from compute.universe import Universe
from tests.support.small_market import (
    DAY_S,
    DENSE,
    END,
    HOUR_S,
    audit_store,
    give_sundays_a_bar,
    replay_bars,
)

pytestmark = pytest.mark.clause("audit")

CREATED_AT, TICKER, TIMEFRAME, CLOSE = 0, 1, 3, 4
# DENSE is a Monday.
MONDAY, WEDNESDAY = DENSE + 7 * DAY_S + 10 * HOUR_S, DENSE + 9 * DAY_S + 10 * HOUR_S


def is_monday(at: int) -> bool:
    return f"{datetime.fromtimestamp(at, UTC):%A}" == "Monday"


@pytest.mark.parametrize("upgraded_at", [MONDAY, pytest.param(WEDNESDAY, marks=pytest.mark.prove)])
@pytest.mark.prove
async def test_a_store_with_bars_of_sundays_is_rebuilt_and_keeps_its_rows(
    upgraded_at: int, tmp_path: Path, bars_folder: Path, universe: Universe
):
    path = tmp_path / "m.db"
    before = await replay_bars(path, bars_folder, give_sundays_a_bar(universe), upgraded_at)
    metal_days = [
        row for row in before["changes"] if row[TICKER : TIMEFRAME + 1 : 2] == ("XAU", "1d")
    ]
    assert any(is_monday(row[CLOSE]) for row in metal_days)
    for until in (upgraded_at + HOUR_S, upgraded_at + 2 * HOUR_S, END):
        after = await replay_bars(path, bars_folder, universe, until)
        report = await audit_store(path, universe)
        assert report.findings == []
        assert all(
            note.endswith(("version 1", "another version's")) for note in report.not_verifiable
        )
    for tier in ("changes", "alerts"):
        assert after[tier][: len(before[tier])] == before[tier]
    fresh = await replay_bars(tmp_path / "fresh.db", bars_folder, universe)
    assert after["readings"] == fresh["readings"]
    carries, fresh_carries = (
        {tuple(row[:3]): row[6:] for row in content["carries"] if not row[2].startswith("alerts.")}
        for content in (after, fresh)
    )
    assert carries == fresh_carries
    newer = [row for row in after["changes"] if row[CREATED_AT] > to_market_ms(upgraded_at)]
    assert not any(
        is_monday(row[CLOSE]) for row in newer if (row[TICKER], row[TIMEFRAME]) == ("XAU", "1d")
    )
