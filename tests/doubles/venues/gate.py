"""Gate's public market data, API v4, as documented: spot and USDT perpetuals, errors by label."""

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

MAX_BARS, MAX_RATES = 1000, 1000
MAX_HISTORY = 10_000
_TOO_MANY = {"label": "TOO_MANY_REQUESTS", "message": "Request Rate limit Exceeded"}


class Gate:
    """Bars come oldest first, the forming one last; each has a flag whether it is closed."""

    hosts = ("api.gateio.ws",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _TOO_MANY),
        "banned": (429, _TOO_MANY),
    }

    def to_key(self, symbol: Symbol) -> str:
        kind = f"futures/{symbol.settle.lower()}" if symbol.settle else "spot"
        return f"{kind} {symbol.base}_{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        kind = request.path.removeprefix("api/v4/").rpartition("/")[0]
        symbol = request.query.get("currency_pair") or request.query.get("contract")
        request.key = symbol and f"{kind} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path.removeprefix("api/v4/").split("/"):
            case ["spot", "time"]:
                return {"server_time": venue.now_ms}
            case ["margin", "currency_pairs"] | ["spot", "currencies"]:
                return []
            case ["delivery", _, "contracts"] | ["options", "underlyings"]:
                return []
            case ["spot", "currency_pairs"]:
                return [
                    _format_pair(one.symbol)
                    for _, one in venue.list_tradable()
                    if not one.symbol.settle
                ]
            case ["futures", settle, "contracts"]:
                there = [one.symbol for _, one in venue.list_tradable()]
                return [
                    _format_contract(symbol) for symbol in there if symbol.settle.lower() == settle
                ]
            case ["spot", "candlesticks"]:
                return _answer_candlesticks(venue, request)
            case ["futures", _, "funding_rate"]:
                return _answer_funding(venue, request)
        raise _build_refusal("NOT_FOUND", "Not found", 404)


def _format_pair(symbol: Symbol) -> dict[str, Any]:
    return {
        "id": f"{symbol.base}_{symbol.quote}",
        "base": symbol.base,
        "base_name": symbol.base,
        "quote": symbol.quote,
        "quote_name": symbol.quote,
        "fee": "0.2",
        "min_base_amount": "0.0001",
        "min_quote_amount": "3",
        "amount_precision": 4,
        "precision": 2,
        "trade_status": "tradable",
        "sell_start": 0,
        "buy_start": 1_548_133_413,
        "type": "normal",
    }


def _format_contract(symbol: Symbol) -> dict[str, Any]:
    return {
        "name": f"{symbol.base}_{symbol.quote}",
        "type": "direct",
        "quanto_multiplier": "0.0001",
        "order_price_deviate": "0.5",
        "mark_price": "20000.5",
        "order_price_round": "0.1",
        "order_size_min": 1,
        "order_size_max": 1_000_000,
        "leverage_min": "1",
        "leverage_max": "100",
        "funding_interval": 28_800,
        "in_delisting": False,
    }


def _answer_candlesticks(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request, "INVALID_CURRENCY_PAIR", "Invalid currency pair")
    if request.query.get("interval") != "1h" or {"from", "limit"} <= request.query.keys():
        raise _build_refusal("INVALID_PARAM_VALUE", "Invalid request parameters")
    first, last = request.get_integer("from", 0), request.get_integer("to", venue.now)
    if first < venue.now - MAX_HISTORY * HOUR_S:
        message = "Candlestick too long ago. Maximum 10000 points ago are allowed"
        raise _build_refusal("INVALID_PARAM_VALUE", message)
    if last - first >= MAX_BARS * HOUR_S:
        raise _build_refusal("INVALID_PARAM_VALUE", "Candlestick range too broad")
    bars = listing.market.get_page(venue.now, first, last, MAX_BARS)
    return [_format_candlestick(bar, venue.now) for bar in bars]


def _format_candlestick(bar: RawBar, now: int) -> list[str]:
    opened, high, low, closed, volume = (format_decimal(value) for value in bar[1:])
    is_closed = str(bar.open_time + HOUR_S <= now).lower()
    return [str(bar.open_time), "0", closed, high, low, opened, volume, is_closed]


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request, "CONTRACT_NOT_FOUND", "Contract not found")
    first, last = request.get_integer("from", 0), request.get_integer("to", venue.now)
    limit = min(request.get_integer("limit", 100), MAX_RATES)
    rows = listing.market.list_settlements(venue.now, first, last)[-limit:]
    return [{"t": at, "r": format_decimal(rate)} for at, rate in reversed(rows)]


def _find_listing(venue: VenueDouble, request: VenueRequest, label: str, message: str) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise _build_refusal(label, message)
    return listing


def _build_refusal(label: str, message: str, status: int = 400) -> RefusedError:
    return RefusedError(status, {"label": label, "message": message})
