"""The one place that creates the indicators, in the order in which they are published."""

from compute.indicators.bayesian_trend import BayesianTrend
from compute.indicators.ceres import Ceres
from compute.indicators.contract import Indicator
from compute.indicators.enzo import Enzo
from compute.indicators.llnr import Llnr
from compute.indicators.perpkit import PerpKit
from compute.indicators.reversals import Reversals
from compute.indicators.trend_oracle import TrendOracle

INDICATORS: tuple[Indicator, ...] = (
    TrendOracle(),
    BayesianTrend(),
    Reversals(),
    Ceres(),
    Enzo(),
    Llnr(),
    PerpKit(),
)
