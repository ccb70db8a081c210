"""Steps and raw values of one bar of each asset, in columns of shape (assets,)."""

from typing import Any

import numpy as np

from compute.engine import StepFunction
from compute.indicators.contract import Carry, Indicator

Array = np.ndarray[Any, Any]


def step_bar(function: StepFunction[Any], carry: Carry, bar: Any) -> tuple[Carry, Array]:
    """Advance by one bar of each asset; return the carry and the readings, shape (assets,)."""
    carry, readings = function.step(carry, _add_axis(bar))
    return carry, readings[0]


def advance_bar(indicator: Indicator, carry: Carry, bar: Any) -> dict[str, Array]:
    """Return the raw values after one bar of each asset, shape (assets,)."""
    return {key: value[0] for key, value in indicator.advance(carry, _add_axis(bar)).items()}


def _add_axis(bar: Any) -> Any:
    return type(bar)(*(column[np.newaxis] for column in bar))
