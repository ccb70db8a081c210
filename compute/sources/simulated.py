"""A made-up market as a source: bars and funding, a pure function of (seed, ticker, hour).

Prices hang on random paths at random access, so an hour costs the same however late it is.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from compute.bars import DAY_S, HOUR_S, NO_FUNDING, Funding, Prices, Series, Times
from compute.sessions import (
    Calendar,
    Hours,
    bars_a_day,
    complete_until,
    hours,
    last_close,
    next_close,
)
from compute.sources.random_paths import BLOCK, Bits, bits_at, exp2, key_of, normal, path, thirds
from compute.sources.source import Fetched
from compute.universe import Asset, Session, Universe
from schemas.clock import Clock
from schemas.vocabulary import AssetClass, SourceKind, Timeframe, midnight_s

SEED = 1
HISTORY_S = 330 * DAY_S
LATEST_ORIGIN = midnight_s(date(2025, 12, 1))
FUNDING_EVERY_S = 8 * HOUR_S
EMPTY_S = HOUR_S
_NAME = re.compile(r"simulated:(\d{1,12})")

_SHARED_BLOCKS = 4
_WICK = 0.6
_MOMENTUM, _PULL_RATE = 72, 0.0025
_NEUTRAL_RATE, _MOST_RATE, _NOISE_RATE = 0.0001, 0.003, 0.00004
_GAPS, _LATE, _LATE_TOGETHER, _TOGETHER, _SOON, _WITHIN_MINUTES = (
    int(share * 2**32) for share in (0.001, 0.0025, 0.05, 0.01, 0.80, 0.96)
)
_FOR_BAR, _FOR_ARRIVAL, _FOR_FUNDING = (
    0xABC98388FB8FAC03,
    0x8CB92BA72F3D8DD7,
    0xC2B2AE3D27D4EB4F,
)
_OPEN, _HIGH, _LOW, _CLOSE, _VOLUME, _DELAY = range(6)


class _Kind(NamedTuple):
    """What assets of a class are like; prices and volumes as powers of 2, moves an hour in them."""

    price: tuple[float, float]
    own: tuple[float, float]
    factor: float
    volume: tuple[float, float]


_KINDS: dict[AssetClass, _Kind] = {
    "crypto": _Kind((-8.0, 12.0), (0.003, 0.008), 0.006, (22.0, 26.0)),
    "stock": _Kind((4.4, 9.8), (0.002, 0.005), 0.0032, (25.0, 29.0)),
    "metal": _Kind((4.8, 11.5), (0.0015, 0.003), 0.0022, (25.0, 28.0)),
}
_CLOSED_STEPS: dict[Session, int] = {"24x7": 0, "24x5": 1, "XNYS": 3, "XNAS": 3}


def first_origin(now_s: int) -> int:
    """Return from when a market that is first started at an instant has bars."""
    return min((now_s - HISTORY_S) // DAY_S * DAY_S, LATEST_ORIGIN)


def source_name(origin: int) -> str:
    """Return what a store remembers the simulated market of an origin by."""
    return f"simulated:{origin}"


def origin_of(name: str) -> int | None:
    """Return the origin out of a remembered name, None if it names another kind of source."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class SimulatedSource:
    """Every asset of a universe, hourly, from an origin (a UTC midnight, epoch seconds) on.

    The clock, in epoch milliseconds, alone decides which bars have closed and have arrived.
    """

    kind: SourceKind = "simulated"
    ends_at: None = None
    shown_history_s = 30 * DAY_S

    def __init__(self, universe: Universe, origin: int, clock: Clock, seed: int = SEED) -> None:
        """ValueError if the origin is no UTC midnight."""
        if origin % DAY_S:
            raise ValueError(f"the origin {origin} is no UTC midnight")
        self.name = source_name(origin)
        self._assets: Final = universe.by_ticker
        self._origin: Final = origin
        self._clock: Final = clock
        self._turn: Final = asyncio.Lock()
        self._asked: Final = set[_Asked]()
        sessions = {asset.session for asset in universe.assets}
        self._floors: Final = {s: _Floor(s, universe.assets, seed) for s in sessions}

    def native(self, ticker: str) -> Timeframe | None:
        """Return 1h for every asset of the universe, the removed ones too."""
        return "1h" if ticker in self._assets else None

    def listing(self, ticker: str) -> str | None:
        """Return None: all bars are from one place."""
        return None

    def delay_s(self, ticker: str) -> int:
        """Return 0: what comes after its close is late."""
        return 0

    def next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return next_close(_calendar(self._assets[ticker]), max(after, self._origin))

    def last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return last_close(_calendar(self._assets[ticker]), at)

    async def ready(self) -> None:
        """Find nothing wrong: the market follows the clock, whatever it says."""

    async def fetch(self, ticker: str, after: int, until: int) -> Fetched:
        """Return what has arrived in (after, watermark]; an earlier bar still to come ends it.

        One thread makes what all who wait for their turn have asked for.
        """
        asked = _Asked(ticker, after, until)
        self._asked.add(asked)
        try:
            async with self._turn:
                if asked.found is None:
                    await asyncio.to_thread(self._fetch_all, tuple(self._asked))
        finally:
            self._asked.discard(asked)
        assert asked.found is not None
        return asked.found

    def _fetch_all(self, asked: Sequence["_Asked"]) -> None:
        for one in asked:
            one.found = one.found or self._fetched(one.ticker, one.after, one.until)

    def _fetched(self, ticker: str, after: int, until: int) -> Fetched:
        asset = self._assets[ticker]
        floor, calendar = self._floors[asset.session], _calendar(asset)
        now = self._clock() // 1000
        due = hours(calendar, max(after, self._origin), min(until, now))
        table = floor.window(ticker, due)
        pending = due.close_time[due.close_time + table[_DELAY, _MOMENTUM:] > now]
        known = now if not len(pending) else int(pending[0]) - 1
        watermark = max(after, min(until, complete_until(calendar, known)))
        funding = NO_FUNDING
        if asset.asset_class == "crypto" and asset.session == "24x7":
            funding = floor.settled(ticker, due, table[_CLOSE]).between(after, watermark)
        return Fetched(_series(due, table[:, _MOMENTUM:], watermark), funding, watermark)


