"""US equities from Alpaca's market data API, version 2, with the operator's own key.

Its hourly bars open on full hours and include extended hours, so half-hour bars are fetched, and
those of regular hours are joined in pairs. Calls for the same hours share one request.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx

from compute.bars import RawBar
from compute.sessions import ExpectedBars, list_expected_bars
from compute.sources.venue import UnknownSymbolError, VenueError
from schemas.vocabulary import format_instant

DATA_ADDRESS = "https://data.alpaca.markets"
TRADING_ADDRESS = "https://paper-api.alpaca.markets"
SETTING_NAMES = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"
TIMEOUT_S = 30.0
SPACING_S = 60 / 200  # the free plan allows 200 requests per minute
MAX_SYMBOLS, MAX_BARS = 100, 10_000
HALF_HOUR_S = 1800
_INVALID_SYMBOL = "invalid symbol: "
_WITHHELD = "subscription does not permit"

# Half-hour bars by their open time; and by the same, the open time of the hourly bar they join.
HalfHourBars = dict[int, RawBar]
HourByHalfHour = dict[int, int]
Parsed = TypeVar("Parsed")


@dataclass(eq=False, slots=True)
class _BarsRequest:
    """A call for one symbol's bars of some hours, and its result or error once there is one."""

    symbol: str
    slots: HourByHalfHour
    outcome: list[RawBar] | VenueError | None = None


class _StatusError(VenueError):
    """An HTTP response other than 200; `message` is its body's, and may be any text."""

    def __init__(self, status: int, message: str, reason: str, **options: Any) -> None:
        super().__init__(reason, **options)
        self.status = status
        self.message = message


class AlpacaVenue:
    """A Venue; the key may be that of a free paper account or of a paid plan."""

    name = "alpaca"
    # The free plan withholds the newest 15 minutes. Requests do not reach into them anyway: an
    # equity's bar counts as closed at a full hour, half an hour after its trading has ended.
    delay_s = 900

    def __init__(
        self,
        key_id: str,
        secret_key: str,
        *,
        data_address: str = DATA_ADDRESS,
        trading_address: str = TRADING_ADDRESS,
        timeout_s: float = TIMEOUT_S,
        spacing_s: float = SPACING_S,
    ) -> None:
        headers = {"APCA-API-KEY-ID": key_id, "APCA-API-SECRET-KEY": secret_key}
        self._http: Final = httpx.AsyncClient(headers=headers, timeout=None)
        self._data: Final = data_address.rstrip("/")
        self._trading: Final = trading_address.rstrip("/")
        self._timeout_s: Final = timeout_s
        self._spacing_s: Final = spacing_s
        self._next_at = 0.0
        self._lock: Final = asyncio.Lock()
        self._requests: Final = set[_BarsRequest]()

    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols of all active US equities."""
        params = {"status": "active", "asset_class": "us_equity"}
        return await self._get_json(f"{self._trading}/v2/assets", params, _parse_symbols)

    async def fetch_bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the bars of regular hours; raise UnknownSymbolError if the symbol is delisted."""
        due = list_expected_bars("XNYS", after, until)
        if not len(due):
            return []
        # Alpaca returns no bars for a delisted symbol, and no error.
        bars = await self._coalesce(_BarsRequest(symbol, _build_slots(due)))
        if not bars and await self._is_delisted(symbol):
            raise UnknownSymbolError(f"alpaca does not list {symbol}, or no longer does")
        return bars

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return nothing: equities settle no funding."""
        return []

    async def fetch_time_ms(self) -> int:
        """Return the time of the trading API, epoch ms."""
        return await self._get_json(f"{self._trading}/v2/clock", {}, _parse_clock)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._http.aclose()

    async def _coalesce(self, request: _BarsRequest) -> list[RawBar]:
        """Return the request's bars; the holder of the lock fetches for all with equal hours."""
        self._requests.add(request)
        try:
            async with self._lock:
                if request.outcome is None:
                    # Calls of the same turn of the event loop join before the batch goes out.
                    await asyncio.sleep(0)
                    await self._fetch_batches(
                        [one for one in self._requests if one.slots == request.slots]
                    )
        finally:
            self._requests.discard(request)
        assert request.outcome is not None
        if isinstance(request.outcome, VenueError):
            raise request.outcome
        return request.outcome

    async def _fetch_batches(self, requests: list[_BarsRequest]) -> None:
        slots = requests[0].slots
        while requests:
            batch = requests[:MAX_SYMBOLS]
            try:
                half_hours = await self._fetch_half_hours(
                    sorted({one.symbol for one in batch}), slots
                )
            except VenueError as error:
                _assign_error(batch, error)
            else:
                for one in batch:
                    one.outcome = list(_join_half_hours(half_hours.get(one.symbol, {}), slots))
            requests = [one for one in requests if one.outcome is None]

    async def _fetch_half_hours(
        self, symbols: Sequence[str], slots: HourByHalfHour
    ) -> Mapping[str, HalfHourBars]:
        """Return the half-hour bars of regular hours, from all pages."""
        params = {
            "symbols": ",".join(symbols),
            "timeframe": "30Min",
            "start": format_instant(min(slots) * 1000),
            "end": format_instant(max(slots) * 1000),  # inclusive: the bar that opens then is in
            "adjustment": "split",
            "limit": str(MAX_BARS),
            "sort": "asc",
        }
        found: dict[str, HalfHourBars] = defaultdict(dict)
        tokens = set[str]()
        while True:
            bars, token = await self._get_json(f"{self._data}/v2/stocks/bars", params, _parse_page)
            for symbol, bar in bars:
                if bar.open_time in slots:
                    found[symbol][bar.open_time] = bar
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
            raise VenueError(f"alpaca did not answer within {self._timeout_s:g} s") from None
        # The error's text may contain a header, and so the key: only its type is reported.
        except httpx.HTTPError as error:
            raise VenueError(f"alpaca cannot be read: {type(error).__name__}") from None
        if response.status_code != httpx.codes.OK:
            raise _build_error(response)
        try:
            return parse(response.json())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise VenueError("alpaca's answer does not match its documentation") from None


