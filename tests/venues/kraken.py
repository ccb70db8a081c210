"""Kraken's public spot data as documented: HTTP 200 on errors, the last 720 bars only."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.venues.market import EVER
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

KEPT = 720
_OWN_NAMES = {"BTC": "XBT", "DOGE": "XDG"}
_OLD_COINS = ("XBT", "ETH", "LTC", "XRP", "XMR", "ZEC", "ETC", "REP", "MLN", "XLM")
_OLD_MONEY = ("USD", "EUR", "GBP", "CAD", "JPY")


def _wrapped(result: Any) -> dict[str, Any]:
    return {"error": [], "result": result}


def _failed(error: str) -> dict[str, Any]:
    return {"error": [error]}


class Kraken:
    """The forming bar is always the last row, whatever `since` says."""

    hosts = ("api.kraken.com",)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (200, _failed("EGeneral:Too many requests")),
        "banned": (200, _failed("EGeneral:Temporary lockout")),
    }

    def key_of(self, symbol: Symbol) -> str:
        base, quote = _altname(symbol.base), symbol.quote
        is_old = base in _OLD_COINS and quote in _OLD_MONEY
        return f"X{base}Z{quote}" if is_old else f"{base}{quote}"

    def place(self, asked: Asked) -> None:
        asked.key = asked.query.get("pair")

    def answer(self, venue: Venue, asked: Asked) -> Any:
        match asked.path:
            case "0/public/Time":
                return _wrapped({"unixtime": venue.now, "rfc1123": ""})
            case "0/public/Assets":
                return _wrapped(_assets(venue))
            case "0/public/AssetPairs":
                pairs = {key: _pair(one.symbol) for key, one in venue.listed()}
                return _wrapped(pairs)
            case "0/public/OHLC":
                return _wrapped(_ohlc(venue, asked))
        raise RefusedError(200, _failed("EGeneral:Unknown method"))


def _altname(code: str) -> str:
    return _OWN_NAMES.get(code, code)


def _asset(code: str) -> str:
    """Return Kraken's name of a currency: coins and money of its first years have a letter more."""
    name = _altname(code)
    if name in _OLD_MONEY:
        return f"Z{name}"
    return f"X{name}" if name in (*_OLD_COINS, "XDG") else name


def _assets(venue: Venue) -> dict[str, Any]:
    symbols = [one.symbol for _, one in venue.listed()]
    codes = dict.fromkeys(code for symbol in symbols for code in (symbol.base, symbol.quote))
    return {
        _asset(code): {
            "aclass": "currency",
            "altname": _altname(code),
            "decimals": 10,
            "display_decimals": 5,
            "status": "enabled",
        }
        for code in codes
    }


def _pair(symbol: Symbol) -> dict[str, Any]:
    base = _altname(symbol.base)
    return {
        "altname": base + symbol.quote,
        "wsname": f"{base}/{symbol.quote}",
        "aclass_base": "currency",
        "base": _asset(symbol.base),
        "aclass_quote": "currency",
        "quote": _asset(symbol.quote),
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


def _ohlc(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    if asked.query.get("interval") != "60":
        raise RefusedError(200, _failed("EGeneral:Invalid arguments"))
    kept = listing.market.page(venue.now, 0, EVER, KEPT, is_newest=True)
    since, begun = asked.integer("since", 0), venue.now - HOUR_S
    rows = [_row(bar) for bar in kept if bar.open_time > min(since, begun)]
    last = max((bar.open_time for bar in kept if bar.open_time <= begun), default=0)
    return {asked.key: rows, "last": last}


def _row(bar: RawBar) -> list[Any]:
    opened, high, low, closed, volume = (decimal(value) for value in bar[1:])
    return [bar.open_time, opened, high, low, closed, closed, volume, 1]


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        raise RefusedError(200, _failed("EQuery:Unknown asset pair"))
    return listing
