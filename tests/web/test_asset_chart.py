"""The chart of an asset: heights, candles and marks, compared with values calculated by hand."""

import json

import pytest

from schemas.vocabulary import DAY_MS, HOUR_MS
from serving.prices import BarColumns
from store.market_rows import AlertRow
from tests.support.row_builders import make_alert, make_change
from web.asset_chart import (
    PADDING,
    PRICE_HEIGHT,
    TimeAxis,
    build_chart,
    build_marks,
    find_held_alerts,
    find_step,
)

pytestmark = pytest.mark.clause("15.3")

BARS = BarColumns(
    [0, 4 * HOUR_MS, 8 * HOUR_MS],
    [100.0, 110.0, 105.0],
    [112.0, 120.0, 106.0],
    [100.0, 104.0, 101.0],
    [110.0, 105.0, 105.0],
    [10.0, 20.0, 0.0],
)
AXIS = TimeAxis(BARS.open_times, "4h")
NAMES = {"enzo": "Enzo", "perpkit": "PerpKit"}
# A cooldown of 4h is 80 hours.
RUN_MS = 180_000


def fired(hour: int, published: int, action: str = "LONG") -> AlertRow:
    return make_alert(published * HOUR_MS + RUN_MS, action, close_time=hour * 3600)


def test_prices_fill_the_pane_from_the_lowest_low_to_the_highest_high() -> None:
    chart = build_chart([], [], {}, NAMES, BARS, "4h", 0, 12 * HOUR_MS, 0)
    assert chart is not None
    assert [chart.find_y(price) for price in (120, 100)] == [PADDING, PRICE_HEIGHT - PADDING]
    assert [label for _, label in chart.list_price_ticks()] == ["100", "105", "110", "115", "120"]
    # One candle rose; one fell, and one closed where it opened.
    middle = chart.find_y(110)
    bottom = chart.find_y(100)
    assert chart.draw_candles(rising=True).startswith(
        f"M5 {chart.find_y(112)}V{bottom}M2 {middle}h6"
    )
    assert chart.draw_candles(rising=True).count("z") == 2
    assert chart.draw_candles(rising=False).count("z") == 1
    assert chart.draw_volumes().startswith(f"M2 {PRICE_HEIGHT}h6v-18.0h-6z")


@pytest.mark.parametrize(("size", "step"), [(10, 2), (26, 5), (0.9, 0.2), (48_000, 10_000)])
def test_price_ticks_are_round(size: float, step: float) -> None:
    assert find_step(size) == pytest.approx(step)


def test_marks_stand_at_the_bar_that_fired_and_side_by_side_if_they_share_it() -> None:
    changes = [
        make_change(5 * HOUR_MS, before=0, after=1, close_time=4 * 3600),
        make_change(5 * HOUR_MS + 1, before=1, after=1, indicator="perpkit", close_time=4 * 3600),
        make_change(9 * HOUR_MS, before=None, after=-1, close_time=8 * 3600),
    ]
    marks = build_marks(changes, [fired(4, 12, "CLOSE")], AXIS, NAMES, 0)
    assert [(mark.bar, mark.x, mark.level, mark.shape) for mark in marks] == [
        (0, 1.0, 0, "up"),
        (0, 1.0, 1, "up"),
        (0, 1.0, 0, "alert-flat"),
    ]
    assert marks[0].text == "1970-01-01 04:00 UTC\nEnzo: neutral → bullish\nPrice 0.3000"


@pytest.mark.parametrize(
    ("published", "published_from", "silent", "marked"),
    [
        # Bars close at 4, 8 and 12; the axis has room for another after them.
        ((True, True), 0, 0.0, [0, 1]),
        ((False, True), 0, 1.0, [0, 1]),  # an asset that joined later
        ((False, True), 8, 2.0, [1]),
        ((True, True), 8, 2.0, [1]),  # quiet before the first start
        ((True, True), 1, 0.0, [0, 1]),  # less than a bar
        ((False, False), 99, 4, []),  # removed before the first start
    ],
)
def test_readings_before_the_service_published_are_silent_and_have_no_marks(
    published: tuple[bool, bool], published_from: int, silent: float, marked: list[int]
) -> None:
    changes = [
        make_change(5 * HOUR_MS, before=0, after=1, close_time=4 * 3600),
        make_change(9 * HOUR_MS, before=1, after=0, close_time=8 * 3600),
    ]
    rows = [row._replace(published=each) for row, each in zip(changes, published, strict=True)]
    ends, since = 12 * HOUR_MS, published_from * HOUR_MS
    chart = build_chart(rows, [], {"enzo": "neutral"}, NAMES, BARS, "4h", 0, ends, since)
    assert chart is not None
    assert chart.silent == silent
    assert [mark.bar for mark in chart.marks] == marked
    assert chart.lanes["enzo"][0][1] == 0.0


def test_an_alert_is_held_if_it_fired_before_the_end_of_a_cooldown() -> None:
    newest_first = [
        fired(170, 170),  # in a cooldown of CLOSE, not of LONG
        fired(169, 169, "CLOSE"),
        fired(30, 90),  # held until the cooldown ended, 80 hours after the first
        fired(10, 10),
    ]
    assert find_held_alerts(newest_first) == {newest_first[2].id}
    at_once = [fired(90, 90), fired(10, 10)]
    assert find_held_alerts(at_once) == set()
    # A daily alert whose bar came a day late was not held.
    late = make_alert(DAY_MS * 2 + RUN_MS, timeframe="1d", close_time=86_400)
    assert find_held_alerts([late]) == set()


def test_a_held_alert_is_marked_where_it_fired_and_says_until_when_it_was_held() -> None:
    axis = TimeAxis(range(0, 100 * HOUR_MS, 4 * HOUR_MS), "4h")
    held, first = build_marks([], [fired(32, 92), fired(12, 12)], axis, NAMES, 0)[::-1]
    assert (first.kind, first.x, held.kind, held.x) == ("alert", 3.0, "held", 8.0)
    assert "Alert LONG of PerpKit, held 60 hours until 1970-01-04 20:03 UTC" in held.text


def test_without_prices_the_lanes_have_an_axis_of_their_own() -> None:
    chart = build_chart([], [], {"enzo": "bullish"}, NAMES, None, "1h", 0, 5 * HOUR_MS, 0)
    assert chart is not None
    assert (chart.price_height, len(chart.axis)) == (0, 5)
    document = json.loads(chart.to_json())
    assert document["bars"] is None
    assert document["lanes"] == [{"name": "Enzo", "spans": [["bullish", 0.0, 6.0]]}]
    assert build_chart([], [], {}, NAMES, None, "1h", 0, 5 * HOUR_MS, 0) is None
