"""The hourly bars that each session of the universe should have, in epoch seconds UTC. Pure.

US exchanges trade regular hours except on full-day holidays (NYSE Rule 7.2) and days of mourning,
and close early by the rule kept since 2013. Spot metals (24x5) have no holidays and pause an hour a
day. XSIM is the simulated market's exchange.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from compute.bars import DAY_S, HOUR_S, Times
from compute.universe import Session

Calendar = Session | Literal["XSIM"]

# Longer than any session stays closed, so a window of this length holds at least one bar.
_MAX_CLOSED_S = 8 * DAY_S
_EPOCH = date(1970, 1, 1)
_NEW_YORK = ZoneInfo("America/New_York")
MONDAY, THURSDAY, SATURDAY = 0, 3, 5
MARTIN_LUTHER_KING_SINCE, JUNETEENTH_SINCE = 1998, 2022
# No rule gives these. If the exchanges announce another, add it: a bar that never comes would make
# every US equity late.
MOURNING_DAYS = frozenset({date(2018, 12, 5), date(2025, 1, 9)})
# XSIM began without days of mourning and early closes. It has them from this day on, so that bars
# already stored stay as they were.
XSIM_IRREGULAR_SINCE = date(2027, 1, 1)


@dataclass(frozen=True, slots=True)
class ExpectedBars:
    """Hourly bars that a session should have, oldest first; every column has shape (bars,).

    A bar is a clock hour with trading. `begin_time` is when its trading begins, later than its
    `open_time` if the session opens off the hour. `day` is the local trading day in days since
    1970, `slot` the bar's index in it from 0.
    """

    begin_time: Times
    close_time: Times
    day: Times
    slot: Times

    @property
    def open_time(self) -> Times:
        """When the clock hours begin; bars are stored with these times."""
        return self.close_time - HOUR_S

    def __len__(self) -> int:
        return len(self.close_time)


class _SessionRules(NamedTuple):
    """A session's trading day: offset of its opening from local midnight, length, days off.

    Trading ends at a full hour.
    """

    zone: tzinfo
    opening_offset_s: int
    length_s: int
    has_weekends: bool
    has_holidays: bool
    irregular_since: date = date.min


# 09:30 to 16:00 in New York: the day's first hourly bar trades for half an hour.
_EXCHANGE_RULES = _SessionRules(_NEW_YORK, 19 * HOUR_S // 2, 13 * HOUR_S // 2, False, True)
_EARLY_LENGTH_S = 7 * HOUR_S // 2
_RULES: dict[Calendar, _SessionRules] = {
    "24x7": _SessionRules(UTC, 0, 24 * HOUR_S, True, False),
    # A trading day begins at 18:00 of the evening before and ends at 17:00.
    "24x5": _SessionRules(_NEW_YORK, -6 * HOUR_S, 23 * HOUR_S, False, False),
    "XNYS": _EXCHANGE_RULES,
    "XNAS": _EXCHANGE_RULES,
    "XSIM": _EXCHANGE_RULES._replace(irregular_since=XSIM_IRREGULAR_SINCE),
}


@lru_cache(maxsize=64)
def list_expected_bars(session: Calendar, after: int, until: int) -> ExpectedBars:
    """Return the bars of a session whose `close_time` lies in (after, until]."""
    rules = _RULES[session]
    # One day more than the window, because a 24x5 day begins on the UTC date before its own.
    dates = range(after // DAY_S, until // DAY_S + 2)
    trading_days = [
        (day, *times) for day in dates if (times := _find_trading_times(rules, day)) is not None
    ]
    day, opening, ending = np.array(trading_days, dtype=np.int64).reshape(-1, 3).T[:, :, np.newaxis]
    slot = np.arange(count_bars_per_day(session))
    open_time = opening // HOUR_S * HOUR_S + slot * HOUR_S
    close_time = open_time + HOUR_S
    inside = (close_time <= ending) & (close_time > after) & (close_time <= until)
    grid = (np.maximum(open_time, opening), close_time, day, slot)
    columns = [np.broadcast_to(column, inside.shape)[inside] for column in grid]
    # All callers share the cached arrays.
    for column in columns:
        column.setflags(write=False)
    return ExpectedBars(*columns)


def count_bars_per_day(session: Calendar) -> int:
    """Return the number of hourly bars of a full trading day."""
    return -(-_RULES[session].length_s // HOUR_S)


def opens_off_hour(session: Calendar) -> bool:
    """Return whether a day's first bar trades for less than its hour."""
    return _RULES[session].opening_offset_s % HOUR_S != 0


def find_last_close(session: Calendar, at: int) -> int:
    """Return the newest expected close at or before an instant."""
    return int(list_expected_bars(session, at - _MAX_CLOSED_S, at).close_time[-1])


def find_next_close(session: Calendar, after: int) -> int:
    """Return the first expected close strictly after an instant."""
    return _find_next_bar(session, after)[1]


