"""How long does a step of the engine take, compared with TA-Lib, pandas and NumPy?

The first part has the seven indicators as a user of these libraries would write them, with nothing
of the project. Each takes whole columns of all assets, shape (assets, bars). Only the two
recursions that no library offers (Kalman filter, SuperTrend) are loops, over NumPy rows.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
import pandas as pd
import talib

from bench.table import Row
from compute.hourly_pipeline import BATCH_S
from compute.indicator_engine import Engine
from compute.indicators.contract import Bar
from compute.indicators.registry import INDICATORS


def compute_rolling_sd(x: np.ndarray, period: int) -> np.ndarray:
    return pd.DataFrame(x.T).rolling(period).std().to_numpy().T


def apply_per_asset(function: Callable[..., np.ndarray], *columns: np.ndarray) -> np.ndarray:
    return np.array([function(*rows) for rows in zip(*columns, strict=True)])


def shift(x: np.ndarray, bars: int = 1) -> np.ndarray:
    return np.concatenate([np.full_like(x[:, :bars], np.nan), x[:, :-bars]], axis=1)


def find_last_bar(flags: np.ndarray) -> np.ndarray:
    """Return for each bar the index of the latest flagged bar up to it, or -1."""
    return np.maximum.accumulate(np.where(flags, np.arange(flags.shape[-1]), -1), axis=-1)


def hold_between(sets: np.ndarray, clears: np.ndarray) -> np.ndarray:
    return find_last_bar(sets) > find_last_bar(clears)


def to_readings(bullish: np.ndarray, bearish: np.ndarray) -> np.ndarray:
    return bullish.astype(np.int8) - bearish


def compute_latch(s: np.ndarray, enter: float, leave: float) -> np.ndarray:
    return to_readings(hold_between(s >= enter, s < leave), hold_between(s <= -enter, s > -leave))


def trend_oracle(bars: Bar) -> np.ndarray:
    x = np.log(bars.close)
    frame, noise, total = pd.DataFrame(x.T), compute_rolling_sd(x, 63), np.zeros_like(x)
    for fast, slow in ((8, 24), (16, 48), (32, 96)):
        gap = frame.ewm(span=fast, adjust=False).mean() - frame.ewm(span=slow, adjust=False).mean()
        y = gap.to_numpy().T / noise
        z = y / compute_rolling_sd(y, 126)
        # 0.89 scales the peak to about 1; an extreme z counts less.
        total += z * np.exp(-z * z / 4) / 0.89
    return compute_latch(total / 3, 0.30, 0.10)


def bayesian_trend(bars: Bar) -> np.ndarray:
    x = np.log(bars.close)
    squares = pd.DataFrame(np.diff(x).T ** 2)
    noise = np.maximum(squares.ewm(alpha=0.03, adjust=False).mean().to_numpy(), 1e-10)
    observed = np.ascontiguousarray(x.T)
    # p, q and r are the covariance matrix of level and slope: [[p, q], [q, r]].
    level, slope, p, q, r = observed[0], np.zeros(len(x)), noise[0], 0.0, noise[0]
    z = np.full_like(observed, np.nan)
    for bar, v in enumerate(noise, start=1):
        p, q, r = p + 2.0 * q + r + v, q + r, r + 0.002 * v
        total = p + 0.25 * v
        level = level + slope
        surprise, gain = observed[bar] - level, q / total
        level, slope = level + p / total * surprise, slope + gain * surprise
        p, q, r = p * (1.0 - p / total), q * (1.0 - p / total), r - gain * q
        z[bar] = slope / np.sqrt(r)
    # Latching z at the normal quantiles of 0.80 and 0.55 saves computing the probability.
    return compute_latch(z.T, 0.8416212335729143, 0.12566134685507402)


def reversals(bars: Bar) -> np.ndarray:
    c = bars.close
    rsi = apply_per_asset(lambda x: talib.RSI(x, 14), c)
    bands = apply_per_asset(lambda x: np.array(talib.BBANDS(x, 20, 2.0, 2.0)), c)
    before, upper, lower = shift(c), bands[:, 0], bands[:, 2]
    lowest_rsi = apply_per_asset(lambda x: talib.MIN(x, 5), rsi)
    highest_rsi = apply_per_asset(lambda x: talib.MAX(x, 5), rsi)
    bullish = (before <= shift(lower)) & (c > lower) & (lowest_rsi <= 30.0)
    bearish = (before >= shift(upper)) & (c < upper) & (highest_rsi >= 70.0) & ~bullish
    # The latest event holds for 12 bars, unless the close passes the extreme before it.
    event = np.maximum(find_last_bar(bullish), find_last_bar(bearish))
    is_long, seen = find_last_bar(bullish) > find_last_bar(bearish), np.maximum(event, 0)
    lows = apply_per_asset(lambda x: talib.MIN(x, 5), bars.low)
    highs = apply_per_asset(lambda x: talib.MAX(x, 5), bars.high)
    lowest, highest = (np.take_along_axis(each, seen, axis=-1) for each in (lows, highs))
    age = np.arange(c.shape[-1]) - event
    failed = (age > 0) & np.where(is_long, c < lowest, c > highest)
    holds = (event >= 0) & (age < 12) & (find_last_bar(failed) < event)
    return to_readings(holds & is_long, holds & ~is_long)


def ceres(bars: Bar) -> np.ndarray:
    # Shifted by a bar: a channel does not include the bar that may break out of it.
    highest40, highest20, lowest40, lowest20 = (
        shift(apply_per_asset(partial(extreme, timeperiod=period), column))
        for extreme, column in ((talib.MAX, bars.high), (talib.MIN, bars.low))
        for period in (40, 20)
    )
    return to_readings(
        hold_between(bars.close > highest40, bars.close < lowest20),
        hold_between(bars.close < lowest40, bars.close > highest20),
    )


def enzo(bars: Bar) -> np.ndarray:
    kama = apply_per_asset(lambda x: talib.KAMA(x, 10), bars.close)
    atr = apply_per_asset(lambda *rows: talib.ATR(*rows, 14), bars.high, bars.low, bars.close)
    return compute_latch((kama - shift(kama, 5)) / atr, 0.50, 0.10)


# A weighted `np.polyfit` slope is linear in the values, so fitting the identity matrix yields its
# weights. Calling polyfit for every bar would make the peer needlessly slow.
AGES = np.arange(-63.0, 1.0)
SLOPE_WEIGHTS = np.polyfit(AGES, np.eye(64), 1, w=np.exp(-0.25 * (AGES / 16.0) ** 2))[0]


def llnr(bars: Bar) -> np.ndarray:
    x = np.log(bars.close)
    slope = np.full_like(x, np.nan)
    slope[:, 63:] = apply_per_asset(lambda row: np.convolve(row, SLOPE_WEIGHTS[::-1], "valid"), x)
    return compute_latch(slope * 4.0 / compute_rolling_sd(x - shift(x), 64), 0.75, 0.25)


def perpkit(bars: Bar) -> np.ndarray:
    atr = apply_per_asset(lambda *rows: talib.ATR(*rows, 10), bars.high, bars.low, bars.close)
    middle, first = (bars.high + bars.low) / 2.0, 10
    closes, uppers, lowers = (
        np.ascontiguousarray(x.T) for x in (bars.close, middle + 3.0 * atr, middle - 3.0 * atr)
    )
    directions, lines = np.zeros_like(closes), np.full_like(closes, np.nan)
    direction, top, bottom = np.ones(len(middle)), uppers[first], lowers[first]
    directions[first], lines[first] = direction, bottom
    for bar in range(first + 1, len(closes)):
        before, c = closes[bar - 1], closes[bar]
        top = np.where((uppers[bar] < top) | (before > top), uppers[bar], top)
        bottom = np.where((lowers[bar] > bottom) | (before < bottom), lowers[bar], bottom)
        direction = np.where(c < bottom, -1.0, np.where(c > top, 1.0, direction))
        directions[bar], lines[bar] = direction, np.where(direction > 0, bottom, top)
    is_out = np.abs(bars.close - lines.T) <= 0.5 * atr
    is_out |= directions.T * bars.funding > 0.60
    return np.where(is_out, 0, directions.T).astype(np.int8)


PEERS = {
    peer.__name__: peer
    for peer in (trend_oracle, bayesian_trend, reversals, ceres, enzo, llnr, perpkit)
}


ASSETS, WINDOW, YEAR = 251, 300, 8_760
BATCH = BATCH_S // 3600
# Copies of the 251 assets, and the timed steps of the engine and of the peer.
SIZES = {1: (200, 6), 100: (20, 1)}
# These must agree; the others read what no library computes in the same way. Readings that are one
# bar late still agree on up to 97.5% of all bars.
STRICT = ("trend_oracle", "reversals", "ceres", "llnr")
SETTLED, AGREEMENT_BARS, SETTLED_RATIO = 500, 1_000, 0.999


def make_market() -> Bar:
    """Return a seeded year of all assets, shape (assets, bars): calm and wild weeks, funding."""
    rng, hours = np.random.default_rng(251), np.arange(YEAR)
    # The layout that is fastest for the peer: each asset's column contiguous.
    phases = np.arange(ASSETS)[:, np.newaxis]
    sds = 0.006 * np.exp(0.8 * np.sin(hours / 40 + phases))
    drift = 0.15 * np.sin(hours / 90 + 2 * phases)
    shocks, ranges = rng.standard_normal((2, ASSETS, YEAR))
    close = 100.0 * np.exp(np.cumsum(sds * (shocks + drift), axis=1))
    open_ = np.hstack([close[:, :1], close[:, :-1]])
    high = np.maximum(open_, close) * (1.0 + 0.6 * sds * np.abs(ranges))
    low = np.minimum(open_, close) / (1.0 + 0.6 * sds * np.abs(ranges[::-1]))
    funding = 0.10 + 0.35 * np.sin(hours / 150 + phases) + 0.2 * ranges
    # Assets without a perpetual have no funding.
    funding[ASSETS // 2 :] = np.nan
    return Bar(open_, high, low, close, np.full_like(close, 1e6), funding)


def read_columns(columns: Bar) -> np.ndarray:
    """Return the peer's readings of columns, shape (assets, indicators, bars)."""
    return np.stack([PEERS[indicator.id](columns) for indicator in INDICATORS], axis=1)


