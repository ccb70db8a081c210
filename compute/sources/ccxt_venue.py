"""Venues through ccxt: one exchange object per venue, whose rate limiter all calls share."""

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import httpx2

from compute.bars import DAY_S, HOUR_S, NO_TIME, RawBar
from compute.sources.venue import (
    UnknownSymbolError,
    VenueError,
    build_unreadable_error,
    raises_venue_errors,
    read_number,
    read_time_ms,
    read_time_s,
)
from compute.universe import VenueOptions
from schemas.vocabulary import Clock


def _import_ccxt() -> Any:
    """Return ccxt's package with its errors and `Exchange`, but without its exchanges.

    By itself ccxt imports all of its hundred exchanges: 6 s of processor time instead of 2.
    """
    for package in ("ccxt", "ccxt.async_support"):
        if package not in sys.modules:
            spec = find_spec(package)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = module_from_spec(spec)
    # Exchanges import these from the package.
    for part in ("errors", "exchange"):
        module = import_module(f"ccxt.base.{part}")
        vars(sys.modules["ccxt"]).update({name: vars(module)[name] for name in module.__all__})
    return sys.modules["ccxt"]


ccxt: Final = _import_ccxt()


def import_exchange(name: str) -> Any:
    """Return the class of an exchange, None if ccxt has none of this name."""
    with suppress(ModuleNotFoundError):
        return getattr(import_module(f"ccxt.async_support.{name}"), name, None)
    return None


