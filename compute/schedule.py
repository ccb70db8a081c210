"""When a run is: at minute :03 of its hour, by the market clock. Pure."""

from typing import TypeVar

from compute.bars import HOUR_S, Times
from schemas.vocabulary import RUN_DELAY_MS

RUN_DELAY_S = RUN_DELAY_MS // 1000
Seconds = TypeVar("Seconds", int, Times)


def to_market_ms(run: Seconds) -> Seconds:
    """Return the nominal market time (epoch ms) of the run at an hour."""
    return (run + RUN_DELAY_S) * 1000


def find_last_run(now_ms: int) -> int:
    """Return the hour of the newest run whose market time has come."""
    return (now_ms // 1000 - RUN_DELAY_S) // HOUR_S * HOUR_S
