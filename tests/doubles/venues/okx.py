"""OKX's public market data, API v5, as its documentation says: newest first, times exclusive."""

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

RECENT, RECENT_PAGE = 1440, 300
# It was 100 for years and is 300 in newer documentation: who relies on 300 loses bars here.
HISTORY_PAGE = 100


def _wrap(data: Any, code: str = "0", message: str = "") -> dict[str, Any]:
    return {"code": code, "msg": message, "data": data}


class Okx:
    """Whatever the window, of more bars than the limit the newest are returned."""

    hosts = ("www.okx.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, _wrap([], "50011", "Too Many Requests")),
        "banned": (429, _wrap([], "50011", "Too Many Requests")),
    }

    def to_key(self, symbol: Symbol) -> str:
        pair = f"{symbol.base}-{symbol.quote}"
        return f"{pair}-SWAP" if symbol.settle else pair

    def fill_in_key(self, asked: VenueRequest) -> None:
        asked.key = asked.query.get("instId")

    def answer(self, venue: VenueDouble, asked: VenueRequest) -> Any:
        match asked.path:
            case "api/v5/public/time":
                data: Any = [{"ts": str(venue.now_ms)}]
            case "api/v5/public/instruments":
                kind = asked.query.get("instType")
                data = [_format_instrument(key, one.symbol) for key, one in venue.list_tradable()]
                data = [row for row in data if row["instType"] == kind]
            case "api/v5/market/candles":
                data = _answer_candles(venue, asked, venue.now - RECENT * HOUR_S, RECENT_PAGE)
            case "api/v5/market/history-candles":
                rows = _answer_candles(venue, asked, 0, HISTORY_PAGE)
                data = [row for row in rows if row[-1] == "1"]
            case "api/v5/public/funding-rate-history":
                data = _answer_funding(venue, asked)
            case _:
                raise RefusedError(404, _wrap([], "50404", "Not Found"))
        return _wrap(data)


def _format_instrument(key: str, symbol: Symbol) -> dict[str, Any]:
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


def _answer_candles(
    venue: VenueDouble, asked: VenueRequest, oldest: int, most: int
) -> list[list[str]]:
    listing = _find_listing(venue, asked)
    if asked.query.get("bar") != "1H":
        raise RefusedError(200, _wrap([], "51000", "Parameter bar error"))
    first, last = _parse_window(asked)
    limit = min(asked.get_integer("limit", 100), most)
    bars = listing.market.get_page(venue.now, max(first, oldest), last, limit, is_newest=True)
    return [_format_candle(bar, venue.now) for bar in bars[::-1]]


def _parse_window(asked: VenueRequest) -> tuple[int, int]:
    """Return the first and the last whole second between `before` and `after`."""
    first = asked.get_integer("before", -1) // 1000 + 1
    return first, -(-asked.get_integer("after", EVER * 1000) // 1000) - 1


def _format_candle(bar: RawBar, now: int) -> list[str]:
    is_closed = bar.open_time + HOUR_S <= now
    values = [format_decimal(value) for value in bar[1:]]
    return [str(bar.open_time * 1000), *values, "0", "0", str(int(is_closed))]


def _answer_funding(venue: VenueDouble, asked: VenueRequest) -> Any:
    listing = _find_listing(venue, asked)
    limit = min(asked.get_integer("limit", 400), 400)
    rows = listing.market.list_settlements(venue.now, *_parse_window(asked))[-limit:]
    return [
        {
            "instType": "SWAP",
            "instId": asked.key,
            "formulaType": "noRate",
            "fundingRate": format_decimal(rate),
            "realizedRate": format_decimal(rate),
            "fundingTime": str(at * 1000),
            "method": "current_period",
        }
        for at, rate in reversed(rows)
    ]


def _find_listing(venue: VenueDouble, asked: VenueRequest) -> Listing:
    listing = venue.find_listed(asked)
    if listing is None:
        message = "Instrument ID, Instrument ID code, or Spread ID doesn't exist."
        raise RefusedError(200, _wrap([], "51001", message))
    return listing
