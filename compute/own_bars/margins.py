"""How far the raw value behind a reading is from the nearest threshold. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from compute.bars import Funding, Series
from compute.indicators import bayesian_trend, enzo, llnr, perpkit, trend_oracle
from compute.indicators.contract import Bar, Indicator, Values

# The value of each indicator that has one score, and the magnitudes at which its latch moves.
SCORES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "trend_oracle": ("s", (trend_oracle.ENTER, trend_oracle.EXIT)),
    "bayesian_trend": ("z", (bayesian_trend.ENTER, bayesian_trend.EXIT)),
    "enzo": ("s", (enzo.ENTER, enzo.EXIT)),
    "llnr": ("s", (llnr.ENTER, llnr.EXIT)),
}
RSI_THRESHOLDS = (30.0, 70.0)
# A score moves more than a price if the bars differ.
NEAR_SCORE, NEAR_PRICE = 0.02, 0.0005
ROUNDING = 1e-9


class Margin(NamedTuple):
    """A value and a threshold; `near` is the share of it within which small differences matter."""

    name: str
    value: float
    threshold: float
    near: float = NEAR_SCORE

    @property
    def share(self) -> float:
        """The distance as a share of the threshold."""
        return abs(self.value - self.threshold) / abs(self.threshold)

    @property
    def is_near(self) -> bool:
        """Whether a small difference of the bars can move the value over the threshold."""
        return self.share <= self.near

    @property
    def is_rounding(self) -> bool:
        """Whether rounding alone can move the value over the threshold."""
        return self.share <= ROUNDING

    def __str__(self) -> str:
        return f"{self.name} is {self.value:.6g}, {self.share:.2%} from {self.threshold:.6g}"


def find_margin(indicator: Indicator, bars: Series, funding: Funding, index: int) -> Margin | None:
    """Return the margin of the value that is nearest to a threshold on a bar, None if undefined."""
    past = bars.select(bars.close_time <= bars.close_time[index])
    annual = funding.annualise(past.close_time)
    columns = (past.open, past.high, past.low, past.close, past.volume, annual)
    values = indicator.advance(
        indicator.start(1), Bar(*(column[:, np.newaxis] for column in columns))
    )
    margins = _list_margins(indicator.id, values, float(bars.close[index]))
    defined = [one for one in margins if np.isfinite(one.value) and np.isfinite(one.threshold)]
    return min(defined, key=lambda one: one.share, default=None)


def _list_margins(indicator: str, values: Values, close: float) -> list[Margin]:
    last = {name: float(column[-1, 0]) for name, column in values.items()}
    if indicator in SCORES:
        name, magnitudes = SCORES[indicator]
        thresholds = (sign * one for one in magnitudes for sign in (1, -1))
        return [Margin(name, last[name], one) for one in thresholds]
    if "atr" in last:
        distance = abs(close - last["line"]) / last["atr"] if last["atr"] else np.nan
        return [Margin("the distance from the stop line in ATRs", distance, perpkit.NEAR_ATRS)]
    rsi = last.pop("rsi", np.nan)
    margins = [Margin("RSI", rsi, one) for one in RSI_THRESHOLDS]
    # The other values are channels and bands, which are prices.
    return margins + [Margin("the close", close, one, NEAR_PRICE) for one in last.values()]
