"""Hyperliquid's info endpoint as its documentation says: perpetuals of the venue and of builders.

Those of a builder's exchange are named like `xyz:GOLD`; here its unified symbol is XYZ-GOLD/...
A delisted perpetual stays in the list, marked, and keeps its bars.
"""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S, RawBar
from tests.venues.market import EVER
from tests.venues.venue import Answer, Asked, Kind, Listing, RefusedError, Symbol, Venue, decimal

KEPT, FUNDING_PAGE = 5000, 500
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
    """One path for all; what is asked for stands in the body as `type`."""

    hosts = ("api.hyperliquid.xyz",)
    troubles: Mapping[Kind, Answer] = {"rate_limited": (429, None), "banned": (429, None)}

    def key_of(self, symbol: Symbol) -> str:
        builder, _, coin = symbol.base.partition("-")
        return f"{builder.lower()}:{coin}" if coin else builder

    def place(self, asked: Asked) -> None:
        asked.path = asked.query.get("type", asked.path)
        asked.key = asked.query.get("coin")

    def answer(self, venue: Venue, asked: Asked) -> Any:
        asked.weight = 2 if asked.path in _LIGHT else 20
        match asked.path:
            case "exchangeStatus":
                return {"time": venue.now_ms, "specialStatuses": None}
            case "spotMeta":
                return _SPOT
            case "spotMetaAndAssetCtxs":
                return [_SPOT, [_CONTEXT | {"coin": "PURR/USDC"}]]
            case "perpDexs":
                return [None, *({"name": name, "fullName": name.upper()} for name in BUILDERS)]
            case "meta":
                return _meta(venue, asked)
            case "metaAndAssetCtxs":
                meta = _meta(venue, asked)
                return [meta, [_CONTEXT] * len(meta["universe"])]
            case "candleSnapshot":
                return _candles(venue, asked)
            case "fundingHistory":
                return _funding(venue, asked)
        raise RefusedError(422, "Failed to deserialize the JSON body into the target type")


def _meta(venue: Venue, asked: Asked) -> dict[str, Any]:
    builder = asked.query.get("dex", "")
    names = [(key, one) for key, one in venue.ever_listed() if _builder(key) == builder]
    universe = [_perpetual(key, one.is_listed(venue.now_ms)) for key, one in names]
    return {"universe": universe, "marginTables": [], "collateralToken": 0}


def _builder(key: str) -> str:
    return key.rpartition(":")[0]


def _perpetual(name: str, is_listed: bool) -> dict[str, Any]:
    row = {"name": name, "szDecimals": 3, "maxLeverage": 20, "marginTableId": 20}
    return row if is_listed else row | {"isDelisted": True}


def _candles(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    if asked.query.get("interval") != "1h":
        raise RefusedError(422, "Failed to deserialize the JSON body into the target type")
    first = max(asked.seconds("startTime", 0), venue.now - KEPT * HOUR_S)
    last = asked.integer("endTime", EVER * 1000) // 1000
    traded_until = min(venue.now, listing.until_ms // 1000)
    bars = listing.market.page(traded_until, first, last, KEPT)
    asked.weight += len(bars) // 60
    return [_candle(str(asked.key), bar) for bar in bars]


def _candle(coin: str, bar: RawBar) -> dict[str, Any]:
    opened, high, low, closed, volume = (decimal(value) for value in bar[1:])
    opened_ms = bar.open_time * 1000
    times = {"t": opened_ms, "T": opened_ms + HOUR_S * 1000 - 1, "s": coin, "i": "1h"}
    return times | {"o": opened, "c": closed, "h": high, "l": low, "v": volume, "n": 1}


def _funding(venue: Venue, asked: Asked) -> Any:
    listing = _found(venue, asked)
    first, last = asked.seconds("startTime", 0), asked.integer("endTime", EVER * 1000) // 1000
    traded_until = min(venue.now, listing.until_ms // 1000)
    rows = listing.market.settled(traded_until, first, last)[:FUNDING_PAGE]
    asked.weight += len(rows) // 20
    return [
        {"coin": asked.key, "fundingRate": decimal(rate), "premium": "0.0", "time": at * 1000}
        for at, rate in rows
    ]


def _found(venue: Venue, asked: Asked) -> Listing:
    listing = venue.ever_asked_for(asked)
    if listing is None:
        raise RefusedError(500, None)
    return listing
