"""Session calendars against public calendars, hand calculation and recorded bars.

The package `exchange_calendars` is the oracle for the exchanges' trading days and early closes.

Whose clock is wrong, by hand: cases of venues that confirm, contradict or disagree.
"""

import csv
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from compute.bars import DAY_S, HOUR_S
from compute.schedule import compute_lag_s, describe_clock, judge_clocks
from compute.trading_sessions import (
    MOURNING_DAYS,
    Calendar,
    count_bars_per_day,
    find_last_close,
    find_next_close,
    find_session_watermark,
    is_early_close,
    list_expected_bars,
    list_holidays,
    opens_off_hour,
)
from compute.universe import Session
from tests.support.bar_sets import get_recorded_folder, require_recorded

pytestmark = pytest.mark.clause("sources", "live")

NEW_YORK = ZoneInfo("America/New_York")
SESSIONS: list[Calendar] = ["24x7", "24x5", "XNYS", "XNAS", "XSIM"]


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def local_openings(session: Session, day: str) -> list[str]:
    """Return when, in New York, the bars that close within a UTC day begin to trade."""
    start = utc(day)
    opens = list_expected_bars(session, start, start + DAY_S).begin_time.tolist()
    return [datetime.fromtimestamp(at, NEW_YORK).strftime("%H:%M") for at in opens]


def trading_days(session: Session, first: str, last: str) -> set[date]:
    days = list_expected_bars(session, utc(first), utc(last)).day.tolist()
    return {date(1970, 1, 1) + timedelta(days=day) for day in days}


def test_a_crypto_bar_opens_at_every_full_hour():
    start = utc("2026-02-28")
    bars = list_expected_bars("24x7", start, start + 3 * DAY_S)
    assert bars.open_time.tolist() == list(range(start, start + 3 * DAY_S, HOUR_S))
    assert (bars.close_time == bars.open_time + HOUR_S).all()
    assert bars.slot.tolist() == [*range(24)] * 3


def test_the_range_leaves_out_its_start_and_takes_in_its_end():
    start = utc("2026-02-28")
    assert list_expected_bars("24x7", start, start + HOUR_S).close_time.tolist() == [start + HOUR_S]
    assert len(list_expected_bars("24x7", start, start + HOUR_S - 1)) == 0
    assert len(list_expected_bars("24x7", start, start)) == 0
    assert len(list_expected_bars("XNYS", start, start - 30 * DAY_S)) == 0


@pytest.mark.parametrize("session", ["XNYS", "XNAS"])
@pytest.mark.parametrize(
    ("day", "count"),
    [
        ("2026-03-06", 7),  # clocks go forward on Sunday 2026-03-08
        ("2026-03-09", 7),
        ("2026-10-30", 7),  # and back on Sunday 2026-11-01
        ("2026-11-02", 7),
        ("2026-07-02", 7),
        ("2021-12-23", 7),
        ("2021-12-31", 7),  # New Year on a Saturday is not made up for
        ("2021-06-18", 7),  # before Juneteenth was a holiday of the exchanges
        ("2025-07-03", 4),  # early closes
        ("2025-11-28", 4),
        ("2026-12-24", 4),
        ("2023-01-02", 0),  # New Year on a Sunday is observed on Monday
        ("2022-06-20", 0),
        ("2021-12-24", 0),  # Christmas on a Saturday
        ("2022-12-26", 0),
        ("2024-03-29", 0),  # Good Friday
        ("2025-04-18", 0),
        ("2024-05-27", 0),  # Memorial
        ("2018-12-05", 0),  # days of mourning
        ("2025-01-09", 0),
    ],
)
def test_an_exchange_has_seven_bars_from_half_past_nine_except_on_short_days_and_holidays(
    session: Session, day: str, count: int
):
    openings = ["09:30", "10:00", "11:00", "12:00", "13:00", "14:00", "15:00"]
    assert local_openings(session, day) == openings[:count]
    assert count_bars_per_day(session) == 7


