"""The alert engine: turns the readings of one indicator into LONG, SHORT and CLOSE.

One step function serves all engines at once, as an indicator's serves all assets. The rules are in
docs/indicators.md ("The alert engines").
"""

from typing import NamedTuple, cast

import numpy as np

from compute.indicators.contract import NO_READING, Carry, Flags, Floats, Readings
from compute.indicators.recurrences import atr, start_atr
from compute.indicators.windows import count_bars, get_floats, make_undefined
from schemas.vocabulary import Action

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
        distances = STOP_ATRS * atr(carry, counts, bars, ATR_PERIOD)
        rows = map(BarWithReading, *bars)
        actions = [_step_bar(carry, *row) for row in zip(rows, distances, strict=True)]
        return carry, np.array(actions)


def _step_bar(carry: Carry, bar: BarWithReading, distance: Floats) -> Readings:
    """Advance by one bar of each engine, in columns of shape (N,); return the actions."""
    side, barred = _get_readings(carry, "side"), _get_readings(carry, "barred")
    is_read = bar.reading != NO_READING
    barred[is_read & (bar.reading != barred)] = NOTHING
    is_stopped = _trail_stops(carry, bar.close, distance, is_read & (side != NOTHING))
    np.copyto(barred, side, where=is_stopped & (bar.reading == side))
    side[is_stopped] = NOTHING
    is_free = is_read & ~is_stopped & (bar.reading != side)
    enters = is_free & (bar.reading != NOTHING) & (bar.reading != barred)
    leaves = is_free & (bar.reading == NOTHING)
    _enter_positions(carry, bar, distance, enters)
    side[leaves] = NOTHING
    action = np.where(enters, bar.reading, np.int8(NOTHING))
    action[is_stopped | leaves] = CLOSE
    return action


def _trail_stops(carry: Carry, close: Floats, distance: Floats, holds: Flags) -> Flags:
    """Update extremes and stops of the held positions; return which of them the bar stops."""
    # A stop never moves back, even if the ATR has grown since.
    best, stop = get_floats(carry, "best"), get_floats(carry, "stop")
    gained = _get_readings(carry, "side") * close
    np.copyto(best, np.maximum(best, gained), where=holds)
    np.copyto(stop, np.fmax(stop, best - distance), where=holds)
    return holds & (gained < stop)


def _enter_positions(carry: Carry, bar: BarWithReading, distance: Floats, enters: Flags) -> None:
    """Take the side of the reading; the entry bar sets the first extreme and the first stop."""
    gained = bar.reading * bar.close
    np.copyto(_get_readings(carry, "side"), bar.reading, where=enters)
    np.copyto(get_floats(carry, "best"), gained, where=enters)
    np.copyto(get_floats(carry, "stop"), gained - distance, where=enters)


def _get_readings(carry: Carry, key: str) -> Readings:
    return cast(Readings, carry[key])
