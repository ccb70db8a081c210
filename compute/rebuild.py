"""What indicators and alert engines remember, stepped anew over whole sequences at once. Pure.

Sequences don't depend on each other, so that many of them step in about the time of one.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from compute.alerts.engines import AlertEngine, ReadBar
from compute.bars import NO_BARS, Funding, Prices, Series, Times
from compute.engine import Columns, Engine, Stepping
from compute.indicators.contract import Bar, Indicator, Readings
from compute.stepper import Cell, Place
from schemas.vocabulary import ENGINE_KEYS


class Past(NamedTuple):
    """All that a sequence has stepped, and the keys whose carries are to be made from it."""

    place: Place
    bars: Series
    funding: Funding
    keys: Collection[str]


class Pasts(NamedTuple):
    """A block of sequences, and the indicators that read them."""

    indicators: Sequence[Indicator]
    sequences: Sequence[Past]


def rebuilt(pasts: Pasts) -> dict[Cell, bytes]:
    """Return the carries that are to be made; those of engines are without a publisher's part."""
    carries: dict[Cell, bytes] = {}
    for indicator in pasts.indicators:
        engine_key = ENGINE_KEYS[indicator.id]
        read = [past for past in pasts.sequences if {indicator.id, engine_key} & set(past.keys)]
        remembered, readings = _stepped(indicator, read, _bars(read))
        carries |= _wanted(indicator.id, read, remembered)
        acted = [past for past in read if engine_key in past.keys]
        if acted:
            chosen = np.repeat([engine_key in past.keys for past in read], _lengths(read))
            remembered, _ = _stepped(AlertEngine(), acted, _read_bars(acted, readings[chosen]))
            carries |= _wanted(engine_key, acted, remembered)
    return carries


def _stepped(
    step: Stepping[Columns], sequences: Sequence[Past], bars: Columns
) -> tuple[list[bytes], Readings]:
    """Step all bars from the first on; return the carries, and the readings in shape (bars,)."""
    rows = np.arange(len(sequences))
    engine = Engine((step,), len(sequences))
    readings = engine.step(rows, _lengths(sequences), bars)[:, 0]
    return engine.carries(0, rows), readings


def _wanted(key: str, sequences: Sequence[Past], carries: Iterable[bytes]) -> dict[Cell, bytes]:
    pairs = zip(sequences, carries, strict=True)
    return {Cell(*past.place, key): data for past, data in pairs if key in past.keys}


def _lengths(sequences: Sequence[Past]) -> Times:
    return np.array([len(past.bars) for past in sequences], dtype=np.int64)


def _bars(sequences: Sequence[Past]) -> Bar:
    prices = (_column(sequences, name) for name in Bar._fields[:-1])
    funding = [past.funding.annualised(past.bars.close_time) for past in sequences]
    return Bar(*(*prices, np.concatenate([NO_BARS.open, *funding])))


def _read_bars(sequences: Sequence[Past], readings: Readings) -> ReadBar:
    high, low, close = (_column(sequences, name) for name in ("high", "low", "close"))
    return ReadBar(high, low, close, readings)


def _column(sequences: Sequence[Past], name: str) -> Prices:
    return np.concatenate([NO_BARS.open, *(getattr(past.bars, name) for past in sequences)])
