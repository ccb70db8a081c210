"""A simulated market as a source: bars and funding are a pure function of (seed, ticker, hour).

Prices follow random paths with random access, so an hour costs the same however late it is.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from compute.bars import DAY_S, HOUR_S, NO_BARS, NO_FUNDING, Funding, Prices, Series, Times
from compute.sessions import (
    Calendar,
    ExpectedBars,
    count_bars_per_day,
    find_last_close,
    find_next_close,
    find_session_watermark,
    list_expected_bars,
)
from compute.sources.history_diff import CUT_REASON, CutCheck, StoredBarsLoader
from compute.sources.random_paths import (
    BLOCK_STEPS,
    Bits,
    derive_key,
    draw_normal,
    draw_path,
    draw_uniform_triple,
    exp2,
    mix_bits,
)
from compute.sources.source import FetchResult
from compute.universe import Asset, Session, Universe
from schemas.clock import Clock
from schemas.vocabulary import AssetClass, SourceKind, Timeframe, compute_midnight_s

SEED = 1
HISTORY_S = 330 * DAY_S
LATEST_ORIGIN = compute_midnight_s(date(2025, 12, 1))
FUNDING_EVERY_S = 8 * HOUR_S
GAP_DELAY_S = HOUR_S
_NAME = re.compile(r"simulated:(\d{1,12})(?::(\d{1,12}))?")

_CACHED_BLOCKS = 4
_WICK = 0.6
_MOMENTUM, _PULL_RATE = 72, 0.0025
_NEUTRAL_RATE, _MAX_RATE, _NOISE_RATE = 0.0001, 0.003, 0.00004
(
    _GAP_CHANCE,
    _LATE_CHANCE,
    _LATE_TOGETHER_CHANCE,
    _TOGETHER_CHANCE,
    _SOON_CHANCE,
    _WITHIN_MINUTES_CHANCE,
) = (int(share * 2**32) for share in (0.001, 0.0025, 0.05, 0.01, 0.80, 0.96))
_BAR_SALT, _ARRIVAL_SALT, _FUNDING_SALT = (
    0xABC98388FB8FAC03,
    0x8CB92BA72F3D8DD7,
    0xC2B2AE3D27D4EB4F,
)
_OPEN, _HIGH, _LOW, _CLOSE, _VOLUME, _DELAY = range(6)


class _ClassTraits(NamedTuple):
    """The traits of an asset class: (low, high) bounds, as powers of 2; moves are per hour."""

    price: tuple[float, float]
    own: tuple[float, float]
    factor: float
    volume: tuple[float, float]


_CLASS_TRAITS: dict[AssetClass, _ClassTraits] = {
    "crypto": _ClassTraits((-8.0, 12.0), (0.003, 0.008), 0.006, (22.0, 26.0)),
    "stock": _ClassTraits((4.4, 9.8), (0.002, 0.005), 0.0032, (25.0, 29.0)),
    "metal": _ClassTraits((4.8, 11.5), (0.0015, 0.003), 0.0022, (25.0, 28.0)),
}
_CLOSED_STEPS: dict[Session, int] = {"24x7": 0, "24x5": 1, "XNYS": 3, "XNAS": 3}


def compute_origin(now_s: int) -> int:
    """Return the origin (epoch seconds) of a market whose first start is at `now_s`."""
    return min((now_s - HISTORY_S) // DAY_S * DAY_S, LATEST_ORIGIN)


class MarketStart(NamedTuple):
    """When a simulated market begins, and when its assets cost their sample prices.

    Both are UTC midnights (epoch seconds). `priced_at` is None in stores of earlier versions, whose
    prices are drawn at random.
    """

    origin: int
    priced_at: int | None = None


def choose_start(now_s: int) -> MarketStart:
    """Return the start of a market whose first start is at `now_s`."""
    # Newcomers see the end of the history, so the prices are right on that day.
    return MarketStart(compute_origin(now_s), now_s // DAY_S * DAY_S)


def format_source_name(origin: int, priced_at: int | None = None) -> str:
    """Return the name by which a store remembers a simulated market."""
    return f"simulated:{origin}" if priced_at is None else f"simulated:{origin}:{priced_at}"


def parse_source_name(name: str) -> MarketStart | None:
    """Return the start in a remembered name, None if it is the name of another source."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return MarketStart(int(match[1]), None if match[2] is None else int(match[2]))


