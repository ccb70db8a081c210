"""What has come from a source: up to when of each asset, what is awaited, and what is late."""

import asyncio
from collections.abc import Sequence
from typing import Final

from compute.bars import Funding, Series
from compute.sources.source import FetchResult, Source
from compute.universe import Universe
from schemas.vocabulary import compute_midnight_s
from store.market_rows import WatermarkRow


class FetchTracker:
    """Asks a source for more than what it has `seen`: a time (epoch seconds) by ticker.

    `behind` are the assets for which the last pass could not wait.
    """

    def __init__(
        self,
        source: Source,
        universe: Universe,
        watermarks: dict[str, int],
        lagging: Sequence[WatermarkRow],
    ) -> None:
        self.watermarks: Final = watermarks
        self.lagging = list(lagging)
        self._source: Final = source
        self._universe: Final = universe

    @property
    def late_tickers(self) -> tuple[str, ...]:
        """The assets whose bars were due at the last pass and had not come."""
        return tuple(row.ticker for row in self.lagging if row.is_late)

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) after which bars of some assets come, each once, sorted."""
        return tuple(sorted({self._source.get_delay_s(ticker) for ticker in self.watermarks} - {0}))

    def list_pending(self, until: int) -> tuple[str, ...]:
        """Return the assets of which a bar that closed by an hour has not come, late or not yet."""
        lagging = (row.ticker for row in self.lagging)
        return tuple(t for t in lagging if self.watermarks[t] < self._find_expected_close(t, until))

    def list_live(self) -> list[str]:
        """Return the assets that still step, the removed ones up to their end."""
        ends = self._universe.end_time_by_ticker
        return [
            t for t, watermark in self.watermarks.items() if t not in ends or watermark < ends[t]
        ]

    def list_next_closes(self) -> list[int]:
        """Return the next close of each asset that has one."""
        closes = [
            self._source.find_next_close(ticker, self.watermarks[ticker])
            for ticker in self.list_live()
        ]
        return [close for close in closes if close is not None]

    async def fetch(self, tickers: Sequence[str], until: int) -> dict[str, FetchResult]:
        """Fetch from some assets at once; all have ended when one fails."""
        tasks = [
            asyncio.ensure_future(self._source.fetch(ticker, self.watermarks[ticker], until))
            for ticker in tickers
        ]
        try:
            return dict(zip(tickers, await asyncio.gather(*tasks), strict=True))
        except Exception:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def cut_at_removal(self, ticker: str, fetched: FetchResult) -> tuple[Series, Funding]:
        """Return all that was told of an asset, up to its end."""
        series, removed_on = fetched.all_bars, self._universe.by_ticker[ticker].removed_on
        if removed_on is None:
            return series, fetched.funding
        end = compute_midnight_s(removed_on) - 1
        return series.select(series.close_time <= end), fetched.funding.select_between(-1, end)

    def update_lagging(self, until: int, now_s: int) -> None:
        """Note which assets have not come up to an hour, and are late by now."""
        self.lagging = [
            WatermarkRow(ticker, self.watermarks[ticker], self._is_late(ticker, now_s))
            for ticker in sorted(self.list_live())
            if self.watermarks[ticker] < until
        ]

    def _is_late(self, ticker: str, now_s: int) -> bool:
        return self.watermarks[ticker] < self._find_expected_close(
            ticker, now_s - self._source.get_delay_s(ticker)
        )

    def _find_expected_close(self, ticker: str, at: int) -> int:
        """Return when the last bar expected by a time closes, -1 for what is removed by then."""
        end = self._universe.end_time_by_ticker.get(ticker)
        return -1 if end is not None and at >= end else self._source.find_last_close(ticker, at)
