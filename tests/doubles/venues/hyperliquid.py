"""Hyperliquid's info endpoint as documented: perpetuals of the venue and of builders.

Those of a builder's exchange are named like `xyz:GOLD`; here its unified symbol is XYZ-GOLD/...
A delisted perpetual stays in the list, marked, and keeps its bars.
"""

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

MAX_HISTORY, FUNDING_PAGE = 5000, 500
BUILDERS = ("xyz",)
_LIGHT = ("exchangeStatus", "allMids", "l2Book", "clearinghouseState", "orderStatus")
_USDC = {"name": "USDC", "szDecimals": 8, "weiDecimals": 8, "index": 0, "isCanonical": True}
_PURR = {"name": "PURR", "szDecimals": 0, "weiDecimals": 5, "index": 1, "isCanonical": True}
_TOKENS = [token | {"tokenId": "0x0", "fullName": None} for token in (_USDC, _PURR)]
_SPOT = {
    "tokens": _TOKENS,
    "universe": [{"name": "PURR/USDC", "tokens": [1, 0], "index": 0, "isCanonical": True}],
}
_CONTEXT = {
    "funding": "0.0000125",
    "openInterest": "688.11",
    "prevDayPx": "15.322",
    "dayNtlVlm": "1169046.29406",
    "premium": "0.00031774",
    "oraclePx": "14.32",
    "markPx": "14.3161",
    "midPx": "14.314",
}


class Hyperliquid:
    """One path serves all requests; `type` in the body selects the answer."""

    hosts = ("api.hyperliquid.xyz",)
    failures: Mapping[FailureKind, Answer] = {"rate_limited": (429, None), "banned": (429, None)}

    def to_key(self, symbol: Symbol) -> str:
        builder, _, coin = symbol.base.partition("-")
        return f"{builder.lower()}:{coin}" if coin else builder

    def fill_in_key(self, request: VenueRequest) -> None:
        request.path = request.query.get("type", request.path)
        request.key = request.query.get("coin")

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        request.weight = 2 if request.path in _LIGHT else 20
        match request.path:
            case "exchangeStatus":
                return {"time": venue.now_ms, "specialStatuses": None}
            case "spotMeta":
                return _SPOT
            case "spotMetaAndAssetCtxs":
                return [_SPOT, [_CONTEXT | {"coin": "PURR/USDC"}]]
            case "perpDexs":
                return [None, *({"name": name, "fullName": name.upper()} for name in BUILDERS)]
            case "meta":
                return _answer_meta(venue, request)
            case "metaAndAssetCtxs":
                meta = _answer_meta(venue, request)
                return [meta, [_CONTEXT] * len(meta["universe"])]
            case "candleSnapshot":
                return _answer_candles(venue, request)
            case "fundingHistory":
                return _answer_funding(venue, request)
        raise RefusedError(422, "Failed to deserialize the JSON body into the target type")


def _answer_meta(venue: VenueDouble, request: VenueRequest) -> dict[str, Any]:
    builder = request.query.get("dex", "")
    names = [(key, one) for key, one in venue.list_ever_listed() if _find_builder(key) == builder]
    universe = [_format_perpetual(key, one.is_listed(venue.now_ms)) for key, one in names]
    return {"universe": universe, "marginTables": [], "collateralToken": 0}


def _find_builder(key: str) -> str:
    return key.rpartition(":")[0]


def _format_perpetual(name: str, is_listed: bool) -> dict[str, Any]:
    row = {"name": name, "szDecimals": 3, "maxLeverage": 20, "marginTableId": 20}
    return row if is_listed else row | {"isDelisted": True}


def _answer_candles(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    interval, period_s = request.query.get("interval", ""), listing.market.period_s
    if PERIODS.get(interval) != period_s:
        raise RefusedError(422, "Failed to deserialize the JSON body into the target type")
    first = max(request.get_seconds("startTime", 0), venue.now - MAX_HISTORY * period_s)
    last = request.get_integer("endTime", EVER * 1000) // 1000
    traded_until = min(venue.now, listing.until_ms // 1000)
    bars = listing.market.get_page(traded_until, first, last, MAX_HISTORY)
    request.weight += len(bars) // 60
    return [_format_candle(str(request.key), interval, period_s, bar) for bar in bars]


def _format_candle(coin: str, interval: str, period_s: int, bar: RawBar) -> dict[str, Any]:
    opened, high, low, closed, volume = (format_decimal(value) for value in bar[1:])
    opened_ms = bar.open_time * 1000
    times = {"t": opened_ms, "T": opened_ms + period_s * 1000 - 1, "s": coin, "i": interval}
    return times | {"o": opened, "c": closed, "h": high, "l": low, "v": volume, "n": 1}


def _answer_funding(venue: VenueDouble, request: VenueRequest) -> Any:
    listing = _find_listing(venue, request)
    first, last = (
        request.get_seconds("startTime", 0),
        request.get_integer("endTime", EVER * 1000) // 1000,
    )
    traded_until = min(venue.now, listing.until_ms // 1000)
    rows = listing.market.list_settlements(traded_until, first, last)[:FUNDING_PAGE]
    request.weight += len(rows) // 20
    return [
        {
            "coin": request.key,
            "fundingRate": format_decimal(rate),
            "premium": "0.0",
            "time": at * 1000,
        }
        for at, rate in rows
    ]


def _find_listing(venue: VenueDouble, request: VenueRequest) -> Listing:
    listing = venue.find_ever_listed(request)
    if listing is None:
        raise RefusedError(500, None)
    return listing
