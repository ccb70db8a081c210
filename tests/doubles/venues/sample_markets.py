"""Markets of recorded bars, and of simulated ones for symbols without a recording."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np

from compute.bars import HOUR_S, RawBar, Series
from compute.sources.simulated import SimulatedSource, compute_origin
from compute.universe import Universe
from tests.doubles.venues.market import Market
from tests.support.recorded_bars import get_recorded_folder, require_recorded

WEEK_S = 7 * 86_400
HALF_S = HOUR_S // 2
_NEW_YORK = ZoneInfo("America/New_York")


def load_recorded_market(ticker: str, *, weeks: int = 0, newest: int | None = None) -> Market:
    """Return the newest recorded hourly bars and their settlements, moved by whole weeks.

    Skips the test if nothing is recorded.
    """
    require_recorded()
    shift = weeks * WEEK_S
    bars = _read_csv(f"{ticker}_1h.csv")[-(newest or 0) :]
    bars[:, 0] += shift
    settlements = [
        (int(at) + shift, rate) for at, rate in _read_csv(f"{ticker}_funding.csv").tolist()
    ]
    return Market(bars, [row for row in settlements if row[0] > bars[0, 0]])


def _read_csv(name: str) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    path = get_recorded_folder() / name
    if not path.exists():
        return np.empty((0, 2))
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


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

    Two halves make the hourly bar exactly; a day's last bar, of 15:30, is one half.
    """
    halves = [half for bar in market.all_bars() for half in _halve_bar(bar)]
    return Market(halves, period_s=HALF_S)


def _halve_bar(bar: RawBar) -> Iterator[RawBar]:
    local = datetime.fromtimestamp(bar.open_time, _NEW_YORK)
    if (local.hour, local.minute) == (15, 30):
        yield bar
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
