"""Alpaca's stock bars, and its trading API's clock and assets, as documented.

A market here has half-hour bars.
"""

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from compute.bars import DAY_S, RawBar
from tests.doubles.venues.market import EVER
from tests.doubles.venues.venue import (
    Dialect,
    RefusedError,
    Symbol,
    VenueDouble,
    VenueRequest,
)

if TYPE_CHECKING:
    from tests.doubles.venues.server import VenuesDouble

DATA, TRADING, PAPER = "data.alpaca.markets", "api.alpaca.markets", "paper-api.alpaca.markets"
API_KEY_ID, API_SECRET_KEY = "PKDOUBLE", "double-secret"
DELAY_S = 900


class Alpaca(Dialect):
    """An account for the consolidated tape; `withheld_s` is 0 with a paid subscription."""

    name = "alpaca"

    def __init__(self) -> None:
        super().__init__()
        self.withheld_s = DELAY_S
        self.page_size = 10_000

    def to_key(self, symbol: Symbol) -> str:
        return symbol.base

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        _authenticate(request)
        match request.host, request.path:
            case "data.alpaca.markets", "v2/stocks/bars":
                return _answer_bars(venue, request, venue.now - self.withheld_s, self.page_size)
            case (_, "v2/clock"):
                stamp = datetime.fromtimestamp(venue.now_ms / 1000, UTC)
                return {"timestamp": stamp.isoformat(timespec="milliseconds"), "is_open": True}
            case (_, "v2/assets"):
                return [_format_asset(key) for key, _ in venue.list_tradable()]
            case (_, path) if path.startswith("v2/assets/"):
                return _find_asset(venue, path.removeprefix("v2/assets/"))
        raise self.refuse("unknown_path")


def get_alpaca(double: "VenuesDouble") -> Alpaca:
    dialect = double.get_venue("alpaca").dialect
    assert isinstance(dialect, Alpaca)
    return dialect


def _authenticate(request: VenueRequest) -> None:
    key_id = request.headers.get("apca-api-key-id")
    secret = request.headers.get("apca-api-secret-key")
    if not key_id or not secret:
        raise RefusedError(401, {"message": "unauthorized."})
    if (key_id, secret) != (API_KEY_ID, API_SECRET_KEY):
        raise RefusedError(403, {"message": "forbidden."})


def _answer_bars(venue: VenueDouble, request: VenueRequest, known: int, page_size: int) -> Any:
    """Return a page: symbol by symbol, each oldest first, at most `limit` bars in total.

    What happened after `known` is withheld.
    """
    symbols = sorted(set(request.query.get("symbols", "").split(",")) - {""})
    limit = request.get_integer("limit", 1000)
    for symbol in symbols:
        if not re.fullmatch(r"[A-Z]{1,5}(\.[A-Z])?", symbol):
            raise RefusedError(400, {"message": f"invalid symbol: {symbol}"})
    if not symbols or not 1 <= limit <= 10_000 or request.query.get("timeframe") != "30Min":
        raise RefusedError(400, {"message": "invalid request parameters"})
    last = _parse_time(request.query.get("end"), known)
    if last > known and request.query.get("feed", "sip") == "sip":
        message = "subscription does not permit querying recent SIP data"
        raise RefusedError(403, {"message": message})
    limit = min(limit, page_size)
    rows = list(islice(_list_rows(venue, request, symbols, known, last), limit + 1))
    page = rows[:limit]
    token = _format_token(*page[-1]) if len(rows) > limit else None
    bars = {
        symbol: [_format_bar(bar) for _, bar in some] for symbol, some in groupby(page, _first_of)
    }
    return {"bars": bars, "next_page_token": token}


def _first_of(row: tuple[str, RawBar]) -> str:
    return row[0]


def _list_rows(
    venue: VenueDouble, request: VenueRequest, symbols: list[str], known: int, last: int
) -> Iterator[tuple[str, RawBar]]:
    """Yield symbols with their bars that open at or after the start and follow the last page."""
    first = _parse_time(request.query.get("start"), venue.now // DAY_S * DAY_S)
    after = _parse_token(request.query.get("page_token"))
    is_adjusted = request.query.get("adjustment", "raw") in ("split", "all")
    listed = dict(venue.list_tradable())
    for symbol in symbols:
        if symbol in listed:
            bars = listed[symbol].market.get_page(known, first, last, EVER, is_adjusted=is_adjusted)
            for bar in bars:
                if (symbol, bar.open_time) > after:
                    yield symbol, bar


def _format_bar(bar: RawBar) -> dict[str, Any]:
    values = dict(zip("ohlcv", bar[1:], strict=True))
    return values | {"t": _format_time(bar.open_time), "n": 1, "vw": bar.close}


def _format_token(symbol: str, bar: RawBar) -> str:
    return base64.b64encode(f"{symbol}|{bar.open_time}".encode()).decode()


def _parse_token(token: str | None) -> tuple[str, int]:
    if not token:
        return "", 0
    symbol, _, opened = base64.b64decode(token).decode().partition("|")
    return symbol, int(opened)


def _parse_time(text: str | None, default: int) -> int:
    """Return a time in RFC 3339, or the beginning of a date."""
    if not text:
        return default
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RefusedError(400, {"message": f"invalid time: {text}"}) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _find_asset(venue: VenueDouble, symbol: str) -> dict[str, Any]:
    tradable = {key for key, _ in venue.list_tradable()}
    if symbol in tradable:
        return _format_asset(symbol)
    if symbol in {key for key, _ in venue.list_ever_listed()}:
        return _format_asset(symbol) | {"status": "inactive", "tradable": False}
    raise RefusedError(404, {"message": f"asset not found for {symbol}"})


def _format_asset(symbol: str) -> dict[str, Any]:
    return {
        "id": f"00000000-0000-0000-0000-{symbol.encode().hex():0>12}",
        "class": "us_equity",
        "exchange": "NASDAQ",
        "symbol": symbol,
        "name": symbol,
        "status": "active",
        "tradable": True,
        "marginable": True,
        "shortable": True,
        "easy_to_borrow": True,
        "fractionable": True,
    }
