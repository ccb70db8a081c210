"""Generated bars that are hard on indicators, as the files of a bars folder.

A series follows from (`SEED`, ticker) only. Stretches of trend, noise, reversals and quiet
alternate, with single jumps; prices are as small as 1e-6 and as large as 1e8. Coins have flat
stretches too, lack some hours, and settle funding; stocks trade in exchange hours only. Every file
has rows that a reader must reject.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from compute.sessions import list_expected_bars

Array = np.ndarray[Any, Any]

SEED = 20261122
HOUR_S = 3600
DAY_S = 24 * HOUR_S
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
        kept = _drop_hours(random, opened)
        _write_bars(folder / f"{ticker}_1h.csv", kept, price, random, is_coin=True)
        _write_funding(folder / f"{ticker}_funding.csv", opened + HOUR_S, random)
    for ticker, price in HOURLY_STOCKS.items():
        sessions = list_expected_bars("XNAS", END - rows * HOUR_S * 6, END)
        # Recorded bars are cut from the opening on, at half past.
        opened = sessions.open_time[-min(rows, 1740) :] + HOUR_S // 2
        _write_bars(folder / f"{ticker}_1h.csv", opened, price, _open_random(ticker))
    for ticker, price in DAILY_STOCKS.items():
        days = END // DAY_S - np.arange(rows * 7 // 5, 0, -1)
        opened = days[(days + 3) % 7 < 5] * DAY_S
        _write_bars(folder / f"{ticker}_1d.csv", opened, price, _open_random(ticker))


def _open_random(ticker: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *ticker.encode()])


def _drop_hours(random: np.random.Generator, opened: Array) -> Array:
    """Leave out single hours, and once some days in a row."""
    kept = random.random(len(opened)) >= MISSING_SHARE
    gap = len(opened) // 3
    kept[gap : gap + LONG_GAP_BARS] = False
    return opened[kept]


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
    """Round to 7 significant digits."""
    return np.array([float(f"{value:.7g}") for value in values.tolist()])