async def load_no_bars(ticker: str, after: int) -> Series:
    """Return no bars, for a store that holds none."""
    return NO_BARS


class SimulatedSource:
    """Every asset of a universe, hourly, from an origin (a UTC midnight, epoch seconds) on.

    Only the clock decides which bars have closed and have arrived. `load_stored_bars` returns an
    asset's stored bars that open after a time (epoch seconds); by default none are stored.
    At `priced_at` (a UTC midnight) each asset costs its sample price. Without it, prices are drawn.
    """

    kind: SourceKind = "simulated"
    ends_at: None = None
    shown_history_s = 30 * DAY_S

    def __init__(
        self,
        universe: Universe,
        origin: int,
        clock: Clock,
        seed: int = SEED,
        load_stored_bars: StoredBarsLoader = load_no_bars,
        priced_at: int | None = None,
    ) -> None:
        """Raise ValueError if the origin is not a UTC midnight."""
        if origin % DAY_S:
            raise ValueError(f"the origin {origin} is not a UTC midnight")
        self.name = format_source_name(origin, priced_at)
        self._assets: Final = universe.by_ticker
        self._origin: Final = origin
        self._clock: Final = clock
        self._cut_check: Final = CutCheck(load_stored_bars)
        self._lock: Final = asyncio.Lock()
        self._pending: Final = set[_PendingFetch]()
        sessions = {asset.session for asset in universe.assets}
        self._session_markets: Final = {
            s: _SessionMarket(s, universe.assets, seed, priced_at) for s in sessions
        }

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h for every asset of the universe, removed ones included."""
        return "1h" if ticker in self._assets else None

    def get_listing(self, ticker: str) -> str | None:
        """Return None: there are no venues."""
        return None

    def has_off_hour_bars(self, ticker: str) -> bool:
        """Return False: bars are cut at full hours."""
        return False

    def get_delay_s(self, ticker: str) -> int:
        """Return 0: every bar that comes after its close is late."""
        return 0

    def get_end(self, ticker: str) -> int | None:
        """Return None: the source keeps growing."""
        return None

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return find_next_close(_get_calendar(self._assets[ticker]), max(after, self._origin))

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return find_last_close(_get_calendar(self._assets[ticker]), at)

    async def check_ready(self) -> None:
        """Return at once: the market follows any clock."""

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the bars and settlements in (after, watermark].

        The watermark is `until`, or lies before the first bar that has not arrived.
        """
        if not await self._cut_check.is_outdated(ticker, _get_calendar(self._assets[ticker])):
            return await self._fetch_together(ticker, after, until)
        whole = await self._fetch_together(ticker, -1, until)
        # A bar that has not arrived could not be added to the history later.
        if whole.watermark < after:
            return FetchResult(NO_BARS, NO_FUNDING, after)
        is_new = whole.bars.close_time > after
        new_bars, history = whole.bars.select(is_new), whole.bars.select(~is_new)
        return FetchResult(new_bars, NO_FUNDING, whole.watermark, history, CUT_REASON)

    async def _fetch_together(self, ticker: str, after: int, until: int) -> FetchResult:
        """Fetch in one thread with all other fetches that wait."""
        # One thread computes all waiting fetches at once: an hour of 251 assets takes 26 to 33 ms
        # instead of 54 to 66, and blocks the event loop for 5 ms instead of 20.
        pending = _PendingFetch(ticker, after, until)
        self._pending.add(pending)
        try:
            async with self._lock:
                if pending.result is None:
                    await asyncio.to_thread(self._fetch_all, tuple(self._pending))
        finally:
            self._pending.discard(pending)
        assert pending.result is not None
        return pending.result

    def _fetch_all(self, pending: Sequence["_PendingFetch"]) -> None:
        for one in pending:
            one.result = one.result or self._fetch_one(one.ticker, one.after, one.until)

    def _fetch_one(self, ticker: str, after: int, until: int) -> FetchResult:
        asset = self._assets[ticker]
        market, calendar = self._session_markets[asset.session], _get_calendar(asset)
        now = self._clock() // 1000
        due = list_expected_bars(calendar, max(after, self._origin), min(until, now))
        table = market.compute_window(ticker, due)
        pending = due.close_time[due.close_time + table[_DELAY, _MOMENTUM:] > now]
        known_until = now if not len(pending) else int(pending[0]) - 1
        watermark = max(after, min(until, find_session_watermark(calendar, known_until)))
        funding = NO_FUNDING
        if asset.asset_class == "crypto" and asset.session == "24x7":
            funding = market.compute_funding(ticker, due, table[_CLOSE]).select_between(
                after, watermark
            )
        return FetchResult(_build_series(due, table[:, _MOMENTUM:], watermark), funding, watermark)


