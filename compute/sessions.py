"""When each session of the universe trades: its hourly bars by rule, in epoch seconds UTC. Pure.

US exchanges: regular hours less the full-day holidays by rule (NYSE Rule 7.2) and days of mourning,
with early closes by the rule kept since 2013. Spot metals (24x5): no holidays, an hour's break a
day. XSIM, the simulated market's exchange, began without these two and keeps them from 2027 on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from compute.bars import DAY_S, HOUR_S, Times, compute_close_time
from compute.universe import Session

Calendar = Session | Literal["XSIM"]

_MAX_CLOSED_S = 8 * DAY_S
_EPOCH = date(1970, 1, 1)
_NEW_YORK = ZoneInfo("America/New_York")
MONDAY, THURSDAY, SATURDAY = 0, 3, 5
JUNETEENTH_SINCE = 2022
MOURNING_DAYS = frozenset({date(2018, 12, 5), date(2025, 1, 9)})
XSIM_IRREGULAR_SINCE = date(2027, 1, 1)


@dataclass(frozen=True, slots=True)
class ExpectedBars:
    """Hourly bars that a session should have, oldest first; every column has shape (bars,).

    `end_time` is when a bar's trading ends, `close_time` the full hour when it counts as closed.
    `day` is the trading day's local date in days since 1970, `slot` a bar's place in it from 0.
    """

    open_time: Times
    end_time: Times
    close_time: Times
    day: Times
    slot: Times

    def __len__(self) -> int:
        return len(self.open_time)


class _SessionRules(NamedTuple):
    """A trading day: its opening from local midnight, how long it is, on which days it is one."""

    zone: tzinfo
    opening_offset_s: int
    length_s: int
    has_weekends: bool
    has_holidays: bool
    irregular_since: date = date.min


_EXCHANGE_RULES = _SessionRules(_NEW_YORK, 19 * HOUR_S // 2, 13 * HOUR_S // 2, False, True)
_EARLY_LENGTH_S = 7 * HOUR_S // 2
_RULES: dict[Calendar, _SessionRules] = {
    "24x7": _SessionRules(UTC, 0, 24 * HOUR_S, True, False),
    "24x5": _SessionRules(_NEW_YORK, -6 * HOUR_S, 23 * HOUR_S, False, False),
    "XNYS": _EXCHANGE_RULES,
    "XNAS": _EXCHANGE_RULES,
    "XSIM": _EXCHANGE_RULES._replace(irregular_since=XSIM_IRREGULAR_SINCE),
}


@lru_cache(maxsize=64)
def list_expected_bars(session: Calendar, after: int, until: int) -> ExpectedBars:
    """Return the bars of a session that close, by `closing_time`, in (after, until]."""
    rules = _RULES[session]
    dates = range(after // DAY_S, until // DAY_S + 2)
    trading_days = [
        (day, *times) for day in dates if (times := _find_trading_times(rules, day)) is not None
    ]
    day, opening, ending = np.array(trading_days, dtype=np.int64).reshape(-1, 3).T[:, :, np.newaxis]
    slot = np.arange(count_bars_per_day(session))
    open_time = opening + slot * HOUR_S
    end_time = np.minimum(open_time + HOUR_S, ending)
    close_time = compute_close_time(open_time, HOUR_S)
    inside = (open_time < ending) & (close_time > after) & (close_time <= until)
    grid = (open_time, end_time, close_time, day, slot)
    columns = [np.broadcast_to(column, inside.shape)[inside] for column in grid]
    for column in columns:
        column.setflags(write=False)
    return ExpectedBars(*columns)


def count_bars_per_day(session: Calendar) -> int:
    """Return how many hourly bars a full trading day has."""
    return -(-_RULES[session].length_s // HOUR_S)


def find_last_close(session: Calendar, at: int) -> int:
    """Return the newest expected close at or before an instant."""
    return int(list_expected_bars(session, at - _MAX_CLOSED_S, at).close_time[-1])


def find_next_close(session: Calendar, after: int) -> int:
    """Return the first expected close strictly after an instant."""
    return _find_next_bar(session, after)[1]


def is_closed(session: Calendar, at: int) -> bool:
    """Say whether no bar is in progress: none opened at or before an instant closes after it."""
    return _find_next_bar(session, at)[0] > at


def find_session_watermark(session: Calendar, at: int) -> int:
    """Return up to when nothing more can close once all bars due at an instant are known.

    While the session is closed that is the instant, else the newest close (on a day's first bar:
    its opening). It never falls as the instant grows.
    """
    opened, _ = _find_next_bar(session, at)
    return at if opened > at else max(opened, find_last_close(session, at))


def _find_next_bar(session: Calendar, after: int) -> tuple[int, int]:
    """Return when the first bar that closes after an instant opens and closes."""
    upcoming = list_expected_bars(session, after, after + _MAX_CLOSED_S)
    return int(upcoming.open_time[0]), int(upcoming.close_time[0])


@lru_cache(maxsize=4096)
def _find_trading_times(rules: _SessionRules, day: int) -> tuple[int, int] | None:
    """Return when trading begins and ends on a local date, None where it is no trading day.

    Clocks change on Sunday nights, outside of every session: noon's offset holds for the whole day.
    """
    local = _EPOCH + timedelta(days=day)
    is_irregular = rules.has_holidays and local >= rules.irregular_since
    if not rules.has_weekends and local.weekday() >= SATURDAY:
        return None
    if rules.has_holidays and local in list_holidays(local.year):
        return None
    if is_irregular and local in MOURNING_DAYS:
        return None
    noon = datetime(local.year, local.month, local.day, 12, tzinfo=rules.zone)
    opening = int(noon.timestamp()) - DAY_S // 2 + rules.opening_offset_s
    is_short = is_irregular and is_early_close(local)
    return opening, opening + (_EARLY_LENGTH_S if is_short else rules.length_s)


def is_early_close(day: date) -> bool:
    """Say whether the US exchanges close at 13:00 on a trading day.

    They do on the eves of Independence Day and Christmas, and on the day after Thanksgiving.
    """
    is_eve = (day.month, day.day) in ((7, 3), (12, 24))
    return is_eve or day == _find_nth_weekday(day.year, 11, THURSDAY, 4) + timedelta(days=1)


@cache
def list_holidays(year: int) -> frozenset[date]:
    """Return the full-day holidays of the US exchanges that fall into a year."""
    return frozenset(_generate_holidays(year))


def _generate_holidays(year: int) -> Iterator[date]:
    new_year = date(year, 1, 1)
    if new_year.weekday() != SATURDAY:  # it is not made up for in the old year
        yield _shift_to_weekday(new_year)
    yield _find_nth_weekday(year, 1, MONDAY, 3)  # Martin Luther King
    yield _find_nth_weekday(year, 2, MONDAY, 3)  # Presidents
    yield _compute_easter(year) - timedelta(days=2)  # Good Friday
    yield _find_nth_weekday(year, 6, MONDAY, 1) - timedelta(
        days=7
    )  # Memorial, the last Monday of May
    if year >= JUNETEENTH_SINCE:
        yield _shift_to_weekday(date(year, 6, 19))
    yield _shift_to_weekday(date(year, 7, 4))
    yield _find_nth_weekday(year, 9, MONDAY, 1)  # Labor
    yield _find_nth_weekday(year, 11, THURSDAY, 4)  # Thanksgiving
    yield _shift_to_weekday(date(year, 12, 25))


def _find_nth_weekday(year: int, month: int, weekday: int, count: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (count - 1))


def _shift_to_weekday(day: date) -> date:
    """Return Friday for a Saturday, Monday for a Sunday."""
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
