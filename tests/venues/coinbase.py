"""Coinbase's public products, Advanced Trade API v3, as documented: newest first, at most 350."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

MOST_BARS = 350
PRODUCTS = "api/v3/brokerage/market/products"
_ACCOUNTS: dict[str, Any] = {
    "v2/currencies": [],
    "v2/currencies/crypto": [],
    "v2/exchange-rates": {"currency": "USD", "rates": {}},
}
_TOO_MANY = {"errors": [{"id": "rate_limit_exceeded", "message": "Too many requests"}]}


class Coinbase:
    """A window of bars takes in both its ends, and is refused where it is too long."""

    hosts = ("api.coinbase.com",)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (429, _TOO_MANY),
        "banned": (429, _TOO_MANY),
    }

    def key_of(self, symbol: Symbol) -> str:
        return f"{symbol.base}-{symbol.quote}"

    def place(self, asked: Asked) -> None:
        if asked.path.startswith(f"{PRODUCTS}/"):
            asked.key = asked.path.removeprefix(f"{PRODUCTS}/").split("/")[0]

    def answer(self, venue: Venue, asked: Asked) -> Any:
        if asked.path in _ACCOUNTS:
            return {"data": _ACCOUNTS[asked.path]}
        if asked.path == "v2/time":
            return {"data": {"epoch": venue.now}}
        if asked.path == PRODUCTS:
            is_spot = asked.query.get("product_type", "SPOT") == "SPOT"
            products = [_product(one.symbol) for _, one in venue.listed() if is_spot]
            return {"products": products, "num_products": len(products)}
        if asked.path == f"{PRODUCTS}/{asked.key}/candles":
            return {"candles": _candles(venue, asked)}
        raise _refusal(404, "NOT_FOUND", "Not found")


def _product(symbol: Symbol) -> dict[str, Any]:
    return {
        "product_id": f"{symbol.base}-{symbol.quote}",
        "price": "20000.5",
        "base_increment": "0.00000001",
        "quote_increment": "0.01",
        "quote_min_size": "1",
        "quote_max_size": "150000000",
        "base_min_size": "0.00000001",
        "base_max_size": "3400",
        "base_name": symbol.base,
        "quote_name": symbol.quote,
        "is_disabled": False,
        "status": "online",
        "trading_disabled": False,
        "product_type": "SPOT",
        "quote_currency_id": symbol.quote,
        "base_currency_id": symbol.base,
        "alias": "",
        "alias_to": [],
        "price_increment": "0.01",
    }


def _candles(venue: Venue, asked: Asked) -> list[dict[str, str]]:
    listing = _found(venue, asked)
    first, last = asked.integer("start", 0), asked.integer("end", 0)
    if asked.query.get("granularity") != "ONE_HOUR" or (last - first) // HOUR_S >= MOST_BARS:
        raise _refusal(
            400, "INVALID_ARGUMENT", "number of candles requested should be less than 350"
        )
    bars = listing.market.page(venue.now, first, last, MOST_BARS, is_newest=True)
    return [_candle(bar) for bar in bars[::-1]]


def _candle(bar: RawBar) -> dict[str, str]:
    names = ("open", "high", "low", "close", "volume")
    values = {name: decimal(value) for name, value in zip(names, bar[1:], strict=True)}
    return {"start": str(bar.open_time), **values}


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        raise _refusal(404, "NOT_FOUND", "valid product_id is required")
    return listing


def _refusal(status: int, error: str, details: str) -> RefusedError:
    return RefusedError(status, {"error": error, "error_details": details, "message": details})
