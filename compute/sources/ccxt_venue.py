"""Venues by ccxt: one exchange object a venue, whose rate limiter all calls share."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ccxt.async_support as ccxt

from compute.bars import DAY_S, HOUR_S, RawBar
from compute.sources.venue import UnknownSymbolError, VenueError

DAY_MS: Final = 1000 * DAY_S
FUNDING_EVERY_S: Final = 8 * HOUR_S
TIMEOUT_S: Final = 10.0
# ccxt would list whole venues several times over.
_LISTS: Final[dict[str, Any]] = {
    "binance": {"fetchMarkets": {"types": ["spot", "linear"]}},
    "bybit": {"fetchMarkets": {"types": ["spot", "linear"]}},
}
_REFUSING, _BUSY = frozenset({403, 451}), frozenset({418, 429, 503})


class CcxtVenue:
    """A Venue over ccxt's exchange of that name, as far as the wanted symbols go.

    What it lists is asked once a day and kept in a file over restarts. `api_base` stands in for
    the venue's own address, whose host goes into the path. `clock` tells epoch ms.
    """

    delay_s = 0

    def __init__(
        self,
        name: str,
        wanted: Collection[str],
        kept: Path,
        clock: Callable[[], int],
        api_base: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = name
        self._wanted: Final = frozenset(wanted)
        self._kept: Final = kept
        self._clock: Final = clock
        self._listed_at: int | None = None
        self._listing: Final = asyncio.Lock()
        self._status = 200
        self._retry_after_s: float | None = None
        self._exchange: Final = self._made(api_base, timeout_s)

    async def listed(self) -> frozenset[str]:
        """Return the wanted symbols that the venue lists and trades."""
        await self._list()
        markets = self._exchange.markets
        return frozenset(symbol for symbol in markets if markets[symbol]["active"] is not False)

    async def bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the hourly bars that close in (after, until], page by page."""
        await self._list()
        most = self._most("fetchOHLCV", symbol)
        found: list[RawBar] = []
        begin = after // HOUR_S * HOUR_S
        while begin < until:
            count = min(most, -(-(until - begin) // HOUR_S))
            end = begin + count * HOUR_S
            page = await self._told(
                self._exchange.fetch_ohlcv(symbol, "1h", 1000 * begin, count, _before(end))
            )
            found += map(_bar, page)
            newest = max((bar.open_time for bar in found[-len(page) :]), default=-1)
            begin = newest + HOUR_S if page and newest >= begin else end
        return found

    async def funding(self, symbol: str, after: int, until: int) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until], page by page."""
        await self._list()
        most = self._most("fetchFundingRateHistory", symbol)
        window = (most - 1) * FUNDING_EVERY_S
        found: list[tuple[int, float]] = []
        for begin in range(after + 1, until + 1, window):
            end = min(begin + window, until + 1)
            found += await self._settled(symbol, begin, end, most)
        return found

    async def clock(self) -> int:
        """Return the venue's own time, epoch ms."""
        return int(await self._told(self._exchange.fetch_time()))

    async def close(self) -> None:
        """Close its connections."""
        await self._exchange.close()

    async def _settled(
        self, symbol: str, begin: int, end: int, most: int
    ) -> list[tuple[int, float]]:
        """Return the settlements in [begin, end), by halves where a page may not hold them all."""
        page = await self._told(
            self._exchange.fetch_funding_rate_history(symbol, 1000 * begin, most, _before(end))
        )
        if len(page) < most or end - begin <= HOUR_S:
            return [(int(row["timestamp"]) // 1000, float(row["fundingRate"])) for row in page]
        middle = (begin + end) // 2
        return [
            *await self._settled(symbol, begin, middle, most),
            *await self._settled(symbol, middle, end, most),
        ]

    async def _list(self) -> None:
        """Ask the venue for its list where ours is a day old; an older one serves if it fails."""
        async with self._listing:
            if self._listed_at is None:
                self._recall()
            if self._listed_at is not None and self._clock() - self._listed_at < DAY_MS:
                return
            try:
                markets = await self._told(self._exchange.load_markets(reload=True))
            except VenueError:
                if self._listed_at is None:
                    raise
                return
            self._adopt({symbol: markets[symbol] for symbol in self._wanted & markets.keys()})
            kept = {"listed_at": self._listed_at, "markets": self._exchange.markets}
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            self._kept.write_text(json.dumps(kept))

    def _recall(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._kept.read_text())
            self._adopt(kept["markets"], kept["listed_at"])

    def _adopt(self, markets: dict[str, Any], listed_at: int | None = None) -> None:
        self._exchange.set_markets(markets)
        self._listed_at = self._clock() if listed_at is None else listed_at

    def _most(self, method: str, symbol: str) -> int:
        """Return how many rows a request of ccxt's method may bring."""
        most = self._exchange.feature_value(symbol, method, "limit")
        return int(most) if most else 100

    async def _told(self, asking: Awaitable[Any]) -> Any:
        """Return an answer; whatever fails in ccxt is VenueError."""
        try:
            return await asking
        except ccxt.BadSymbol:
            raise UnknownSymbolError(f"{self.name} does not list it") from None
        except ccxt.BaseError as error:
            raise self._failure(error) from None
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{self.name} answered what cannot be read ({type(error).__name__})"
            raise VenueError(why) from None

    def _failure(self, error: ccxt.BaseError) -> VenueError:
        """Say what became of a request, by the status of its answer where there was one."""
        status, self._status = self._status, 200
        what = f"status {status}" if status >= 400 else type(error).__name__
        return VenueError(
            f"{self.name} refused or failed: {what}",
            retry_after_s=self._retry_after_s if status in _BUSY else None,
            is_permanent=status in _REFUSING,
        )

    def _made(self, api_base: str | None, timeout_s: float) -> Any:
        given = {"options": _LISTS.get(self.name, {}), "timeout": int(1000 * timeout_s)}
        exchange = getattr(ccxt, self.name)(given)
        exchange.has["fetchCurrencies"] = False
        exchange.milliseconds = self._clock
        exchange.on_rest_response = self._on_answer
        if api_base is not None:
            exchange.urls["api"] = _moved(exchange.urls["api"], api_base)
        return exchange

    def _on_answer(
        self, status: int, reason: str, url: str, method: str, headers: Any, body: Any, *sent: Any
    ) -> Any:
        """Note the status before ccxt judges it: nothing else runs between the two."""
        self._status = status
        asked = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
        self._retry_after_s = float(asked) if asked.isdigit() else None
        return body.strip()


def _before(end: int) -> dict[str, int]:
    """Return ccxt's parameter for what begins before a time (epoch seconds)."""
    return {"until": 1000 * end - 1}


def _bar(row: Sequence[Any]) -> RawBar:
    opened, high, low, close, volume = (float(cell) for cell in row[1:6])
    return RawBar(int(row[0]) // 1000, opened, high, low, close, volume)


def _moved(addresses: Any, api_base: str) -> Any:
    """Return ccxt's tree of addresses with another server in place of each."""
    if isinstance(addresses, dict):
        return {name: _moved(inner, api_base) for name, inner in addresses.items()}
    return str(addresses).replace("https://", f"{api_base}/")
