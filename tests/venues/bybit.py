"""Bybit's public market data, API v5, as documented: newest first, HTTP 200 on errors."""

from collections.abc import Mapping
from typing import Any

from compute.bars import RawBar
from tests.venues.market import EVER
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

_CLOUDFRONT = (
    "<html><body>The Amazon CloudFront distribution is configured to block access from your "
    "country.</body></html>"
)


def _wrapped(result: Any, now_ms: int, code: int = 0, message: str = "OK") -> dict[str, Any]:
    return {
        "retCode": code,
        "retMsg": message,
        "result": result,
        "retExtInfo": {},
        "time": now_ms,
    }


class Bybit:
    """Of what is asked for by a start alone, the oldest are returned; else the newest."""

    hosts = ("api.bybit.com",)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (200, _wrapped({}, 0, 10006, "Too many visits!")),
        "banned": (403, _wrapped({}, 0, 10018, "Exceeded the IP Rate Limit.")),
        "restricted": (403, _CLOUDFRONT),
    }

    def key_of(self, symbol: Symbol) -> str:
        category = "linear" if symbol.settle else "spot"
        return f"{category} {symbol.base}{symbol.quote}"

    def place(self, asked: Asked) -> None:
        symbol = asked.query.get("symbol")
        asked.key = symbol and f"{asked.query.get('category', 'linear')} {symbol}"

    def answer(self, venue: Venue, asked: Asked) -> Any:
        match asked.path:
            case "v5/market/time":
                second, rest = divmod(venue.now_ms, 1000)
                nano = f"{second}{rest:03}000000"
                result: Any = {"timeSecond": str(second), "timeNano": nano}
            case "v5/market/instruments-info":
                result = _instruments(venue, asked)
            case "v5/market/kline":
                result = _klines(venue, asked)
            case "v5/market/funding/history":
                result = _funding(venue, asked)
            case _:
                raise RefusedError(404, "404 page not found")
        return _wrapped(result, venue.now_ms)


def _instruments(venue: Venue, asked: Asked) -> Any:
    category = asked.query.get("category", "")
    is_asked = asked.query.get("status", "Trading") == "Trading"
    here = [one.symbol for key, one in venue.listed() if key.startswith(f"{category} ")]
    rows = [_instrument(symbol) for symbol in here if is_asked]
    return {"category": category, "list": rows, "nextPageCursor": ""}


def _instrument(symbol: Symbol) -> dict[str, Any]:
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


def _klines(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    if asked.query.get("interval") != "60":
        raise _refusal(venue, "Invalid period!")
    limit = min(asked.integer("limit", 200), 1000)
    first, last = asked.seconds("start", 0), asked.integer("end", EVER * 1000) // 1000
    is_newest = "start" not in asked.query or "end" in asked.query
    bars = listing.market.page(venue.now, first, last, limit, is_newest=is_newest)
    category, _, symbol = (asked.key or "").partition(" ")
    return {"category": category, "symbol": symbol, "list": [_kline(b) for b in bars[::-1]]}


def _kline(bar: RawBar) -> list[str]:
    return [str(bar.open_time * 1000), *(decimal(value) for value in bar[1:]), "0"]


def _funding(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    if "startTime" in asked.query and "endTime" not in asked.query:
        raise _refusal(venue, "endTime must be passed with startTime")
    first, last = asked.seconds("startTime", 0), asked.integer("endTime", EVER * 1000) // 1000
    limit = min(asked.integer("limit", 200), 200)
    rows = [
        {
            "symbol": asked.query["symbol"],
            "fundingRate": decimal(rate),
            "fundingRateTimestamp": str(at * 1000),
        }
        for at, rate in listing.market.settled(venue.now, first, last)
    ]
    return {"category": asked.query["category"], "list": rows[-limit:][::-1]}


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        raise _refusal(venue, "Not supported symbols")
    return listing


def _refusal(venue: Venue, message: str) -> RefusedError:
    return RefusedError(200, _wrapped({}, venue.now_ms, 10001, message))
