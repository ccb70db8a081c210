"""Alpaca's stock bars, and its trading API's clock and assets, as documented.

A market here has half-hour bars.
"""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
                return [_format_asset(key) for key, _ in venue.list_symbols()]
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

    What happened after `known` is withheld. The token is the number of bars before the next page.
    """
    query = request.query
    symbols = sorted(set(query["symbols"].split(",")))
    for symbol in symbols:
        if not re.fullmatch(r"[A-Z]{1,5}(\.[A-Z])?", symbol):
            raise RefusedError(400, {"message": f"invalid symbol: {symbol}"})
    if query["timeframe"] != "30Min":
        raise RefusedError(400, {"message": "invalid request parameters"})
    first, last = (
        int(datetime.fromisoformat(query[name]).timestamp()) for name in ("start", "end")
    )
    if last > known:
        message = "subscription does not permit querying recent SIP data"
        raise RefusedError(403, {"message": message})
    listed = dict(venue.list_symbols())
    rows = [
        (symbol, bar)
        for symbol in symbols
        if symbol in listed
        for bar in venue.get_market(symbol).get_page(known, first, last, EVER)
    ]
    begin = int(query.get("page_token", "0"))
    end = begin + min(int(query["limit"]), page_size)
    bars: dict[str, list[dict[str, Any]]] = {}
    for symbol, bar in rows[begin:end]:
        values = dict(zip("ohlcv", bar[1:], strict=True))
        row = values | {"t": _format_time(bar.open_time), "n": 1, "vw": bar.close}
        bars.setdefault(symbol, []).append(row)
    return {"bars": bars, "next_page_token": str(end) if len(rows) > end else None}


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _find_asset(venue: VenueDouble, symbol: str) -> dict[str, Any]:
    if symbol in dict(venue.list_symbols()):
        return _format_asset(symbol)
    if symbol in venue.listings:
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
