"""The indicators in the order in which they are published: `INDICATOR` of each id's module."""

from importlib import import_module

from compute.indicators.contract import Indicator
from schemas.vocabulary import INDICATOR_IDS

INDICATORS: tuple[Indicator, ...] = tuple(
    import_module(f"compute.indicators.{id_}").INDICATOR for id_ in INDICATOR_IDS
)