@pytest.mark.parametrize("session", ["XNYS", "XNAS", "XSIM"])
@pytest.mark.parametrize(
    ("day", "closes"),
    [
        ("2026-03-06", range(10, 17)),  # winter
        ("2026-07-06", range(10, 17)),  # summer, the day after a holiday and a weekend
        ("2027-11-26", range(10, 14)),  # an early close
    ],
)
def test_an_exchange_bar_closes_at_the_full_hour_at_which_its_trading_ends(
    session: Calendar, day: str, closes: range
):
    local = [datetime.fromisoformat(f"{day}T{hour}:00").replace(tzinfo=NEW_YORK) for hour in closes]
    bars = list_expected_bars(session, utc(day), utc(day) + DAY_S)
    assert bars.close_time.tolist() == [int(at.timestamp()) for at in local]
    assert bars.open_time.tolist() == [int(at.timestamp()) - HOUR_S for at in local]
    assert bars.begin_time.tolist() == [
        bars.open_time[0] + HOUR_S // 2,
        *bars.open_time[1:].tolist(),
    ]
    assert opens_off_hour(session)


@pytest.mark.parametrize("session", ["24x7", "24x5"])
def test_a_session_that_opens_on_the_hour_has_whole_hours_only(session: Session):
    bars = list_expected_bars(session, utc("2026-03-01"), utc("2026-04-01"))
    assert bars.begin_time.tolist() == bars.open_time.tolist()
    assert not opens_off_hour(session)


def test_spot_metals_trade_from_sunday_evening_to_friday_with_an_hour_off_a_day():
    week = list_expected_bars(
        "24x5", utc("2026-01-17"), utc("2026-01-24")
    )  # winter: New York is UTC-5
    assert len(week) == 5 * 23
    assert week.open_time[0] == utc("2026-01-18T23:00")
    assert week.close_time[-1] == utc("2026-01-23T22:00")
    off = np.flatnonzero(np.diff(week.open_time) > HOUR_S)
    assert (week.close_time[off] % DAY_S == 22 * HOUR_S).all()
    assert (week.open_time[off + 1] - week.close_time[off] == HOUR_S).all()


@pytest.mark.parametrize(
    ("friday", "closes", "sunday", "opens"),
    [
        ("2026-03-06", "22:00", "2026-03-08", "22:00"),
        ("2026-10-30", "21:00", "2026-11-01", "23:00"),
    ],
)
def test_a_change_of_clocks_falls_into_the_metals_weekend(
    friday: str, closes: str, sunday: str, opens: str
):
    assert find_last_close("24x5", utc(friday) + DAY_S) == utc(f"{friday}T{closes}")
    assert find_next_close("24x5", utc(friday) + DAY_S) == utc(f"{sunday}T{opens}") + HOUR_S


def test_the_exchanges_keep_the_public_holidays_of_2026():
    published = {
        date(2026, 1, 1),
        date(2026, 1, 19),
        date(2026, 2, 16),
        date(2026, 4, 3),  # Good Friday
        date(2026, 5, 25),
        date(2026, 6, 19),
        date(2026, 7, 3),  # July 4 is a Saturday
        date(2026, 9, 7),
        date(2026, 11, 26),  # Thanksgiving
        date(2026, 12, 25),
    }
    assert list_holidays(2026) == published
    year = trading_days("XNYS", "2026-01-01", "2027-01-01")
    assert len(year) == 251
    assert not year & published
    assert not any(day.weekday() >= 5 for day in year)


