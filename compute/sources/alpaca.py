"""US equities from Alpaca's market data API, version 2, by the operator's own key.

Hourly bars there open on full hours and take in extended hours, so bars of 30 minutes are asked for
and those of regular hours joined in pairs. What waits for the same hours goes out as one request.
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
SPACING_S = 60 / 200  # the free plan allows 200 requests a minute
MAX_SYMBOLS, MAX_BARS = 100, 10_000
HALF_HOUR_S = 1800
_INVALID_SYMBOL = "invalid symbol: "
_WITHHELD = "subscription does not permit"

# Bars of half hours by their opening; the opening of the hour that each half hour belongs to.
HalfHourBars = dict[int, RawBar]
HourByHalfHour = dict[int, int]
Parsed = TypeVar("Parsed")


@dataclass(eq=False, slots=True)
class _BarsRequest:
    """A symbol that waits for bars of some hours, and what came of it."""

    symbol: str
    slots: HourByHalfHour
    outcome: list[RawBar] | VenueError | None = None


class _StatusError(VenueError):
    """An answer that is no success; `message` is what its body says, which may be anything."""

    def __init__(self, status: int, message: str, reason: str, **options: Any) -> None:
        super().__init__(reason, **options)
        self.status = status
        self.message = message


class AlpacaVenue:
    """A Venue; its key is that of a free paper account or of a paid plan.

    The free plan withholds the newest 15 minutes. No request reaches into them: an equity's bar
    counts as closed at a full hour, and by then its trading has been over for half an hour.
    """

    name = "alpaca"
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
        """Return the bars of regular hours; a symbol that has none is looked up."""
        due = list_expected_bars("XNYS", after, until)
        if not len(due):
            return []
        bars = await self._coalesce(_BarsRequest(symbol, _build_slots(due)))
        if not bars and await self._is_delisted(symbol):
            raise UnknownSymbolError(f"alpaca does not list {symbol}, or no longer")
        return bars

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return nothing: equities settle no funding."""
        return []

    async def fetch_time_ms(self) -> int:
        """Return the time that the trading API tells, epoch ms."""
        return await self._get_json(f"{self._trading}/v2/clock", {}, _parse_clock)

    async def close(self) -> None:
        """Close its connections; idempotent."""
        await self._http.aclose()

    async def _coalesce(self, request: _BarsRequest) -> list[RawBar]:
        """Return what came of it; whoever's turn it is asks for all who want the same hours."""
        self._requests.add(request)
        try:
            async with self._lock:
                if request.outcome is None:
                    await asyncio.sleep(0)  # who asks in the same turn of the loop is then there
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
        """Return the half hours of regular hours, from as many pages as there are."""
        params = {
            "symbols": ",".join(symbols),
            "timeframe": "30Min",
            "start": format_instant(min(slots) * 1000),
            "end": format_instant(max(slots) * 1000),  # which takes in the bar that opens then
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
                raise VenueError("alpaca gives the same page again and again")
            tokens.add(token)
            params["page_token"] = token

    async def _is_delisted(self, symbol: str) -> bool:
        """Say whether a symbol is known not to be listed; where that cannot be told, it is not."""
        address = f"{self._trading}/v2/assets/{quote(symbol, safe='')}"
        try:
            return await self._get_json(address, {}, lambda asset: asset["status"] == "inactive")
        except VenueError as error:
            return isinstance(error, _StatusError) and error.status == 404

    async def _get_json(
        self, address: str, params: Mapping[str, str], parse: Callable[[Any], Parsed]
    ) -> Parsed:
        """Return what is read out of an answer; requests go out at the plan's distance."""
        now = asyncio.get_running_loop().time()
        begins_at = max(now, self._next_at)
        self._next_at = begins_at + self._spacing_s
        await asyncio.sleep(begins_at - now)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.get(address, params=params)
        except TimeoutError:
            raise VenueError(f"alpaca did not answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:  # whose text may hold a header
            raise VenueError(f"alpaca cannot be read: {type(error).__name__}") from None
        if response.status_code != httpx.codes.OK:
            raise _build_error(response)
        try:
            return parse(response.json())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise VenueError("alpaca's answer is not what its documentation says") from None


def _build_slots(due: ExpectedBars) -> HourByHalfHour:
    spans = zip(due.open_time.tolist(), due.end_time.tolist(), strict=True)
    return {half: opened for opened, ends in spans for half in range(opened, ends, HALF_HOUR_S)}


def _join_half_hours(half_hours: HalfHourBars, slots: HourByHalfHour) -> Iterator[RawBar]:
    """Yield hourly bars, oldest first; a half that never traded leaves the other alone."""
    for opened, group in groupby(sorted(half_hours.values()), key=lambda bar: slots[bar.open_time]):
        pair = list(group)
        high, low = max(bar.high for bar in pair), min(bar.low for bar in pair)
        volume = sum(bar.volume for bar in pair)
        yield RawBar(opened, pair[0].open, high, low, pair[-1].close, volume)


def _assign_error(batch: Sequence[_BarsRequest], error: VenueError) -> None:
    """Make an error the outcome of the one whose symbol it is about, else of all."""
    if isinstance(error, _StatusError) and error.message.startswith(_INVALID_SYMBOL):
        named = error.message.removeprefix(_INVALID_SYMBOL)
        at_fault = [one for one in batch if one.symbol == named]
        for one in at_fault:
            one.outcome = UnknownSymbolError(f"alpaca takes {named} for no symbol")
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
        reason = "alpaca withholds bars as new as these: this machine's clock may be ahead"
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
    """Return how long the answer asks to be left alone, by its own clock where it names a time."""
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
