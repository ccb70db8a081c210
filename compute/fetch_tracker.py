"""What has come from a source: up to when of each asset, what is awaited, and what is late."""

import asyncio
from collections.abc import Sequence
from typing import Final

from compute.bars import Funding, Series
from compute.sources.source import Fetched, Source
from compute.universe import Universe
from schemas.vocabulary import midnight_s
from store.market_rows import WatermarkRow


class Deliveries:
    """Asks a source for more than what it has `seen`: a time (epoch seconds) by ticker.

    `behind` are the assets for which the last pass could not wait.
    """

    def __init__(
        self,
        source: Source,
        universe: Universe,
        seen: dict[str, int],
        behind: Sequence[WatermarkRow],
    ) -> None:
        self.seen: Final = seen
        self.behind = list(behind)
        self._source: Final = source
        self._universe: Final = universe

    @property
    def late(self) -> tuple[str, ...]:
        """The assets whose bars were due at the last pass and had not come."""
        return tuple(row.ticker for row in self.behind if row.is_late)

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) after which bars of some assets come, each once, sorted."""
        return tuple(sorted({self._source.delay_s(ticker) for ticker in self.seen} - {0}))

    def awaited(self, until: int) -> tuple[str, ...]:
        """Return the assets of which a bar that closed by an hour has not come, late or not yet."""
        behind = (row.ticker for row in self.behind)
        return tuple(t for t in behind if self.seen[t] < self._expected(t, until))

    def live(self) -> list[str]:
        """Return the assets that still step, the removed ones up to their end."""
        ends = self._universe.ends
        return [t for t, seen in self.seen.items() if t not in ends or seen < ends[t]]

    def next_closes(self) -> list[int]:
        """Return the next close of each asset that has one."""
        closes = [self._source.next_close(ticker, self.seen[ticker]) for ticker in self.live()]
        return [close for close in closes if close is not None]

    async def fetch(self, tickers: Sequence[str], until: int) -> dict[str, Fetched]:
        """Fetch from some assets at once; all have ended when one fails."""
        fetching = [
            asyncio.ensure_future(self._source.fetch(ticker, self.seen[ticker], until))
            for ticker in tickers
        ]
        try:
            return dict(zip(tickers, await asyncio.gather(*fetching), strict=True))
        except Exception:
            for fetch in fetching:
                fetch.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
            raise

    def until_removed(self, ticker: str, new: Fetched) -> tuple[Series, Funding]:
        """Return all that was told of an asset, up to its end."""
        series, removed_on = new.told, self._universe.by_ticker[ticker].removed_on
        if removed_on is None:
            return series, new.funding
        end = midnight_s(removed_on) - 1
        return series.where(series.close_time <= end), new.funding.between(-1, end)

    def lag(self, until: int, now_s: int) -> None:
        """Note which assets have not come up to an hour, and are late by now."""
        self.behind = [
            WatermarkRow(ticker, self.seen[ticker], self._is_late(ticker, now_s))
            for ticker in sorted(self.live())
            if self.seen[ticker] < until
        ]

    def _is_late(self, ticker: str, now_s: int) -> bool:
        return self.seen[ticker] < self._expected(ticker, now_s - self._source.delay_s(ticker))

    def _expected(self, ticker: str, at: int) -> int:
        """Return when the last bar expected by a time closes, -1 for what is removed by then."""
        end = self._universe.ends.get(ticker)
        return -1 if end is not None and at >= end else self._source.last_close(ticker, at)
