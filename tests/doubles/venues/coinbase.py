"""Coinbase's public products, Advanced Trade API v3, as documented: newest first, at most 350."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
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

MAX_BARS = 350
PRODUCTS = "api/v3/brokerage/market/products"
_ACCOUNTS: dict[str, Any] = {
    "v2/currencies": [],
    "v2/currencies/crypto": [],
    "v2/exchange-rates": {"currency": "USD", "rates": {}},
}
_TOO_MANY = {"errors": [{"id": "rate_limit_exceeded", "message": "Too many requests"}]}


class Coinbase:
    """A window of bars includes both its ends; if it is too long, it is refused."""

    hosts = ("api.coinbase.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _TOO_MANY),
        "banned": (429, _TOO_MANY),
    }

    def to_key(self, symbol: Symbol) -> str:
        return f"{symbol.base}-{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        if request.path.startswith(f"{PRODUCTS}/"):
            request.key = request.path.removeprefix(f"{PRODUCTS}/").split("/")[0]

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        if request.path in _ACCOUNTS:
            return {"data": _ACCOUNTS[request.path]}
        if request.path == "v2/time":
            return {"data": {"epoch": venue.now}}
        if request.path == PRODUCTS:
            is_spot = request.query.get("product_type", "SPOT") == "SPOT"
            products = [_format_product(one.symbol) for _, one in venue.list_tradable() if is_spot]
            return {"products": products, "num_products": len(products)}
        if request.path == f"{PRODUCTS}/{request.key}/candles":
            return {"candles": _answer_candles(venue, request)}
        raise _build_refusal(404, "NOT_FOUND", "Not found")


def _format_product(symbol: Symbol) -> dict[str, Any]:
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


def _answer_candles(venue: VenueDouble, request: VenueRequest) -> list[dict[str, str]]:
    listing = _find_listing(venue, request)
    first, last = request.get_integer("start", 0), request.get_integer("end", 0)
    if request.query.get("granularity") != "ONE_HOUR" or (last - first) // HOUR_S >= MAX_BARS:
        raise _build_refusal(
            400, "INVALID_ARGUMENT", "number of candles requested should be less than 350"
        )
    bars = listing.market.get_page(venue.now, first, last, MAX_BARS, is_newest=True)
    return [_format_candle(bar) for bar in bars[::-1]]


def _format_candle(bar: RawBar) -> dict[str, str]:
    names = ("open", "high", "low", "close", "volume")
    values = {name: format_decimal(value) for name, value in zip(names, bar[1:], strict=True)}
    return {"start": str(bar.open_time), **values}


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise _build_refusal(404, "NOT_FOUND", "valid product_id is required")
    return listing


def _build_refusal(status: int, error: str, details: str) -> RefusedError:
    return RefusedError(status, {"error": error, "error_details": details, "message": details})
