"""Time the engine beside TA-Lib, pandas and NumPy: one live step, and a cold year.

`python -m bench.step` prints the agreement of the two sides first, then both tables.
"""

import os
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from bench.peer import Columns, Readings, read_all_at_once, read_one_by_one
from compute.engine import Engine
from compute.indicators.contract import Bar
from compute.indicators.registry import INDICATORS

ASSETS = 251
WINDOW = 300
STEPS = 200
PEER_STEPS = 15
YEAR = 8_760
AGREEMENT_BARS = 1_000
AGREEMENT_RATIO = 0.98
# One bar alone is a weak test: readings a bar late still agree on up to 97.5% of all bars.
SETTLED, SETTLED_RATIO = 500, 0.999
MUST_AGREE = {"trend_oracle", "reversals", "ceres", "llnr"}

IDS = [indicator.id for indicator in INDICATORS]
PEERS = {"one by one": read_one_by_one, "all at once": read_all_at_once}


def make_market(bars: int) -> Bar:
    """Return a seeded market, shape (bars, assets): bursts of volatility, trends, funding."""
    rng = np.random.default_rng(251)
    shape = (bars, ASSETS)
    shocks, moods, drifts, ranges = (rng.standard_normal(shape) for _ in range(4))
    mood, drift = np.zeros(ASSETS), np.zeros(ASSETS)
    returns, sds = np.empty(shape), np.empty(shape)
    for t in range(bars):
        mood = 0.98 * mood + 0.12 * moods[t]
        drift = 0.97 * drift + 0.02 * drifts[t]
        sds[t] = 0.006 * np.exp(mood)
        returns[t] = sds[t] * (shocks[t] + drift)
    close = 100.0 * np.exp(np.cumsum(returns - returns.mean(axis=0), axis=0))
    open_ = np.vstack([close[:1], close[:-1]])
    high = np.maximum(open_, close) * (1.0 + sds * np.abs(ranges) * 0.6)
    low = np.minimum(open_, close) / (1.0 + sds * np.abs(ranges[::-1]) * 0.6)
    funding = 0.10 + 0.35 * np.sin(np.arange(bars)[:, np.newaxis] / 150 + np.arange(ASSETS))
    funding = funding + 0.2 * np.roll(ranges, 1, axis=1)
    funding[:, ASSETS // 2 :] = np.nan
    return Bar(open_, high, low, close, np.full(shape, 1e6), funding)


def bars_of(market: Bar, start: int, stop: int) -> Iterator[Bar]:
    return (Bar(*(field[t] for field in market)) for t in range(start, stop))


def columns_of(market: Bar) -> Columns:
    """Return the layout that the peer likes best: each asset's column contiguous."""
    fields = (market.high, market.low, market.close, market.funding)
    return Columns(*(np.ascontiguousarray(field.T) for field in fields))


def cut(columns: Columns, assets: int, start: int, stop: int) -> Columns:
    return Columns(*(field[:assets, start:stop] for field in columns))


def warmed(market: Bar, bars: int) -> Engine:
    engine, everyone, once = Engine(INDICATORS, ASSETS), np.arange(ASSETS), np.ones(ASSETS, int)
    for bar in bars_of(market, 0, bars):
        engine.step(everyone, once, bar)
    return engine


def stepped(market: Bar, bars: int) -> Readings:
    """Return the engine's readings of the first bars, shape (bars, assets, indicators)."""
    engine, everyone, once = Engine(INDICATORS, ASSETS), np.arange(ASSETS), np.ones(ASSETS, int)
    readings = np.empty((bars, ASSETS, len(IDS)), dtype=np.int8)
    for t, bar in enumerate(bars_of(market, 0, bars)):
        readings[t] = engine.step(everyone, once, bar)
    return readings


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_bytes(work: Callable[[], object]) -> int:
    """Return tracemalloc's peak over what was allocated before; a pass of its own, never timed."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def print_agreement(market: Bar, columns: Columns) -> None:
    ours = np.moveaxis(stepped(market, AGREEMENT_BARS), 0, -1)
    window = cut(columns, ASSETS, 0, AGREEMENT_BARS)
    both = {name: read(window, IDS) for name, read in PEERS.items()}
    ends = range(SETTLED, AGREEMENT_BARS + 1, 20)
    short = np.stack(
        [read_all_at_once(cut(columns, ASSETS, e - WINDOW, e), IDS)[..., -1] for e in ends], axis=-1
    )
    print(f"Agreement of readings: {ASSETS} assets, the peer on {AGREEMENT_BARS} bars, last bar")
    print(f"(asserted >= {AGREEMENT_RATIO:.0%} for {', '.join(sorted(MUST_AGREE))});")
    print(f"beside it all bars from {SETTLED} on (asserted >= {SETTLED_RATIO:.1%} for the same),")
    print(
        f"the peer on {WINDOW} bars only (mean of {len(ends)} last bars), and how many are not 0."
    )
    print(f"| indicator | one by one | all at once | bars {SETTLED} on | {WINDOW} bars | not 0 |")
    print("|---|--:|--:|--:|--:|--:|")
    for column, id in enumerate(IDS):
        mine = ours[:, column]
        last = [float((theirs[:, column, -1] == mine[:, -1]).mean()) for theirs in both.values()]
        settled = [
            float((theirs[:, column, SETTLED - 1 :] == mine[:, SETTLED - 1 :]).mean())
            for theirs in both.values()
        ]
        live = float((short[:, column] == mine[:, [e - 1 for e in ends]]).mean())
        active = float((mine[:, -1] != 0).mean())
        shares = f"{last[0]:.2%} | {last[1]:.2%} | {min(settled):.3%} | {live:.2%}"
        print(f"| {id} | {shares} | {active:.0%} |")
        agrees = min(last) >= AGREEMENT_RATIO and min(settled) >= SETTLED_RATIO
        if id in MUST_AGREE and not agrees:
            raise SystemExit(f"{id}: the two sides disagree, so their times cannot be compared")
    print()


def print_row(what: str, spent: float, ours: float, peak: float) -> None:
    time_text = f"{spent * 1e3:,.2f} ms" if spent < 1.0 else f"{spent:,.2f} s"
    print(f"| {what} | {time_text} | {spent / ours:,.2f} | {peak / 2**20:,.1f} MiB |")


def print_live_step(market: Bar, columns: Columns) -> None:
    everyone, once, engine = np.arange(ASSETS), np.ones(ASSETS, int), warmed(market, WINDOW)
    ours = median(
        seconds(lambda bar=bar: engine.step(everyone, once, bar))
        for bar in bars_of(market, WINDOW, WINDOW + STEPS)
    )
    kept = sum(field[:, :WINDOW].nbytes for field in columns)
    print(f"Live step: {ASSETS} assets x {len(IDS)} indicators, the peer on {WINDOW} bars; medians")
    print("| what | time | peer / ours | peak memory |")
    print("|---|--:|--:|--:|")
    print_row(
        f"Engine.step ({STEPS} steps)", ours, ours, peak_bytes(lambda: warmed(market, WINDOW + 1))
    )
    for name, read in PEERS.items():
        windows = [cut(columns, ASSETS, t, t + WINDOW) for t in range(1, PEER_STEPS + 1)]
        theirs = median(seconds(lambda w=w, read=read: read(w, IDS)) for w in windows)
        peak = kept + peak_bytes(lambda w=windows[0], read=read: read(w, IDS)[..., -1].copy())
        print_row(f"peer, assets {name} ({len(windows)} steps)", theirs, ours, peak)
    print()


def print_cold_year(market: Bar, columns: Columns) -> None:
    ours = seconds(lambda: stepped(market, YEAR))
    # The engine's own memory does not grow with the bars: the readings it hands out do.
    peak = peak_bytes(lambda: warmed(market, WINDOW + 1)) + YEAR * ASSETS * len(IDS)
    print(
        f"Cold year: {YEAR:,} hourly bars x {ASSETS} assets x {len(IDS)} indicators; one run each"
    )
    print("| what | time | peer / ours | peak memory |")
    print("|---|--:|--:|--:|")
    print_row("Engine.step, bar by bar", ours, ours, peak)
    whole = cut(columns, ASSETS, 0, YEAR)
    theirs = seconds(lambda: read_one_by_one(whole, IDS))
    # tracemalloc slows Python loops too much for all assets: one asset's peak and all readings.
    one = peak_bytes(lambda: read_one_by_one(cut(columns, 1, 0, YEAR), IDS))
    print_row("peer, assets one by one", theirs, ours, one + (ASSETS - 1) * YEAR * len(IDS))
    theirs = seconds(lambda: read_all_at_once(whole, IDS))
    peak = peak_bytes(lambda: read_all_at_once(whole, IDS))
    print_row("peer, assets all at once", theirs, ours, peak)
    print()


def main() -> None:
    start = time.perf_counter()
    market = make_market(YEAR)
    columns = columns_of(market)
    with np.errstate(invalid="ignore", divide="ignore"):
        print_agreement(market, columns)
        print_live_step(market, columns)
        print_cold_year(market, columns)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    load = os.getloadavg()[0]
    print("Peak memory is tracemalloc's, in a pass that is not timed, above the market itself;")
    print("on a live step the peer's includes the window that it must keep, ours the carries.")
    print(
        f"Whole run: {time.perf_counter() - start:.0f} s, getrusage peak {rss:,.0f} MiB "
        f"(the market and both sides), {os.cpu_count()} cores, load {load:.1f}."
    )


if __name__ == "__main__":
    main()
