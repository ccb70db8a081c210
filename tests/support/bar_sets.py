"""Bars for oracles, generated or recorded, an indicator's values on them, and plain calculations.

Reading files, building bars and latching do not use `compute`, so its errors cannot hide here.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from compute.indicator_engine import StepFunction
from compute.indicators.contract import NO_READING, WARMUP, Bar, Carry, Indicator
from compute.trading_sessions import list_expected_bars

HOUR_S = 3600
DAY_S = 24 * HOUR_S
PERIODS_S = {"1h": HOUR_S, "4h": 4 * HOUR_S, "1d": DAY_S}
METALS = ("XAU", "XAG", "XPT", "XPD")
# Days of the recorded bars on which the exchanges closed at 13:00.
HALF_DAYS = ("2025-07-03", "2025-11-28", "2025-12-24")
PRICES = ["open", "high", "low", "close"]
FIELDS = [*PRICES, "volume"]

TOLERANCE = 1e-9
# A year of daily bars, and enough hourly ones for a reading of each 4h series.
RECORDED_ROWS = 900

Array = np.ndarray[Any, Any]
Series = dict[str, Array]


class BarSet(NamedTuple):
    """The newest `rows` of each file of a bars folder, and the counts that they give at least."""

    folder: Path
    rows: int
    min_bars: int
    min_readings: int
    is_full: bool


def get_recorded_folder() -> Path:
    """Return where recorded bars are if there are any: they may not be redistributed."""
    default = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "bars"
    return Path(os.environ.get("RECORDED_BARS", default))


def has_recorded_bars() -> bool:
    return any(get_recorded_folder().glob("*_1[hd].csv"))


def require_recorded() -> None:
    """Skip a test of what real venues recorded if no recorded bars are present."""
    if not has_recorded_bars():
        pytest.skip(f"no recorded bars in {get_recorded_folder()} (set RECORDED_BARS)")


@cache
def generate_folder(rows: int = 1800) -> Path:
    """Return a folder of generated bars, which is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="signals-bars-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_generated_bars(folder, rows)
    return folder


def open_bar_set(name: str) -> BarSet:
    """Return a set by its name: `generated` or `recorded`, then `newest` or `full`."""
    origin, size = name.split()
    is_full = size == "full"
    if origin == "recorded":
        counts = (10**9, 140_000, 130_000) if is_full else (1800, 40_000, 30_000)
        return BarSet(get_recorded_folder(), *counts, is_full)
    counts = (7800, 120_000, 110_000) if is_full else (1800, 35_000, 28_000)
    return BarSet(generate_folder(counts[0]), *counts, is_full)


def list_bar_sets() -> list[Any]:
    """Return the parameters of tests over bar sets: few bars, and for proofs many."""
    full = "recorded full" if has_recorded_bars() else "generated full"
    return ["generated newest", pytest.param(full, marks=[pytest.mark.prove, pytest.mark.long])]


def copy_recorded(folder: Path) -> None:
    require_recorded()
    names = tuple(path.name for path in get_recorded_folder().glob("*.csv"))
    copy_newest_rows(get_recorded_folder(), folder, names, RECORDED_ROWS)


@cache
def load_series(folder: Path, rows: int = 10**9) -> list[tuple[str, Series]]:
    """Return (label such as `BTC 4h`, series) with arrays open .. volume, close_time, funding."""
    series = []
    for path in sorted(folder.glob("*_1[hd].csv")):
        ticker, timeframe = path.stem.split("_")
        raw = pd.read_csv(path).tail(rows)
        if ticker in HOURLY_STOCKS:
            # Only rows that open before the session ends.
            local = pd.to_datetime(raw["ts"], unit="s", utc=True).dt.tz_convert("America/New_York")
            is_half = local.dt.strftime("%Y-%m-%d").isin(HALF_DAYS)
            raw = raw[local.dt.hour < np.where(is_half, 13, 16)]
        bars = _accept_bars(raw, HOUR_S if timeframe == "1h" else 0)
        bars["close_time"] = bars["ts"] + PERIODS_S[timeframe]
        built = {timeframe: bars}
        if timeframe == "1h":
            built |= {
                "4h": _build_longer_bars(bars, PERIODS_S["4h"]),
                "1d": _build_longer_bars(bars, DAY_S, joins_sundays=ticker in METALS),
            }
            # A file of a coin may end within a longer bar, which is never complete.
            if ticker not in HOURLY_STOCKS:
                end = bars["close_time"].max()
                built = {name: frame[frame["close_time"] <= end] for name, frame in built.items()}
        funding = folder / f"{ticker}_funding.csv"
        none = pd.DataFrame({"ts": [], "funding_rate": []})
        rates = pd.read_csv(funding).sort_values("ts") if funding.exists() else none
        series += [(f"{ticker} {name}", _to_arrays(frame, rates)) for name, frame in built.items()]
    return series


