"""The rules of alerts: from readings to LONG, SHORT and CLOSE, and when they go out.

One step function serves all engines at once, as an indicator's serves all assets. Hours are the
nominal hours of runs in epoch seconds; times of publication are epoch ms. The rules are in
docs/indicators.md ("The alert engines"). Pure.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from compute.bars import HOUR_S
from compute.indicators.contract import NO_READING, Carry, Floats, Readings
from compute.indicators.windows import atr, count_bars, make_undefined, start_atr
from compute.schedule import find_last_run, to_market_ms
from schemas.vocabulary import (
    COOLDOWN_CANDLES,
    CURRENT_ACTIONS,
    TIMEFRAME_DURATIONS_S,
    Action,
    Timeframe,
)

ATR_PERIOD = 14
STOP_ATRS = 3.0
NOTHING, LONG, SHORT, CLOSE = 0, 1, -1, 2
ACTIONS: dict[int, Action] = {LONG: "LONG", SHORT: "SHORT", CLOSE: "CLOSE"}


class BarWithReading(NamedTuple):
    """Closed bars of each of N engines and its indicator's readings on them; shape (bars, N)."""

    high: Floats
    low: Floats
    close: Floats
    reading: Readings


class AlertEngine:
    """Takes the side of a reading; leaves it when the reading does, or at a stop of 3 ATRs."""

    version = 2  # 1 measured the cooldown in nominal hours

    def start(self, engines: int) -> Carry:
        """Return the carry of engines that are flat and have not yet seen a bar.

        `side` is the position, `barred` the side that a stop has closed until the reading changes.
        """
        # `best` and `stop` are the highest close and the stop of a long position. For a short one
        # both are negated (`best` is minus the lowest close), so that one rule serves both. They
        # mean nothing without a position.
        return {
            "bars": np.zeros(engines, dtype=np.int64),
            "side": np.zeros(engines, dtype=np.int8),
            "barred": np.zeros(engines, dtype=np.int8),
            "best": make_undefined(engines),
            "stop": make_undefined(engines),
            **start_atr(engines),
        }

    def step(self, carry: Carry, bars: BarWithReading) -> tuple[Carry, Readings]:
        """Advance by the bars, in place; return the actions on each, NOTHING for most."""
        counts = count_bars(carry, len(bars.close))
        ranges = atr(carry, counts, bars.high, bars.low, bars.close, ATR_PERIOD)
        side, barred, best, stop = (carry[key] for key in ("side", "barred", "best", "stop"))
        actions = np.zeros_like(bars.reading)
        for close, reading, distance, action in zip(
            bars.close, bars.reading, STOP_ATRS * ranges, actions, strict=True
        ):
            is_read = reading != NO_READING
            barred[is_read & (reading != barred)] = NOTHING
            # A held position takes in the bar, then its close is compared with the stop, which
            # never moves back, even if the ATR has grown since.
            holds, gained = is_read & (side != NOTHING), side * close
            np.copyto(best, np.maximum(best, gained), where=holds)
            np.copyto(stop, np.fmax(stop, best - distance), where=holds)
            is_stopped = holds & (gained < stop)
            np.copyto(barred, side, where=is_stopped & (reading == side))
            side[is_stopped] = NOTHING
            is_free = is_read & ~is_stopped & (reading != side)
            enters = is_free & (reading != NOTHING) & (reading != barred)
            leaves = is_free & (reading == NOTHING)
            # The entry bar sets the first extreme and the first stop.
            np.copyto(side, reading, where=enters)
            np.copyto(best, reading * close, where=enters)
            np.copyto(stop, reading * close - distance, where=enters)
            side[leaves] = NOTHING
            np.copyto(action, reading, where=enters)
            action[is_stopped | leaves] = CLOSE
        return carry, actions


NEVER = -1
# What a publisher remembers of each action: when it was published, and the held firing's close and
# price.
PUBLISHER_STRUCT: Final = Struct("<3q3q3d")
# A row may be dated this much after its run: two runs are seldom exactly a cooldown apart, and an
# alert that would be some seconds early would have to wait for the next run.
MAX_AHEAD_MS = 120_000


