"""A fixed hour, and markets of round numbers around it."""

from compute.bars import HOUR_S, RawBar
from tests.doubles.venues.market import Market

HOUR = 1_790_769_600  # 2026-09-30T12:00:00Z, when a bar has closed and the next one opens
NOW = HOUR + 180
FUNDED_EVERY_S = 8 * HOUR_S


def make_bar(hours: int) -> RawBar:
    """Return the bar that opens some hours after HOUR."""
    price = 20_000.0 + hours
    return RawBar(HOUR + hours * HOUR_S, price, price + 9, price - 9, price + 0.5, 10.25)


def make_market(before: int = 50, after: int = 5) -> Market:
    """Return bars from some hours before HOUR until some after it, and matching rates."""
    rates = [(HOUR - n * FUNDED_EVERY_S, n * 0.0001) for n in range(before, -1, -1)]
    return Market([make_bar(hours) for hours in range(-before, after)], rates)