def _calendar(asset: Asset) -> Calendar:
    return "XSIM" if asset.session in ("XNYS", "XNAS") else asset.session


@dataclass(eq=False, slots=True)
class _Asked:
    """A fetch that waits, and what it found."""

    ticker: str
    after: int
    until: int
    found: Fetched | None = None


def _series(due: Hours, table: Prices, watermark: int) -> Series:
    given = (due.close_time <= watermark) & (table[_DELAY] != EMPTY_S)
    columns = table[:_DELAY, given]
    return Series(due.open_time[given], due.close_time[given], *columns)


class _Floor:
    """The assets of one session: what each is like, and its bars by place on its path.

    A path counts the session's hours, and a few steps for the time between two trading days.
    """

    def __init__(self, session: Session, assets: Sequence[Asset], seed: int) -> None:
        chosen = [asset for asset in assets if asset.session == session]
        self._row: Final = {asset.ticker: row for row, asset in enumerate(chosen)}
        self._traits: Final = _traits(chosen, seed)
        self._session: Final = session
        self._together: Final = key_of(seed, f"session {session}")
        self._season: Final = _season(session)
        self._shared: Final = lru_cache(maxsize=2 * _SHARED_BLOCKS)(self._everyone)

    def window(self, ticker: str, due: Hours) -> Prices:
        """Return an asset's columns at the bars due, after _MOMENTUM steps of its path before."""
        if not len(due):
            return np.empty((6, _MOMENTUM))
        index = self._index(due)
        first = int(index[0]) - _MOMENTUM
        blocks = range((first - 1) // BLOCK, (int(index[-1]) - 1) // BLOCK + 1)
        row = self._row[ticker]
        if len(blocks) <= _SHARED_BLOCKS:
            table = np.concatenate([self._shared(block)[:, row] for block in blocks], axis=1)
        else:
            rows = np.full(len(blocks), row)
            table = self._bars(rows, np.array(blocks)).reshape(6, -1)
        before = np.arange(first, int(index[0]))
        return table[:, np.concatenate([before, index]) - blocks[0] * BLOCK - 1]

    def settled(self, ticker: str, due: Hours, closes: Prices) -> Funding:
        """Return the rates of a perpetual on an asset that trades around the clock."""
        place = np.flatnonzero(due.close_time % FUNDING_EVERY_S == 0)
        momentum = closes[place + _MOMENTUM] / closes[place] - 1.0
        key = self._traits.key[self._row[ticker]] + _FOR_FUNDING
        noise = _NOISE_RATE * normal(bits_at(key, self._index(due)[place]))
        rate = np.clip(_NEUTRAL_RATE + _PULL_RATE * momentum + noise, -_MOST_RATE, _MOST_RATE)
        return Funding(due.close_time[place], np.rint(rate * 1e8) / 1e8)

    def _index(self, due: Hours) -> Times:
        """Return each bar's place on its path; a close there is the close of the bar."""
        between = _CLOSED_STEPS[self._session]
        weeks, weekday = np.divmod(due.day + 3, 7)
        day = due.day if self._session == "24x7" else weeks * 5 + weekday
        return day * (bars_a_day(self._session) + between) + between + due.slot

    def _everyone(self, block: int) -> Prices:
        rows = np.arange(len(self._row))
        return self._bars(rows, np.full(len(rows), block))

    def _bars(self, rows: Times, blocks: Times) -> Prices:
        """Return open, high, low, close, volume, delay of lines: shape (6, lines, BLOCK)."""
        its = self._traits.of(rows)
        first = blocks[:, np.newaxis] * BLOCK
        index = first + 1 + np.arange(BLOCK)
        height, loudness = path(its.key, first)
        market, market_loudness = path(its.factor_key, first)
        price = its.rounded(its.price * exp2(its.own * height + its.pull * market))
        move = (its.own * loudness + its.pull * market_loudness)[:, 1:]
        up, down, busy = thirds(bits_at(its.key + _FOR_BAR, index))
        opened, closed = price[:, :-1], price[:, 1:]
        high = its.rounded(np.maximum(opened, closed) * (1.0 + _WICK * move * up * up))
        low = its.rounded(np.minimum(opened, closed) / (1.0 + _WICK * move * down * down))
        season = self._season[index % len(self._season)]
        volume = its.volume * season * (0.5 + busy) * (move / (its.own + its.pull))
        volume = (1.0 + np.rint(1000.0 * volume)) / 1000.0
        delay = _delay(bits_at(its.key + _FOR_ARRIVAL, index), bits_at(self._together, index))
        return np.stack([opened, high, low, closed, volume, delay])


@dataclass(frozen=True, slots=True)
class _Traits:
    """What assets are like; every column has shape (assets, 1).

    `own` and `pull` are moves an hour (as powers of 2), alone and with the class; `ticks` to 1.
    """

    key: Bits
    factor_key: Bits
    price: Prices
    own: Prices
    pull: Prices
    volume: Prices
    ticks: Prices

    def of(self, rows: Times) -> "_Traits":
        """Return the traits of some assets, in the order asked for."""
        return _Traits(*(getattr(self, field.name)[rows] for field in fields(self)))

    def rounded(self, price: Prices) -> Prices:
        """Return prices in whole ticks, at least one."""
        nearest: Prices = np.maximum(np.rint(price * self.ticks), 1.0) / self.ticks
        return nearest


def _traits(assets: Sequence[Asset], seed: int) -> _Traits:
    kinds = [_KINDS[asset.asset_class] for asset in assets]
    key = np.concatenate([key_of(seed, f"ticker {asset.ticker}") for asset in assets])
    factor_key = np.concatenate([key_of(seed, f"class {asset.asset_class}") for asset in assets])
    draws = thirds(bits_at(key, np.array([[-1]]))) + thirds(bits_at(key, np.array([[-2]])))

    def between(name: str, draw: int) -> Prices:
        low, high = np.array([getattr(kind, name) for kind in kinds]).T[:, :, np.newaxis]
        drawn: Prices = low + (high - low) * draws[draw]
        return drawn

    price = exp2(between("price", 0))
    factor = np.array([[kind.factor] for kind in kinds])
    volume = exp2(between("volume", 3)) / price
    exponents = [int(f"{value:.17e}".split("e")[1]) for value in price.ravel().tolist()]
    ticks = np.array([[float(10 ** (5 - exponent))] for exponent in exponents])
    pull = factor * (0.5 + draws[2])
    return _Traits(key, factor_key, price, between("own", 1), pull, volume, ticks)


def _season(session: Session) -> Prices:
    """Return how busy the places of a day, or of a week with its weekend, are."""
    bars = bars_a_day(session)
    slot = np.arange(bars, dtype=np.float64)
    if session in ("XNYS", "XNAS"):
        away = slot - 3.0
        day = 1.0 + 0.08 * away * away
    else:
        away = np.minimum(np.abs(slot - 16.0), 24.0 - np.abs(slot - 16.0))
        day = 1.0 - 0.004 * away * away
    day = np.concatenate([np.ones(_CLOSED_STEPS[session]), day])
    week = (1.0, 1.0, 0.7, 0.7, 1.0, 1.0, 1.0)  # the first day of the epoch was a Thursday
    return np.concatenate([share * day for share in week]) if session == "24x7" else day


def _delay(bits: Bits, together: Bits) -> Prices:
    """Return how many seconds after its close each bar arrives, EMPTY_S where there is none.

    A late bar misses the run three minutes after its close: most arrive within the two minutes
    after that run, some in ten minutes, few in three hours. At some hours many are late together.
    """
    chance, size = bits >> 32, bits & 0xFFFFFFFF
    seconds = np.where(size < _SOON, 200 + size % 91, 540 + size % 181)
    seconds = np.where(size < _WITHIN_MINUTES, seconds, 10_000 + size % 1501)
    late = np.where(together >> 32 < _TOGETHER, _LATE_TOGETHER, _LATE)
    delay = np.where(chance < _GAPS + late, seconds, 0)
    return np.where(chance < _GAPS, EMPTY_S, delay).astype(np.float64)
