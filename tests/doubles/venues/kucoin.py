"""KuCoin's public market data, spot and futures, as documented: newest first, codes in a body."""

from collections.abc import Mapping
from typing import Any

from compute.bars import RawBar
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

SPOT, FUTURES = "api.kucoin.com", "api-futures.kucoin.com"
MAX_BARS, MAX_RATES = 1500, 100


def _wrap(data: Any) -> dict[str, Any]:
    return {"code": "200000", "data": data}


def _build_failure(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "msg": message}


class Kucoin:
    """A window of bars includes both its ends; if it exceeds a page, the newest are returned."""

    hosts = (SPOT, FUTURES)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _build_failure("429000", "Too Many Requests")),
        "banned": (403, _build_failure("403000", "Rate limit exceeded, try again later")),
    }

    def to_key(self, symbol: Symbol) -> str:
        return _to_contract_id(symbol) if symbol.settle else f"{symbol.base}-{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        request.key = request.query.get("symbol")

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        symbols = [one.symbol for _, one in venue.list_tradable()]
        match request.path:
            case "api/v1/timestamp":
                return _wrap(venue.now_ms)
            case "api/v3/currencies":
                return _wrap([])
            case "api/v1/market/allTickers":
                return _wrap({"time": venue.now_ms, "ticker": []})
            case "api/v2/symbols":
                return _wrap([_format_pair(symbol) for symbol in symbols if not symbol.settle])
            case "api/v1/contracts/active":
                return _wrap([_format_contract(symbol) for symbol in symbols if symbol.settle])
            case "api/v1/market/candles":
                return _wrap(_answer_candles(venue, request))
            case "api/v1/contract/funding-rates":
                return _wrap(_answer_funding(venue, request))
        raise RefusedError(404, _build_failure("404000", "Not Found"))


def _to_contract_id(symbol: Symbol) -> str:
    base = "XBT" if symbol.base == "BTC" else symbol.base
    return f"{base}{symbol.quote}M"


def _format_pair(symbol: Symbol) -> dict[str, Any]:
    name = f"{symbol.base}-{symbol.quote}"
    return {
        "symbol": name,
        "name": name,
        "baseCurrency": symbol.base,
        "quoteCurrency": symbol.quote,
        "feeCurrency": symbol.quote,
        "market": "USDS",
        "baseMinSize": "0.00001",
        "quoteMinSize": "0.1",
        "baseMaxSize": "10000000000",
        "quoteMaxSize": "99999999",
        "baseIncrement": "0.00000001",
        "quoteIncrement": "0.000001",
        "priceIncrement": "0.1",
        "priceLimitRate": "0.1",
        "isMarginEnabled": True,
        "enableTrading": True,
    }


def _format_contract(symbol: Symbol) -> dict[str, Any]:
    return {
        "symbol": _to_contract_id(symbol),
        "type": "FFWCSX",
        "firstOpenDate": 1_585_555_200_000,
        "expireDate": None,
        "baseCurrency": "XBT" if symbol.base == "BTC" else symbol.base,
        "quoteCurrency": symbol.quote,
        "settleCurrency": symbol.settle,
        "maxOrderQty": 1_000_000,
        "maxPrice": 1_000_000.0,
        "lotSize": 1,
        "tickSize": 0.1,
        "multiplier": 0.001,
        "isInverse": False,
        "status": "Open",
        "nextFundingRateTime": 25_481_884,
        "maxLeverage": 100,
    }


def _answer_candles(venue: VenueDouble, request: VenueRequest) -> list[list[str]]:
    listing = _find_listing(venue, request)
    if request.query.get("type") != "1hour":
        raise RefusedError(400, _build_failure("400100", "This type of K line is not provided"))
    first, last = request.get_integer("startAt", 0), request.get_integer("endAt", 0)
    bars = listing.market.get_page(venue.now, first, last, MAX_BARS, is_newest=True)
    return [_format_candle(bar) for bar in bars[::-1]]


def _format_candle(bar: RawBar) -> list[str]:
    opened, high, low, closed, volume = (format_decimal(value) for value in bar[1:])
    return [str(bar.open_time), opened, closed, high, low, volume, "0"]


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> list[dict[str, Any]]:
    listing = _find_listing(venue, request)
    first, last = request.get_seconds("from", 0), request.get_integer("to", venue.now_ms) // 1000
    rows = listing.market.list_settlements(venue.now, first, last)[-MAX_RATES:]
    return [
        {"symbol": request.key, "fundingRate": rate, "timepoint": at * 1000}
        for at, rate in reversed(rows)
    ]


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise RefusedError(400, _build_failure("400100", "This pair is not provided at present"))
    return listing
