"""OKX's public market data, API v5, as documented: newest first, bounds exclusive."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.doubles.venues.market import EVER
from tests.doubles.venues.venue import (
    Answer,
    FailureKind,
    Listing,
    RefusedError,
    Symbol,
    VenueDouble,
    VenueRequest,
    format_decimal,
)

RECENT, RECENT_PAGE = 1440, 300
# It was 100 for years and is 300 in newer documentation; a client that relies on 300 loses bars.
HISTORY_PAGE = 100


def _wrap(data: Any, code: str = "0", message: str = "") -> dict[str, Any]:
    return {"code": code, "msg": message, "data": data}


class Okx:
    """If a window has more bars than the limit, only the newest are returned."""

    hosts = ("www.okx.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _wrap([], "50011", "Too Many Requests")),
        "banned": (429, _wrap([], "50011", "Too Many Requests")),
    }

    def to_key(self, symbol: Symbol) -> str:
        pair = f"{symbol.base}-{symbol.quote}"
        return f"{pair}-SWAP" if symbol.settle else pair

    def fill_in_key(self, request: VenueRequest) -> None:
        request.key = request.query.get("instId")

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path:
            case "api/v5/public/time":
                data: Any = [{"ts": str(venue.now_ms)}]
            case "api/v5/public/instruments":
                kind = request.query.get("instType")
                data = [_format_instrument(key, one.symbol) for key, one in venue.list_tradable()]
                data = [row for row in data if row["instType"] == kind]
            case "api/v5/market/candles":
                data = _answer_candles(venue, request, venue.now - RECENT * HOUR_S, RECENT_PAGE)
            case "api/v5/market/history-candles":
                rows = _answer_candles(venue, request, 0, HISTORY_PAGE)
                data = [row for row in rows if row[-1] == "1"]
            case "api/v5/public/funding-rate-history":
                data = _answer_funding(venue, request)
            case _:
                raise RefusedError(404, _wrap([], "50404", "Not Found"))
        return _wrap(data)


def _format_instrument(key: str, symbol: Symbol) -> dict[str, Any]:
    pair = f"{symbol.base}-{symbol.quote}"
    common = {
        "instId": key,
        "instType": "SPOT",
        "baseCcy": symbol.base,
        "quoteCcy": symbol.quote,
        "settleCcy": "",
        "uly": "",
        "instFamily": "",
        "ctVal": "",
        "expTime": "",
        "listTime": "1548133413000",
        "lever": "",
        "lotSz": "0.00000001",
        "minSz": "0.00001",
        "tickSz": "0.1",
        "state": "live",
    }
    if not symbol.settle:
        return common
    family = {"uly": pair, "instFamily": pair, "settleCcy": symbol.settle, "ctVal": "0.01"}
    empty = {"baseCcy": "", "quoteCcy": "", "ctType": "linear", "lever": "100"}
    return common | {"instType": "SWAP"} | family | empty


def _answer_candles(
    venue: VenueDouble, request: VenueRequest, oldest: int, most: int
) -> list[list[str]]:
    listing = _find_listing(venue, request)
    if request.query.get("bar") != "1H":
        raise RefusedError(200, _wrap([], "51000", "Parameter bar error"))
    first, last = _parse_window(request)
    limit = min(request.get_integer("limit", 100), most)
    bars = listing.market.get_page(venue.now, max(first, oldest), last, limit, is_newest=True)
    return [_format_candle(bar, venue.now) for bar in bars[::-1]]


def _parse_window(request: VenueRequest) -> tuple[int, int]:
    """Return the first and the last whole second between `before` and `after`."""
    first = request.get_integer("before", -1) // 1000 + 1
    return first, -(-request.get_integer("after", EVER * 1000) // 1000) - 1


def _format_candle(bar: RawBar, now: int) -> list[str]:
    is_closed = bar.open_time + HOUR_S <= now
    values = [format_decimal(value) for value in bar[1:]]
    return [str(bar.open_time * 1000), *values, "0", "0", str(int(is_closed))]


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    limit = min(request.get_integer("limit", 400), 400)
    rows = listing.market.list_settlements(venue.now, *_parse_window(request))[-limit:]
    return [
        {
            "instType": "SWAP",
            "instId": request.key,
            "formulaType": "noRate",
            "fundingRate": format_decimal(rate),
            "realizedRate": format_decimal(rate),
            "fundingTime": str(at * 1000),
            "method": "current_period",
        }
        for at, rate in reversed(rows)
    ]


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        message = "Instrument ID, Instrument ID code, or Spread ID doesn't exist."
        raise RefusedError(200, _wrap([], "51001", message))
    return listing