def compute_cooldown_ms(timeframe: Timeframe) -> int:
    """Return the least time between two publications of one action."""
    return 1000 * COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[timeframe]


class Firing(NamedTuple):
    """An engine's action on a bar, and the hour of the run that stepped the bar."""

    hour: int
    close_time: int
    action: Action
    price: float


class Publisher:
    """Publishes an action at most once per 20 candles and holds one that fires sooner.

    Between calls of `run`, every held action falls due later than the last call's `until`.
    """

    def __init__(self, timeframe: Timeframe, published: Mapping[Action, int] | None = None) -> None:
        """`published` has the `created_at` with which each action was last published, if it was."""
        self._cooldown_ms: Final = compute_cooldown_ms(timeframe)
        self._published_at: dict[Action, int] = dict(published or {})
        self._held_back: dict[Action, Firing] = {}

    @property
    def due_hour(self) -> int | None:
        """The first hour in which the cooldown of a held alert ends, None if none is held."""
        return min(map(find_last_run, map(self._find_end, self._held_back)), default=None)

    def run(
        self, firings: Iterable[Firing], until: int, written_at: int | None = None
    ) -> list[Firing]:
        """Take firings in order, then all hours up to `until`; return the published ones.

        Each hour counts as its nominal time, or as `written_at`, if the rows of all these hours are
        written then.
        """
        out: list[Firing] = []
        for firing in firings:
            out += self._release(firing.hour, written_at)
            if self._is_due(firing.action, _find_time(firing.hour, written_at)):
                out += self._publish(firing, written_at)
            else:
                self._held_back[firing.action] = firing
        return out + self._release(until, written_at)

    def pack(self) -> bytes:
        """Return times and held firings as bytes, in the order of CURRENT_ACTIONS."""
        nothing = Firing(NEVER, NEVER, "CLOSE", 0.0)
        held_back = [self._held_back.get(action, nothing) for action in CURRENT_ACTIONS]
        return PUBLISHER_STRUCT.pack(
            *(self._published_at.get(action, NEVER) for action in CURRENT_ACTIONS),
            *(firing.close_time for firing in held_back),
            *(firing.price for firing in held_back),
        )

    def unpack(self, data: bytes) -> None:
        """Restore the state that `pack` returned."""
        numbers = PUBLISHER_STRUCT.unpack(data)
        published, closes, prices = numbers[:3], numbers[3:6], numbers[6:]
        self._published_at = {
            a: at for a, at in zip(CURRENT_ACTIONS, published, strict=True) if at >= 0
        }
        self._held_back = {
            action: Firing(NEVER, close, action, price)
            for action, close, price in zip(CURRENT_ACTIONS, closes, prices, strict=True)
            if close >= 0
        }

    def _find_end(self, action: Action) -> int:
        """Return the first time at which an action may be published again, 0 if it never was."""
        last = self._published_at.get(action)
        return 0 if last is None else last + self._cooldown_ms

    def _is_due(self, action: Action, time: int) -> bool:
        # `batch_assembler.keep_cooldowns` dates the row at the end, if that is later.
        return time + MAX_AHEAD_MS >= self._find_end(action)

    def _release(self, until: int, written_at: int | None) -> list[Firing]:
        """Publish the held alert that falls due first, which drops the others.

        If two fall due at the same time, the one of the older bar goes out.
        """
        hour = until
        if written_at is None and self._held_back:
            end = min(map(self._find_end, self._held_back))
            hour = find_last_run(end - MAX_AHEAD_MS - 1) + HOUR_S
        if hour > until:
            return []
        time = _find_time(hour, written_at)
        ripe = [one for action, one in self._held_back.items() if self._is_due(action, time)]
        if not ripe:
            return []
        oldest = min(ripe, key=lambda firing: firing.close_time)
        return self._publish(oldest._replace(hour=hour), written_at)

    def _publish(self, firing: Firing, written_at: int | None) -> list[Firing]:
        # By the rules, publishing one action drops all others that the engine holds.
        time = _find_time(firing.hour, written_at)
        self._published_at[firing.action] = max(time, self._find_end(firing.action))
        self._held_back.clear()
        return [firing]


def _find_time(hour: int, written_at: int | None) -> int:
    return to_market_ms(hour) if written_at is None else written_at