def _build_slots(due: ExpectedBars) -> HourByHalfHour:
    spans = zip(due.open_time.tolist(), due.end_time.tolist(), strict=True)
    return {half: opened for opened, ends in spans for half in range(opened, ends, HALF_HOUR_S)}


def _join_half_hours(half_hours: HalfHourBars, slots: HourByHalfHour) -> Iterator[RawBar]:
    """Yield hourly bars, oldest first; if one half never traded, the other is the bar."""
    for opened, group in groupby(sorted(half_hours.values()), key=lambda bar: slots[bar.open_time]):
        pair = list(group)
        high, low = max(bar.high for bar in pair), min(bar.low for bar in pair)
        volume = sum(bar.volume for bar in pair)
        yield RawBar(opened, pair[0].open, high, low, pair[-1].close, volume)


def _assign_error(batch: Sequence[_BarsRequest], error: VenueError) -> None:
    """Make an error the outcome of the request whose symbol it names, else of all requests."""
    # One invalid symbol fails a whole batch; the others are then fetched again without it.
    if isinstance(error, _StatusError) and error.message.startswith(_INVALID_SYMBOL):
        named = error.message.removeprefix(_INVALID_SYMBOL)
        at_fault = [one for one in batch if one.symbol == named]
        for one in at_fault:
            one.outcome = UnknownSymbolError(f"alpaca does not know the symbol {named}")
        if at_fault:
            return
    for one in batch:
        one.outcome = error


def _parse_symbols(assets: Any) -> frozenset[str]:
    return frozenset(asset["symbol"] for asset in assets)


def _parse_clock(clock: Any) -> int:
    return int(datetime.fromisoformat(clock["timestamp"]).timestamp() * 1000)


def _parse_page(response: Any) -> tuple[list[tuple[str, RawBar]], str | None]:
    bars = response["bars"] or {}
    parsed = [(symbol, _parse_bar(row)) for symbol, rows in bars.items() for row in rows]
    return parsed, response["next_page_token"]


def _parse_bar(row: Any) -> RawBar:
    opened = int(datetime.fromisoformat(row["t"]).timestamp())
    return RawBar(opened, *(float(row[name]) for name in "ohlcv"))


def _build_error(response: httpx.Response) -> _StatusError:
    status, message = response.status_code, _parse_message(response)
    if status == httpx.codes.FORBIDDEN and message.startswith(_WITHHELD):
        reason = "alpaca withholds bars this new: check that this machine's clock is not ahead"
        return _StatusError(status, message, reason)
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        reason = f"alpaca refuses the key: check {SETTING_NAMES}"
        return _StatusError(status, message, reason, is_permanent=True)
    wait_s = _parse_wait_s(response.headers)
    return _StatusError(status, message, f"alpaca answered HTTP {status}", retry_after_s=wait_s)


def _parse_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (LookupError, TypeError, ValueError):
        return ""


def _parse_wait_s(headers: httpx.Headers) -> float | None:
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
