"""The time axis and the lanes of an asset's chart, compared with positions calculated by hand."""

import pytest

from schemas.vocabulary import DAY_MS, HOUR_MS, Reading
from store.market_rows import ChangeRow
from tests.support.example_market import NOON
from tests.support.row_builders import make_change
from web.asset_chart import Lane, Span, TimeAxis, build_lanes

pytestmark = pytest.mark.clause("15.2")

FULL_HOUR = NOON // HOUR_MS * HOUR_MS
BEGINS, ENDS = FULL_HOUR - 10 * HOUR_MS, FULL_HOUR
AXIS = TimeAxis(range(BEGINS, ENDS, HOUR_MS), "1h")
# Two sessions of two hours, on Monday and on Tuesday.
SESSIONS = TimeAxis([0, HOUR_MS, DAY_MS, DAY_MS + HOUR_MS], "1h")


def turned(hours_ago: int, before: int | None, after: int, indicator: str = "ceres") -> ChangeRow:
    """Return a change at the close of a bar, written three minutes later."""
    closed = FULL_HOUR - hours_ago * HOUR_MS
    return make_change(
        closed + 180_000,
        indicator=indicator,
        before=before,
        after=after,
        close_time=closed // 1000,
    )


def since(hours_ago: int) -> int:
    return FULL_HOUR - hours_ago * HOUR_MS


def lane(*rows: ChangeRow, now: Reading | None = "bullish") -> list[Span]:
    """Return the spans of the lane of rows that are oldest first."""
    readings = {} if now is None else {"ceres": now}
    (only,) = build_lanes(rows, readings, ["ceres"], AXIS, BEGINS, ENDS)
    assert only.indicator == "ceres"
    return only.spans


def test_a_reading_changes_at_the_close_of_the_bar_that_fired() -> None:
    assert lane(turned(6, -1, 0), turned(2, 0, 1)) == [
        Span("bearish", 0.0, 4.0, None),
        Span("neutral", 4.0, 8.0, since(6)),
        Span("bullish", 8.0, 11.0, since(2)),
    ]


def test_without_a_change_the_current_reading_fills_the_lane() -> None:
    assert lane(now="bearish") == [Span("bearish", 0.0, 11.0, None)]


def test_a_lane_is_empty_before_the_first_reading() -> None:
    assert lane(now=None) == []
    assert lane(turned(3, None, 1)) == [Span("bullish", 7.0, 11.0, since(3))]


def test_a_change_at_the_end_or_before_the_begin_stays_inside_the_lane() -> None:
    # There is room after the last bar, in which a change at its close is seen.
    assert lane(turned(0, 0, 1)) == [
        Span("neutral", 0.0, 10.0, None),
        Span("bullish", 10.0, 11.0, since(0)),
    ]
    assert lane(turned(12, 0, 1)) == [Span("bullish", 0.0, 11.0, since(12))]


def test_each_indicator_has_a_lane_of_its_own() -> None:
    lanes = build_lanes([turned(1, 0, -1, "enzo")], {}, ["ceres", "enzo"], AXIS, BEGINS, ENDS)
    assert lanes[0] == Lane("ceres", [])
    assert lanes[1].spans[1] == Span("bearish", 9.0, 11.0, since(1))


def test_hours_without_trading_take_no_room_on_the_axis() -> None:
    assert [SESSIONS.place(at) for at in (0, HOUR_MS, HOUR_MS * 3 // 2)] == [0, 1, 1.5]
    assert [SESSIONS.place(at) for at in (2 * HOUR_MS, 9 * HOUR_MS, DAY_MS)] == [2, 2, 2]
    assert [SESSIONS.place(at) for at in (DAY_MS + 2 * HOUR_MS, 9 * DAY_MS)] == [4, 4]
    assert SESSIONS.find_bar(2 * HOUR_MS) == 1
    assert SESSIONS.find_bar(9 * HOUR_MS) is None


def test_a_bar_that_ends_off_the_hour_closes_at_the_next_one() -> None:
    half = TimeAxis([HOUR_MS * 27 // 2, HOUR_MS * 29 // 2], "1h")  # 13:30 and 14:30
    assert half.closes == [15 * HOUR_MS, 16 * HOUR_MS]
    assert half.place(15 * HOUR_MS) == 1


def test_an_axis_without_prices_has_every_closed_bar() -> None:
    axis = TimeAxis.build_regular(NOON - 2 * DAY_MS, NOON, "4h")
    assert list(axis.opens) == [FULL_HOUR - 4 * HOUR_MS * n for n in range(11, 0, -1)]


def test_ticks_stand_at_full_days_or_months_and_are_few() -> None:
    # 2026-09-30T12:00 is the end: two weeks of hours, and a year of days.
    hours = TimeAxis(range(FULL_HOUR - 14 * DAY_MS, FULL_HOUR, HOUR_MS), "1h").list_ticks()
    assert [tick.label for tick in hours][:3] == ["Sep 18", "Sep 20", "Sep 22"]
    assert hours[1].x - hours[0].x == 48
    midnight = FULL_HOUR // DAY_MS * DAY_MS
    days = TimeAxis(range(midnight - 365 * DAY_MS, midnight, DAY_MS), "1d").list_ticks()
    assert [tick.label for tick in days] == ["Nov 2025", "Jan 2026"] + [
        f"{month} 2026" for month in ("Mar", "May", "Jul", "Sep")
    ]
    assert [tick.label for tick in SESSIONS.list_ticks()] == ["01:00", "Jan 2", "01:00"]
