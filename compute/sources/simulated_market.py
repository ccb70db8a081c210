"""The bars and funding of a simulated market, a pure function of (seed, ticker, hour).

Prices follow random paths with random access: any part of a path costs the same, however late it
is. A path is a Brownian motion by midpoint displacement, a function of its key only.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import DAY_S, HOUR_S, NO_FUNDING, Funding, Prices, Series, Times
from compute.sources.source import FetchResult
from compute.trading_sessions import (
    Calendar,
    ExpectedBars,
    count_bars_per_day,
    find_session_watermark,
    list_expected_bars,
)
from compute.universe import Asset, Session
from schemas.vocabulary import AssetClass

Bits = NDArray[np.uint64]

# Only integer hashes and elementwise + - * / are used (no library exp or log), so the bits do not
# depend on the machine or on the range drawn. A test pins them: other bits would make the prices
# of existing stores jump.
# A path consists of spans, whose ends vary around the base price; a block is drawn at once.
BLOCK_STEPS = 128
_SPAN, _MIN_VOLATILITY_STEP = 2**14, 4
_END_DEVIATION, _VOLATILITY_END_DEVIATION, _VOLATILITY_DEVIATION = 70.0, 0.4, 0.6
_TREND_FACTORS = dict.fromkeys((64, 128, 256, 512), 1.1)
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_VOLATILITY_SALT = 0xD1B54A32D192ED03


def derive_key(seed: int, name: str) -> Bits:
    """Return the key of a stream of draws, shape (1, 1); stacked keys draw many streams at once."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return np.array([[int.from_bytes(digest[:8], "big")]], dtype=np.uint64)


def draw_path(key: Bits, first: Times) -> tuple[Prices, Prices]:
    """Return heights and volatilities along a block, both of shape (lines, BLOCK_STEPS + 1).

    `first` is the index of each line's first step. A step's standard deviation is about 1 times
    its volatility, which clusters.
    """
    # Each round halves the step. Once a half is enough for the block, only the half that holds it
    # is kept, so the work does not grow with the length of a span.
    begin = first // _SPAN * _SPAN
    ends = begin + np.array([0, _SPAN])
    log = _VOLATILITY_END_DEVIATION * draw_normal(mix_bits(key + _VOLATILITY_SALT, ends))
    field = np.stack(
        [_END_DEVIATION * draw_normal(mix_bits(key, ends)), log, _compute_volatility(log)]
    )
    step = _SPAN
    while step > 1:
        middle = _draw_midpoints(key, begin, step, field)
        woven = np.empty((3, len(first), 2 * field.shape[2] - 1))
        woven[:, :, ::2], woven[:, :, 1::2] = field, middle
        field, step = woven, step // 2
        if step >= BLOCK_STEPS:
            later = first >= begin + step
            field = np.where(later, field[:, :, 1:], field[:, :, :2])
            begin = begin + step * later
    return field[0], field[2]


def _draw_midpoints(key: Bits, begin: Times, step: int, field: Prices) -> Prices:
    """Return the field (height, log volatility, volatility) halfway between its knots."""
    middle = 0.5 * (field[:, :, :-1] + field[:, :, 1:])
    indexes = begin + step // 2 + step * np.arange(middle.shape[2])
    if step > _MIN_VOLATILITY_STEP:
        middle[1] += _VOLATILITY_DEVIATION * draw_normal(mix_bits(key + _VOLATILITY_SALT, indexes))
        middle[2] = _compute_volatility(middle[1])
    reach = 0.5 * math.sqrt(step) * _TREND_FACTORS.get(step, 1.0)
    middle[0] += reach * middle[2] * draw_normal(mix_bits(key, indexes))
    return middle


def _compute_volatility(log: Prices) -> Prices:
    return exp2(np.clip(log, -3.0, 3.0))


def mix_bits(key: Bits, index: Times) -> Bits:
    """Return 64 mixed bits per index: the finaliser of splitmix64 (Steele et al., 2014)."""
    bits = key + index.astype(np.uint64) * _GOLDEN_GAMMA
    bits ^= bits >> 30
    bits *= 0xBF58476D1CE4E5B9
    bits ^= bits >> 27
    bits *= 0x94D049BB133111EB
    bits ^= bits >> 31
    return bits


def draw_normal(bits: Bits) -> Prices:
    """Return nearly normal draws (mean 0, variance 1): sums of four uniform 16-bit parts."""
    pairs = (bits & 0x0000FFFF0000FFFF) + ((bits >> 16) & 0x0000FFFF0000FFFF)
    total = (pairs & 0xFFFFFFFF) + (pairs >> 32)
    return (total.astype(np.float64) - 131_070.0) * (1.0 / 37_837.2)


def draw_uniform_triple(bits: Bits) -> tuple[Prices, Prices, Prices]:
    """Return three uniform draws from [0, 1), each of 21 bits."""
    parts = [(bits >> shift) & 0x1FFFFF for shift in (0, 21, 42)]
    one, two, three = (part.astype(np.float64) / 2_097_152 for part in parts)
    return one, two, three


