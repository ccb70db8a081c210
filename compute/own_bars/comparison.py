"""Compares served rows with those that a customer's bars give, and explains differences. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from compute.bars import DAY_S, HOUR_S, Series
from compute.indicators.contract import WARMUP, Indicator
from compute.own_bars.margins import Margin, find_margin
from compute.own_bars.recompute import OwnAsset, OwnRow, RowKey
from schemas.vocabulary import (
    COOLDOWN_CANDLES,
    INDICATOR_IDS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    format_instant,
)

# After so many bars, the slowest average (96 bars) has forgotten its first value.
SETTLED_BARS = 1000
PRICE_TOLERANCE = 1e-9
NEIGHBOUR_BARS = 5


class ServedRow(NamedTuple):
    """A row of the feed; `epoch` counts how often the service had rebuilt its indicator.

    `created_at` is in epoch s.
    """

    id: str
    key: RowKey
    content: str
    price: float | None
    epoch: int
    created_at: int


class Difference(NamedTuple):
    """A row that only one side has, or that both have differently, and the possible causes."""

    text: str
    causes: list[str]


class Period(NamedTuple):
    """The closes (epoch s) of the first and last bar that are compared.

    The service may still lack rows of bars that closed after `settled`.
    """

    start: int
    end: int
    settled: int

    def covers(self, key: RowKey) -> bool:
        """Return whether a row is compared."""
        return self.start <= key.close_time <= self.end


class Comparison(NamedTuple):
    """The number of equal rows of an asset, and the differences."""

    equal_count: int
    differences: list[Difference]


def parse_served_row(row: Mapping[str, Any]) -> ServedRow:
    """Return a row of the feed as it is compared; ValueError if bars cannot give it."""
    if row["indicator"] not in INDICATOR_IDS or row["timeframe"] not in TIMEFRAMES:
        raise ValueError("the row has an unknown indicator or timeframe")
    *_, close, action_or_epoch = row["id"].split(".")
    epoch = int(action_or_epoch)
    if row["tier"] == "alerts":
        *_, close, _, _ = row["id"].split(".")
        content = row["action"]
    else:
        content = f"{row['transition']['from']} to {row['transition']['to']}"
    key = RowKey(row["tier"], row["ticker"], row["indicator"], row["timeframe"], int(close))
    created_at = int(datetime.fromisoformat(row["created_at"]).timestamp())
    return ServedRow(row["id"], key, content, row["price"], epoch, created_at)


def compare_asset(
    asset: OwnAsset,
    served: Iterable[ServedRow],
    period: Period,
    indicators: Mapping[str, Indicator],
    has_sessions: bool,
) -> Comparison:
    """Compare the rows of an asset in a period.

    `has_sessions` says that the asset's market closes at times, so that hours without a bar are
    expected.
    """
    theirs = {row.key: row for row in served if period.covers(row.key)}
    ours = {key: row for key, row in asset.rows.items() if period.covers(key)}
    # A held alert is published later or never, which the bars after the customer's decide.
    ours |= {key: row for key, row in asset.held_alerts.items() if key in theirs}
    keys = theirs.keys() | ours.keys()
    equal = {key for key in keys if _are_equal(theirs.get(key), ours.get(key))}
    explainer = _Explainer(asset, theirs, period, indicators, has_sessions)
    in_order = sorted(keys - equal, key=lambda key: (key.close_time, key))
    return Comparison(
        len(equal), [explainer.explain(key, theirs.get(key), ours.get(key)) for key in in_order]
    )


def _are_equal(served: ServedRow | None, own: OwnRow | None) -> bool:
    if served is None or own is None or served.content != own.content:
        return False
    return served.price is None or is_same_price(served.price, own.price)


def is_same_price(a: float, b: float) -> bool:
    """Return whether two prices are equal up to rounding."""
    return abs(a - b) <= PRICE_TOLERANCE * max(abs(a), abs(b))


class _Explainer:
    """Finds the causes of differences in the bars of one asset."""

    def __init__(
        self,
        asset: OwnAsset,
        served: Mapping[RowKey, ServedRow],
        period: Period,
        indicators: Mapping[str, Indicator],
        has_sessions: bool,
    ) -> None:
        self._asset = asset
        self._served = served
        self._period = period
        self._indicators = indicators
        self._has_sessions = has_sessions
        priced = [one for one in served.values() if one.price is not None]
        prices = [(one.price, self._find_close(one.key)) for one in priced]
        known = [(a, b) for a, b in prices if a is not None and b is not None]
        self._priced_count = len(known)
        self._mispriced_count = sum(not is_same_price(a, b) for a, b in known)

    def explain(self, key: RowKey, served: ServedRow | None, own: OwnRow | None) -> Difference:
        """Return a difference with every cause that the bars show."""
        causes = list(self._iterate_causes(key, served))
        margin = self._find_margin(key)
        # Equal bars give equal values up to rounding, however near a threshold is.
        if margin is not None and (margin.is_near if causes else margin.is_rounding):
            causes.append(f"it is near a threshold: {margin}")
        return Difference(_describe(key, served, own) + self._describe_neighbour(key, own), causes)

    def _describe_neighbour(self, key: RowKey, own: OwnRow | None) -> str:
        """Return on which near bar the customer's bars give a served row that they lack here."""
        served = self._served.get(key)
        if served is None or own is not None:
            return ""
        period_s = TIMEFRAME_DURATIONS_S[key.timeframe]
        for distance in range(1, NEIGHBOUR_BARS + 1):
            for sign, word in ((-1, "before"), (1, "after")):
                close_time = key.close_time + sign * distance * period_s
                near = self._asset.rows.get(key._replace(close_time=close_time))
                if near is not None and near.content == served.content:
                    return f", but have it {distance} bars {word}"
        return ""

    def _iterate_causes(self, key: RowKey, served: ServedRow | None) -> Iterator[str]:
        bars = self._asset.bars.get(key.timeframe)
        index = None if bars is None else _find_bar(bars, key.close_time)
        if bars is None or index is None:
            yield _describe_missing_bar(bars, key)
            return
        if served is not None and served.price is not None:
            close = float(bars.close[index])
            if not is_same_price(served.price, close):
                yield f"the bar closed at {served.price:.10g} there, at {close:.10g} in your bars"
        if self._mispriced_count:
            yield (
                f"{self._mispriced_count} of {self._priced_count} prices of {key.ticker} differ "
                "from your bars, so other bars may differ too"
            )
        yield from self._iterate_history_causes(key, bars, index)
        if served is None and key.close_time > self._period.settled:
            yield "the service may publish it late"
        if late_hours := self._count_late_hours(key):
            yield (
                f"the service wrote rows {late_hours} hours late before it, and the cooldown of an "
                "alert begins when it is written"
            )
        if served is not None and served.epoch:
            yield (
                f"the service had rebuilt this indicator before (epoch {served.epoch}): from "
                "restated bars, or in another version"
            )

    def _count_late_hours(self, key: RowKey) -> int:
        """Return how late a change was written at most whose alert can have delayed this one."""
        if key.tier != "alerts":
            return 0
        begin = key.close_time - 2 * COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[key.timeframe]
        delays = (
            row.created_at - row.key.close_time
            for row in self._served.values()
            if row.key.tier == "universe" and begin <= row.key.close_time <= key.close_time
        )
        return max(delays, default=0) // HOUR_S

    def _find_margin(self, key: RowKey) -> Margin | None:
        bars = self._asset.bars.get(key.timeframe)
        index = None if bars is None else _find_bar(bars, key.close_time)
        if bars is None or index is None:
            return None
        return find_margin(self._indicators[key.indicator], bars, self._asset.funding, index)

    def _iterate_history_causes(self, key: RowKey, bars: Series, index: int) -> Iterator[str]:
        if index < WARMUP:
            yield f"your bars begin {index} bars before it, and the first reading needs {WARMUP}"
        elif index < SETTLED_BARS:
            yield (
                f"your bars begin {index} bars before it: averages and positions of a longer "
                "history may differ"
            )
        missing = self._count_missing(key, bars, index)
        if missing:
            yield f"your bars lack {missing} of the hours of the last {WARMUP} bars"
        day = self._asset.funding.select_between(key.close_time - DAY_S, key.close_time)
        if key.indicator == "perpkit" and not len(day.rate):
            yield "your bars have no funding of the 24 hours before, which can make it neutral"

    def _count_missing(self, key: RowKey, bars: Series, index: int) -> int:
        """Return how many hourly bars are missing in the window of the warmup."""
        if self._has_sessions or self._asset.native_timeframe != "1h":
            return 0
        first = int(bars.close_time[max(0, index - WARMUP)])
        closes = self._asset.bars["1h"].close_time
        found = np.searchsorted(closes, (first, key.close_time), side="right")
        return (key.close_time - first) // HOUR_S - int(found[1] - found[0])

    def _find_close(self, key: RowKey) -> float | None:
        bars = self._asset.bars.get(key.timeframe)
        index = None if bars is None else _find_bar(bars, key.close_time)
        return None if bars is None or index is None else float(bars.close[index])


def _find_bar(bars: Series, close_time: int) -> int | None:
    index = int(np.searchsorted(bars.close_time, close_time))
    found = index < len(bars) and int(bars.close_time[index]) == close_time
    return index if found else None


def _describe_missing_bar(bars: Series | None, key: RowKey) -> str:
    if bars is None or not len(bars):
        return f"you have no {key.timeframe} bars of {key.ticker}"
    first, last = (format_instant(1000 * int(bars.close_time[at])) for at in (0, -1))
    return f"you have no such bar (yours close from {first} to {last})"


def _describe(key: RowKey, served: ServedRow | None, own: OwnRow | None) -> str:
    at = format_instant(1000 * key.close_time)
    name = f"{key.tier} {key.ticker} {key.indicator} {key.timeframe} of the bar closed at {at}"
    theirs = "no row" if served is None else served.content
    ours = "no row" if own is None else own.content
    return f"{name}: the feed has {theirs}, your bars give {ours}"