DAY_MS: Final = 1000 * DAY_S
FUNDING_EVERY_S: Final = 8 * HOUR_S
TIMEOUT_S: Final = 10.0
RELIST_MS: Final = 1000 * HOUR_S
_DEFAULT_PAGE_ROWS: Final = 100
_TIMEFRAMES: Final = {HOUR_S // 2: "30m", HOUR_S: "1h"}
FORBIDDEN, LEGAL_REASONS = 403, 451
# Firewalls answer with a page and 403 if a client sends too many requests, and also if they block
# its country. Limits end within minutes (Binance's within five), so a page that is the only answer
# for hours means a block.
REFUSED_AFTER_MS: Final = 3 * 1000 * HOUR_S
# No key is sent, so a code of these classes means that the venue restricts this location.
_REFUSALS: Final = (ccxt.RestrictedLocation, ccxt.PermissionDenied)


class _LastResponse(NamedTuple):
    """The facts of the last response that ccxt's errors leave out."""

    status: int
    retry_after_s: float | None
    is_page: bool


_ERROR_TEXTS: Final = {
    ccxt.BadResponse: "did not answer with JSON",
    ccxt.ExchangeNotAvailable: "cannot be reached",
    ccxt.RequestTimeout: "did not answer in time",
}
_NO_RESPONSE: Final = _LastResponse(0, None, False)


@cache
def _create_ssl_context() -> ssl.SSLContext:
    """Return the trusted certificates, read once for all venues: reading them is slow."""
    return httpx2.create_ssl_context()


class CcxtVenue:
    """A Venue over ccxt's exchange `name`, restricted to the given symbols.

    Its list of markets is fetched once a day, and after an hour at a start or if a symbol is
    unknown; the file `cache_path` keeps it over restarts. `api_base` replaces the venue's own
    address, whose host becomes the first part of the path. If `is_paced`, ccxt spaces requests by
    the venue's published limits.
    """

    delay_s = 0

    def __init__(
        self,
        name: str,
        symbols: Collection[str],
        options: VenueOptions,
        cache_path: Path,
        clock: Clock,
        api_base: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        is_paced: bool = True,
        proxy: tuple[str, str] | None = None,
    ) -> None:
        """`proxy` is the variable that names a proxy, and its address."""
        self.name = name
        self._symbols: Final = frozenset(symbols)
        self._options: Final = options
        self._cache_path: Final = cache_path
        self._clock: Final = clock
        self._listed_at: int | None = None
        self._markets_lock: Final = asyncio.Lock()
        self._last_response = _NO_RESPONSE
        self._blocked_since: int | None = None
        self._session: Final = aiohttp.ClientSession(proxy=None if proxy is None else proxy[1])
        self._via: Final = "" if proxy is None else f" through the proxy that {proxy[0]} names"
        self._exchange: Final = self._create_exchange(api_base, timeout_s, is_paced)

    @raises_venue_errors
    async def fetch_symbols(self) -> frozenset[str]:
        """Return those of the given symbols that the venue lists and trades."""
        # At a start the list comes from a file, and a symbol may have been delisted meanwhile.
        await self._refresh_markets(RELIST_MS if self._listed_at is None else DAY_MS)
        return self._list_active_symbols()

    def _list_active_symbols(self) -> frozenset[str]:
        markets = self._exchange.markets
        # `active` is None at venues that do not report it.
        return frozenset(symbol for symbol in markets if markets[symbol].get("active") is not False)

    @raises_venue_errors
    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        """Return the bars of a period that close in (after, until], page by page."""
        # An unlisted symbol may have been halted or renamed, so an hour-old list is fetched again:
        # waiting for the daily list would leave the asset without bars for a day.
        await self._check_listed(symbol, DAY_MS, RELIST_MS)
        limit = self._exchange.feature_value(symbol, "fetchOHLCV", "limit")
        page_rows = self._options.bars or limit or _DEFAULT_PAGE_ROWS
        found: list[RawBar] = []
        begin = after // period_s * period_s
        while begin < until:
            count = min(page_rows, -(-(until - begin) // period_s))
            end = begin + count * period_s
            rows = await self._await_response(
                self._exchange.fetch_ohlcv(
                    symbol, _TIMEFRAMES[period_s], 1000 * begin, count, _build_until_param(end)
                ),
                symbol,
            )
            page = [RawBar(read_time_s(row[0]), *map(read_number, row[1:6])) for row in rows]
            # OKX returned 100 rows for years before it returned 300: the newest, without notice.
            if len(page) == _DEFAULT_PAGE_ROWS < count and page[0].open_time > begin:
                page_rows = _DEFAULT_PAGE_ROWS
                continue
            found += page
            # A page without newer bars is a gap of the venue's: the next one begins after it. A
            # row from after the page, which may be a wrong one, must not end the reading.
            newest = max((bar.open_time for bar in page if bar.open_time <= end), default=NO_TIME)
            begin = (newest // period_s + 1) * period_s if newest >= begin else end
        return found

    @raises_venue_errors
    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until], page by page."""
        # Only the daily list: fetching it every hour would be megabytes for a single rate.
        await self._check_listed(symbol, DAY_MS)
        page_rows = self._options.settlements
        window = (page_rows - 1) * FUNDING_EVERY_S
        found: list[tuple[int, float]] = []
        for begin in range(after + 1, until + 1, window):
            end = min(begin + window, until + 1)
            found += await self._fetch_settlements(symbol, begin, end, page_rows)
        return found

    @raises_venue_errors
    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms."""
        time_ms = read_time_ms(await self._await_response(self._exchange.fetch_time()))
        if time_ms is None:
            raise VenueError(f"{self.name} reported no plausible time")
        return time_ms

    @raises_venue_errors
    async def close(self) -> None:
        """Close all connections."""
        await self._exchange.close()
        await self._session.close()

    async def _fetch_settlements(
        self, symbol: str, begin: int, end: int, page_rows: int
    ) -> list[tuple[int, float]]:
        """Return the settlements in [begin, end), by halves if a page may not hold them all."""
        # Perpetuals may settle more often than every eight hours, so a full page may be cut off.
        # Some venues need both bounds by their own parameters, which exclude their ends.
        names = self._options.settlement_bounds or ()
        bounds = dict(zip(names, (1000 * begin - 1, 1000 * end), strict=False))
        rows = await self._await_response(
            self._exchange.fetch_funding_rate_history(
                symbol, 1000 * begin, page_rows, _build_until_param(end) | bounds
            ),
            symbol,
        )
        settlements = [
            (read_time_s(row["timestamp"]), read_number(row["fundingRate"])) for row in rows
        ]
        page = [one for one in settlements if begin <= one[0] < end]
        if len(page) < page_rows or end - begin <= HOUR_S:
            return page
        middle = (begin + end) // 2
        return [
            *await self._fetch_settlements(symbol, begin, middle, page_rows),
            *await self._fetch_settlements(symbol, middle, end, page_rows),
        ]

    async def _check_listed(self, symbol: str, *max_ages_ms: int) -> None:
        """Raise UnknownSymbolError unless a list no older than one of these ages has the symbol."""
        for max_age_ms in max_ages_ms:
            await self._refresh_markets(max_age_ms)
            if symbol in self._list_active_symbols():
                return
        raise self._build_unknown_symbol_error(symbol)

    async def _refresh_markets(self, max_age_ms: int) -> None:
        """Fetch the list of markets if ours is older; keep ours if the venue fails."""
        # Else a list without the wanted markets would move their assets to other venues.
        if self._unknown_option is not None:
            raise VenueError(f"ccxt has no option {self._unknown_option} of {self.name}")
        async with self._markets_lock:
            if self._listed_at is None:
                self._load_cached_markets()
            if self._listed_at is not None and 0 <= self._clock() - self._listed_at < max_age_ms:
                return
            try:
                markets = await self._await_response(self._exchange.load_markets(reload=True))
            except VenueError:
                if self._listed_at is None:
                    raise
                # Dated back, so that the next attempt comes in an hour and not at every call.
                self._listed_at = self._clock() - DAY_MS + RELIST_MS
                return
            # Only the wanted markets are kept: a venue's whole list takes megabytes, and seconds
            # at every start.
            self._exchange.set_markets(
                {symbol: markets[symbol] for symbol in self._symbols & markets.keys()}
            )
            self._listed_at = self._clock()
            cached = {
                "ccxt": metadata.version("ccxt"),
                "listed_at": self._listed_at,
                "wanted": sorted(self._symbols),
                "markets": self._exchange.markets,
            }
            with suppress(OSError):  # without the file, the next start fetches the list again
                self._cache_path.parent.mkdir(parents=True, exist_ok=True)
                self._cache_path.write_text(json.dumps(cached))

    def _load_cached_markets(self) -> None:
        # Any failure: a file that cannot be used, perhaps of another version, counts as none.
        with suppress(Exception):
            cached = json.loads(self._cache_path.read_text())
            markets, listed_at = cached["markets"], int(cached["listed_at"])
            is_ours = all(one["symbol"] == name for name, one in markets.items())
            # A list that was filtered by other symbols cannot say that a new one is missing.
            has_all = self._symbols <= set(cached["wanted"])
            if is_ours and has_all and cached["ccxt"] == metadata.version("ccxt"):
                self._exchange.set_markets(markets)
                self._listed_at = listed_at

    async def _await_response(self, call: Awaitable[Any], symbol: str = "it") -> Any:
        """Return the result of a ccxt call; turn any of its failures into VenueError."""
        try:
            return await call
        except Exception as error:
            # ccxt parses without checks, so an unexpected answer can raise nearly anything.
            raise self._to_venue_error(error, symbol) from None

    def _parse_rows(
        self,
        rows: Any,
        market: Any = None,
        timeframe: str = "1h",
        since: int | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> list[Sequence[Any]]:
        """Parse bars as ccxt does, but return those without a readable time too, at the end."""
        # ccxt would drop these, or fail as a whole if times of several types cannot be compared.
        if not isinstance(rows, list):
            raise TypeError("bars are not in a list")
        parsed = [self._exchange.parse_ohlcv(row, market) for row in rows]
        undated = [row for row in parsed if read_time_ms(row[0]) is None]
        dated = sorted(
            (row for row in parsed if read_time_ms(row[0]) is not None), key=lambda row: row[0]
        )
        kept: list[Sequence[Any]] = self._exchange.filter_by_since_limit(
            dated, since, limit, 0, tail
        )
        return kept + undated

    def _build_unknown_symbol_error(self, symbol: str) -> UnknownSymbolError:
        return UnknownSymbolError(f"{self.name} does not list {symbol}, or no longer does")

    def _to_venue_error(self, error: Exception, symbol: str) -> VenueError:
        """Describe a failed request by its HTTP response, or by ccxt's error if there was none."""
        last, self._last_response = self._last_response, _NO_RESPONSE
        if isinstance(error, ccxt.BadSymbol):
            # The next call fetches the list again, unless that has just been done.
            now = self._clock()
            if self._listed_at is not None and now - self._listed_at >= RELIST_MS:
                self._listed_at = now - DAY_MS
            return self._build_unknown_symbol_error(symbol)
        if last.status >= 400:
            description = f"answered HTTP {last.status}"
        elif not isinstance(error, ccxt.BaseError):
            return build_unreadable_error(self.name, error)
        else:
            description = _ERROR_TEXTS.get(type(error), f"failed ({type(error).__name__})")
            description += self._via
        return VenueError(
            f"{self.name} {description}",
            retry_after_s=last.retry_after_s,
            is_permanent=self._is_refusal(last, error),
        )

    def _is_refusal(self, last: _LastResponse, error: Exception) -> bool:
        """Return whether the venue refuses this country, not only this request."""
        if last.status == FORBIDDEN and last.is_page:
            if self._blocked_since is None:
                self._blocked_since = self._clock()
            return self._clock() - self._blocked_since >= REFUSED_AFTER_MS
        return last.status == LEGAL_REASONS or (not last.is_page and isinstance(error, _REFUSALS))

    def _create_exchange(self, api_base: str | None, timeout_s: float, is_paced: bool) -> Any:
        config = {
            **self._options.client,
            "session": self._session,
            "timeout": int(1000 * timeout_s),
            "enableRateLimit": is_paced,
        }
        exchange = import_exchange(self.name)(config)
        # Its description lacks the one part that it sets by itself.
        known = exchange.describe() | {"tokenBucket": exchange.tokenBucket}
        self._unknown_option = find_unknown_option(self._options.client, known)
        # Else `load_markets` would fetch currencies too, which nothing here uses.
        exchange.has["fetchCurrencies"] = False
        # ccxt computes some request windows from the current time.
        exchange.milliseconds = self._clock
        exchange.timeout_on_exit = 0
        exchange.parse_ohlcvs = self._parse_rows
        # ccxt's own formats the time of each settlement, and fails as a whole at the year 10000.
        exchange.iso8601 = lambda time_ms=None: None
        exchange.ssl_context = _create_ssl_context()
        self._ccxt_handle_errors = exchange.handle_errors
        exchange.handle_errors = self._handle_errors
        if api_base is not None:
            exchange.urls["api"] = _rebase_urls(exchange.urls["api"], api_base)
        return exchange

    def _handle_errors(
        self,
        status: int,
        reason: str,
        url: str,
        method: str,
        headers: Any,
        body: str,
        response: Any,
        *request: Any,
    ) -> Any:
        """Record the facts that ccxt's errors leave out, then let ccxt raise its error."""
        # No other call runs between this one and the raised error, so the record is that error's.
        # Without JSON, it is a page of a firewall or proxy before the venue.
        is_page = response is None
        wait = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
        wait_s = float(wait) if wait.isdigit() and status >= 400 else None
        self._last_response = _LastResponse(status, wait_s, is_page)
        if not is_page:
            self._blocked_since = None
        # ccxt would take a body that is not JSON for an empty answer.
        elif status < 400:
            raise ccxt.BadResponse("no JSON")
        return self._ccxt_handle_errors(
            status, reason, url, method, headers, body, response, *request
        )


def find_unknown_option(given: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Return the dotted name of the first option that a description lacks, None if it has all."""
    for name, value in given.items():
        if name not in known:
            return name
        if isinstance(value, dict):
            inner = known[name]
            found = find_unknown_option(value, inner) if isinstance(inner, dict) else ""
            if found is not None:
                return f"{name}.{found}".rstrip(".")
    return None


def _build_until_param(end: int) -> dict[str, int]:
    """Return ccxt's parameter for rows that begin before a time (epoch seconds)."""
    return {"until": 1000 * end - 1}


def rebase_url(address: str, api_base: str) -> str:
    """Return an address moved to another server, with its host as the first part of the path."""
    return address.replace("https://", f"{api_base}/")


def _rebase_urls(addresses: Any, api_base: str) -> Any:
    """Return ccxt's tree of addresses, moved to another server."""
    if isinstance(addresses, dict):
        return {name: _rebase_urls(inner, api_base) for name, inner in addresses.items()}
    return rebase_url(str(addresses), api_base)