def step_batches(columns: Bar) -> np.ndarray:
    """Return the engine's readings, stepped in batches as long as those of a first start."""
    assets, bars = columns.close.shape
    engine, readings = Engine(INDICATORS, assets), list[np.ndarray]()
    for first in range(0, bars, BATCH):
        batch = Bar(*(field[:, first : first + BATCH] for field in columns))
        count = np.full(assets, batch.close.shape[1])
        out = engine.step(np.arange(assets), count, Bar(*(field.ravel() for field in batch)))
        readings.append(out.reshape(assets, count[0], len(INDICATORS)))
    return np.moveaxis(np.concatenate(readings, axis=1), 1, 2)


def time_work(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare_times(what: str, ours_s: float, theirs_s: float) -> Row:
    texts = (f"{s * 1e3:,.2f} ms" if s < 1.0 else f"{s:,.2f} s" for s in (ours_s, theirs_s))
    return Row(what, *texts, f"{theirs_s / ours_s:,.2f}", "ahead", theirs_s > ours_s)


def rows() -> Iterator[Row]:
    columns = make_market()
    with np.errstate(invalid="ignore", divide="ignore"):
        short = Bar(*(field[:, :AGREEMENT_BARS] for field in columns))
        same = (step_batches(short) == read_columns(short))[..., SETTLED:].mean(axis=(0, 2))
        for indicator, ratio in zip(INDICATORS, same, strict=True):
            if indicator.id in STRICT and ratio < SETTLED_RATIO:
                raise SystemExit(f"{indicator.id}: only {ratio:.2%} agree, so times do not compare")
        for copies, (steps, reads) in SIZES.items():
            tiled = Bar(*(np.tile(field[:, : WINDOW + steps], (copies, 1)) for field in columns))
            assets = len(tiled.close)
            engine, one, ours_s = Engine(INDICATORS, assets), np.ones(assets, np.int64), []
            for t in range(WINDOW + steps):
                bar = Bar(*(np.ascontiguousarray(field[:, t]) for field in tiled))
                ours_s.append(time_work(partial(engine.step, np.arange(assets), one, bar)))
            windows = (Bar(*(f[:, t : t + WINDOW] for f in tiled)) for t in range(1, reads + 1))
            theirs_s = [time_work(partial(read_columns, window)) for window in windows]
            what = f"step of {assets:,} assets x {len(INDICATORS)} / TA-Lib, pandas and NumPy"
            yield compare_times(what, median(ours_s[WINDOW:]), median(theirs_s))
        what = f"cold year of {ASSETS} assets x {len(INDICATORS)} / the same, in one batch"
        ours_s = time_work(partial(step_batches, columns))
        yield compare_times(what, ours_s, time_work(partial(read_columns, columns)))
