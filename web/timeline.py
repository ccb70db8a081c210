"""Turns an asset's feed rows into the lanes of its timeline, one per indicator."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from schemas.signals import Signal
from schemas.vocabulary import IndicatorId, Reading, StoredKey
from serving.argument_values import parse_instant_ms

WIDTH = 1000


class Span(NamedTuple):
    """A stretch of one reading; the whole lane is `WIDTH` wide."""

    reading: Reading
    x: float
    width: float


class Lane(NamedTuple):
    """One indicator's readings over time; no spans if it has none."""

    indicator: IndicatorId
    spans: list[Span]
    changes: int


def build_lanes(
    rows: Sequence[Signal],
    now: Mapping[StoredKey, Reading],
    logged: Iterable[IndicatorId],
    begins: int,
    ends: int,
) -> list[Lane]:
    """Return a lane for each logged indicator.

    `rows` are the feed rows of both tiers from `begins` to `ends` (epoch ms), newest first; `now`
    holds the readings at the end.
    """
    changes = [row for row in reversed(rows) if row.transition is not None]
    return [
        _build_lane(
            id_, [row for row in changes if row.indicator == id_], now.get(id_), begins, ends
        )
        for id_ in logged
    ]


def _build_lane(
    indicator: IndicatorId, rows: Sequence[Signal], now: Reading | None, begins: int, ends: int
) -> Lane:
    scale = WIDTH / (ends - begins)
    turns = [*_list_turns(rows, now, begins)]
    positions = [round((min(at, ends) - begins) * scale, 1) for at, _ in turns] + [WIDTH]
    spans = [
        Span(reading, x, round(until - x, 1))
        for (_, reading), (x, until) in zip(turns, pairwise(positions), strict=True)
    ]
    return Lane(indicator, spans, len(rows))


def _list_turns(
    rows: Sequence[Signal], now: Reading | None, begins: int
) -> Iterator[tuple[int, Reading]]:
    """Yield (epoch ms, reading) from `begins` on, oldest first."""
    # The reading before the first change is the `from` of that change.
    first = rows[0].transition.from_ if rows and rows[0].transition else now
    if first is not None:
        yield begins, first
    for row in rows:
        if row.transition is not None:
            yield parse_instant_ms("created_at", row.created_at), row.transition.to
