"""Binance's public market data, spot and USD-margined futures, as its API reference says."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.venues.market import EVER
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

SPOT, LINEAR, INVERSE = "api.binance.com", "fapi.binance.com", "dapi.binance.com"
METALS = ("XAU", "XAG", "XPT", "XPD")
NEVER_DELIVERED = 4_133_404_800_000
_TOO_MUCH = {
    "code": -1003,
    "msg": "Too much request weight used; current limit is 6000 request weight per 1 MINUTE. "
    "Please use WebSocket Streams for live updates to avoid polling the API.",
}
_BANNED = {"code": -1003, "msg": "Way too much request weight used; IP banned until 1890000000000."}
_RESTRICTED = {
    "code": 0,
    "msg": "Service unavailable from a restricted location according to 'b. Eligibility' in "
    "https://www.binance.com/en/terms. Please contact customer service if you believe you "
    "received this message in error.",
}


class Binance:
    """Klines come oldest first, the forming one last; a start counts from the oldest."""

    hosts = (SPOT, LINEAR, INVERSE)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (429, _TOO_MUCH),
        "banned": (418, _BANNED),
        "restricted": (451, _RESTRICTED),
    }

    def key_of(self, symbol: Symbol) -> str:
        host = LINEAR if symbol.settle else SPOT
        return f"{host} {symbol.base}{symbol.quote}"

    def place(self, asked: Asked) -> None:
        symbol = asked.query.get("symbol")
        asked.key = symbol and f"{asked.host} {symbol}"

    def answer(self, venue: Venue, asked: Asked) -> Any:
        match asked.path.rpartition("/")[2]:
            case "time":
                return {"serverTime": venue.now_ms}
            case "exchangeInfo":
                asked.weight = 20 if asked.host == SPOT else 1
                return _exchange_info(venue, asked.host)
            case "klines":
                return _klines(venue, asked)
            case "fundingRate" if asked.host == LINEAR:
                return _funding(venue, asked)
        raise RefusedError(404, {"code": -1100, "msg": "Not found."})


def _exchange_info(venue: Venue, host: str) -> Any:
    here = [one for key, one in venue.listed() if key.startswith(host)]
    rows = [_contract(one.symbol) if host == LINEAR else _pair(one.symbol) for one in here]
    limits = {"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1}
    return {
        "timezone": "UTC",
        "serverTime": venue.now_ms,
        "rateLimits": [limits | {"limit": 6000 if host == SPOT else 2400}],
        "exchangeFilters": [],
        "symbols": rows,
    }


def _pair(symbol: Symbol) -> dict[str, Any]:
    return {
        "symbol": symbol.base + symbol.quote,
        "status": "TRADING",
        "baseAsset": symbol.base,
        "baseAssetPrecision": 8,
        "quoteAsset": symbol.quote,
        "quotePrecision": 8,
        "quoteAssetPrecision": 8,
        "orderTypes": ["LIMIT", "MARKET"],
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "0", "tickSize": "0.01"},
            {"filterType": "LOT_SIZE", "minQty": "0.1", "maxQty": "9000", "stepSize": "0.1"},
        ],
        "permissions": [],
        "permissionSets": [["SPOT"]],
    }


def _contract(symbol: Symbol) -> dict[str, Any]:
    kind = "TRADIFI_PERPETUAL" if symbol.base in METALS else "PERPETUAL"
    return _pair(symbol) | {
        "pair": symbol.base + symbol.quote,
        "contractType": kind,
        "deliveryDate": NEVER_DELIVERED,
        "onboardDate": 1_569_398_400_000,
        "marginAsset": symbol.settle,
        "pricePrecision": 2,
        "quantityPrecision": 3,
    }


def _klines(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    if asked.query.get("interval") != "1h":
        raise RefusedError(400, {"code": -1120, "msg": "Invalid interval."})
    most = 1000 if asked.host == SPOT else 1500
    limit = min(asked.integer("limit", 500), most)
    asked.weight = 2 if asked.host == SPOT else _futures_weight(limit)
    first, last = asked.seconds("startTime", 0), asked.integer("endTime", EVER * 1000) // 1000
    is_newest = "startTime" not in asked.query
    bars = listing.market.page(venue.now, first, last, limit, is_newest=is_newest)
    return [_kline(bar) for bar in bars]


def _futures_weight(limit: int) -> int:
    steps = ((99, 1), (499, 2), (1000, 5))
    return next((weight for most, weight in steps if limit <= most), 10)


def _kline(bar: RawBar) -> list[Any]:
    values = [decimal(value) for value in bar[1:]]
    closed_ms = (bar.open_time + HOUR_S) * 1000 - 1
    return [bar.open_time * 1000, *values, closed_ms, "0", 1, "0", "0", "0"]


def _funding(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    first, last = asked.seconds("startTime", 0), asked.integer("endTime", EVER * 1000) // 1000
    rows = listing.market.settled(venue.now, first, last)
    limit = min(asked.integer("limit", 100), 1000)
    rows = rows[:limit] if "startTime" in asked.query else rows[-limit:]
    return [
        {
            "symbol": asked.query["symbol"],
            "fundingTime": at * 1000,
            "fundingRate": decimal(rate),
            "markPrice": "1.0",
        }
        for at, rate in rows
    ]


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        raise RefusedError(400, {"code": -1121, "msg": "Invalid symbol."})
    return listing
