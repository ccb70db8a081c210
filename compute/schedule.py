"""When runs are due, and which clock is believed. Pure decisions.

A skew is how far this machine's clock is ahead of a venue's, in ms; negative if it is behind.
"""

from collections.abc import Mapping
from statistics import median
from typing import Final, NamedTuple, TypeVar

from compute.bars import HOUR_S, Times
from compute.sources.source import NotReadyError
from schemas.vocabulary import DAY_MS, RUN_DELAY_MS, format_instant

RUN_DELAY_S = RUN_DELAY_MS // 1000
Seconds = TypeVar("Seconds", int, Times)


class HistoryBounds(NamedTuple):
    """The bounds of the history that a first start builds.

    The feed shows rows of bars that close at or after `feed_from_ms` (epoch ms). Rows of runs up to
    the hour `backfilled_until` get their nominal time. The latest state is served from the market
    time `served_from` (epoch ms) on.
    """

    feed_from_ms: int
    backfilled_until: int
    served_from: int


def to_market_ms(run: Seconds) -> Seconds:
    """Return the nominal market time (epoch ms) of the run at an hour."""
    return (run + RUN_DELAY_S) * 1000


def find_last_run(now_ms: int) -> int:
    """Return the hour of the newest run whose market time has come."""
    return (now_ms // 1000 - RUN_DELAY_S) // HOUR_S * HOUR_S


# A service that rested for weeks catches up. What a wrong clock publishes or deletes stays so.
NAMED_PAUSE_DAYS: Final = 31
MAX_PAUSE_DAYS: Final = 180
# A clock that is ahead lets bars in that are still forming, so computing stops beyond this skew.
MAX_SKEW_MS: Final = 30_000
# A venue whose clock is behind by more does not date its bars by it: its answer is broken or old.
MAX_LAG_MS: Final = 1_800_000


class ClockVerdict(NamedTuple):
    """`problem` says why nothing may be computed, None if the machine's clock is confirmed.

    `wrong_skews_ms` has the skews of the venues whose clocks are wrong.
    """

    problem: str | None
    wrong_skews_ms: Mapping[str, float]


def count_pause_days(now: int, last_run: int | None, *, believes_clock: bool) -> int:
    """Return the days since the last run (epoch ms), below 0 if the clock is before it.

    Raise NotReadyError if they are too many to be believed, unless the operator believes them.
    """
    days = 0 if last_run is None else (now - last_run) // DAY_MS
    if last_run is not None and days > MAX_PAUSE_DAYS and not believes_clock:
        raise NotReadyError(
            f"the clock says {format_instant(now)}, {days} days after the last run "
            f"({format_instant(last_run)}): correct it, or add --believe-clock if it is right"
        )
    return days


def judge_clocks(skews_ms: Mapping[str, float]) -> ClockVerdict:
    """Decide by the skews of the venues that reported their time.

    A venue whose skew is at most 30 s confirms this machine's clock. If at least half of them do,
    the others' clocks are wrong. If more than half contradict it and agree with each other, it is
    wrong itself. In all other cases nobody can know.
    """
    if not skews_ms:
        return ClockVerdict("no venue answers: check that this machine is online", {})
    dissenting = {name: skew for name, skew in skews_ms.items() if abs(skew) > MAX_SKEW_MS}
    if 2 * len(dissenting) <= len(skews_ms):
        return ClockVerdict(None, dissenting)
    # The largest group of them that differ by at most 30 s from each other.
    skews = sorted(dissenting.values())
    groups = ([s for s in skews[at:] if s - first <= MAX_SKEW_MS] for at, first in enumerate(skews))
    agreeing = max(groups, key=len)
    if len(agreeing) > 1 and 2 * len(agreeing) > len(skews_ms):
        skew = median(agreeing)
        side = "ahead of" if skew > 0 else "behind"
        return ClockVerdict(
            f"the clock of this machine is {abs(skew) / 1000:.0f} s {side} that of the venues: "
            "correct it (NTP); nothing is computed until then",
            {},
        )
    reports = [
        describe_clock(name, skew) if name in dissenting else f"{name} confirms this machine's"
        for name, skew in sorted(skews_ms.items())
    ]
    return ClockVerdict(
        f"{'; '.join(reports)}: it is not known whose clock is right. Check the clock of this "
        "machine (NTP); nothing is computed until the venues confirm it",
        {},
    )


def describe_clock(venue: str, skew_ms: float) -> str:
    """Return in words how far a venue's clock is from this machine's."""
    side = "behind" if skew_ms > 0 else "ahead of"
    return f"the clock of {venue} is {abs(skew_ms) / 1000:.0f} s {side} this machine's"


def compute_lag_s(skew_ms: float) -> int:
    """Return how long after its close by this machine's clock a bar may still form at a venue."""
    return -int(-skew_ms // 1000) if MAX_SKEW_MS < skew_ms <= MAX_LAG_MS else 0
