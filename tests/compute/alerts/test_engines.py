"""The alert engine: the rules of docs/indicators.md by hand, then a slow model on random bars."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute.alerts.engines import ACTIONS, AlertEngine, BarWithReading
from compute.indicators.contract import NO_READING
from tests.support import alert_model as alert_model
from tests.support.alert_model import ModelBar
from tests.support.one_bar import step_bar

pytestmark = pytest.mark.clause("indicators")

QUIET = [(100.0, None)] * 20  # bars of range 2 without a reading: the ATR is 2, a stop is 6 away
Read = tuple[float, int | None]


def stepped(bars: Sequence[tuple[float, float, float, int | None]]) -> list[str]:
    """Step one engine on (high, low, close, reading) bars; return its actions, `-` for none."""
    engine, actions = AlertEngine(), []
    carry = engine.start(1)
    for high, low, close, reading in bars:
        bar = BarWithReading(
            *(np.array([value]) for value in (high, low, close)),
            np.array([NO_READING if reading is None else reading], dtype=np.int8),
        )
        carry, action = step_bar(engine, carry, bar)
        actions.append(ACTIONS.get(int(action[0]), "-"))
    return actions


def acts(*reads: Read) -> list[str]:
    """Return the actions on closes and readings after a quiet start, all bars of range 2."""
    rows = [(close + 1, close - 1, close, reading) for close, reading in [*QUIET, *reads]]
    actions = stepped(rows)
    assert actions[: len(QUIET)] == ["-"] * len(QUIET)
    return actions[len(QUIET) :]


def mirrored(reads: Sequence[Read]) -> list[Read]:
    return [(200 - close, None if reading is None else -reading) for close, reading in reads]


OTHER = {"LONG": "SHORT", "SHORT": "LONG", "CLOSE": "CLOSE", "-": "-"}
RULES: dict[str, tuple[list[Read], list[str]]] = {
    "the first reading may fire": ([(100, 1)], ["LONG"]),
    "a neutral first reading fires nothing": ([(100, 0), (100, 1)], ["-", "LONG"]),
    "a side that stays fires once": ([(100, 1), (100, 1), (101, 1)], ["LONG", "-", "-"]),
    "a bar without a reading is no step": ([(100, 1), (100, None)], ["LONG", "-"]),
    "neutral ends a position": ([(100, 1), (100, 0), (100, 0)], ["LONG", "CLOSE", "-"]),
    "neutral bars no side": ([(100, 1), (100, 0), (100, 1)], ["LONG", "CLOSE", "LONG"]),
    "a direct turn publishes only the new side": ([(100, 1), (100, -1)], ["LONG", "SHORT"]),
    "the entry bar's close counts: 6 below it is not beyond, 6.5 is": (
        [(100, 1), (99, 1), (97, 1), (94.5, 1), (93.4, 1)],
        ["LONG", "-", "-", "-", "CLOSE"],
    ),
    "a stop bars the side that is still read": (
        [(100, 1), (92, 1), (110, 1)],
        ["LONG", "CLOSE", "-"],
    ),
    "a barred side is freed by a neutral bar": (
        [(100, 1), (92, 1), (92, 0), (92, 1)],
        ["LONG", "CLOSE", "-", "LONG"],
    ),
    "a barred side is freed by the other side": (
        [(100, 1), (92, 1), (92, -1), (92, 1)],
        ["LONG", "CLOSE", "SHORT", "LONG"],
    ),
    "a bar without a reading frees nothing": (
        [(100, 1), (92, 1), (92, None), (92, 1)],
        ["LONG", "CLOSE", "-", "-"],
    ),
    "a stop with another reading bars nothing": (
        [(100, 1), (92, 0), (92, 1)],
        ["LONG", "CLOSE", "LONG"],
    ),
    "a turn on the bar of a stop waits for the next": (
        [(100, 1), (92, -1), (92, -1)],
        ["LONG", "CLOSE", "SHORT"],
    ),
    # Three ranges of 3 lift the ATR to 2.199, so the stop is 106 - 6.598 = 99.402.
    "the highest close since entry moves the stop": (
        [(100, 1), (102, 1), (104, 1), (106, 1), (99.5, 1), (99.4, 1)],
        ["LONG", "-", "-", "-", "-", "CLOSE"],
    ),
    "a new entry forgets the old extreme": (
        [(100, 1), (103, 1), (106, 1), (105, 0), (101, 1), (98, 1)],
        ["LONG", "-", "-", "CLOSE", "LONG", "-"],
    ),
}


@pytest.mark.clause("2.1.16", "3.3.1", "3.3.11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", ["long", "short"])
def test_an_engine_keeps_the_rule(rule: str, side: str):
    reads, expected = RULES[rule]
    if side == "short":
        reads, expected = mirrored(reads), [OTHER[action] for action in expected]
    assert acts(*reads) == expected


def flat(count: int) -> list[tuple[float, float, float, int | None]]:
    return [(101.0, 99.0, 100.0, None)] * count


def test_extreme_and_stop_include_the_bar_before_its_close_is_compared():
    # A range of 16 lifts the ATR from 2 to 3, so this bar's stop is 91, no longer 94: 92 stays.
    # But a stop never moves back: the entry's 94 stays, and 92 is beyond it.
    entered = [*flat(20), (101.0, 99.0, 100.0, 1)]
    assert stepped([*entered, (108.0, 92.0, 92.0, 1)])[-1] == "CLOSE"
    assert stepped([*entered, (110.0, 94.0, 94.0, 1)])[-1] == "-"
    # A new highest close on a bar of its own range: the stop is 110 - 3 x 2.64, not 100 - 6.
    rising = [*entered, (110.0, 109.0, 110.0, 1)]
    atr = 2 + (10 - 2) / 14
    atr_next = atr + (110 - (110 - 3 * atr) + 0.1 - atr) / 14
    close = 110 - 3 * atr + 0.1
    assert stepped([*rising, (110.0, close, close, 1)])[-1] == "-"
    assert atr_next > atr
    assert stepped([*rising, (110.0, close - 0.2, close - 0.2, 1)])[-1] == "CLOSE"


def test_a_narrower_range_raises_the_stop_without_a_new_extreme():
    quiet = [(100.0, 100.0, 100.0, 1)] * 40  # the ATR decays to 2 x (13/14)^40 = 0.103
    rows = [*flat(20), (101.0, 99.0, 100.0, 1), *quiet]
    assert stepped([*rows, (99.5, 99.5, 99.5, 1)])[-1] == "CLOSE"
    assert stepped([*rows[:25], (99.5, 99.5, 99.5, 1)])[-1] == "-"


def test_the_range_runs_on_every_bar_and_the_engine_on_those_with_a_reading():
    wide = [(110.0, 90.0, 100.0, None)] * 60
    entered = [*flat(20), *wide, (101.0, 99.0, 100.0, 1)]
    assert stepped([*entered, (100.0, 85.0, 85.0, 1)])[-1] == "-"
    assert stepped([*flat(20), (101.0, 99.0, 100.0, 1), (100.0, 85.0, 85.0, 1)])[-1] == "CLOSE"


MOVES = st.lists(
    st.tuples(
        st.integers(-60, 60), st.integers(0, 30), st.integers(0, 30), st.sampled_from([-1, 0, 1])
    ),
    min_size=1,
    max_size=60,
)


def model_bars(moves: Sequence[tuple[int, int, int, int]], warmup: int) -> list[ModelBar]:
    """Return daily bars that walk in tenths; the first ones have no reading."""
    price, bars = 1000, []
    for at, (move, above, below, reading) in enumerate([(0, 5, 5, 0)] * warmup + list(moves)):
        before, price = price, max(price + move, 100)
        high, low = max(before, price) + above, min(before, price) - below
        read = None if at < warmup else reading
        end = (at + 1) * 86_400
        bars.append(ModelBar(end, end, high / 10, low / 10, price / 10, read))
    return bars


@pytest.mark.clause("3.3.11")
@settings(deadline=None)
@given(moves=MOVES, holding=st.integers(1, 6))
def test_an_engine_fires_as_the_slow_model_does(
    moves: list[tuple[int, int, int, int]], holding: int
):
    sticky = [(*move[:3], moves[at // holding * holding][3]) for at, move in enumerate(moves)]
    bars = model_bars(sticky, warmup=20)
    actions = stepped([(bar.high, bar.low, bar.close, bar.reading) for bar in bars])
    found = [
        (bar.close_time, action, bar.close)
        for bar, action in zip(bars, actions, strict=True)
        if action != "-"
    ]
    assert found == alert_model.run_engine(bars)
