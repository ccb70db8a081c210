"""US equities from Alpaca's market data API, version 2, with the operator's own key.

Its bars include extended hours. Calls for the same time share one request.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx2

from compute.bars import HOUR_S, RawBar
from compute.sources.venue import (
    UnknownSymbolError,
    VenueError,
    raises_venue_errors,
    read_number,
    read_time_ms,
    read_time_s,
)
from schemas.vocabulary import format_instant

DATA_ADDRESS = "https://data.alpaca.markets"
TRADING_ADDRESS = "https://paper-api.alpaca.markets"
SETTING_NAMES = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"
TIMEOUT_S = 10.0
SPACING_S = 60 / 200  # the free plan allows 200 requests per minute
MAX_SYMBOLS, MAX_BARS = 100, 10_000
WITHHELD_S = 900  # the free plan withholds the newest 15 minutes
_TIMEFRAMES: Final = {HOUR_S // 2: "30Min", HOUR_S: "1Hour"}
_PROBED_SYMBOL = "SPY"
_INVALID_SYMBOL = "invalid symbol: "
_WITHHELD = "subscription does not permit"

Parsed = TypeVar("Parsed")


class _Span(NamedTuple):
    """The opens (epoch seconds) of the first and the last wanted bar, and their period."""

    first: int
    last: int
    period_s: int


@dataclass(eq=False, slots=True)
class _BarsRequest:
    """A call for one symbol's bars of a span, and its result or error once there is one."""

    symbol: str
    span: _Span
    outcome: list[RawBar] | VenueError | None = None


class _StatusError(VenueError):
    """An HTTP response other than 200; `message` is its body's, and may be any text."""

    def __init__(self, status: int, message: str, reason: str, **options: Any) -> None:
        super().__init__(reason, **options)
        self.status = status
        self.message = message

    @property
    def is_withheld(self) -> bool:
        """Whether the key's plan does not permit bars this new."""
        return self.status == httpx2.codes.FORBIDDEN and self.message.startswith(_WITHHELD)


