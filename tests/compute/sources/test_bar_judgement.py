"""Columns of one file are judged: spacing, stamps, session, volumes, repeats, jumps and holes.

All expected values are worked out by hand from calendars and clocks.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from compute.bars import BAR_FAULTS
from compute.sessions import Calendar
from compute.sources import bar_judgement as judgement
from schemas.vocabulary import Timeframe

pytestmark = pytest.mark.clause("sources")

NEW_YORK = ZoneInfo("America/New_York")
HOUR_S, DAY_S = 3600, 86_400
START = 1_704_240_000  # 2024-01-03T00:00Z, a Wednesday


def at(*texts: str) -> np.ndarray:
    """Return times in New York, or in UTC if they end with Z."""
    times = (datetime.fromisoformat(text) for text in texts)
    zoned = (time if time.tzinfo else time.replace(tzinfo=NEW_YORK) for time in times)
    return np.array([int(time.timestamp()) for time in zoned], dtype=np.int64)


def span(step_s: int, count: int = 30, first: int = START) -> np.ndarray:
    return first + step_s * np.arange(count, dtype=np.int64)


def weekdays(clock: str) -> np.ndarray:
    """Return 40 weekdays around the change of clocks on 2024-03-10, at a time in New York."""
    days = np.arange("2024-02-19", "2024-04-13", dtype="datetime64[D]")
    return at(*(f"{day}T{clock}" for day in days[np.is_busday(days)]))


@pytest.mark.parametrize(
    ("times", "timeframe", "expected"),
    [
        (
            span(DAY_S),
            "1h",
            "most rows are 86400 s apart, but 1h bars are 3600 s apart; rename it to",
        ),
        (
            span(4 * HOUR_S),
            "1h",
            "most rows are 14400 s apart, but 1h bars are 3600 s apart; write a file",
        ),
        (span(300), "1h", "most rows are 300 s apart, but 1h bars are 3600 s apart; write a file"),
        (
            span(HOUR_S),
            "1d",
            "most rows are 3600 s apart, but 1d bars are 86400 s apart; rename it to",
        ),
        (
            span(7 * DAY_S),
            "1d",
            "most rows are 604800 s apart, but 1d bars are 86400 s apart; write a",
        ),
        (span(HOUR_S, first=START + 3599), "1h", "rows are stamped at their close (the first has"),
        (span(DAY_S, first=START + 86_399), "1d", "rows are stamped at their close (the first has"),
        (span(HOUR_S), "1h", ""),
        (span(HOUR_S)[::3], "1h", "most rows are 10800 s apart, but 1h bars are 3600 s apart;"),
        (np.delete(span(HOUR_S), [3, 4, 9, 15, 16, 17]), "1h", ""),
        (span(HOUR_S, first=START + 1800), "1h", ""),
        (span(DAY_S, count=3), "1h", ""),
        (np.repeat(span(HOUR_S), 2), "1h", ""),
        (weekdays("00:00"), "1d", ""),
        (weekdays("16:00"), "1d", ""),
    ],
)
def test_the_spacing_of_rows_must_be_that_of_the_timeframe(
    times: np.ndarray, timeframe: Timeframe, expected: str
):
    fault = judgement.describe_wrong_times("24x7", times, timeframe)
    assert fault.startswith(expected)
    assert bool(fault) == bool(expected)


@pytest.mark.parametrize(
    ("session", "wanted"),
    [
        ("24x7", "the opening time, so subtract 86399 from each"),
        ("XNAS", "00:00 UTC of the trading day"),
    ],
)
def test_the_remedy_for_daily_stamps_at_the_close_keeps_the_trading_day(
    session: Calendar, wanted: str
):
    # 15:59:59 in New York.
    times = weekdays("15:59") + 59
    assert judgement.describe_wrong_times(session, times, "1d").endswith(f"ts must be {wanted}")


FRIDAY, MONDAY = "2024-03-08", "2024-03-11"  # clocks changed between them


@pytest.mark.parametrize(
    ("session", "stamp", "expected"),
    [
        *(("XNYS", f"{FRIDAY}T{clock}", FRIDAY) for clock in ("00:00", "09:30", "16:00", "23:00")),
        *(("XNAS", f"{MONDAY}T{clock}", MONDAY) for clock in ("00:00", "09:30", "16:00", "19:00")),
        ("XNYS", f"{FRIDAY}T00:00Z", FRIDAY),
        ("24x5", f"{MONDAY}T00:00Z", MONDAY),
        ("24x5", f"{MONDAY}T00:00", MONDAY),
        ("24x5", "2024-03-10T18:00", MONDAY),
        ("24x5", f"{MONDAY}T17:00", MONDAY),
        ("24x5", f"{MONDAY}T18:00", "2024-03-12"),
    ],
)
def test_a_daily_bar_belongs_to_its_trading_day_whatever_its_stamp(
    session: Calendar, stamp: str, expected: str
):
    opens = judgement.find_opens(session, at(stamp), "1d")
    assert opens.tolist() == at(f"{expected}T00:00Z").tolist()


def test_hourly_bars_and_coins_keep_their_stamps():
    times = at(f"{FRIDAY}T09:30", f"{FRIDAY}T16:00Z")
    assert judgement.find_opens("XNYS", times, "1h").tolist() == times.tolist()
    assert judgement.find_opens("24x7", times, "1d").tolist() == times.tolist()


REGULAR = [f"2024-07-05T{clock}" for clock in ("09:30", "10:30", "14:30", "15:30")]
ON_HOURS = [f"2024-07-05T{clock}" for clock in ("09:00", "10:00", "14:00", "15:00")]


@pytest.mark.parametrize(
    ("session", "timeframe", "inside", "outside"),
    [
        ("XNAS", "1h", REGULAR, ["2024-07-05T04:00", "2024-07-05T09:00", "2024-07-05T16:00"]),
        ("XNAS", "1h", ON_HOURS, ["2024-07-05T08:00", "2024-07-05T16:00", "2024-07-05T19:30"]),
        ("XNYS", "1h", ["2024-07-03T12:30"], ["2024-07-03T13:00", "2024-07-04T10:30"]),
        ("XNYS", "1d", ["2024-07-03T00:00Z"], ["2024-07-04T00:00Z", "2024-07-06T00:00Z"]),
        ("XNYS", "1d", ["1997-01-20T00:00Z"], ["1998-01-19T00:00Z"]),  # Martin Luther King
        (
            "24x5",
            "1h",
            ["2024-07-05T16:00", "2024-07-07T18:00", "2024-07-08T16:00"],
            ["2024-07-05T17:00", "2024-07-06T12:00", "2024-07-07T17:00", "2024-07-08T17:00"],
        ),
        ("24x7", "1h", ["2024-07-06T12:00", "2024-12-25T12:00"], []),
    ],
)
def test_bars_outside_the_session_are_found(
    session: Calendar, timeframe: Timeframe, inside: list[str], outside: list[str]
):
    times = np.sort(np.concatenate([at(*inside), at(*outside)]))
    faults = judgement.find_session_faults(session, times, timeframe)
    assert times[faults != 0].tolist() == at(*outside).tolist()
    assert {BAR_FAULTS[fault] for fault in faults[faults != 0]} <= {
        "opens while its session is closed"
    }


@pytest.mark.parametrize(
    ("close", "opened", "ratio", "remedy"),
    [
        (1208.88, 120.37, "10:1", "divide all prices before it by 10"),  # NVDA, 2024-06-10
        (499.23, 127.58, "4:1", "divide all prices before it by 4"),  # AAPL, 2020-08-31
        (90.0, 60.2, "1.5:1", "divide all prices before it by 1.5"),
        (12.0, 121.0, "1:10", "multiply all prices before it by 10"),
        (100.0, 72.0, None, ""),
        (100.0, 139.0, None, ""),
        (100.0, 57.0, None, ""),  # a fall of 43 % is none of the usual ratios
    ],
)
def test_an_open_near_a_usual_ratio_of_the_close_before_it_is_a_jump(
    close: float, opened: float, ratio: str | None, remedy: str
):
    opens, closes = (
        np.array([close, close, opened, opened]),
        np.array([close, close, opened, opened]),
    )
    jumps = list(judgement.list_jumps(span(HOUR_S, 4), opens, closes))
    assert [jump.time for jump in jumps] == ([START + 2 * HOUR_S] if ratio else [])
    for jump in jumps:
        assert jump.describe().endswith(f"as after a split of {ratio}; {remedy}")


@pytest.mark.parametrize(
    ("times", "opens", "closes"),
    [
        (span(HOUR_S, 4), [100, 100, 10, 100], [100, 100, 100, 100]),  # a wrong open
        (span(HOUR_S, 4), [100, 100, 10, 10], [100, 100, 10, 100]),  # a wrong bar
        (span(6 * DAY_S, 4), [100, 100, 10, 10], [100, 100, 10, 10]),  # a hole
    ],
)
def test_a_wrong_row_and_a_hole_are_no_jump(
    times: np.ndarray, opens: list[float], closes: list[float]
):
    assert not list(judgement.list_jumps(times, np.array(opens), np.array(closes)))


def test_a_stock_with_bars_of_whole_weekends_is_of_another_market():
    fortnight = span(HOUR_S, 14 * 24)
    kept = fortnight[(fortnight // DAY_S + 3) % 7 < 5]
    assert [
        judgement.is_of_another_market(session, times)
        for session, times in (("XNYS", fortnight), ("XNYS", kept), ("24x5", fortnight))
    ] == [True, False, False]


@pytest.mark.parametrize(
    ("session", "timeframe", "times", "missing"),
    [
        ("24x7", "1h", np.delete(span(HOUR_S), range(3, 15)), span(HOUR_S)[4:16]),
        ("24x7", "1d", np.delete(span(DAY_S), [4]), span(DAY_S)[5:6]),
        ("24x7", "1h", span(HOUR_S), []),
        # Tuesday's 14:30 is missing; nights, half days and holidays are no holes.
        (
            "XNAS",
            "1h",
            at("2024-07-02T13:30", "2024-07-02T15:30", "2024-07-03T09:30"),
            at("2024-07-02T15:00"),
        ),
        ("XNAS", "1h", at("2024-07-03T12:30", "2024-07-05T09:30"), []),
        (
            "XNAS",
            "1d",
            at("2024-07-02T00:00Z", "2024-07-08T00:00Z"),
            [1_720_051_200, 1_720_224_000],
        ),
    ],
)
def test_holes_are_the_closes_that_the_session_expects(
    session: Calendar, timeframe: Timeframe, times: np.ndarray, missing: np.ndarray
):
    assert judgement.list_holes(session, times, timeframe).tolist() == list(missing)


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ([-1.0, -1.0], ["", ""]),
        ([np.nan, -1.0], ["", ""]),
        ([np.nan, 5.0, -1.0], ["a number is NaN or infinite", "", "volume is negative"]),
    ],
)
def test_a_volume_that_is_missing_everywhere_is_none(volumes: list[float], expected: list[str]):
    faults = judgement.find_volume_faults(np.array(volumes))
    assert [BAR_FAULTS[fault] for fault in faults] == expected


def test_the_first_repeated_time_with_other_values_is_found():
    times, values = np.array([1, 2, 2, 3, 3]), np.array([1.0, 2.0, 2.0, 3.0, 4.0])
    assert judgement.find_conflict(times, [values, values]) == 4
    assert judgement.find_conflict(times[:4], [values[:4]]) is None
