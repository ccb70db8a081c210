"""Venues by ccxt: one exchange object a venue, whose rate limiter all calls share."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import ccxt.async_support as ccxt
import httpx

from compute.bars import DAY_S, HOUR_S, RawBar
from compute.sources.venue import UnknownSymbolError, VenueError
from schemas.clock import Clock

DAY_MS: Final = 1000 * DAY_S
FUNDING_EVERY_S: Final = 8 * HOUR_S
TIMEOUT_S: Final = 10.0
RELIST_MS: Final = 1000 * HOUR_S
# ccxt would list all markets there are, and takes Hyperliquid's weights for a fifth of theirs.
_GIVEN: Final[dict[str, dict[str, Any]]] = {
    "binance": {"options": {"fetchMarkets": {"types": ["spot", "linear"]}}},
    "bybit": {"options": {"fetchMarkets": {"types": ["spot", "linear"]}}},
    "gate": {"options": {"fetchMarkets": {"types": ["spot", "swap"]}}},
    "hyperliquid": {
        "options": {"fetchMarkets": {"hip3": {"dexes": ["xyz"]}}},
        "rateLimit": 250,
    },
    "kucoin": {"options": {"fetchMarkets": {"fetchTickersFees": False}}},
}
# Rows a request: of bars where more may lose the oldest, of settlements because ccxt has none.
_BARS: Final = {"kucoin": 1000, "okx": 100}
_SETTLEMENTS: Final = {"binance": 1000, "bybit": 200, "gate": 1000, "hyperliquid": 500, "okx": 400}
_LEAST: Final = 100
FORBIDDEN, LEGAL_REASONS = 403, 451


class _Last(NamedTuple):
    """What the last answer said that ccxt's errors do not."""

    status: int
    retry_after_s: float | None
    refuses_us: bool


_SAID: Final = {
    ccxt.BadResponse: "answered what is no JSON",
    ccxt.ExchangeNotAvailable: "cannot be reached",
    ccxt.RequestTimeout: "did not answer in time",
}
_NO_ANSWER: Final = _Last(0, None, False)


@cache
def _authorities() -> ssl.SSLContext:
    """Return whom all venues' clients trust: to read it takes each as long as some requests."""
    return httpx.create_ssl_context()


