"""KuCoin's public market data, spot and futures, as documented: newest first, codes in a body."""

from collections.abc import Mapping
from typing import Any

from compute.bars import RawBar
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

SPOT, FUTURES = "api.kucoin.com", "api-futures.kucoin.com"
MOST_BARS, MOST_RATES = 1500, 100


def _wrapped(data: Any) -> dict[str, Any]:
    return {"code": "200000", "data": data}


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "msg": message}


class Kucoin:
    """A window of bars takes in both its ends; of more than a page holds the newest come."""

    hosts = (SPOT, FUTURES)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (429, _failed("429000", "Too Many Requests")),
        "banned": (403, _failed("403000", "Rate limit exceeded, try again later")),
    }

    def key_of(self, symbol: Symbol) -> str:
        return _contract_id(symbol) if symbol.settle else f"{symbol.base}-{symbol.quote}"

    def place(self, asked: Asked) -> None:
        asked.key = asked.query.get("symbol")

    def answer(self, venue: Venue, asked: Asked) -> Any:
        symbols = [one.symbol for _, one in venue.listed()]
        match asked.path:
            case "api/v1/timestamp":
                return _wrapped(venue.now_ms)
            case "api/v3/currencies":
                return _wrapped([])
            case "api/v1/market/allTickers":
                return _wrapped({"time": venue.now_ms, "ticker": []})
            case "api/v2/symbols":
                return _wrapped([_pair(symbol) for symbol in symbols if not symbol.settle])
            case "api/v1/contracts/active":
                return _wrapped([_contract(symbol) for symbol in symbols if symbol.settle])
            case "api/v1/market/candles":
                return _wrapped(_candles(venue, asked))
            case "api/v1/contract/funding-rates":
                return _wrapped(_funding(venue, asked))
        raise RefusedError(404, _failed("404000", "Not Found"))


def _contract_id(symbol: Symbol) -> str:
    base = "XBT" if symbol.base == "BTC" else symbol.base
    return f"{base}{symbol.quote}M"


def _pair(symbol: Symbol) -> dict[str, Any]:
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


def _contract(symbol: Symbol) -> dict[str, Any]:
    return {
        "symbol": _contract_id(symbol),
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


def _candles(venue: Venue, asked: Asked) -> list[list[str]]:
    listing = _found(venue, asked)
    if asked.query.get("type") != "1hour":
        raise RefusedError(400, _failed("400100", "This type of K line is not provided"))
    first, last = asked.integer("startAt", 0), asked.integer("endAt", 0)
    bars = listing.market.page(venue.now, first, last, MOST_BARS, is_newest=True)
    return [_candle(bar) for bar in bars[::-1]]


def _candle(bar: RawBar) -> list[str]:
    opened, high, low, closed, volume = (decimal(value) for value in bar[1:])
    return [str(bar.open_time), opened, closed, high, low, volume, "0"]


def _funding(venue: Venue, asked: Asked) -> list[dict[str, Any]]:
    listing = _found(venue, asked)
    first, last = asked.seconds("from", 0), asked.integer("to", venue.now_ms) // 1000
    rows = listing.market.settled(venue.now, first, last)[-MOST_RATES:]
    return [
        {"symbol": asked.key, "fundingRate": rate, "timepoint": at * 1000}
        for at, rate in reversed(rows)
    ]


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        raise RefusedError(400, _failed("400100", "This pair is not provided at present"))
    return listing
