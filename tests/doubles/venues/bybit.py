"""Bybit's public market data, API v5, as documented: newest first, HTTP 200 on errors."""

from collections.abc import Mapping
from typing import Any

from compute.bars import RawBar
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

_CLOUDFRONT = (
    "<html><body>The Amazon CloudFront distribution is configured to block access from your "
    "country.</body></html>"
)


def _wrap(result: Any, now_ms: int, code: int = 0, message: str = "OK") -> dict[str, Any]:
    return {
        "retCode": code,
        "retMsg": message,
        "result": result,
        "retExtInfo": {},
        "time": now_ms,
    }


class Bybit:
    """A request with only a start returns the oldest rows, any other the newest."""

    hosts = ("api.bybit.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (200, _wrap({}, 0, 10006, "Too many visits!")),
        "banned": (403, _wrap({}, 0, 10018, "Exceeded the IP Rate Limit.")),
        "restricted": (403, _CLOUDFRONT),
        "non_compliant": (200, _wrap({}, 0, 10024, "Compliance rules triggered")),
    }

    def to_key(self, symbol: Symbol) -> str:
        category = "linear" if symbol.settle else "spot"
        return f"{category} {symbol.base}{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        symbol = request.query.get("symbol")
        request.key = symbol and f"{request.query.get('category', 'linear')} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path:
            case "v5/market/time":
                second, rest = divmod(venue.now_ms, 1000)
                nano = f"{second}{rest:03}000000"
                result: Any = {"timeSecond": str(second), "timeNano": nano}
            case "v5/market/instruments-info":
                result = _answer_instruments(venue, request)
            case "v5/market/kline":
                result = _answer_klines(venue, request)
            case "v5/market/funding/history":
                result = _answer_funding(venue, request)
            case _:
                raise RefusedError(404, "404 page not found")
        return _wrap(result, venue.now_ms)


def _answer_instruments(venue: VenueDouble, request: VenueRequest) -> Any:
    category = request.query.get("category", "")
    is_requested = request.query.get("status", "Trading") == "Trading"
    here = [one.symbol for key, one in venue.list_tradable() if key.startswith(f"{category} ")]
    rows = [_format_instrument(symbol) for symbol in here if is_requested]
    return {"category": category, "list": rows, "nextPageCursor": ""}


def _format_instrument(symbol: Symbol) -> dict[str, Any]:
    common = {
        "symbol": symbol.base + symbol.quote,
        "status": "Trading",
        "baseCoin": symbol.base,
        "quoteCoin": symbol.quote,
        "priceFilter": {"tickSize": "0.01"},
    }
    if not symbol.settle:
        lot = {"basePrecision": "0.000001", "minOrderQty": "0.00004", "maxOrderQty": "71"}
        return common | {"innovation": "0", "marginTrading": "none", "lotSizeFilter": lot}
    lot = {"qtyStep": "0.001", "minOrderQty": "0.001", "maxOrderQty": "1190"}
    return common | {
        "contractType": "LinearPerpetual",
        "settleCoin": symbol.settle,
        "launchTime": "1585526400000",
        "deliveryTime": "0",
        "leverageFilter": {"minLeverage": "1", "maxLeverage": "100.00"},
        "lotSizeFilter": lot,
        "fundingInterval": 480,
    }


def _answer_klines(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    if request.query.get("interval") != "60":
        raise _build_refusal(venue, "Invalid period!")
    limit = min(request.get_integer("limit", 200), 1000)
    first, last = request.get_seconds("start", 0), request.get_integer("end", EVER * 1000) // 1000
    is_newest = "start" not in request.query or "end" in request.query
    bars = listing.market.get_page(venue.now, first, last, limit, is_newest=is_newest)
    category, _, symbol = (request.key or "").partition(" ")
    return {"category": category, "symbol": symbol, "list": [_format_kline(b) for b in bars[::-1]]}


def _format_kline(bar: RawBar) -> list[str]:
    return [str(bar.open_time * 1000), *(format_decimal(value) for value in bar[1:]), "0"]


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    if "startTime" in request.query and "endTime" not in request.query:
        raise _build_refusal(venue, "endTime must be passed with startTime")
    first, last = (
        request.get_seconds("startTime", 0),
        request.get_integer("endTime", EVER * 1000) // 1000,
    )
    limit = min(request.get_integer("limit", 200), 200)
    rows = [
        {
            "symbol": request.query["symbol"],
            "fundingRate": format_decimal(rate),
            "fundingRateTimestamp": str(at * 1000),
        }
        for at, rate in listing.market.list_settlements(venue.now, first, last)
    ]
    return {"category": request.query["category"], "list": rows[-limit:][::-1]}


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise _build_refusal(venue, "Not supported symbols")
    return listing


def _build_refusal(venue: VenueDouble, message: str) -> RefusedError:
    return RefusedError(200, _wrap({}, venue.now_ms, 10001, message))
