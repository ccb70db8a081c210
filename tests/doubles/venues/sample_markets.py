"""Markets of generated bars, and of simulated ones."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np

from compute.bars import HOUR_S, RawBar, Series
from compute.sources.simulated import SimulatedSource, compute_origin
from compute.universe import Universe
from tests.doubles.venues.market import Market
from tests.support.bar_sets import generate_folder, load_series

WEEK_S = 7 * 86_400
HALF_S = HOUR_S // 2
_NEW_YORK = ZoneInfo("America/New_York")


def load_generated_market(ticker: str, *, weeks: int = 0, newest: int | None = None) -> Market:
    """Return the newest generated hourly bars and their settlements, moved by whole weeks."""
    shift = weeks * WEEK_S
    folder = generate_folder()
    series = dict(load_series(folder))[f"{ticker} 1h"]
    opened = series["close_time"] - HOUR_S + shift
    columns = [series[name] for name in ("open", "high", "low", "close", "volume")]
    bars = np.stack([opened, *columns], axis=1)[-(newest or 0) :]
    rates = np.loadtxt(folder / f"{ticker}_funding.csv", delimiter=",", skiprows=1)
    settlements = [(int(at) + shift, rate) for at, rate in rates.tolist()]
    return Market(bars, [row for row in settlements if row[0] > bars[0, 0]])


async def make_simulated_markets(
    universe: Universe, tickers: Iterable[str], first: int, until: int
) -> dict[str, Market]:
    """Return markets of the simulated source: bars that close, and rates, in (first, until].

    Late bars are included; the few bars that never come are gaps.
    """
    later = until + WEEK_S
    source = SimulatedSource(universe, compute_origin(first), lambda: later * 1000)
    made = {}
    for ticker in tickers:
        fetched = await source.fetch(ticker, first, until)
        funding = fetched.funding
        rates = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
        made[ticker] = Market(_to_rows(fetched.bars), list(rates))
    return made


def _to_rows(bars: Series) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    columns = (bars.open_time, bars.open, bars.high, bars.low, bars.close, bars.volume)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)


def halve_bars(market: Market) -> Market:
    """Return a stock's market in half-hour bars, as Alpaca has them.

    Two halves make the hourly bar exactly; a day's first bar, from 09:30 on, is one half.
    """
    halves = [half for bar in market.all_bars() for half in _halve_bar(bar)]
    return Market(halves, period_s=HALF_S)


def _halve_bar(bar: RawBar) -> Iterator[RawBar]:
    local = datetime.fromtimestamp(bar.open_time, _NEW_YORK)
    if local.hour == 9:
        yield bar._replace(open_time=bar.open_time + HALF_S)
        return
    opened, low, high, closed = bar.open, bar.low, bar.high, bar.close
    middle, half = (opened + closed) / 2, bar.volume / 2
    later = bar.open_time + HALF_S
    if closed >= opened:
        yield RawBar(bar.open_time, opened, middle, low, middle, half)
        yield RawBar(later, middle, high, middle, closed, half)
    else:
        yield RawBar(bar.open_time, opened, high, middle, middle, half)
        yield RawBar(later, middle, middle, low, closed, half)
