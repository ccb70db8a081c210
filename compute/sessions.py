"""When each session of the universe trades: its hourly bars by rule, in epoch seconds UTC. Pure.

US exchanges: regular hours less the full-day holidays by rule (NYSE Rule 7.2); early closes and
days of mourning are not known here. Spot metals (24x5): no holidays, an hour's break a day.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from compute.bars import DAY_S, HOUR_S, Times, closing_time
from compute.universe import Session

_LONGEST_CLOSED_S = 8 * DAY_S
_EPOCH = date(1970, 1, 1)
_NEW_YORK = ZoneInfo("America/New_York")
MONDAY, THURSDAY, FRIDAY, SATURDAY = 0, 3, 4, 5
JUNETEENTH_SINCE = 2022


@dataclass(frozen=True, slots=True)
class Hours:
    """Hourly bars that a session should have, oldest first; every column has shape (bars,).

    `day` is the trading day's local date in days since 1970, `slot` a bar's place in it from 0.
    """

    open_time: Times
    close_time: Times
    day: Times
    slot: Times

    def __len__(self) -> int:
        return len(self.open_time)


class _Plan(NamedTuple):
    """A trading day: its first opening from local midnight, how many bars, on which days."""

    zone: tzinfo
    first_s: int
    bars: int
    has_weekends: bool
    has_holidays: bool


_EXCHANGE = _Plan(_NEW_YORK, 9 * HOUR_S + HOUR_S // 2, 7, False, True)
_PLANS: dict[Session, _Plan] = {
    "24x7": _Plan(UTC, 0, 24, True, False),
    "24x5": _Plan(_NEW_YORK, -6 * HOUR_S, 23, False, False),
    "XNYS": _EXCHANGE,
    "XNAS": _EXCHANGE,
}


@lru_cache(maxsize=64)
def hours(session: Session, after: int, until: int) -> Hours:
    """Return the bars of a session that close, by `closing_time`, in (after, until]."""
    plan = _PLANS[session]
    dates = range(after // DAY_S, until // DAY_S + 2)
    begun = [(day, at) for day in dates if (at := _opens(plan, day)) is not None]
    table = np.array(begun, dtype=np.int64).reshape(-1, 2)
    slot = np.arange(plan.bars)
    open_time = (table[:, 1:] + slot * HOUR_S).ravel()
    close_time = closing_time(open_time, HOUR_S)
    inside = slice(*np.searchsorted(close_time, (after, max(after, until)), side="right"))
    day = np.repeat(table[:, 0], plan.bars)
    columns = [open_time, close_time, day, np.tile(slot, len(table))]
    for column in columns:
        column.setflags(write=False)
    return Hours(*(column[inside] for column in columns))


def bars_a_day(session: Session) -> int:
    """Return how many hourly bars a full trading day has."""
    return _PLANS[session].bars


def last_close(session: Session, at: int) -> int:
    """Return the newest expected close at or before an instant."""
    return int(hours(session, at - _LONGEST_CLOSED_S, at).close_time[-1])


def next_close(session: Session, after: int) -> int:
    """Return the first expected close strictly after an instant."""
    return _next(session, after)[1]


def is_closed(session: Session, at: int) -> bool:
    """Say whether no bar is in progress: none opened at or before an instant closes after it."""
    return _next(session, at)[0] > at


def complete_until(session: Session, at: int) -> int:
    """Return up to when nothing more can close once all bars due at an instant are known.

    While the session is closed that is the instant, else the newest close (on a day's first bar:
    its opening). It never falls as the instant grows.
    """
    opened, _ = _next(session, at)
    return at if opened > at else max(opened, last_close(session, at))


def _next(session: Session, after: int) -> tuple[int, int]:
    """Return when the first bar that closes after an instant opens and closes."""
    coming = hours(session, after, after + _LONGEST_CLOSED_S)
    return int(coming.open_time[0]), int(coming.close_time[0])


@lru_cache(maxsize=4096)
def _opens(plan: _Plan, day: int) -> int | None:
    """Return when the first bar of a local date opens, None where it is no trading day.

    Clocks change on Sunday nights, outside of every session: noon's offset holds for the whole day.
    """
    local = _EPOCH + timedelta(days=day)
    if not plan.has_weekends and local.weekday() >= SATURDAY:
        return None
    if plan.has_holidays and local in holidays(local.year):
        return None
    noon = datetime(local.year, local.month, local.day, 12, tzinfo=plan.zone)
    return int(noon.timestamp()) - DAY_S // 2 + plan.first_s


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
