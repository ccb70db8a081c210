"""Kraken's public spot data as documented: HTTP 200 on errors, the last 720 bars only."""

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

MAX_HISTORY = 720
_OWN_NAMES = {"BTC": "XBT", "DOGE": "XDG"}
_OLD_COINS = ("XBT", "ETH", "LTC", "XRP", "XMR", "ZEC", "ETC", "REP", "MLN", "XLM")
_OLD_MONEY = ("USD", "EUR", "GBP", "CAD", "JPY")


def _wrap(result: Any) -> dict[str, Any]:
    return {"error": [], "result": result}


def _build_failure(error: str) -> dict[str, Any]:
    return {"error": [error]}


class Kraken:
    """The forming bar is always the last row, for any `since`."""

    hosts = ("api.kraken.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (200, _build_failure("EGeneral:Too many requests")),
        "banned": (200, _build_failure("EGeneral:Temporary lockout")),
    }

    def to_key(self, symbol: Symbol) -> str:
        base, quote = _to_altname(symbol.base), symbol.quote
        is_old = base in _OLD_COINS and quote in _OLD_MONEY
        return f"X{base}Z{quote}" if is_old else f"{base}{quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        request.key = request.query.get("pair")

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path:
            case "0/public/Time":
                return _wrap({"unixtime": venue.now, "rfc1123": ""})
            case "0/public/Assets":
                return _wrap(_answer_assets(venue))
            case "0/public/AssetPairs":
                pairs = {key: _format_pair(one.symbol) for key, one in venue.list_tradable()}
                return _wrap(pairs)
            case "0/public/OHLC":
                return _wrap(_answer_ohlc(venue, request))
        raise RefusedError(200, _build_failure("EGeneral:Unknown method"))


def _to_altname(code: str) -> str:
    return _OWN_NAMES.get(code, code)


def _to_asset_code(code: str) -> str:
    """Return Kraken's name of a currency; the oldest ones have an additional letter."""
    name = _to_altname(code)
    if name in _OLD_MONEY:
        return f"Z{name}"
    return f"X{name}" if name in (*_OLD_COINS, "XDG") else name


def _answer_assets(venue: VenueDouble) -> dict[str, Any]:
    symbols = [one.symbol for _, one in venue.list_tradable()]
    codes = dict.fromkeys(code for symbol in symbols for code in (symbol.base, symbol.quote))
    return {
        _to_asset_code(code): {
            "aclass": "currency",
            "altname": _to_altname(code),
            "decimals": 10,
            "display_decimals": 5,
            "status": "enabled",
        }
        for code in codes
    }


def _format_pair(symbol: Symbol) -> dict[str, Any]:
    base = _to_altname(symbol.base)
    return {
        "altname": base + symbol.quote,
        "wsname": f"{base}/{symbol.quote}",
        "aclass_base": "currency",
        "base": _to_asset_code(symbol.base),
        "aclass_quote": "currency",
        "quote": _to_asset_code(symbol.quote),
        "pair_decimals": 1,
        "lot_decimals": 8,
        "lot_multiplier": 1,
        "leverage_buy": [],
        "leverage_sell": [],
        "fees": [[0, 0.4]],
        "fees_maker": [[0, 0.25]],
        "ordermin": "0.00005",
        "costmin": "0.5",
        "tick_size": "0.1",
        "status": "online",
    }


def _answer_ohlc(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    if request.query.get("interval") != "60":
        raise RefusedError(200, _build_failure("EGeneral:Invalid arguments"))
    kept = listing.market.get_page(venue.now, 0, EVER, MAX_HISTORY, is_newest=True)
    since, begun = request.get_integer("since", 0), venue.now - HOUR_S
    rows = [_format_row(bar) for bar in kept if bar.open_time > min(since, begun)]
    last = max((bar.open_time for bar in kept if bar.open_time <= begun), default=0)
    return {request.key: rows, "last": last}


def _format_row(bar: RawBar) -> list[Any]:
    opened, high, low, closed, volume = (format_decimal(value) for value in bar[1:])
    return [bar.open_time, opened, high, low, closed, closed, volume, 1]


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_listed(request)
    if listing is None:
        raise RefusedError(200, _build_failure("EQuery:Unknown asset pair"))
    return listing