def _accept_bars(raw: pd.DataFrame, spacing_s: int) -> pd.DataFrame:
    raw = raw.sort_values("ts", kind="stable")
    sound = np.isfinite(raw[FIELDS]).all(axis=1) & (raw[PRICES] > 0).all(axis=1)
    sound &= (raw.low <= raw.close) & (raw.close <= raw.high) & (raw.volume >= 0)
    kept, previous = [], -np.inf
    for row, opened in raw.loc[sound, "ts"].items():
        if opened - previous >= max(spacing_s, 1):
            kept.append(row)
            previous = opened
    return raw.loc[kept].reset_index(drop=True)


def _build_longer_bars(
    bars: pd.DataFrame, period_s: int, *, joins_sundays: bool = False
) -> pd.DataFrame:
    ends = -(-bars["close_time"] // period_s) * period_s
    if joins_sundays:
        ends = ends + DAY_S * (pd.to_datetime(ends - DAY_S, unit="s").dt.day_name() == "Sunday")
    return (
        bars.groupby(ends.rename("end"))
        .agg({"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"})
        .reset_index(names="close_time")
    )


def _to_arrays(bars: pd.DataFrame, rates: pd.DataFrame) -> Series:
    series = {field: bars[field].to_numpy(dtype=np.float64) for field in FIELDS}
    closes = bars["close_time"].to_numpy(dtype=np.int64)
    settled, rate = rates["ts"].to_numpy(), rates["funding_rate"].to_numpy()
    first = np.searchsorted(settled, closes - DAY_S, side="right")
    last = np.searchsorted(settled, closes, side="right")
    sums = [365.0 * rate[a:b].sum() if b > a else np.nan for a, b in zip(first, last, strict=True)]
    return {**series, "close_time": closes, "funding": np.array(sums)}


def step_bar_set(indicator: Indicator, bar_set: BarSet) -> list[tuple[str, Series, Series, Array]]:
    """Step all series of a set together; return (label, series, raw values, readings) of each."""
    loaded = load_series(bar_set.folder, bar_set.rows)
    chosen = sorted(loaded, key=lambda item: -len(item[1]["close"]))
    lengths = np.array([len(series["close"]) for _, series in chosen])
    carries = indicator.start(len(chosen)), indicator.start(len(chosen))
    values: list[dict[str, list[float]]] = [{} for _ in chosen]
    readings: list[list[int]] = [[] for _ in chosen]
    for at in range(lengths.max()):
        count = int((lengths > at).sum())
        bar = Bar(*(np.array([s[f][at] for _, s in chosen[:count]]) for f in Bar._fields))
        moved = _first_rows(carries[0], count)
        for key, column in advance_bar(indicator, moved, bar).items():
            for row, value in enumerate(column.tolist()):
                values[row].setdefault(key, []).append(value)
        carry, reading = step_bar(indicator, _first_rows(carries[1], count), bar)
        carries = moved, carry
        for row, value in enumerate(reading.tolist()):
            readings[row].append(value)
    return [
        (label, series, {k: np.array(v) for k, v in values[row].items()}, np.array(readings[row]))
        for row, (label, series) in enumerate(chosen)
    ]


def _first_rows(carry: Carry, count: int) -> Carry:
    """Return the rows of the series that have not ended; the longest series come first."""
    return {key: array[:count] for key, array in carry.items()}


def compute_plain_latch(scores: Array, enter: float, exit: float) -> Array:
    """Return the latch of docs/indicators.md over one asset's scores, one bar after another."""
    held, out = 0, []
    for score in scores:
        if score >= enter:
            held = 1
        elif score <= -enter:
            held = -1
        elif (held == 1 and score < exit) or (held == -1 and score > -exit):
            held = 0
        out.append(held)
    return np.array(out)


def copy_newest_rows(source: Path, folder: Path, names: tuple[str, ...], rows: int) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        header, *lines = (source / name).read_text().splitlines()
        (folder / name).write_text("\n".join([header, *lines[-rows:]]) + "\n")


def divide(numerator: Array, divisor: Array, unit: Array | float = 1.0) -> Array:
    """Divide as docs/indicators.md does: a divisor of at most 1e-12 units gives 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        is_zero = (np.abs(divisor) <= 1e-12 * unit) & np.isfinite(numerator)
        return np.where(is_zero, 0.0, numerator / divisor)


def near_thresholds(scores: Array, *thresholds: float) -> Array:
    """Return a mask of scores whose absolute value is within the tolerance of a threshold."""
    near = [np.abs(np.abs(scores) - threshold) <= TOLERANCE for threshold in thresholds]
    return np.logical_or.reduce(near)


def assert_values_agree(label: str, ours: Array, theirs: Array) -> int:
    """Assert equality within 1e-9 absolute + 1e-9 relative, with equal NaNs; return the count."""
    np.testing.assert_allclose(
        ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True, err_msg=label
    )
    return int(np.isfinite(theirs).sum())


def assert_readings_agree(label: str, ours: Array, theirs: Array, near: Array) -> int:
    """Assert equal readings after the warmup; return how many were equal.

    Bars with a value `near` a threshold may differ, as may the readings that a latch then holds.
    """
    assert (ours[:WARMUP] == NO_READING).all(), label
    excused = False
    equal = 0
    for at in range(len(ours)):
        differs = at >= WARMUP and ours[at] != theirs[at]
        excused = bool(near[at]) or (excused and (differs or at < WARMUP))
        assert excused or not differs, f"{label}: bar {at + 1}"
        equal += at >= WARMUP and not differs
    return equal


SEED = 20261122
END = int(datetime(2025, 7, 26, 4, tzinfo=UTC).timestamp())

# The first price of each asset: decimals of a meme coin and of an index, and all between.
HOURLY_COINS = {
    **{"BTC": 3.1e7, "ETH": 2_500.0, "SOL": 150.0, "XRP": 0.5, "DOGE": 4.2e-6, "ADA": 0.35},
    **{"AVAX": 25.0, "LINK": 11.0, "LTC": 66.0, "SUI": 8.8e-4, "HYPE": 1.0, "BNB": 512.0},
}
HOURLY_STOCKS = {"NVDA": 135.0, "TSLA": 345.0}
DAILY_STOCKS = {"MSFT": 0.6, "AAPL": 118.0, "GOOG": 100.0, "IBM": 1.2e5}

# Standard deviation and mean of one bar's log return, in the stretches that take turns.
STRETCHES = {
    "trend up": (0.004, 0.003),
    "trend down": (0.004, -0.003),
    "noise": (0.012, 0.0),
    "quiet": (0.0004, 0.0),
    "reversals": (0.006, 0.0),
    "flat": (0.0, 0.0),
}
# Flat prices make 0/0 of what oracles divide, unless the rounding of their running sums leaves a
# rest: flat stretches are in series only whose sums are exact, as their ticks are powers of two.
TICKS = 2**20
JUMP_SHARE = 0.002
MISSING_SHARE = 0.004
LONG_GAP_BARS = 60


def write_generated_bars(folder: Path, rows: int) -> None:
    """Write the bars folder, with the newest `rows` of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for ticker, price in HOURLY_COINS.items():
        random = _open_random(ticker)
        opened = END - HOUR_S * np.arange(rows, 0, -1)
        # Leave out single hours, and once some days in a row.
        is_kept = random.random(rows) >= MISSING_SHARE
        is_kept[rows // 3 : rows // 3 + LONG_GAP_BARS] = False
        _write_bars(folder / f"{ticker}_1h.csv", opened[is_kept], price, random, is_coin=True)
        _write_funding(folder / f"{ticker}_funding.csv", opened + HOUR_S, random)
    for ticker, price in HOURLY_STOCKS.items():
        sessions = list_expected_bars("XNAS", END - rows * HOUR_S * 6, END)
        # Recorded bars are cut from the opening on, at half past.
        opened = sessions.open_time[-min(rows, 1740) :] + HOUR_S // 2
        _write_bars(folder / f"{ticker}_1h.csv", opened, price, _open_random(ticker))
    for ticker, price in DAILY_STOCKS.items():
        sessions = list_expected_bars("XNAS", END - rows * 7 // 5 * DAY_S, END)
        opened = np.unique(sessions.day) * DAY_S
        _write_bars(folder / f"{ticker}_1d.csv", opened, price, _open_random(ticker))


def _open_random(ticker: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *ticker.encode()])


def _write_bars(
    path: Path, opened: Array, price: float, random: np.random.Generator, is_coin: bool = False
) -> None:
    """Write one file: each bar opens near the close before it, and contains its open and close."""
    count = len(opened)
    is_flat, returns = _generate_returns(random, count, [*STRETCHES][: 6 if is_coin else 5])
    paths = price * np.exp(_pull_back(returns))
    gaps = np.where(is_flat, 0.0, random.normal(0.0, 0.001, count))
    spread = np.exp(np.where(is_flat, 0.0, random.exponential(0.004, count)))
    first = np.where(is_flat, paths, np.r_[price, paths[:-1]]) * np.exp(gaps)
    bars = [first, np.maximum(first, paths) * spread, np.minimum(first, paths) / spread, paths]
    tick = 2.0 ** np.floor(np.log2(price / TICKS))
    prices = [np.round(bar / tick) * tick if is_coin else _round(bar) for bar in bars]
    volumes = np.where(is_flat, 0.0, np.round(random.lognormal(9.0, 2.0, count)))
    table = np.stack([*prices, volumes], axis=1).tolist()
    lines = [_format_row(at, row) for at, row in zip(opened.tolist(), table, strict=True)]
    for place, bad in _break_rows(random, opened, table):
        lines.insert(place, bad)
    path.write_text("\n".join(["ts,open,high,low,close,volume", *lines]) + "\n")


def _generate_returns(
    random: np.random.Generator, count: int, names: list[str]
) -> tuple[Array, Array]:
    """Return where prices stand still, and the log return of every bar."""
    flat: list[bool] = []
    returns: list[float] = []
    while len(returns) < count:
        name = names[random.integers(len(names))]
        deviation, mean = STRETCHES[name]
        length = int(random.integers(15, 120))
        drawn = random.normal(mean, deviation, length) if deviation else np.zeros(length)
        if name == "reversals":
            drawn = np.abs(drawn) * np.where(np.arange(length) % 2, 1, -1)
        flat += [name == "flat"] * length
        returns += drawn.tolist()
    is_flat, log_returns = np.array(flat[:count]), np.array(returns[:count])
    jumps = random.random(count) < JUMP_SHARE
    log_returns[jumps] += random.normal(0.0, 0.4, int(jumps.sum()))
    is_flat[jumps] = False
    return is_flat, log_returns


def _pull_back(returns: Array) -> Array:
    """Add up log returns, reflected where a price would leave a factor of e^2 about the first."""
    level, sign, levels = 0.0, 1.0, []
    for change in returns.tolist():
        if abs(level + sign * change) > 2.0:
            sign = -sign
        level += sign * change
        levels.append(level)
    return np.array(levels)


def _write_funding(path: Path, settled: Array, random: np.random.Generator) -> None:
    """Write hourly settlements, some minutes late, with weeks of high rates and a week without."""
    drift = np.repeat(random.normal(0.0, 6e-4, len(settled) // 168 + 1), 168)[: len(settled)]
    rates = drift + random.normal(0.0, 1e-4, len(settled))
    late = np.where(random.random(len(settled)) < 0.01, 120, 0)
    kept = np.ones(len(settled), dtype=bool)
    kept[len(settled) // 2 : len(settled) // 2 + 168] = False
    rows = zip((settled + late)[kept].tolist(), _round(rates[kept]).tolist(), strict=True)
    path.write_text("\n".join(["ts,funding_rate", *(f"{at},{rate!r}" for at, rate in rows)]) + "\n")


def _break_rows(
    random: np.random.Generator, opened: Array, table: list[list[float]]
) -> Iterator[tuple[int, str]]:
    """Yield places and rows to reject: no number, no price, a low above the close, a repetition."""
    for kind in range(4):
        place = int(random.integers(10, len(table)))
        at, row = int(opened[place]), list(table[place])
        if kind == 0:
            row[3] = float("nan")
        elif kind == 1:
            row[2] = 0.0
        elif kind == 2:
            row[2] = row[3] * 1.01
        yield place + 1, _format_row(at, row)


def _format_row(at: int, row: list[float]) -> str:
    return ",".join([str(at), *map(repr, row)])


def _round(values: Array) -> Array:
    return np.array([float(f"{value:.7g}") for value in values.tolist()])


def step_bar(function: StepFunction[Any], carry: Carry, bar: Any) -> tuple[Carry, Array]:
    """Advance by one bar of each asset; return the carry and the readings, shape (assets,)."""
    carry, readings = function.step(carry, _add_axis(bar))
    return carry, readings[0]


def advance_bar(indicator: Indicator, carry: Carry, bar: Any) -> dict[str, Array]:
    """Return the raw values after one bar of each asset, shape (assets,)."""
    return {key: value[0] for key, value in indicator.advance(carry, _add_axis(bar)).items()}


def _add_axis(bar: Any) -> Any:
    return type(bar)(*(column[np.newaxis] for column in bar))
