"""Steps a customer's bars of one asset through indicators and alert engines. Pure.

The definitions are those that the service runs; only the bars are the customer's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compute.alerts.alert_pipeline import Alert, AlertPipeline
from compute.bar_buffer import BarBuffer
from compute.bars import HOUR_S, Funding, Series
from compute.indicators.contract import NO_READING, Indicator
from compute.stepper import Changes, Stepper
from compute.universe import Universe
from schemas.vocabulary import (
    COOLDOWN_CANDLES,
    INDICATORS_BY_ENGINE_KEY,
    LOGGED_IDS,
    READING_NAMES,
    TIMEFRAME_DURATIONS_S,
    Tier,
    Timeframe,
)

LONGEST_COOLDOWN_S = COOLDOWN_CANDLES * max(TIMEFRAME_DURATIONS_S.values())


class RowKey(NamedTuple):
    """What a row is about; `close_time` (epoch s) is that of its bar."""

    tier: Tier
    ticker: str
    indicator: str
    timeframe: Timeframe
    close_time: int


class OwnRow(NamedTuple):
    """A row that the customer's bars give; `content` is `neutral to bullish`, or an action."""

    key: RowKey
    content: str
    price: float


@dataclass(frozen=True, slots=True)
class OwnAsset:
    """The bars of an asset by timeframe, its funding, and the rows that they give by key.

    `held_alerts` would be published after the last bar, if no later bar prevents it.
    """

    ticker: str
    native_timeframe: Timeframe
    bars: dict[Timeframe, Series]
    funding: Funding
    rows: dict[RowKey, OwnRow]
    held_alerts: dict[RowKey, OwnRow]


def recompute_asset(
    ticker: str,
    native_timeframe: Timeframe,
    bars: Series,
    funding: Funding,
    universe: Universe,
    indicators: Sequence[Indicator],
) -> OwnAsset:
    """Step all bars of an asset; a longer bar that its last one cuts off does not step."""
    end = int(bars.close_time[-1])
    ends = {name: at for name, at in universe.end_time_by_ticker.items() if name == ticker}
    buffer = BarBuffer({ticker: native_timeframe}, ends, universe.sunday_joining_tickers)
    buffer.add(ticker, bars, funding)
    longer = {
        timeframe: buffer.build_bars((ticker, timeframe), bars)
        for timeframe in buffer.list_timeframes(ticker)
    }
    whole = {name: series.select(series.close_time <= end) for name, series in longer.items()}
    stepper = Stepper([ticker], universe, indicators)
    alerts = AlertPipeline(stepper.row_by_series, universe, indicators)
    until = -(-end // HOUR_S) * HOUR_S
    due = buffer.take_due(stepper.row_by_series, 0, until, {ticker: end})
    changes, readings = stepper.step(due)
    fired = alerts.run(due, readings, until)
    nothing = buffer.take_due(stepper.row_by_series, 0, until, {ticker: end})
    held = alerts.run(nothing, readings[:0], until + LONGEST_COOLDOWN_S)
    rows = [*_iterate_changes(stepper, changes), *map(_build_alert, fired)]
    return OwnAsset(
        ticker,
        native_timeframe,
        whole,
        funding,
        {row.key: row for row in rows},
        {row.key: row for row in map(_build_alert, held)},
    )


def _iterate_changes(stepper: Stepper, changes: Changes) -> Iterator[OwnRow]:
    """Yield the changes that the feed publishes: not those of first readings."""
    columns = (column.tolist() for column in changes)
    for _, close_time, number, before, after, price in zip(*columns, strict=True):
        ticker, timeframe, indicator = stepper.cells[number]
        if indicator in LOGGED_IDS and before != NO_READING:
            key = RowKey("universe", ticker, indicator, timeframe, close_time)
            yield OwnRow(key, f"{READING_NAMES[before]} to {READING_NAMES[after]}", price)


def _build_alert(alert: Alert) -> OwnRow:
    ticker, timeframe, engine = alert.cell
    indicator = INDICATORS_BY_ENGINE_KEY[engine]
    key = RowKey("alerts", ticker, indicator, timeframe, alert.close_time)
    return OwnRow(key, alert.action, alert.price)
