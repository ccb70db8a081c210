"""A simulated market as a source; each `SessionMarket` computes a part of it."""

import asyncio
import re
from datetime import date
from typing import Final, NamedTuple

from compute.bars import DAY_S
from compute.sources.simulated_market import SessionMarket, find_calendar
from compute.sources.source import FetchResult, Source
from compute.trading_sessions import find_last_close, find_next_close
from compute.universe import Universe
from schemas.vocabulary import Clock, SourceKind, Timeframe, compute_midnight_s

SEED = 1
HISTORY_S = 330 * DAY_S
LATEST_ORIGIN = compute_midnight_s(date(2025, 12, 1))
_NAME = re.compile(r"simulated:(\d{1,12})(?::(\d{1,12}))?")


class MarketStart(NamedTuple):
    """When a simulated market begins, and when its assets cost their sample prices.

    Both are UTC midnights (epoch seconds). Without `priced_at`, prices are drawn at random.
    """

    origin: int
    priced_at: int | None = None


def choose_start(now_s: int) -> MarketStart:
    """Return the start of a market whose first start is at `now_s`."""
    origin = min((now_s - HISTORY_S) // DAY_S * DAY_S, LATEST_ORIGIN)
    # Newcomers see the end of the history, so the prices are right on that day.
    return MarketStart(origin, now_s // DAY_S * DAY_S)


def format_source_name(origin: int, priced_at: int | None = None) -> str:
    """Return the name by which a store remembers a simulated market."""
    return f"simulated:{origin}" if priced_at is None else f"simulated:{origin}:{priced_at}"


def parse_source_name(name: str) -> MarketStart | None:
    """Return the start in a remembered name, None if it is the name of another source."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return MarketStart(int(match[1]), None if match[2] is None else int(match[2]))


class SimulatedSource(Source):
    """Every asset of a universe, hourly, from an origin (a UTC midnight, epoch seconds) on.

    Only the clock decides which bars have closed and have arrived.
    At `priced_at` (a UTC midnight) each asset costs its sample price. Without it, prices are drawn.
    """

    kind: SourceKind = "simulated"
    shown_history_s = 30 * DAY_S

    def __init__(
        self,
        universe: Universe,
        origin: int,
        clock: Clock,
        seed: int = SEED,
        priced_at: int | None = None,
    ) -> None:
        """Raise ValueError if the origin is not a UTC midnight."""
        if origin % DAY_S:
            raise ValueError(f"the origin {origin} is not a UTC midnight")
        self.name = format_source_name(origin, priced_at)
        self._assets: Final = universe.by_ticker
        self._origin: Final = origin
        self._clock: Final = clock
        self._markets: Final = {
            session: SessionMarket(session, universe.assets, origin, seed, priced_at)
            for session in sorted({asset.session for asset in universe.assets})
        }

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h for every asset of the universe, removed ones included."""
        return "1h" if ticker in self._assets else None

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return find_next_close(find_calendar(self._assets[ticker]), max(after, self._origin))

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return find_last_close(find_calendar(self._assets[ticker]), at)

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the bars and settlements in (after, watermark].

        The watermark is `until`, or lies before the first bar that has not arrived.
        """
        # An hour of all assets takes 19 ms, so it needs no thread. Other tasks go first, because a
        # history takes longer.
        await asyncio.sleep(0)
        asset = self._assets[ticker]
        return self._markets[asset.session].fetch(asset, after, until, self._clock() // 1000)