def exp2(power: Prices) -> Prices:
    """Return 2 to the given power to about 1e-8, by a Taylor series around the nearest integer."""
    whole = np.rint(power)
    rest = (power - whole) * 0.6931471805599453
    result = np.ones_like(rest)
    for order in range(7, 0, -1):
        result = result * rest * (1.0 / order) + 1.0
    return np.ldexp(result, whole.astype(np.int32))


FUNDING_EVERY_S = 8 * HOUR_S
GAP_DELAY_S = HOUR_S

# Those of a batch of a catch-up, 40 days. Longer windows are not cached.
_CACHED_BLOCKS = 10
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


def find_calendar(asset: Asset) -> Calendar:
    """Return the calendar of an asset's bars."""
    # The simulated exchange has a calendar of its own: see XSIM_IRREGULAR_SINCE.
    return "XSIM" if asset.session in ("XNYS", "XNAS") else asset.session


class SessionMarket:
    """The assets of one session: the traits of each, and its bars by index on its path.

    A path has a step for each hour of the session, and a few between two trading days.
    """

    def __init__(
        self,
        session: Session,
        assets: Sequence[Asset],
        origin: int,
        seed: int,
        priced_at: int | None,
    ) -> None:
        """`origin` and `priced_at` are as for `MarketStart`; `assets` may have other sessions."""
        chosen = [asset for asset in assets if asset.session == session]
        self._row_by_ticker: Final = {asset.ticker: row for row, asset in enumerate(chosen)}
        self._session: Final = session
        self._origin: Final = origin
        traits = _build_traits(chosen, seed)
        if priced_at is not None:
            day = np.array([priced_at // DAY_S])
            traits = _apply_sample_prices(traits, chosen, int(self._find_first_step(day)[0]))
        self._traits: Final = traits
        self._session_key: Final = derive_key(seed, f"session {session}")
        self._seasonality: Final = _build_seasonality(session)
        self._get_cached_block: Final = lru_cache(maxsize=_CACHED_BLOCKS + 2)(self._compute_block)

    def fetch(self, asset: Asset, after: int, until: int, now: int) -> FetchResult:
        """Return an asset's bars and settlements in (after, watermark] that arrived by a time.

        All times are epoch seconds. The watermark is `until`, or lies before the first bar that has
        not arrived.
        """
        calendar = find_calendar(asset)
        due = list_expected_bars(calendar, max(after, self._origin), min(until, now))
        table = self._compute_window(asset.ticker, due)
        bars = table[:, _MOMENTUM:]
        pending = due.close_time[due.close_time + bars[_DELAY] > now]
        known_until = now if not len(pending) else int(pending[0]) - 1
        watermark = max(after, min(until, find_session_watermark(calendar, known_until)))
        is_delivered = (due.close_time <= watermark) & (bars[_DELAY] != GAP_DELAY_S)
        columns = bars[:_DELAY, is_delivered]
        series = Series(due.open_time[is_delivered], due.close_time[is_delivered], *columns)
        funding = NO_FUNDING
        if asset.asset_class == "crypto" and self._session == "24x7":
            settled = self._compute_funding(asset.ticker, due, table[_CLOSE])
            funding = settled.select_between(after, watermark)
        return FetchResult(series, funding, watermark)

    def _compute_window(self, ticker: str, due: ExpectedBars) -> Prices:
        """Return an asset's columns for its due bars, after those for _MOMENTUM earlier steps."""
        if not len(due):
            return np.empty((6, _MOMENTUM))
        row, index = self._row_by_ticker[ticker], self._compute_indexes(due)
        first = int(index[0]) - _MOMENTUM
        blocks = range((first - 1) // BLOCK_STEPS, (int(index[-1]) - 1) // BLOCK_STEPS + 1)
        # The runs, and the batches of a catch-up, need the same blocks of all assets, which are
        # computed together and cached. A longer window has enough lines of its own.
        if len(blocks) <= _CACHED_BLOCKS:
            lines = [self._get_cached_block(block)[:, row] for block in blocks]
        else:
            table = self._compute_bars(np.full(len(blocks), row), np.array(blocks))
            lines = [table[:, place] for place in range(len(blocks))]
        steps = np.concatenate([np.arange(first, index[0]), index]) - blocks[0] * BLOCK_STEPS - 1
        return np.concatenate(lines, axis=1)[:, steps]

    def _compute_funding(self, ticker: str, due: ExpectedBars, closes: Prices) -> Funding:
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
        market, market_volatility = _draw_shared_paths(traits.factor_key, first)
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


def _draw_shared_paths(key: Bits, first: Times) -> tuple[Prices, Prices]:
    """Return `draw_path` of lines of which many are equal, drawing each of those once."""
    lines = np.concatenate([key, first.astype(np.uint64)], axis=1)
    distinct, which = np.unique(lines, axis=0, return_inverse=True)
    height, volatility = draw_path(distinct[:, :1], distinct[:, 1:].astype(np.int64))
    return height[which.ravel()], volatility[which.ravel()]


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
