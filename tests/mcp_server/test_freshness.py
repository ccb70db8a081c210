import pytest

from mcp_server.context import computed_board
from mcp_server.freshness import freshness, next_run
from schemas.meta import Freshness
from schemas.vocabulary import instant
from store.protocol import Snapshot
from tests.serving import HOUR_MS, NOON, coverage


def meta(market_time=NOON, now=NOON, source="simulated", recorded_until=None):
    snapshot = Snapshot(1, coverage(source, recorded_until), market_time, market_time, {})
    return Freshness(**freshness(computed_board(snapshot), now)).model_dump(by_alias=True)


@pytest.mark.parametrize(
    ("timeframe", "market_time", "expected"),
    [
        ("1h", NOON, "2026-09-30T13:03:00.000Z"),
        ("1h", NOON - 1, "2026-09-30T12:03:00.000Z"),
        ("1h", NOON + 120_000, "2026-09-30T13:03:00.000Z"),
        ("4h", NOON, "2026-09-30T16:03:00.000Z"),
        ("4h", NOON - HOUR_MS, "2026-09-30T12:03:00.000Z"),
        ("1d", NOON, "2026-10-01T00:03:00.000Z"),
    ],
)
def test_the_next_run_is_the_next_minute_three_of_the_timeframe(timeframe, market_time, expected):
    assert instant(next_run(timeframe, market_time)) == expected


def test_simulated_data_say_so():
    answer = meta()
    assert (answer["source"], answer["simulated"], answer["stale"]) == ("simulated", True, False)
    assert "Simulated" in answer["note"]


def test_live_data_without_anything_to_say_have_no_note():
    assert meta(source="live")["note"] is None


def test_data_are_stale_once_the_next_run_is_overdue_beyond_the_grace():
    due = NOON + HOUR_MS + 600_000
    assert meta(now=due)["stale"] is False
    assert meta(now=due + 1)["stale"] is True
    assert "Stale" in meta(now=due + 1)["note"]


def test_a_recording_played_to_its_end_rests_and_is_never_stale():
    answer = meta(now=NOON + 999 * HOUR_MS, source="recorded", recorded_until=NOON)
    assert answer["next_update"] == {"1h": None, "4h": None, "1d": None}
    assert answer["stale"] is False
    assert answer["note"] == "recorded until 2026-09-30T12:03:00.000Z."


def test_a_recording_before_its_end_has_a_next_update():
    answer = meta(source="recorded", recorded_until=NOON + HOUR_MS)
    assert answer["next_update"]["1h"] == "2026-09-30T13:03:00.000Z"


def test_an_asset_counts_as_removed_from_its_day_on():
    midnight = NOON - 3 * 24 * HOUR_MS - 12 * HOUR_MS - 180_000
    assert instant(midnight) == "2026-09-27T00:00:00.000Z"
    assert meta(market_time=midnight - 1)["removed_assets"] == []
    assert meta(market_time=midnight)["removed_assets"] == ["MATIC"]


def test_nothing_computed_yet_makes_no_board():
    assert computed_board(Snapshot(1, coverage(), None, 0, {})) is None
    assert computed_board(Snapshot(1, None, NOON, 0, {})) is None