def _get_calendar(asset: Asset) -> Calendar:
    # The simulated exchange has a calendar of its own: see XSIM_IRREGULAR_SINCE.
    return "XSIM" if asset.session in ("XNYS", "XNAS") else asset.session


@dataclass(eq=False, slots=True)
class _PendingFetch:
    """A waiting fetch, and its result once there is one."""

    ticker: str
    after: int
    until: int
    result: FetchResult | None = None


def _build_series(due: ExpectedBars, table: Prices, watermark: int) -> Series:
    is_delivered = (due.close_time <= watermark) & (table[_DELAY] != GAP_DELAY_S)
    columns = table[:_DELAY, is_delivered]
    return Series(due.open_time[is_delivered], due.close_time[is_delivered], *columns)


class _SessionMarket:
    """The assets of one session: the traits of each, and its bars by index on its path.

    A path has a step for each hour of the session, and a few between two trading days.
    """

    def __init__(
        self, session: Session, assets: Sequence[Asset], seed: int, priced_at: int | None
    ) -> None:
        chosen = [asset for asset in assets if asset.session == session]
        self._row_by_ticker: Final = {asset.ticker: row for row, asset in enumerate(chosen)}
        self._session: Final = session
        traits = _build_traits(chosen, seed)
        if priced_at is not None:
            day = np.array([priced_at // DAY_S])
            traits = _apply_sample_prices(traits, chosen, int(self._find_first_step(day)[0]))
        self._traits: Final = traits
        self._session_key: Final = derive_key(seed, f"session {session}")
        self._seasonality: Final = _build_seasonality(session)
        self._get_cached_block: Final = lru_cache(maxsize=2 * _CACHED_BLOCKS)(self._compute_block)

    def compute_window(self, ticker: str, due: ExpectedBars) -> Prices:
        """Return an asset's columns for the due bars, after those for _MOMENTUM earlier steps."""
        if not len(due):
            return np.empty((6, _MOMENTUM))
        index = self._compute_indexes(due)
        first = int(index[0]) - _MOMENTUM
        blocks = range((first - 1) // BLOCK_STEPS, (int(index[-1]) - 1) // BLOCK_STEPS + 1)
        row = self._row_by_ticker[ticker]
        # A live run needs the newest blocks of all assets, which are computed together and cached.
        # A catch-up needs many blocks of one asset, each once.
        if len(blocks) <= _CACHED_BLOCKS:
            table = np.concatenate(
                [self._get_cached_block(block)[:, row] for block in blocks], axis=1
            )
        else:
            rows = np.full(len(blocks), row)
            table = self._compute_bars(rows, np.array(blocks)).reshape(6, -1)
        before = np.arange(first, int(index[0]))
        return table[:, np.concatenate([before, index]) - blocks[0] * BLOCK_STEPS - 1]

    def compute_funding(self, ticker: str, due: ExpectedBars, closes: Prices) -> Funding:
        """Return the funding of a perpetual on an asset that trades around the clock."""
        indexes = np.flatnonzero(due.close_time % FUNDING_EVERY_S == 0)
        momentum = closes[indexes + _MOMENTUM] / closes[indexes] - 1.0
        key = self._traits.key[self._row_by_ticker[ticker]] + _FUNDING_SALT
        noise = _NOISE_RATE * draw_normal(mix_bits(key, self._compute_indexes(due)[indexes]))
        rate = np.clip(_NEUTRAL_RATE + _PULL_RATE * momentum + noise, -_MAX_RATE, _MAX_RATE)
        return Funding(due.close_time[indexes], np.rint(rate * 1e8) / 1e8)

    def _compute_indexes(self, due: ExpectedBars) -> Times:
        """Return each bar's index on the path; the height there is the bar's close."""
        return self._find_first_step(due.day) + _CLOSED_STEPS[self._session] + due.slot

    def _find_first_step(self, day: Times) -> Times:
        """Return the index on the path at which days (since the epoch) begin."""
        weeks, weekday = np.divmod(day + 3, 7)
        if self._session != "24x7":
            day = weeks * 5 + np.minimum(weekday, 5)
        return day * (count_bars_per_day(self._session) + _CLOSED_STEPS[self._session])

    def _compute_block(self, block: int) -> Prices:
        rows = np.arange(len(self._row_by_ticker))
        return self._compute_bars(rows, np.full(len(rows), block))

    def _compute_bars(self, rows: Times, blocks: Times) -> Prices:
        """Return open, high, low, close, volume, delay, of shape (6, lines, BLOCK_STEPS)."""
        traits = self._traits.select(rows)
        first = blocks[:, np.newaxis] * BLOCK_STEPS
        index = first + 1 + np.arange(BLOCK_STEPS)
        height, volatility = draw_path(traits.key, first)
        market, market_volatility = draw_path(traits.factor_key, first)
        price = traits.round_price(
            traits.price * exp2(traits.own_move * height + traits.class_move * market)
        )
        move = (traits.own_move * volatility + traits.class_move * market_volatility)[:, 1:]
        up, down, busy = draw_uniform_triple(mix_bits(traits.key + _BAR_SALT, index))
        opened, closed = price[:, :-1], price[:, 1:]
        high = traits.round_price(np.maximum(opened, closed) * (1.0 + _WICK * move * up * up))
        low = traits.round_price(np.minimum(opened, closed) / (1.0 + _WICK * move * down * down))
        season = self._seasonality[index % len(self._seasonality)]
        volume = (
            traits.volume * season * (0.5 + busy) * (move / (traits.own_move + traits.class_move))
        )
        volume = (1.0 + np.rint(1000.0 * volume)) / 1000.0
        delay = _draw_delays(
            mix_bits(traits.key + _ARRIVAL_SALT, index), mix_bits(self._session_key, index)
        )
        return np.stack([opened, high, low, closed, volume, delay])


@dataclass(frozen=True, slots=True)
class _Traits:
    """The traits of assets; every column has shape (assets, 1).

    `own_move` and `class_move` are hourly moves (as powers of 2) of the asset itself and with its
    class; `ticks` is the number of price ticks in 1.
    """

    key: Bits
    factor_key: Bits
    price: Prices
    own_move: Prices
    class_move: Prices
    volume: Prices
    ticks: Prices

    def select(self, rows: Times) -> "_Traits":
        """Return the traits of some assets, in the order of `rows`."""
        return _Traits(*(getattr(self, field.name)[rows] for field in fields(self)))

    def round_price(self, price: Prices) -> Prices:
        """Return prices rounded to whole ticks, at least one."""
        nearest: Prices = np.maximum(np.rint(price * self.ticks), 1.0) / self.ticks
        return nearest


def _build_traits(assets: Sequence[Asset], seed: int) -> _Traits:
    kinds = [_CLASS_TRAITS[asset.asset_class] for asset in assets]
    key = np.concatenate([derive_key(seed, f"ticker {asset.ticker}") for asset in assets])
    factor_key = np.concatenate(
        [derive_key(seed, f"class {asset.asset_class}") for asset in assets]
    )
    draws = draw_uniform_triple(mix_bits(key, np.array([[-1]]))) + draw_uniform_triple(
        mix_bits(key, np.array([[-2]]))
    )

    def draw_between(name: str, draw: int) -> Prices:
        low, high = np.array([getattr(kind, name) for kind in kinds]).T[:, :, np.newaxis]
        drawn: Prices = low + (high - low) * draws[draw]
        return drawn

    price = exp2(draw_between("price", 0))
    factor = np.array([[kind.factor] for kind in kinds])
    volume = exp2(draw_between("volume", 3)) / price
    pull = factor * (0.5 + draws[2])
    ticks = _compute_ticks(price)
    return _Traits(key, factor_key, price, draw_between("own", 1), pull, volume, ticks)


def _apply_sample_prices(traits: _Traits, assets: Sequence[Asset], index: int) -> _Traits:
    """Return the traits with which each asset costs its sample price at an index on the path.

    An asset without one costs there what it was drawn to cost.
    """
    prices = np.array([[asset.sample_price or np.nan] for asset in assets])
    prices = np.where(np.isnan(prices), traits.price, prices)
    first = np.full((len(assets), 1), index // BLOCK_STEPS * BLOCK_STEPS)
    height = draw_path(traits.key, first)[0][:, [index % BLOCK_STEPS]]
    market = draw_path(traits.factor_key, first)[0][:, [index % BLOCK_STEPS]]
    return replace(
        traits,
        price=prices * exp2(-(traits.own_move * height + traits.class_move * market)),
        volume=traits.volume * traits.price / prices,
        ticks=_compute_ticks(prices),
    )


def _compute_ticks(price: Prices) -> Prices:
    """Return the number of ticks in 1; a tick keeps six digits of a price."""
    # The exponent is read from the decimal text, because a logarithm may round differently on
    # another machine.
    exponents = [int(f"{value:.17e}".split("e")[1]) for value in price.ravel().tolist()]
    return np.array([[float(10 ** (5 - exponent))] for exponent in exponents])


def _build_seasonality(session: Session) -> Prices:
    """Return the relative volume along a day's steps, or along a week's if it has a weekend."""
    bars = count_bars_per_day(session)
    slot = np.arange(bars, dtype=np.float64)
    if session in ("XNYS", "XNAS"):
        away = slot - 3.0
        day = 1.0 + 0.08 * away * away
    else:
        away = np.minimum(np.abs(slot - 16.0), 24.0 - np.abs(slot - 16.0))
        day = 1.0 - 0.004 * away * away
    day = np.concatenate([np.ones(_CLOSED_STEPS[session]), day])
    week = (1.0, 1.0, 0.7, 0.7, 1.0, 1.0, 1.0)  # the epoch began on a Thursday
    return np.concatenate([share * day for share in week]) if session == "24x7" else day


def _draw_delays(bits: Bits, session_bits: Bits) -> Prices:
    """Return each bar's delay in seconds after its close, GAP_DELAY_S if there is no bar."""
    # A late bar misses the run three minutes after its close. Most late bars arrive within two
    # minutes of that run, some within ten minutes, few after three hours. At some hours many assets
    # are late together. An hour without a bar blocks its asset for an hour.
    chance, size = bits >> 32, bits & 0xFFFFFFFF
    seconds = np.where(size < _SOON_CHANCE, 200 + size % 91, 540 + size % 181)
    seconds = np.where(size < _WITHIN_MINUTES_CHANCE, seconds, 10_000 + size % 1501)
    late = np.where(session_bits >> 32 < _TOGETHER_CHANCE, _LATE_TOGETHER_CHANCE, _LATE_CHANCE)
    delay = np.where(chance < _GAP_CHANCE + late, seconds, 0)
    return np.where(chance < _GAP_CHANCE, GAP_DELAY_S, delay).astype(np.float64)
