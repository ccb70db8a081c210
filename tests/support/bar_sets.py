"""Bars for oracles, generated or recorded, an indicator's values on them, and plain calculations.

Reading files, building bars and latching do not use `compute`, so its errors cannot hide here.
"""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from compute.indicators.contract import NO_READING, WARMUP, Bar, Carry, Indicator
from tests.support.generated_bars import write_generated_bars
from tests.support.one_bar import advance_bar, step_bar

HOUR_S = 3600
DAY_S = 24 * HOUR_S
PERIODS_S = {"1h": HOUR_S, "4h": 4 * HOUR_S, "1d": DAY_S}
METALS = ("XAU", "XAG", "XPT", "XPD")
PRICES = ["open", "high", "low", "close"]
FIELDS = [*PRICES, "volume"]

TOLERANCE = 1e-9
LONG_PROOF = [pytest.mark.prove, pytest.mark.long]

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
    """Return whether recorded bars are present."""
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
    """Return the parameters of tests over every bar set; all but one are for proofs."""
    names = ["generated newest", "generated full"]
    if has_recorded_bars():
        names += ["recorded newest", "recorded full"]
    return [
        names[0],
        *(
            pytest.param(name, marks=LONG_PROOF if "full" in name else pytest.mark.prove)
            for name in names[1:]
        ),
    ]


def list_full_folders() -> list[Any]:
    """Return the parameters of proofs over whole folders: the recorded one, if it is present."""
    return [pytest.param("recorded full", marks=LONG_PROOF)] if has_recorded_bars() else []


@cache
def load_series(folder: Path, rows: int = 10**9) -> list[tuple[str, Series]]:
    """Return (label such as `BTC 4h`, series) with arrays open .. volume, close_time, funding."""
    series = []
    for path in sorted(folder.glob("*_1[hd].csv")):
        ticker, timeframe = path.stem.split("_")
        bars = _accept_bars(pd.read_csv(path).tail(rows), HOUR_S if timeframe == "1h" else 0)
        bars["close_time"] = bars["ts"] + PERIODS_S[timeframe]
        built = {timeframe: bars}
        if timeframe == "1h":
            built |= {
                "4h": _build_longer_bars(bars, PERIODS_S["4h"]),
                "1d": _build_longer_bars(bars, DAY_S, joins_sundays=ticker in METALS),
            }
        rates = _load_funding_rates(folder / f"{ticker}_funding.csv")
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
        days = pd.to_datetime(ends - DAY_S, unit="s").dt.day_name()
        ends = ends + DAY_S * (days == "Sunday")
    return (
        bars.groupby(ends.rename("end"))
        .agg({"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"})
        .reset_index(names="close_time")
    )


def _load_funding_rates(path: Path) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame({"ts": [], "funding_rate": []})
    return pd.read_csv(path).sort_values("ts")


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
    """Copy the newest rows of some files of one folder into another."""
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
