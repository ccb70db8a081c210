"""Random paths with random access: any part of a path costs the same. Pure NumPy.

A path is a Brownian motion by midpoint displacement, a function of its key only.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from compute.bars import Prices, Times

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