def find_session_watermark(session: Calendar, at: int) -> int:
    """Return the time up to which nothing more can close, given all bars due at an instant.

    If the session is closed, that is the instant itself; else it is the newest close, or the
    opening if the day's first bar is in progress. It never falls as the instant grows.
    """
    opened, _ = _find_next_bar(session, at)
    return at if opened > at else max(opened, find_last_close(session, at))


def _find_next_bar(session: Calendar, after: int) -> tuple[int, int]:
    """Return when the first bar that closes after an instant begins and closes."""
    upcoming = list_expected_bars(session, after, after + _MAX_CLOSED_S)
    return int(upcoming.begin_time[0]), int(upcoming.close_time[0])


def find_trading_days(session: Calendar, times: Times) -> Times:
    """Return the trading days, in days since 1970, that have the stamps of daily bars.

    A stamp at 00:00 UTC is its date; any other one lies in its day, from the opening on.
    """
    rules, days = _RULES[session], times // DAY_S
    is_stamped = times % DAY_S != 0
    stamped_days, places = np.unique(days[is_stamped], return_inverse=True)
    # Clocks change on Sunday nights, so noon's offset holds for every stamp of a day.
    noons = [datetime.fromtimestamp(12 * HOUR_S + day * DAY_S, rules.zone) for day in stamped_days]
    offsets = np.array([int((noon.utcoffset() or timedelta()).total_seconds()) for noon in noons])
    begins_before_s = max(0, -rules.opening_offset_s)
    local = times[is_stamped] + offsets.astype(np.int64)[places] + begins_before_s
    days[is_stamped] = local // DAY_S
    return days


@lru_cache(maxsize=4096)
def _find_trading_times(rules: _SessionRules, day: int) -> tuple[int, int] | None:
    """Return when trading begins and ends on a local date, None if it is no trading day."""
    local = _EPOCH + timedelta(days=day)
    is_irregular = rules.has_holidays and local >= rules.irregular_since
    if not rules.has_weekends and local.weekday() >= SATURDAY:
        return None
    if rules.has_holidays and local in list_holidays(local.year):
        return None
    if is_irregular and local in MOURNING_DAYS:
        return None
    # Clocks change on Sunday nights, outside every session, so noon's offset holds all day.
    noon = datetime(local.year, local.month, local.day, 12, tzinfo=rules.zone)
    opening = int(noon.timestamp()) - DAY_S // 2 + rules.opening_offset_s
    is_short = is_irregular and is_early_close(local)
    return opening, opening + (_EARLY_LENGTH_S if is_short else rules.length_s)


def is_early_close(day: date) -> bool:
    """Return whether the US exchanges close at 13:00 on a trading day.

    They do on the eves of Independence Day and Christmas, and on the day after Thanksgiving.
    """
    is_eve = (day.month, day.day) in ((7, 3), (12, 24))
    return is_eve or day == _find_nth_weekday(day.year, 11, THURSDAY, 4) + timedelta(days=1)


@cache
def list_holidays(year: int) -> frozenset[date]:
    """Return the full-day holidays of the US exchanges in a year."""
    new_year = date(year, 1, 1)
    holidays = {
        _find_nth_weekday(year, 2, MONDAY, 3),  # Presidents
        _compute_easter(year) - timedelta(days=2),  # Good Friday
        _find_nth_weekday(year, 6, MONDAY, 1) - timedelta(days=7),  # Memorial, May's last Monday
        _shift_to_weekday(date(year, 7, 4)),
        _find_nth_weekday(year, 9, MONDAY, 1),  # Labor
        _find_nth_weekday(year, 11, THURSDAY, 4),  # Thanksgiving
        _shift_to_weekday(date(year, 12, 25)),
    }
    # A New Year's Day on a Saturday is not observed on the Friday, which ends the old year.
    if new_year.weekday() != SATURDAY:
        holidays.add(_shift_to_weekday(new_year))
    if year >= MARTIN_LUTHER_KING_SINCE:
        holidays.add(_find_nth_weekday(year, 1, MONDAY, 3))
    if year >= JUNETEENTH_SINCE:
        holidays.add(_shift_to_weekday(date(year, 6, 19)))
    return frozenset(holidays)


def _find_nth_weekday(year: int, month: int, weekday: int, count: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (count - 1))


def _shift_to_weekday(day: date) -> date:
    """Return the Friday before a Saturday, the Monday after a Sunday, else the day itself."""
    return day + timedelta(days={5: -1, 6: 1}.get(day.weekday(), 0))


def _compute_easter(year: int) -> date:
    """Return Easter Sunday by the anonymous Gregorian computus (Meeus, Jones, Butcher)."""
    century, rest = divmod(year, 100)
    skipped = century - century // 4 - (century - (century + 8) // 25 + 1) // 3
    golden = (19 * (year % 19) + skipped + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (rest // 4) - golden - rest % 4) % 7
    shift = (year % 19 + 11 * golden + 22 * weekday) // 451
    month, day = divmod(golden + weekday - 7 * shift + 114, 31)
    return date(year, month, day + 1)
