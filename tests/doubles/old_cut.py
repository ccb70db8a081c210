"""A simulated market whose stocks are cut as they were before bars ended at full hours."""

from collections.abc import Mapping
from dataclasses import replace

from compute.bars import DAY_S, HOUR_S
from compute.sessions import list_expected_bars, opens_off_hour
from compute.sources.simulated import SimulatedSource
from compute.sources.source import FetchResult
from compute.universe import Universe
from schemas.clock import Clock


class OldCutSource(SimulatedSource):
    """Stock bars close an hour later, as hourly bars from half past nine on did.

    `open_shift_s` is half an hour, or an hour as for perpetuals on stocks, whose bars were whole
    hours up to an hour after the session. With `listings`, the store takes it for a live source.
    """

    def __init__(
        self,
        universe: Universe,
        origin: int,
        clock: Clock,
        open_shift_s: int = HOUR_S // 2,
        listings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(universe, origin, clock)
        self._universe = universe
        self._wall_clock = clock
        self._open_shift_s = open_shift_s
        self._listing_by_ticker = listings or {}
        if listings is not None:
            self.name, self.kind, self.shown_history_s = "live", "live", 0

    def get_listing(self, ticker: str) -> str | None:
        return self._listing_by_ticker.get(ticker)

    def find_next_close(self, ticker: str, after: int) -> int | None:
        shift_s = self._find_shift_s(ticker)
        close = super().find_next_close(ticker, after - shift_s)
        return None if close is None else close + shift_s

    def find_last_close(self, ticker: str, at: int) -> int:
        shift_s = self._find_shift_s(ticker)
        return super().find_last_close(ticker, at - shift_s) + shift_s

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        if not (shift_s := self._find_shift_s(ticker)):
            return await super().fetch(ticker, after, until)
        until = min(until, self._wall_clock() // 1000)
        fetched = await super().fetch(ticker, max(-1, after - shift_s), until - shift_s)
        bars = replace(
            fetched.bars,
            open_time=fetched.bars.open_time + self._open_shift_s,
            close_time=fetched.bars.close_time + shift_s,
        )
        watermark = self._find_watermark(ticker, fetched.watermark + shift_s, until)
        return replace(fetched, bars=bars, watermark=max(after, watermark))

    def _find_shift_s(self, ticker: str) -> int:
        return HOUR_S if opens_off_hour(self._universe.by_ticker[ticker].session) else 0

    def _find_watermark(self, ticker: str, watermark: int, until: int) -> int:
        """Return the opening instead of a time at which the day's first bar was in progress."""
        session = self._universe.by_ticker[ticker].session
        days = list_expected_bars(session, until - DAY_S, until + DAY_S)
        for opened, closed in zip(days.begin_time.tolist(), days.close_time.tolist(), strict=True):
            if opened % HOUR_S and opened <= watermark < closed + HOUR_S:
                return int(opened)
        return watermark
