"""OKX's public market data, API v5, as its documentation says: newest first, times exclusive."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.venues.market import EVER
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

RECENT, RECENT_PAGE = 1440, 300
# It was 100 for years and is 300 in newer documentation: who relies on 300 loses bars here.
HISTORY_PAGE = 100


def _wrapped(data: Any, code: str = "0", message: str = "") -> dict[str, Any]:
    return {"code": code, "msg": message, "data": data}


class Okx:
    """Whatever the window, of more bars than the limit the newest are returned."""

    hosts = ("www.okx.com",)
    troubles: Mapping[Kind, Answer] = {
        "rate_limited": (429, _wrapped([], "50011", "Too Many Requests")),
        "banned": (429, _wrapped([], "50011", "Too Many Requests")),
    }

    def key_of(self, symbol: Symbol) -> str:
        pair = f"{symbol.base}-{symbol.quote}"
        return f"{pair}-SWAP" if symbol.settle else pair

    def place(self, asked: Asked) -> None:
        asked.key = asked.query.get("instId")

    def answer(self, venue: Venue, asked: Asked) -> Any:
        match asked.path:
            case "api/v5/public/time":
                data: Any = [{"ts": str(venue.now_ms)}]
            case "api/v5/public/instruments":
                kind = asked.query.get("instType")
                data = [_instrument(key, one.symbol) for key, one in venue.listed()]
                data = [row for row in data if row["instType"] == kind]
            case "api/v5/market/candles":
                data = _candles(venue, asked, venue.now - RECENT * HOUR_S, RECENT_PAGE)
            case "api/v5/market/history-candles":
                rows = _candles(venue, asked, 0, HISTORY_PAGE)
                data = [row for row in rows if row[-1] == "1"]
            case "api/v5/public/funding-rate-history":
                data = _funding(venue, asked)
            case _:
                raise RefusedError(404, _wrapped([], "50404", "Not Found"))
        return _wrapped(data)


def _instrument(key: str, symbol: Symbol) -> dict[str, Any]:
    pair = f"{symbol.base}-{symbol.quote}"
    common = {
        "instId": key,
        "instType": "SPOT",
        "baseCcy": symbol.base,
        "quoteCcy": symbol.quote,
        "settleCcy": "",
        "uly": "",
        "instFamily": "",
        "ctVal": "",
        "expTime": "",
        "listTime": "1548133413000",
        "lever": "",
        "lotSz": "0.00000001",
        "minSz": "0.00001",
        "tickSz": "0.1",
        "state": "live",
    }
    if not symbol.settle:
        return common
    family = {"uly": pair, "instFamily": pair, "settleCcy": symbol.settle, "ctVal": "0.01"}
    empty = {"baseCcy": "", "quoteCcy": "", "ctType": "linear", "lever": "100"}
    return common | {"instType": "SWAP"} | family | empty


def _candles(venue: Venue, asked: Asked, oldest: int, most: int) -> list[list[str]]:
    listing = _found(venue, asked)
    if asked.query.get("bar") != "1H":
        raise RefusedError(200, _wrapped([], "51000", "Parameter bar error"))
    first, last = _window(asked)
    limit = min(asked.integer("limit", 100), most)
    bars = listing.market.page(venue.now, max(first, oldest), last, limit, is_newest=True)
    return [_candle(bar, venue.now) for bar in bars[::-1]]


def _window(asked: Asked) -> tuple[int, int]:
    """Return the first and the last whole second between `before` and `after`."""
    first = asked.integer("before", -1) // 1000 + 1
    return first, -(-asked.integer("after", EVER * 1000) // 1000) - 1


def _candle(bar: RawBar, now: int) -> list[str]:
    is_closed = bar.open_time + HOUR_S <= now
    values = [decimal(value) for value in bar[1:]]
    return [str(bar.open_time * 1000), *values, "0", "0", str(int(is_closed))]


def _funding(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    limit = min(asked.integer("limit", 400), 400)
    rows = listing.market.settled(venue.now, *_window(asked))[-limit:]
    return [
        {
            "instType": "SWAP",
            "instId": asked.key,
            "formulaType": "noRate",
            "fundingRate": decimal(rate),
            "realizedRate": decimal(rate),
            "fundingTime": str(at * 1000),
            "method": "current_period",
        }
        for at, rate in reversed(rows)
    ]


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.asked_for(asked)
    if listing is None:
        message = "Instrument ID, Instrument ID code, or Spread ID doesn't exist."
        raise RefusedError(200, _wrapped([], "51001", message))
    return listing
