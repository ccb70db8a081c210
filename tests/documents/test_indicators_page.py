"""docs/indicators.md has all parameters of the code and the bar of each first value."""

import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from compute.alerts import engines
from compute.indicators import contract
from compute.indicators.contract import Bar, Indicator
from compute.indicators.registry import INDICATORS
from schemas.vocabulary import COOLDOWN_CANDLES, CURRENT_ACTIONS, TIMEFRAME_DURATIONS_S
from tests.support.bar_sets import advance_bar
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("indicators")

PAGE = (ROOT / "docs" / "indicators.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
# Derived from other parameters.
NO_PARAMETERS = {*vars(contract), "SPEEDS"}
# Its event needs the bands of the previous bar, its values only those of this bar.
LATER = {"reversals": 1}


def figures(text: str) -> set[float]:
    """Return every number in a text, including fractions."""
    found = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)}
    return found | {int(a) / int(b) for a, b in re.findall(r"(\d+)/([1-9]\d*)", text)}


def parameters(indicator: Indicator) -> Iterator[tuple[str, float]]:
    """Yield the name and value of every number that a module defines."""
    for name, value in vars(sys.modules[type(indicator).__module__]).items():
        if name.isupper() and name not in NO_PARAMETERS:
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, int | float):
                    yield name, float(one)


@pytest.mark.parametrize("indicator", INDICATORS, ids=[one.id for one in INDICATORS])
def test_the_section_of_an_indicator_has_its_names_parameters_and_sources(
    indicator: Indicator,
) -> None:
    text = SECTIONS[indicator.name]
    assert f"`{indicator.id}`, version {indicator.version}" in text
    given = list(parameters(indicator))
    assert given
    assert {name for name, value in given if value not in figures(text)} == set()
    source = sys.modules[type(indicator).__module__].__doc__ or ""
    assert set(re.findall(r"\((\d{4})\)", source)) <= set(re.findall(r"\((\d{4})\)", text))


def first_value(indicator: Indicator) -> int:
    """Return the number of the first bar on which every raw value is defined."""
    carry, nothing = indicator.start(1), np.array([np.nan])
    for number in range(1, contract.WARMUP):
        close = np.array([100.0 + number % 7])
        bar = Bar(close, close + 1.0, close - 1.0, close, close, nothing)
        if not np.isnan(list(advance_bar(indicator, carry, bar).values())).any():
            return number
    raise AssertionError(f"{indicator.id} has no value during the warm-up")


@pytest.mark.parametrize("indicator", INDICATORS, ids=[one.id for one in INDICATORS])
def test_the_first_value_comes_at_the_documented_bar(indicator: Indicator) -> None:
    expected = re.search(r"\*\*First value\*\* on bar (\d+)\.", SECTIONS[indicator.name])
    assert expected
    assert int(expected[1]) == first_value(indicator) + LATER.get(indicator.id, 0)


def test_the_warm_up_and_the_zero_divisor_are_those_of_the_code() -> None:
    shared = SECTIONS["Rules for all indicators"]
    assert {contract.WARMUP, contract.WARMUP + 1, contract.ZERO_DIVISOR} <= figures(shared)


def test_the_section_of_the_alert_engines_has_their_actions_stop_and_cooldown() -> None:
    text = SECTIONS["The alert engines"]
    assert all(f"`{action}`" in text for action in CURRENT_ACTIONS)
    assert f"{engines.STOP_ATRS:.0f} ATR({engines.ATR_PERIOD})" in text
    hours = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S["4h"] // 3600
    days = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S["1d"] // 86_400
    expected = f"per {COOLDOWN_CANDLES} candles: {hours} hours on 4h, {days} days on 1d"
    assert expected in " ".join(text.split())