class AlpacaVenue:
    """A Venue; the key may be that of a free paper account or of a paid plan.

    `fetch_symbols` finds out which: `delay_s` is that of the free plan until then.
    """

    name = "alpaca"

    def __init__(
        self,
        key_id: str,
        secret_key: str,
        *,
        data_address: str = DATA_ADDRESS,
        trading_address: str = TRADING_ADDRESS,
        timeout_s: float = TIMEOUT_S,
        spacing_s: float = SPACING_S,
        proxy: tuple[str, str] | None = None,
    ) -> None:
        """`proxy` is the variable that names a proxy, and its address."""
        headers = {"APCA-API-KEY-ID": key_id, "APCA-API-SECRET-KEY": secret_key}
        transport = httpx2.AsyncHTTPTransport(proxy=None if proxy is None else proxy[1])
        self._http: Final = httpx2.AsyncClient(headers=headers, timeout=None, transport=transport)
        self._via: Final = "" if proxy is None else f" through the proxy that {proxy[0]} names"
        self._data: Final = data_address.rstrip("/")
        self._trading: Final = trading_address.rstrip("/")
        self._timeout_s: Final = timeout_s
        self._spacing_s: Final = spacing_s
        self._next_at = 0.0
        self._lock: Final = asyncio.Lock()
        self._requests: Final = set[_BarsRequest]()
        self.delay_s = WITHHELD_S

    @raises_venue_errors
    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols of all active US equities, and set `delay_s` by the key's plan."""
        await self._detect_delay()
        params = {"status": "active", "asset_class": "us_equity"}
        return await self._get_json(f"{self._trading}/v2/assets", params, _parse_symbols)

    @raises_venue_errors
    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        """Return the bars of all hours; raise UnknownSymbolError if the symbol is delisted."""
        first, end = (at // period_s * period_s for at in (after, until))
        if end <= first:
            return []
        # Alpaca returns no bars for a delisted symbol, and no error.
        bars = await self._coalesce(_BarsRequest(symbol, _Span(first, end - period_s, period_s)))
        if not bars and await self._is_delisted(symbol):
            raise UnknownSymbolError(f"alpaca does not list {symbol}, or no longer does")
        return bars

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return nothing: equities settle no funding."""
        return []

    @raises_venue_errors
    async def fetch_time_ms(self) -> int:
        """Return the time of the trading API, epoch ms."""
        return await self._get_json(f"{self._trading}/v2/clock", {}, _parse_clock)

    @raises_venue_errors
    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._http.aclose()

    async def _detect_delay(self) -> None:
        """Request a bar of this minute, which only a paid plan may have."""
        now = await self.fetch_time_ms() // 1000
        try:
            await self._fetch_batch([_PROBED_SYMBOL], _Span(now - HOUR_S, now, HOUR_S // 2))
        except _StatusError as error:
            if not error.is_withheld:
                raise
            self.delay_s = WITHHELD_S
        else:
            self.delay_s = 0

    async def _coalesce(self, request: _BarsRequest) -> list[RawBar]:
        """Return the request's bars; the holder of the lock fetches for all with an equal span."""
        self._requests.add(request)
        try:
            async with self._lock:
                if request.outcome is None:
                    # Calls of the same turn of the event loop join before the batch goes out.
                    await asyncio.sleep(0)
                    await self._fetch_batches(
                        [one for one in self._requests if one.span == request.span]
                    )
        finally:
            self._requests.discard(request)
        assert request.outcome is not None
        if isinstance(request.outcome, VenueError):
            raise request.outcome
        return request.outcome

    async def _fetch_batches(self, requests: list[_BarsRequest]) -> None:
        while requests:
            batch = requests[:MAX_SYMBOLS]
            try:
                bars = await self._fetch_batch(sorted({one.symbol for one in batch}), batch[0].span)
            except VenueError as error:
                # The plan no longer permits what it did at the start: the next try is later.
                if isinstance(error, _StatusError) and error.is_withheld:
                    self.delay_s = WITHHELD_S
                text = error.message if isinstance(error, _StatusError) else ""
                named = (
                    text.removeprefix(_INVALID_SYMBOL) if text.startswith(_INVALID_SYMBOL) else ""
                )
                # One invalid symbol fails a whole batch; the others are then fetched without it.
                at_fault = [one for one in batch if one.symbol == named]
                unknown = UnknownSymbolError(f"alpaca does not know the symbol {named}")
                for one in at_fault or batch:
                    one.outcome = unknown if at_fault else error
            else:
                for one in batch:
                    one.outcome = bars.get(one.symbol, [])
            requests = [one for one in requests if one.outcome is None]

    async def _fetch_batch(self, symbols: Sequence[str], span: _Span) -> Mapping[str, list[RawBar]]:
        """Return the bars of each symbol in a span, from all pages."""
        params = {
            "symbols": ",".join(symbols),
            "timeframe": _TIMEFRAMES[span.period_s],
            "start": format_instant(span.first * 1000),
            "end": format_instant(span.last * 1000),  # inclusive: the bar that opens then is in
            "adjustment": "split",
            "limit": str(MAX_BARS),
            "sort": "asc",
        }
        found: dict[str, list[RawBar]] = defaultdict(list)
        tokens = set[str]()
        while True:
            bars, token = await self._get_json(f"{self._data}/v2/stocks/bars", params, _parse_page)
            for symbol, bar in bars:
                found[symbol].append(bar)
            if not token:
                return found
            if token in tokens:
                raise VenueError("alpaca returned the same page twice")
            tokens.add(token)
            params["page_token"] = token

    async def _is_delisted(self, symbol: str) -> bool:
        """Return whether a symbol is known to be delisted; False if that is unknown."""
        address = f"{self._trading}/v2/assets/{quote(symbol, safe='')}"
        try:
            return await self._get_json(address, {}, lambda asset: asset["status"] == "inactive")
        except VenueError as error:
            return isinstance(error, _StatusError) and error.status == 404

    @raises_venue_errors
    async def _get_json(
        self, address: str, params: Mapping[str, str], parse: Callable[[Any], Parsed]
    ) -> Parsed:
        """Return the parsed response; requests are spaced by `spacing_s`."""
        # The slot is taken before the sleep, so concurrent calls queue one behind the other.
        now = asyncio.get_running_loop().time()
        begins_at = max(now, self._next_at)
        self._next_at = begins_at + self._spacing_s
        await asyncio.sleep(begins_at - now)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.get(address, params=params)
        except TimeoutError:
            raise VenueError(
                f"alpaca did not answer{self._via} within {self._timeout_s:g} s"
            ) from None
        # The error's text may contain a header, and so the key: only its type is reported.
        except httpx2.HTTPError as error:
            raise VenueError(f"alpaca cannot be read{self._via}: {type(error).__name__}") from None
        if response.status_code != httpx2.codes.OK:
            raise _build_error(response)
        try:
            return parse(response.json())
        except Exception:
            raise VenueError("alpaca's answer does not match its documentation") from None


def _parse_symbols(assets: Any) -> frozenset[str]:
    if not isinstance(assets, list):
        raise TypeError("assets are not in a list")
    symbols = (asset.get("symbol") for asset in assets if isinstance(asset, dict))
    return frozenset(symbol for symbol in symbols if isinstance(symbol, str))


def _parse_clock(clock: Any) -> int:
    time_ms = read_time_ms(_parse_time_ms(clock["timestamp"]))
    if time_ms is None:
        raise ValueError("the time is not plausible")
    return time_ms


def _parse_page(response: Any) -> tuple[list[tuple[str, RawBar]], str | None]:
    bars, token = response["bars"] or {}, response["next_page_token"]
    if not isinstance(token, str | None):
        raise TypeError("the token is no text")
    # If a symbol's rows are no list, they count as one bad row of that symbol.
    rows_by_symbol = {s: rows if isinstance(rows, list) else [rows] for s, rows in bars.items()}
    return [(s, _parse_bar(row)) for s, rows in rows_by_symbol.items() for row in rows], token


def _parse_bar(row: Any) -> RawBar:
    cells = row if isinstance(row, dict) else {}
    opened = read_time_s(_parse_time_ms(cells.get("t")))
    return RawBar(opened, *(read_number(cells.get(name)) for name in "ohlcv"))


def _parse_time_ms(text: Any) -> float | None:
    """Return a time with its zone as epoch ms, None if it cannot be read."""
    try:
        at = datetime.fromisoformat(text)
        return None if at.tzinfo is None else at.timestamp() * 1000
    except (TypeError, ValueError, OverflowError):
        return None


def _build_error(response: httpx2.Response) -> _StatusError:
    status, message = response.status_code, _parse_message(response)
    reason = "alpaca withholds bars this new: check that this machine's clock is not ahead"
    withheld = _StatusError(status, message, reason)
    if withheld.is_withheld:
        return withheld
    # A 403 without a message is a page of a firewall, which says nothing about the key.
    if status == httpx2.codes.UNAUTHORIZED or (status == httpx2.codes.FORBIDDEN and message):
        reason = f"alpaca refuses the key: check {SETTING_NAMES}"
        return _StatusError(status, message, reason, is_permanent=True)
    wait_s = _parse_wait_s(response.headers)
    return _StatusError(status, message, f"alpaca answered HTTP {status}", retry_after_s=wait_s)


def _parse_message(response: httpx2.Response) -> str:
    try:
        return str(response.json()["message"])
    except (LookupError, RecursionError, TypeError, ValueError):
        return ""


def _parse_wait_s(headers: httpx2.Headers) -> float | None:
    """Return the wait that a response requests; a time is compared with the response's own date."""
    after, reset = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if after.isdecimal():
        return float(after)
    now, until = _parse_date(headers.get("date", "")), _parse_date(after)
    if until is None and reset.isdecimal():
        until = float(reset)
    return None if now is None or until is None else max(0.0, until - now)


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
