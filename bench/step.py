"""Time the engine against TA-Lib, pandas and NumPy: live steps, a cold year, and their limits.

`python -m bench.step` also prints how far the readings of both sides agree.
"""

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from bench.peer import Columns, Readings, read_all_at_once, read_one_by_one
from bench.table import Row, format_table
from compute.engine import Engine
from compute.executor import count_cores, iterate, map_blocks, open_local_executor
from compute.hourly_pipeline import BATCH_S
from compute.indicators.contract import Bar
from compute.indicators.registry import INDICATORS

ASSETS = 251
WINDOW = 300
YEAR = 8_760
BATCH = BATCH_S // 3600
AGREEMENT_BARS = 1_000
AGREEMENT_RATIO = 0.98
# A single bar is a weak test: readings that are one bar late still agree on up to 97.5% of all
# bars. So all bars after the settling time are compared, too.
SETTLED, SETTLED_RATIO = 500, 0.999
# These must agree; for the others, the agreement is only printed.
STRICT_INDICATORS = {"trend_oracle", "reversals", "ceres", "llnr"}
# Copies of the 251 assets, and the timed steps of the engine and of each peer. The one-by-one peer
# is not timed at larger sizes, because its time is exactly proportional to the number of assets.
SIZES = {1: (200, 4, 6), 10: (50, 0, 1), 100: (20, 0, 1)}

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
    # Assets without a perpetual have no funding.
    funding[:, ASSETS // 2 :] = np.nan
    return Bar(open_, high, low, close, np.full(shape, 1e6), funding)


def iterate_bars(market: Bar, start: int, stop: int) -> Iterator[Bar]:
    return (Bar(*(field[t] for field in market)) for t in range(start, stop))


def to_columns(market: Bar) -> Columns:
    """Return the layout that is fastest for the peer: each asset's column contiguous."""
    fields = (market.high, market.low, market.close, market.funding)
    return Columns(*(np.ascontiguousarray(field.T) for field in fields))


def cut_columns(columns: Columns, assets: int, start: int, stop: int) -> Columns:
    return Columns(*(field[:assets, start:stop] for field in columns))


def build_single_step(assets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the engine's arguments for a step of every asset on one bar."""
    return np.arange(assets), np.ones(assets, dtype=np.int64)


def warm_up_engine(market: Bar, bars: int) -> Engine[Bar]:
    engine = Engine(INDICATORS, ASSETS)
    for bar in iterate_bars(market, 0, bars):
        engine.step(*build_single_step(ASSETS), bar)
    return engine


def repeat_engine(engine: Engine[Bar], times: int) -> Engine[Bar]:
    """Return an engine with the state of each asset `times` times."""
    larger = Engine(INDICATORS, times * ASSETS)
    for column in range(len(IDS)):
        for row, data in enumerate(engine.dump_carries(column, np.arange(ASSETS)) * times):
            larger.restore_carry(column, row, data)
    return larger


def step_batches(market: Bar, bars: int) -> Readings:
    """Return the engine's readings of the first bars, shape (assets, indicators, bars).

    The bars are stepped in batches as long as those of a first start.
    """
    assets, readings = market.close.shape[1], []
    engine = Engine(INDICATORS, assets)
    for first in range(0, bars, BATCH):
        last = min(first + BATCH, bars)
        columns = (field[first:last].T.ravel() for field in market)
        count = np.full(assets, last - first)
        batch = engine.step(np.arange(assets), count, Bar(*columns))
        readings.append(batch.reshape(assets, last - first, len(IDS)))
    return np.moveaxis(np.concatenate(readings, axis=1), 1, 2)


async def step_on_cores(market: Bar, cores: int) -> tuple[float, Readings]:
    """Step a year in one process per core; return the seconds, and the readings of all assets.

    The workers have been started and have stepped a few bars, as the peers' libraries are loaded.
    The time includes sending the bars to them and the readings back.
    """
    parts = np.array_split(np.arange(market.close.shape[1]), cores)
    blocks = [Bar(*(field[:, part] for field in market)) for part in parts]
    first_bars = [Bar(*(field[:10] for field in block)) for block in blocks]
    async with open_local_executor(cores) as executor:
        [_ async for _ in map_blocks(executor, cores, step_year, iterate(first_bars))]
        start = time.perf_counter()
        readings = [r async for r in map_blocks(executor, cores, step_year, iterate(blocks))]
        return time.perf_counter() - start, np.concatenate(readings)


def step_year(market: Bar) -> Readings:
    return step_batches(market, len(market.close))


def time_work(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of memory that `work` allocates, by tracemalloc; too slow to time as well."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def compare_readings(market: Bar, columns: Columns) -> Iterator[str]:
    """Yield the lines of a table; SystemExit if an indicator that must agree does not."""
    ours = step_batches(market, AGREEMENT_BARS)
    window = cut_columns(columns, ASSETS, 0, AGREEMENT_BARS)
    peers = [read(window, IDS) for read in PEERS.values()]
    ends = range(SETTLED, AGREEMENT_BARS + 1, 50)
    short = np.stack(
        [read_all_at_once(cut_columns(columns, ASSETS, e - WINDOW, e), IDS)[..., -1] for e in ends],
        axis=-1,
    )
    yield f"| indicator | one by one | all at once | bars {SETTLED} on | {WINDOW} bars | not 0 |"
    yield "|---|--:|--:|--:|--:|--:|"
    for column, id in enumerate(IDS):
        mine, theirs = ours[:, column], [readings[:, column] for readings in peers]
        last = [float((readings[:, -1] == mine[:, -1]).mean()) for readings in theirs]
        settled = min(
            float((readings[:, SETTLED - 1 :] == mine[:, SETTLED - 1 :]).mean())
            for readings in theirs
        )
        live = float((short[:, column] == mine[:, [e - 1 for e in ends]]).mean())
        active = float((mine[:, -1] != 0).mean())
        shares = f"{last[0]:.2%} | {last[1]:.2%} | {settled:.3%} | {live:.2%}"
        yield f"| {id} | {shares} | {active:.0%} |"
        if id in STRICT_INDICATORS and (min(last) < AGREEMENT_RATIO or settled < SETTLED_RATIO):
            raise SystemExit(f"{id}: the two sides disagree, so their times cannot be compared")


def format_ms(spent: float) -> str:
    return f"{spent * 1e3:,.2f} ms" if spent < 1.0 else f"{spent:,.2f} s"


def format_mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def compare_times(what: str, ours: float, name: str, theirs: float) -> Row:
    """Return the row of two times; the target is that the peer is slower."""
    ratio = theirs / ours
    return Row(
        what,
        format_ms(ours),
        f"{format_ms(theirs)} ({name})",
        f"{ratio:,.2f}",
        "ahead",
        ratio > 1.0,
    )


def measure_live_rows(market: Bar, columns: Columns) -> Iterator[Row]:
    """Yield live steps at each number of assets, the peers' times, the limits, and memory."""
    warm, timed = warm_up_engine(market, WINDOW), {}
    for times, (steps, *reads) in SIZES.items():
        assets, engine = times * ASSETS, repeat_engine(warm, times)
        bars = iterate_bars(market, WINDOW, WINDOW + steps)
        timed[times] = ours = median(
            time_work(
                lambda bar=bar, engine=engine: engine.step(*build_single_step(len(bar.close)), bar)
            )
            for bar in (Bar(*(np.tile(field, times) for field in bar)) for bar in bars)
        )
        for (name, read), repeats in zip(PEERS.items(), reads, strict=True):
            windows = (cut_columns(columns, ASSETS, t, t + WINDOW) for t in range(1, repeats + 1))
            tiled = (Columns(*(np.tile(f, (times, 1)) for f in window)) for window in windows)
            spent = [time_work(lambda w=w, read=read: read(w, IDS)) for w in tiled]
            if spent:
                what = f"step of {assets:,} assets x {len(IDS)}"
                yield compare_times(what, ours, f"assets {name}", median(spent))
    yield from measure_limit_rows(market, timed[1], timed[max(SIZES)])
    window_bytes = sum(field[:, :WINDOW].nbytes for field in columns)
    window = cut_columns(columns, ASSETS, 0, WINDOW)
    peak = measure_peak_bytes(lambda: warm_up_engine(market, WINDOW + 1))
    theirs = window_bytes + measure_peak_bytes(lambda: read_one_by_one(window, IDS))
    yield Row(
        f"peak memory of a step, {ASSETS} assets",
        format_mib(peak),
        format_mib(theirs),
        f"{theirs / peak:.2f}",
    )


def measure_limit_rows(market: Bar, few: float, many: float) -> Iterator[Row]:
    """Yield two lower limits of a step: its NumPy calls, and copying its carries."""
    # A step of one asset is nearly all call overhead. A large step has to move every carry to the
    # indicator and back, which takes at least as long as copying them.
    engine, one = Engine(INDICATORS, 1), np.zeros(1, dtype=np.int64)
    spent = [
        time_work(lambda bar=bar: engine.step(one, one + 1, Bar(*(f[:1] for f in bar))))
        for bar in iterate_bars(market, 0, 2 * WINDOW)
    ]
    calls = median(spent[WINDOW:])
    what = f"limit of a step of {ASSETS} assets"
    yield Row(
        what, format_ms(few), f"{format_ms(calls)} (calls: a step of 1 asset)", f"{calls / few:.2f}"
    )
    size = max(SIZES) * ASSETS * sum(len(engine.dump_carry(c, 0)) for c in range(len(IDS)))
    source = np.ones(size // 8)
    copy = np.empty_like(source)
    moved = min(time_work(lambda: np.copyto(copy, source)) for _ in range(7))
    limit = f"{format_ms(moved)} (copying its {format_mib(size)} of carries)"
    what = f"limit of a step of {max(SIZES) * ASSETS:,} assets"
    yield Row(what, format_ms(many), limit, f"{moved / many:.2f}")


def measure_year_rows(market: Bar, columns: Columns) -> Iterator[Row]:
    """Yield a cold year in batches against the peers in one batch, which is their best case."""
    ours, cores = time_work(lambda: step_year(market)), count_cores()
    on_cores, readings = asyncio.run(step_on_cores(market, cores))
    if not np.array_equal(readings, step_year(market)):
        raise SystemExit("blocks of assets have other readings than all assets together")
    whole = cut_columns(columns, ASSETS, 0, YEAR)
    for name, read in PEERS.items():
        theirs = time_work(lambda read=read: read(whole, IDS))
        what = f"cold year of {ASSETS} assets x {len(IDS)}"
        yield compare_times(what, ours, f"assets {name}, one batch", theirs)
        what = f"{what}, on {cores} cores"
        yield compare_times(what, on_cores, f"assets {name}, one batch, one core", theirs)


def rows() -> list[Row]:
    """Return the times and limits; SystemExit if the two sides do not agree."""
    market = make_market(YEAR)
    columns = to_columns(market)
    with np.errstate(invalid="ignore", divide="ignore"):
        print("\n".join(compare_readings(market, columns)), file=sys.stderr)
        return [*measure_live_rows(market, columns), *measure_year_rows(market, columns)]


def main() -> None:
    print(format_table(rows()))


if __name__ == "__main__":
    main()
