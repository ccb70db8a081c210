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

from compute.bars import DAY_S, HOUR_S, Times, closing_time
from compute.universe import Session

Calendar = Session | Literal["XSIM"]

_LONGEST_CLOSED_S = 8 * DAY_S
_EPOCH = date(1970, 1, 1)
_NEW_YORK = ZoneInfo("America/New_York")
MONDAY, THURSDAY, SATURDAY = 0, 3, 5
JUNETEENTH_SINCE = 2022
MOURNING = frozenset({date(2018, 12, 5), date(2025, 1, 9)})
XSIM_IRREGULAR_SINCE = date(2027, 1, 1)


@dataclass(frozen=True, slots=True)
class Hours:
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


class _Plan(NamedTuple):
    """A trading day: its opening from local midnight, how long it is, on which days it is one."""

    zone: tzinfo
    first_s: int
    length_s: int
    has_weekends: bool
    has_holidays: bool
    irregular_since: date = date.min


_EXCHANGE = _Plan(_NEW_YORK, 19 * HOUR_S // 2, 13 * HOUR_S // 2, False, True)
_EARLY_LENGTH_S = 7 * HOUR_S // 2
_PLANS: dict[Calendar, _Plan] = {
    "24x7": _Plan(UTC, 0, 24 * HOUR_S, True, False),
    "24x5": _Plan(_NEW_YORK, -6 * HOUR_S, 23 * HOUR_S, False, False),
    "XNYS": _EXCHANGE,
    "XNAS": _EXCHANGE,
    "XSIM": _EXCHANGE._replace(irregular_since=XSIM_IRREGULAR_SINCE),
}


@lru_cache(maxsize=64)
def hours(session: Calendar, after: int, until: int) -> Hours:
    """Return the bars of a session that close, by `closing_time`, in (after, until]."""
    plan = _PLANS[session]
    dates = range(after // DAY_S, until // DAY_S + 2)
    begun = [(day, *times) for day in dates if (times := _trading(plan, day)) is not None]
    day, opening, ending = np.array(begun, dtype=np.int64).reshape(-1, 3).T[:, :, np.newaxis]
    slot = np.arange(bars_a_day(session))
    open_time = opening + slot * HOUR_S
    end_time = np.minimum(open_time + HOUR_S, ending)
    close_time = closing_time(open_time, HOUR_S)
    inside = (open_time < ending) & (close_time > after) & (close_time <= until)
    grid = (open_time, end_time, close_time, day, slot)
    columns = [np.broadcast_to(column, inside.shape)[inside] for column in grid]
    for column in columns:
        column.setflags(write=False)
    return Hours(*columns)


def bars_a_day(session: Calendar) -> int:
    """Return how many hourly bars a full trading day has."""
    return -(-_PLANS[session].length_s // HOUR_S)


def last_close(session: Calendar, at: int) -> int:
    """Return the newest expected close at or before an instant."""
    return int(hours(session, at - _LONGEST_CLOSED_S, at).close_time[-1])


def next_close(session: Calendar, after: int) -> int:
    """Return the first expected close strictly after an instant."""
    return _next(session, after)[1]


def is_closed(session: Calendar, at: int) -> bool:
    """Say whether no bar is in progress: none opened at or before an instant closes after it."""
    return _next(session, at)[0] > at


def complete_until(session: Calendar, at: int) -> int:
    """Return up to when nothing more can close once all bars due at an instant are known.

    While the session is closed that is the instant, else the newest close (on a day's first bar:
    its opening). It never falls as the instant grows.
    """
    opened, _ = _next(session, at)
    return at if opened > at else max(opened, last_close(session, at))


def _next(session: Calendar, after: int) -> tuple[int, int]:
    """Return when the first bar that closes after an instant opens and closes."""
    coming = hours(session, after, after + _LONGEST_CLOSED_S)
    return int(coming.open_time[0]), int(coming.close_time[0])


@lru_cache(maxsize=4096)
def _trading(plan: _Plan, day: int) -> tuple[int, int] | None:
    """Return when trading begins and ends on a local date, None where it is no trading day.

    Clocks change on Sunday nights, outside of every session: noon's offset holds for the whole day.
    """
    local = _EPOCH + timedelta(days=day)
    is_irregular = plan.has_holidays and local >= plan.irregular_since
    if not plan.has_weekends and local.weekday() >= SATURDAY:
        return None
    if plan.has_holidays and local in holidays(local.year):
        return None
    if is_irregular and local in MOURNING:
        return None
    noon = datetime(local.year, local.month, local.day, 12, tzinfo=plan.zone)
    opening = int(noon.timestamp()) - DAY_S // 2 + plan.first_s
    is_short = is_irregular and closes_early(local)
    return opening, opening + (_EARLY_LENGTH_S if is_short else plan.length_s)


def closes_early(day: date) -> bool:
    """Say whether the US exchanges close at 13:00 on a trading day.

    They do on the eves of Independence Day and Christmas, and on the day after Thanksgiving.
    """
    is_eve = (day.month, day.day) in ((7, 3), (12, 24))
    return is_eve or day == _nth(day.year, 11, THURSDAY, 4) + timedelta(days=1)


@cache
def holidays(year: int) -> frozenset[date]:
    """Return the full-day holidays of the US exchanges that fall into a year."""
    return frozenset(_holidays(year))


def _holidays(year: int) -> Iterator[date]:
    new_year = date(year, 1, 1)
    if new_year.weekday() != SATURDAY:  # it is not made up for in the old year
        yield _observed(new_year)
    yield _nth(year, 1, MONDAY, 3)  # Martin Luther King
    yield _nth(year, 2, MONDAY, 3)  # Presidents
    yield _easter(year) - timedelta(days=2)  # Good Friday
    yield _nth(year, 6, MONDAY, 1) - timedelta(days=7)  # Memorial, the last Monday of May
    if year >= JUNETEENTH_SINCE:
        yield _observed(date(year, 6, 19))
    yield _observed(date(year, 7, 4))
    yield _nth(year, 9, MONDAY, 1)  # Labor
    yield _nth(year, 11, THURSDAY, 4)  # Thanksgiving
    yield _observed(date(year, 12, 25))


def _nth(year: int, month: int, weekday: int, count: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (count - 1))


def _observed(day: date) -> date:
    """Return Friday for a Saturday, Monday for a Sunday."""
    return day + timedelta(days={5: -1, 6: 1}.get(day.weekday(), 0))


def _easter(year: int) -> date:
    """Return Easter Sunday by the anonymous Gregorian computus (Meeus, Jones, Butcher)."""
    century, rest = divmod(year, 100)
    skipped = century - century // 4 - (century - (century + 8) // 25 + 1) // 3
    golden = (19 * (year % 19) + skipped + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (rest // 4) - golden - rest % 4) % 7
    shift = (year % 19 + 11 * golden + 22 * weekday) // 451
    month, day = divmod(golden + weekday - 7 * shift + 114, 31)
    return date(year, month, day + 1)