class CcxtVenue:
    """A Venue over ccxt's exchange of that name, as far as the wanted symbols go.

    What it lists is asked once a day, every hour where bars are asked for of what it lacks, and
    kept in a file over restarts with the symbols that were wanted. `api_base` stands in for
    the venue's own address, whose host goes into the path. `clock` tells epoch ms. Requests are
    paced by ccxt, by the venue's published limits, unless `is_paced` is False.
    """

    delay_s = 0

    def __init__(
        self,
        name: str,
        wanted: Collection[str],
        kept: Path,
        clock: Clock,
        api_base: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        is_paced: bool = True,
    ) -> None:
        self.name = name
        self._wanted: Final = frozenset(wanted)
        self._kept: Final = kept
        self._clock: Final = clock
        self._listed_at: int | None = None
        self._listing: Final = asyncio.Lock()
        self._last = _NO_ANSWER
        self._session: Final = aiohttp.ClientSession(trust_env=True)
        self._exchange: Final = self._made(api_base, timeout_s, is_paced)

    async def listed(self) -> frozenset[str]:
        """Return the wanted symbols that the venue lists and trades."""
        await self._list(DAY_MS)
        return self._active()

    def _active(self) -> frozenset[str]:
        markets = self._exchange.markets
        return frozenset(symbol for symbol in markets if markets[symbol]["active"] is not False)

    async def bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the hourly bars that close in (after, until], page by page."""
        await self._check_listed(symbol, DAY_MS, RELIST_MS)
        told = self._exchange.feature_value(symbol, "fetchOHLCV", "limit")
        most = _BARS.get(self.name, told or _LEAST)
        found: list[RawBar] = []
        begin = after // HOUR_S * HOUR_S
        while begin < until:
            count = min(most, -(-(until - begin) // HOUR_S))
            end = begin + count * HOUR_S
            rows = await self._told(
                self._exchange.fetch_ohlcv(symbol, "1h", 1000 * begin, count, _before(end)), symbol
            )
            page = [_bar(row) for row in rows]
            found += page
            newest = max((bar.open_time for bar in page), default=-1)
            begin = newest + HOUR_S if newest >= begin else end
        return found

    async def funding(self, symbol: str, after: int, until: int) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until], page by page."""
        await self._check_listed(symbol, DAY_MS)
        most = _SETTLEMENTS.get(self.name, _LEAST)
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
        await self._session.close()

    async def _settled(
        self, symbol: str, begin: int, end: int, most: int
    ) -> list[tuple[int, float]]:
        """Return the settlements in [begin, end), by halves where a page may not hold them all."""
        bounds = {"before": 1000 * begin - 1, "after": 1000 * end} if self.name == "okx" else {}
        rows = await self._told(
            self._exchange.fetch_funding_rate_history(
                symbol, 1000 * begin, most, _before(end) | bounds
            ),
            symbol,
        )
        told = [(int(row["timestamp"]) // 1000, float(row["fundingRate"])) for row in rows]
        page = [one for one in told if begin <= one[0] < end]
        if len(page) < most or end - begin <= HOUR_S:
            return page
        middle = (begin + end) // 2
        return [
            *await self._settled(symbol, begin, middle, most),
            *await self._settled(symbol, middle, end, most),
        ]

    async def _check_listed(self, symbol: str, *oldest_ms: int) -> None:
        """Raise UnknownSymbolError for what is on none of lists that are no older."""
        for oldest in oldest_ms:
            await self._list(oldest)
            if symbol in self._active():
                return
        raise self._unknown(symbol)

    async def _list(self, oldest_ms: int) -> None:
        """Ask the venue for its list where ours is as old; an older one serves if it fails."""
        async with self._listing:
            if self._listed_at is None:
                self._recall()
            if self._listed_at is not None and 0 <= self._clock() - self._listed_at < oldest_ms:
                return
            try:
                markets = await self._told(self._exchange.load_markets(reload=True))
            except VenueError:
                if self._listed_at is None:
                    raise
                self._listed_at = self._clock() - DAY_MS + RELIST_MS
                return
            self._adopt({symbol: markets[symbol] for symbol in self._wanted & markets.keys()})
            kept = {
                "listed_at": self._listed_at,
                "wanted": sorted(self._wanted),
                "markets": self._exchange.markets,
            }
            with suppress(OSError):  # what is not kept is asked for again
                self._kept.parent.mkdir(parents=True, exist_ok=True)
                self._kept.write_text(json.dumps(kept))

    def _recall(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._kept.read_text())
            if self._wanted <= set(kept["wanted"]):
                self._adopt(kept["markets"], kept["listed_at"])

    def _adopt(self, markets: dict[str, Any], listed_at: int | None = None) -> None:
        self._exchange.set_markets(markets)
        self._listed_at = self._clock() if listed_at is None else listed_at

    async def _told(self, asking: Awaitable[Any], symbol: str = "it") -> Any:
        """Return an answer, about a symbol maybe; whatever fails in ccxt is VenueError."""
        try:
            return await asking
        except ccxt.BaseError as error:
            raise self._failure(error, symbol) from None
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{self.name} answered what cannot be read ({type(error).__name__})"
            raise VenueError(why) from None

    def _unknown(self, symbol: str) -> UnknownSymbolError:
        return UnknownSymbolError(f"{self.name} does not list {symbol}, or no longer")

    def _failure(self, error: ccxt.BaseError, symbol: str) -> VenueError:
        """Say what became of a request, by the answer where there was one."""
        last, self._last = self._last, _NO_ANSWER
        if isinstance(error, ccxt.BadSymbol):
            return self._unknown(symbol)
        if last.status >= 400:
            what = f"answered HTTP {last.status}"
        else:
            what = _SAID.get(type(error), f"failed ({type(error).__name__})")
        return VenueError(
            f"{self.name} {what}",
            retry_after_s=last.retry_after_s,
            is_permanent=last.refuses_us,
        )

    def _made(self, api_base: str | None, timeout_s: float, is_paced: bool) -> Any:
        given = {
            **_GIVEN.get(self.name, {}),
            "session": self._session,
            "timeout": int(1000 * timeout_s),
            "enableRateLimit": is_paced,
        }
        exchange = getattr(ccxt, self.name)(given)
        exchange.has["fetchCurrencies"] = False
        exchange.milliseconds = self._clock
        exchange.timeout_on_exit = 0
        exchange.ssl_context = _authorities()
        self._judge = exchange.handle_errors
        exchange.handle_errors = self._judged
        if api_base is not None:
            exchange.urls["api"] = _all_moved(exchange.urls["api"], api_base)
        return exchange

    def _judged(
        self,
        status: int,
        reason: str,
        url: str,
        method: str,
        headers: Any,
        body: str,
        answer: Any,
        *sent: Any,
    ) -> Any:
        """Note what ccxt's errors do not tell; nothing else runs before one is raised.

        ccxt takes what is no JSON for an empty answer.
        """
        # A venue's own 403 is about too many requests; that of a page before it, about countries.
        is_blocked = status == FORBIDDEN and answer is None
        wait = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
        wait_s = float(wait) if wait.isdigit() and status >= 400 else None
        self._last = _Last(status, wait_s, status == LEGAL_REASONS or is_blocked)
        if answer is None and status < 400:
            raise ccxt.BadResponse("no JSON")
        return self._judge(status, reason, url, method, headers, body, answer, *sent)


def _before(end: int) -> dict[str, int]:
    """Return ccxt's parameter for what begins before a time (epoch seconds)."""
    return {"until": 1000 * end - 1}


def _bar(row: Sequence[Any]) -> RawBar:
    opened, high, low, close, volume = (float(cell) for cell in row[1:6])
    return RawBar(int(row[0]) // 1000, opened, high, low, close, volume)


def moved(address: str, api_base: str) -> str:
    """Return an address on another server, its host as the first part of the path."""
    return address.replace("https://", f"{api_base}/")


def _all_moved(addresses: Any, api_base: str) -> Any:
    """Return ccxt's tree of addresses on another server."""
    if isinstance(addresses, dict):
        return {name: _all_moved(inner, api_base) for name, inner in addresses.items()}
    return moved(str(addresses), api_base)