@pytest.mark.filterwarnings("ignore:Series.values returning")
def test_days_and_their_ends_are_those_of_the_exchanges_since_2016():
    calendars = pytest.importorskip("exchange_calendars")
    theirs = calendars.get_calendar("XNYS", start="2016-01-01", end="2045-12-31")
    bars = list_expected_bars("XNYS", utc("2016-01-01"), utc("2046-01-01"))
    lasts = np.flatnonzero(np.append(np.diff(bars.day), 1))
    firsts = np.append(0, lasts[:-1] + 1)
    assert (DAY_S * bars.day[lasts]).tolist() == [int(day.timestamp()) for day in theirs.sessions]
    assert bars.begin_time[firsts].tolist() == [int(at.timestamp()) for at in theirs.opens]
    assert bars.close_time[lasts].tolist() == [int(at.timestamp()) for at in theirs.closes]
    early = [day.date() for day in theirs.sessions if is_early_close(day.date())]
    assert early == [day.date() for day in theirs.early_closes]
    assert {day.date() for day in theirs.adhoc_holidays if day.year >= 2016} == MOURNING_DAYS


@pytest.mark.parametrize("session", SESSIONS)
def test_a_long_range_is_the_sum_of_its_parts(session: Session):
    start, end = utc("2025-10-20"), utc("2026-04-10")
    whole = list_expected_bars(session, start, end)
    cuts = range(start, end, 7 * HOUR_S)
    parts = [list_expected_bars(session, a, min(a + 7 * HOUR_S, end)) for a in cuts]
    for name in ("begin_time", "close_time", "day", "slot"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert getattr(whole, name).tolist() == joined.tolist()
    assert (np.diff(whole.close_time) >= HOUR_S).all()


@pytest.mark.parametrize("session", SESSIONS)
def test_last_and_next_close_are_neighbours_in_the_calendar(session: Session):
    closes = list_expected_bars(session, utc("2025-12-20"), utc("2026-01-10")).close_time.tolist()
    for before, after in pairwise(closes):
        assert find_last_close(session, before) == before
        assert find_last_close(session, after - 1) == before
        assert find_next_close(session, before) == after
        assert find_next_close(session, after - 1) == after


def test_the_next_close_over_a_long_weekend_is_on_the_day_after_the_holiday():
    assert find_last_close("XNYS", utc("2026-07-05")) == utc("2026-07-02T20:00")
    assert find_next_close("XNYS", utc("2026-07-02T20:00")) == utc("2026-07-06T14:00")


def test_bars_are_complete_up_to_the_clock_if_closed_else_to_the_newest_close():
    for session, at, until in (
        ("24x7", "12:34:56", "12:00:00"),
        ("24x7", "12:00:00", "12:00:00"),
        ("XNYS", "12:34:56", "12:34:56"),
        ("XNYS", "14:29:59", "14:29:59"),
        ("XNYS", "14:59:59", "14:30:00"),
        ("XNYS", "15:00:00", "15:00:00"),
        ("XNYS", "20:59:59", "20:00:00"),
        ("XNYS", "21:00:01", "21:00:01"),
        ("24x5", "22:30:00", "22:30:00"),
        ("24x5", "23:10:00", "23:00:00"),
    ):
        assert find_session_watermark(session, utc(f"2026-01-20T{at}")) == utc(
            f"2026-01-20T{until}"
        )


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.prove
def test_a_session_watermark_never_falls_and_misses_no_close(session: Session):
    instants = range(utc("2026-01-15"), utc("2026-01-22"), 600)
    known = [find_session_watermark(session, at) for at in instants]
    assert known == sorted(known)
    for at, until in zip(instants, known, strict=True):
        assert find_last_close(session, at) <= until <= at


@pytest.mark.parametrize("ticker", ["NVDA", "TSLA"])
def test_recorded_bars_lie_in_the_calendar_and_no_full_day_is_missing(ticker: str):
    require_recorded()
    with (get_recorded_folder() / f"{ticker}_1h.csv").open(newline="") as lines:
        recorded = [int(row["ts"]) for row in csv.DictReader(lines)]
    ours = list_expected_bars("XNAS", recorded[0], recorded[-1] + HOUR_S)
    strays = [
        datetime.fromtimestamp(at, NEW_YORK).strftime("%Y-%m-%d %H:%M")
        for at in sorted(set(recorded) - set((ours.open_time + HOUR_S // 2).tolist()))
    ]
    assert strays == [
        "2025-07-03 13:00",  # the closing prints of the three early closes,
        "2025-11-28 13:00",
        "2025-12-24 13:00",
        "2026-05-29 16:00",  # and the artefact that ends the file
    ]
    there = {datetime.fromtimestamp(at, NEW_YORK).date() for at in recorded}
    expected = {date(1970, 1, 1) + timedelta(days=day) for day in ours.day.tolist()}
    assert there == expected


CONFIRMED = [
    ([0], []),
    ([30_000], []),
    ([-30_000], []),
    ([0, 600_000], ["b"]),
    ([0, -600_000], ["b"]),
    ([0, 0, 600_000], ["c"]),
    ([0, 29_000, 600_000, 600_000], ["c", "d"]),
    ([0, 0, -1_790_000_000_000], ["c"]),
    ([29_000, 29_000, 31_000, 31_000], ["c", "d"]),
]
MACHINE_WRONG = [
    ([45_000, 45_000], "45 s ahead of"),
    ([-45_000, -45_000], "45 s behind"),
    ([45_000, 46_000, 0], "46 s ahead of"),
    ([600_000, 610_000, 620_000, 0, 0], "610 s ahead of"),
    ([600_000, 600_000, 600_000, -900_000, 0], "600 s ahead of"),
    ([28_000, 33_000, 36_000, 40_000], "36 s ahead of"),
]
UNDECIDED = [
    [45_000],
    [-600_000],
    [600_000, -600_000],
    [600_000, 631_000],
    [0, 600_000, -600_000],
    [0, 600_000, 700_000, 800_000],
    [600_000, 600_000, -600_000, -600_000],
]


def name_venues(skews_ms: list[int]) -> dict[str, float]:
    return dict(zip("abcde", map(float, skews_ms), strict=False))


@pytest.mark.parametrize(("skews_ms", "wrong"), CONFIRMED)
def test_if_half_of_the_venues_confirm_this_machine_the_others_are_wrong(
    skews_ms: list[int], wrong: list[str]
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is None
    assert sorted(verdict.wrong_skews_ms) == wrong


@pytest.mark.parametrize(("skews_ms", "said"), MACHINE_WRONG)
def test_if_more_than_half_contradict_it_alike_this_machine_is_wrong(
    skews_ms: list[int], said: str
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is not None
    assert verdict.problem.startswith(f"the clock of this machine is {said} that of the venues")
    assert verdict.wrong_skews_ms == {}


@pytest.mark.parametrize("skews_ms", UNDECIDED)
def test_if_nobody_can_know_the_report_of_each_venue_is_named_and_none_is_blamed(
    skews_ms: list[int],
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is not None
    assert "the clock of this machine is" not in verdict.problem
    assert "it is not known whose clock is right" in verdict.problem
    for name, skew in name_venues(skews_ms).items():
        expected = (
            describe_clock(name, skew) if abs(skew) > 30_000 else f"{name} confirms this machine's"
        )
        assert expected in verdict.problem


def test_without_any_venue_the_network_is_to_be_checked() -> None:
    assert judge_clocks({}) == ("no venue answers: check that this machine is online", {})


def test_a_clock_is_described_from_the_venues_side() -> None:
    assert describe_clock("okx", 45_000) == "the clock of okx is 45 s behind this machine's"
    assert describe_clock("okx", -600_400) == "the clock of okx is 600 s ahead of this machine's"


@pytest.mark.parametrize(
    ("skew_ms", "lag_s"),
    [
        (0, 0),
        (30_000, 0),
        (30_001, 31),
        (45_000, 45),
        (1_800_000, 1800),
        (1_800_001, 0),
        (-600_000, 0),
    ],
)
def test_bars_wait_for_a_clock_that_is_behind_by_up_to_half_an_hour(
    skew_ms: int, lag_s: int
) -> None:
    assert compute_lag_s(skew_ms) == lag_s
