"""Binance's public market data, spot and USD-margined futures, as documented."""

from collections.abc import Mapping
from typing import Any

from compute.bars import RawBar
from tests.doubles.venues.market import EVER, PERIODS
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
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _TOO_MUCH),
        "banned": (418, _BANNED),
        "restricted": (451, _RESTRICTED),
    }

    def to_key(self, symbol: Symbol) -> str:
        host = LINEAR if symbol.settle else SPOT
        return f"{host} {symbol.base}{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        symbol = request.query.get("symbol")
        request.key = symbol and f"{request.host} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path.rpartition("/")[2]:
            case "time":
                return {"serverTime": venue.now_ms}
            case "exchangeInfo":
                request.weight = 20 if request.host == SPOT else 1
                return _answer_exchange_info(venue, request.host)
            case "klines":
                return _answer_klines(venue, request)
            case "fundingRate" if request.host == LINEAR:
                return _answer_funding(venue, request)
        raise RefusedError(404, {"code": -1100, "msg": "Not found."})


def _answer_exchange_info(venue: VenueDouble, host: str) -> Any:
    here = [one for key, one in venue.list_tradable() if key.startswith(host)]
    rows = [
        _format_contract(one.symbol) if host == LINEAR else _format_pair(one.symbol) for one in here
    ]
    limits = {"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1}
    return {
        "timezone": "UTC",
        "serverTime": venue.now_ms,
        "rateLimits": [limits | {"limit": 6000 if host == SPOT else 2400}],
        "exchangeFilters": [],
        "symbols": rows,
    }


def _format_pair(symbol: Symbol) -> dict[str, Any]:
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


def _format_contract(symbol: Symbol) -> dict[str, Any]:
    kind = "TRADIFI_PERPETUAL" if symbol.base in METALS else "PERPETUAL"
    return _format_pair(symbol) | {
        "pair": symbol.base + symbol.quote,
        "contractType": kind,
        "deliveryDate": NEVER_DELIVERED,
        "onboardDate": 1_569_398_400_000,
        "marginAsset": symbol.settle,
        "pricePrecision": 2,
        "quantityPrecision": 3,
    }


def _answer_klines(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    if PERIODS.get(request.query.get("interval", "")) != listing.market.period_s:
        raise RefusedError(400, {"code": -1120, "msg": "Invalid interval."})
    most = 1000 if request.host == SPOT else 1500
    limit = min(request.get_integer("limit", 500), most)
    request.weight = 2 if request.host == SPOT else _compute_futures_weight(limit)
    first, last = (
        request.get_seconds("startTime", 0),
        request.get_integer("endTime", EVER * 1000) // 1000,
    )
    is_newest = "startTime" not in request.query
    bars = listing.market.get_page(venue.now, first, last, limit, is_newest=is_newest)
    return [_format_kline(bar, listing.market.period_s) for bar in bars]


def _compute_futures_weight(limit: int) -> int:
    steps = ((99, 1), (499, 2), (1000, 5))
    return next((weight for most, weight in steps if limit <= most), 10)


def _format_kline(bar: RawBar, period_s: int) -> list[Any]:
    values = [format_decimal(value) for value in bar[1:]]
    closed_ms = (bar.open_time + period_s) * 1000 - 1
    return [bar.open_time * 1000, *values, closed_ms, "0", 1, "0", "0", "0"]


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    first, last = (
        request.get_seconds("startTime", 0),
        request.get_integer("endTime", EVER * 1000) // 1000,
    )
    rows = listing.market.list_settlements(venue.now, first, last)
    limit = min(request.get_integer("limit", 100), 1000)
    rows = rows[:limit] if "startTime" in request.query else rows[-limit:]
    return [
        {
            "symbol": request.query["symbol"],
            "fundingTime": at * 1000,
            "fundingRate": format_decimal(rate),
            "markPrice": "1.0",
        }
        for at, rate in rows
    ]


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise RefusedError(400, {"code": -1121, "msg": "Invalid symbol."})
    return listing
