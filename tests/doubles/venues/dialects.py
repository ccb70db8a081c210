"""The formats of the crypto venues as documented: listings, bars, settlements and refusals."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S
from tests.doubles.venues.market import EVER, PERIODS
from tests.doubles.venues.venue import (
    Dialect,
    Symbol,
    VenueDouble,
    VenueRequest,
    format_decimal,
    to_texts,
)

Rows = list[Any]


def format_rates(
    rows: list[tuple[int, float]], name: str, time: str, as_text: type = str, **more: Any
) -> Rows:
    """Return settlements as objects with a rate and a time in ms, and the same other fields."""
    return [more | {name: format_decimal(rate), time: as_text(at * 1000)} for at, rate in rows]


class Binance(Dialect):
    """Spot and USD-margined futures: klines oldest first, the forming one last.

    A start counts from the oldest.
    """

    name = "binance"

    def to_key(self, symbol: Symbol) -> str:
        return f"{self.hosts[bool(symbol.settle)]} {symbol.base}{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        symbol = request.query.get("symbol")
        request.key = symbol and f"{request.host} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        is_spot = request.host == self.hosts[0]
        match request.path.rpartition("/")[2]:
            case "time":
                return {"serverTime": venue.now_ms}
            case "exchangeInfo":
                request.weight = 20 if is_spot else 1
                limits = {"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1}
                here = [s for key, s in venue.list_symbols() if key.startswith(request.host)]
                return {
                    "timezone": "UTC",
                    "serverTime": venue.now_ms,
                    "rateLimits": [limits | {"limit": 6000 if is_spot else 2400}],
                    "exchangeFilters": [],
                    "symbols": [self._format(symbol) for symbol in here],
                }
            case "klines":
                return self._answer_klines(venue, request, is_spot)
            case "fundingRate" if not is_spot:
                rows = self.list_settlements(venue, request, "startTime", "endTime")
                limit = min(request.get_integer("limit", 100), 1000)
                rows = rows[:limit] if "startTime" in request.query else rows[-limit:]
                symbol = request.query["symbol"]
                return format_rates(
                    rows, "fundingRate", "fundingTime", int, symbol=symbol, markPrice="1.0"
                )
        raise self.refuse("unknown_path")

    def _format(self, symbol: Symbol) -> Any:
        if not symbol.settle:
            return symbol.fill(self.pair)
        kind = "TRADIFI_PERPETUAL" if symbol.base in ("XAU", "XAG", "XPT", "XPD") else "PERPETUAL"
        return symbol.fill(self.contract) | {"contractType": kind}

    def _answer_klines(self, venue: VenueDouble, request: VenueRequest, is_spot: bool) -> Rows:
        market = self.find_listing(venue, request).market
        if PERIODS.get(request.query.get("interval", "")) != market.period_s:
            raise self.refuse("invalid_request")
        limit = min(request.get_integer("limit", 500), 1000 if is_spot else 1500)
        steps = ((99, 1), (499, 2), (1000, 5), (1500, 10))
        request.weight = 2 if is_spot else next(weight for most, weight in steps if limit <= most)
        window = request.get_window("startTime", "endTime")
        is_newest = "startTime" not in request.query
        bars = market.get_page(venue.now, *window, limit, is_newest=is_newest)
        period_ms, rest = market.period_s * 1000, ("0", 1, "0", "0", "0")
        opened_ms = [bar.open_time * 1000 for bar in bars]
        return [
            [at, *to_texts(bar), at + period_ms - 1, *rest]
            for at, bar in zip(opened_ms, bars, strict=True)
        ]


class Bybit(Dialect):
    """Newest first, HTTP 200 on errors.

    A request with only a start returns the oldest rows, any other the newest.
    """

    name = "bybit"

    def to_key(self, symbol: Symbol) -> str:
        return f"{'linear' if symbol.settle else 'spot'} {symbol.base}{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        symbol = request.query.get("symbol")
        request.key = symbol and f"{request.query.get('category', 'linear')} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        category = request.query.get("category", "")
        result: Any = {"category": category, "symbol": request.query.get("symbol")}
        match request.path:
            case "v5/market/time":
                second, rest = divmod(venue.now_ms, 1000)
                result = {"timeSecond": str(second), "timeNano": f"{second}{rest:03}000000"}
            case "v5/market/instruments-info":
                is_requested = request.query.get("status", "Trading") == "Trading"
                here = [s for k, s in venue.list_symbols() if k.startswith(f"{category} ")]
                rows = [s.fill(self.contract if s.settle else self.pair) for s in here]
                result = result | {"list": rows if is_requested else [], "nextPageCursor": ""}
            case "v5/market/kline":
                market = self.find_market(venue, request, interval="60")
                is_newest = "start" not in request.query or "end" in request.query
                window, limit = request.get_window("start", "end"), request.get_limit(200, 1000)
                bars = market.get_page(venue.now, *window, limit, is_newest=is_newest)
                rows = [[str(bar.open_time * 1000), *to_texts(bar), "0"] for bar in bars[::-1]]
                result = result | {"list": rows}
            case "v5/market/funding/history":
                if "startTime" in request.query and "endTime" not in request.query:
                    message = "endTime must be passed with startTime"
                    raise self.refuse("invalid_request", retMsg=message)
                rates = self.list_settlements(venue, request, "startTime", "endTime")
                newest = rates[-request.get_limit(200, 200) :][::-1]
                symbol = result["symbol"]
                rows = format_rates(newest, "fundingRate", "fundingRateTimestamp", symbol=symbol)
                result = result | {"list": rows}
            case _:
                raise self.refuse("unknown_path")
        return {"retCode": 0, "retMsg": "OK", "result": result, "time": venue.now_ms}


class Okx(Dialect):
    """Newest first, bounds exclusive; of a window with more bars, only the newest are returned."""

    name = "okx"

    # It was 100 for years; a client that relies on 300 loses bars.
    history_rows = 300

    def to_key(self, symbol: Symbol) -> str:
        return f"{symbol.base}-{symbol.quote}{'-SWAP' if symbol.settle else ''}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path:
            case "api/v5/public/time":
                data: Any = [{"ts": str(venue.now_ms)}]
            case "api/v5/public/instruments":
                symbols = [symbol for _, symbol in venue.list_symbols()]
                rows = [s.fill(self.contract if s.settle else self.pair) for s in symbols]
                data = [row for row in rows if row["instType"] == request.query.get("instType")]
            case "api/v5/market/candles":
                data = self._answer_candles(venue, request, venue.now - 1440 * HOUR_S, 300)
            case "api/v5/market/history-candles":
                rows = self._answer_candles(venue, request, 0, self.history_rows)
                data = [row for row in rows if row[-1] == "1"]
            case "api/v5/public/funding-rate-history":
                market = self.find_listing(venue, request).market
                rates = market.list_settlements(venue.now, *self._parse_window(request))
                newest = rates[-request.get_limit(400, 400) :][::-1]
                data = format_rates(
                    newest, "fundingRate", "fundingTime", instType="SWAP", instId=request.key
                )
                data = [row | {"realizedRate": row["fundingRate"]} for row in data]
            case _:
                raise self.refuse("unknown_path")
        return {"code": "0", "msg": "", "data": data}

    def _answer_candles(
        self, venue: VenueDouble, request: VenueRequest, oldest: int, most: int
    ) -> Rows:
        market = self.find_market(venue, request, bar="1H")
        first, last = self._parse_window(request)
        limit = request.get_limit(100, most)
        bars = market.get_page(venue.now, max(first, oldest), last, limit, is_newest=True)
        begun = venue.now - HOUR_S
        return [
            [str(b.open_time * 1000), *to_texts(b), "0", "0", str(int(b.open_time <= begun))]
            for b in bars[::-1]
        ]

    def _parse_window(self, request: VenueRequest) -> tuple[int, int]:
        """Return the first and the last whole second between `before` and `after`."""
        first = request.get_integer("before", -1) // 1000 + 1
        return first, -(-request.get_integer("after", EVER * 1000) // 1000) - 1


class Kraken(Dialect):
    """Spot with HTTP 200 on errors; the last 720 bars only, the forming one for any `since`."""

    name = "kraken"

    own_names: Mapping[str, str] = {"BTC": "XBT", "DOGE": "XDG"}
    old_coins = ("XBT", "ETH", "LTC", "XRP", "XMR", "ZEC", "ETC", "REP", "MLN", "XLM")
    old_money = ("USD", "EUR", "GBP", "CAD", "JPY")
    asset: Mapping[str, Any] = {
        "aclass": "currency",
        "decimals": 10,
        "display_decimals": 5,
        "status": "enabled",
    }

    def to_key(self, symbol: Symbol) -> str:
        base, quote = self._to_altname(symbol.base), symbol.quote
        is_old = base in self.old_coins and quote in self.old_money
        return f"X{base}Z{quote}" if is_old else f"{base}{quote}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        match request.path:
            case "0/public/Time":
                result: Any = {"unixtime": venue.now, "rfc1123": ""}
            case "0/public/Assets":
                codes = {code for _, s in venue.list_symbols() for code in (s.base, s.quote)}
                result = {
                    self._to_asset_code(code): self.asset | {"altname": self._to_altname(code)}
                    for code in sorted(codes)
                }
            case "0/public/AssetPairs":
                result = {key: self._format_pair(symbol) for key, symbol in venue.list_symbols()}
            case "0/public/OHLC":
                result = self._answer_ohlc(venue, request)
            case _:
                raise self.refuse("unknown_path")
        return {"error": [], "result": result}

    def _to_altname(self, code: str) -> str:
        return self.own_names.get(code, code)

    def _to_asset_code(self, code: str) -> str:
        """Return Kraken's name of a currency; the oldest ones have an additional letter."""
        name = self._to_altname(code)
        if name in self.old_money:
            return f"Z{name}"
        return f"X{name}" if name in (*self.old_coins, "XDG") else name

    def _format_pair(self, symbol: Symbol) -> dict[str, Any]:
        base = self._to_altname(symbol.base)
        names = {"altname": base + symbol.quote, "wsname": f"{base}/{symbol.quote}"}
        codes = map(self._to_asset_code, (symbol.base, symbol.quote))
        return {**self.pair, **names, **dict(zip(("base", "quote"), codes, strict=True))}

    def _answer_ohlc(self, venue: VenueDouble, request: VenueRequest) -> Any:
        market = self.find_market(venue, request, interval="60")
        kept = market.get_page(venue.now, 0, EVER, 720, is_newest=True)
        since, begun = request.get_integer("since", 0), venue.now - HOUR_S
        rows = []
        for bar in kept:
            opened, high, low, closed, volume = to_texts(bar)
            if bar.open_time > min(since, begun):
                rows.append([bar.open_time, opened, high, low, closed, closed, volume, 1])
        last = max((bar.open_time for bar in kept if bar.open_time <= begun), default=0)
        return {request.key: rows, "last": last}


class Hyperliquid(Dialect):
    """Perpetuals of the venue and of builders; `type` in the body selects the answer.

    Those of a builder's exchange are named like `xyz:GOLD`; here its unified symbol is
    XYZ-GOLD/... A delisted perpetual stays in the list, marked, and keeps its bars.
    """

    name = "hyperliquid"

    serves_delisted = True
    light = ("exchangeStatus", "allMids", "l2Book", "clearinghouseState", "orderStatus")
    spot: Mapping[str, Any] = {
        "tokens": [
            {"name": "USDC", "szDecimals": 8, "weiDecimals": 8, "index": 0, "isCanonical": True}
            | {"tokenId": "0x0", "fullName": None},
            {"name": "PURR", "szDecimals": 0, "weiDecimals": 5, "index": 1, "isCanonical": True}
            | {"tokenId": "0x0", "fullName": None},
        ],
        "universe": [{"name": "PURR/USDC", "tokens": [1, 0], "index": 0, "isCanonical": True}],
    }
    context: Mapping[str, Any] = {
        "funding": "0.0000125",
        "openInterest": "688.11",
        "prevDayPx": "15.322",
        "dayNtlVlm": "1169046.29406",
        "premium": "0.00031774",
        "oraclePx": "14.32",
        "markPx": "14.3161",
        "midPx": "14.314",
    }

    def to_key(self, symbol: Symbol) -> str:
        builder, _, coin = symbol.base.partition("-")
        return f"{builder.lower()}:{coin}" if coin else builder

    def fill_in_key(self, request: VenueRequest) -> None:
        request.path = request.query.get("type", request.path)
        super().fill_in_key(request)

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        request.weight = 2 if request.path in self.light else 20
        match request.path:
            case "exchangeStatus":
                return {"time": venue.now_ms, "specialStatuses": None}
            case "spotMeta":
                return self.spot
            case "spotMetaAndAssetCtxs":
                return [self.spot, [{**self.context, "coin": "PURR/USDC"}]]
            case "perpDexs":
                return [None, {"name": "xyz", "fullName": "XYZ"}]
            case "meta":
                return self._answer_meta(venue, request)
            case "metaAndAssetCtxs":
                meta = self._answer_meta(venue, request)
                return [meta, [self.context] * len(meta["universe"])]
            case "candleSnapshot":
                return self._answer_candles(venue, request)
            case "fundingHistory":
                until = min(venue.now, self.find_listing(venue, request).until_ms // 1000)
                rates = self.list_settlements(venue, request, "startTime", "endTime", until)[:500]
                request.weight += len(rates) // 20
                return format_rates(
                    rates, "fundingRate", "time", int, coin=request.key, premium="0.0"
                )
        raise self.refuse("unknown_path")

    def _answer_meta(self, venue: VenueDouble, request: VenueRequest) -> dict[str, Any]:
        universe = []
        for key, listing in venue.listings.items():
            if key.rpartition(":")[0] == request.query.get("dex", ""):
                row = {"name": key, "szDecimals": 3, "maxLeverage": 20, "marginTableId": 20}
                mark = {} if venue.now_ms < listing.until_ms else {"isDelisted": True}
                universe.append(row | mark)
        return {"universe": universe, "marginTables": [], "collateralToken": 0}

    def _answer_candles(self, venue: VenueDouble, request: VenueRequest) -> Rows:
        listing = self.find_listing(venue, request)
        interval, period_s = request.query.get("interval", ""), listing.market.period_s
        if PERIODS.get(interval) != period_s:
            raise self.refuse("unknown_path")
        first, last = request.get_window("startTime", "endTime")
        first = max(first, venue.now - 5000 * period_s)
        bars = listing.market.get_page(min(venue.now, listing.until_ms // 1000), first, last, 5000)
        request.weight += len(bars) // 60
        return [
            dict(zip("ohlcv", to_texts(bar), strict=True))
            | {"t": bar.open_time * 1000, "T": (bar.open_time + period_s) * 1000 - 1}
            | {"s": str(request.key), "i": interval, "n": 1}
            for bar in bars
        ]


class Gate(Dialect):
    """Spot and USDT perpetuals, errors by label; bars oldest first, each marked if it is closed."""

    name = "gate"

    def to_key(self, symbol: Symbol) -> str:
        kind = f"futures/{symbol.settle.lower()}" if symbol.settle else "spot"
        return f"{kind} {symbol.base}_{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        kind = request.path.removeprefix("api/v4/").rpartition("/")[0]
        symbol = request.query.get("currency_pair") or request.query.get("contract")
        request.key = symbol and f"{kind} {symbol}"

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        symbols = [symbol for _, symbol in venue.list_symbols()]
        match request.path.removeprefix("api/v4/").split("/"):
            case ["spot", "time"]:
                return {"server_time": venue.now_ms}
            case ["margin", "currency_pairs"] | ["spot", "currencies"]:
                return []
            case ["delivery", _, "contracts"] | ["options", "underlyings"]:
                return []
            case ["spot", "currency_pairs"]:
                return [symbol.fill(self.pair) for symbol in symbols if not symbol.settle]
            case ["futures", settle, "contracts"]:
                return [s.fill(self.contract) for s in symbols if s.settle.lower() == settle]
            case ["spot", "candlesticks"]:
                return self._answer_candlesticks(venue, request)
            case ["futures", _, "funding_rate"]:
                first = request.get_integer("from", 0)
                last = request.get_integer("to", venue.now)
                market = self.find_listing(venue, request).market
                rows = market.list_settlements(venue.now, first, last)
                newest = rows[-request.get_limit(100, 1000) :][::-1]
                return [{"t": at, "r": format_decimal(rate)} for at, rate in newest]
        raise self.refuse("unknown_path")

    def _answer_candlesticks(self, venue: VenueDouble, request: VenueRequest) -> Rows:
        market = self.find_listing(venue, request).market
        first, last = request.get_integer("from", 0), request.get_integer("to", venue.now)
        message = ""
        if request.query.get("interval") != "1h" or {"from", "limit"} <= request.query.keys():
            message = "Invalid request parameters"
        elif first < venue.now - 10_000 * HOUR_S:
            message = "Candlestick too long ago. Maximum 10000 points ago are allowed"
        elif last - first >= 1000 * HOUR_S:
            message = "Candlestick range too broad"
        if message:
            raise self.refuse("invalid_request", message=message)
        rows = []
        for bar in market.get_page(venue.now, first, last, 1000):
            opened, high, low, closed, volume = to_texts(bar)
            is_closed = str(bar.open_time + HOUR_S <= venue.now).lower()
            rows.append([str(bar.open_time), "0", closed, high, low, opened, volume, is_closed])
        return rows


class Kucoin(Dialect):
    """Spot and futures, codes in a body; newest first.

    A window of bars includes both its ends; if it exceeds a page, the newest are returned.
    """

    name = "kucoin"

    def to_key(self, symbol: Symbol) -> str:
        if not symbol.settle:
            return f"{symbol.base}-{symbol.quote}"
        return f"{self._to_own_name(symbol)}{symbol.quote}M"

    def _to_own_name(self, symbol: Symbol) -> str:
        return "XBT" if symbol.base == "BTC" else symbol.base

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        symbols = [symbol for _, symbol in venue.list_symbols()]
        match request.path:
            case "api/v1/timestamp":
                data: Any = venue.now_ms
            case "api/v3/currencies":
                data = []
            case "api/v1/market/allTickers":
                data = {"time": venue.now_ms, "ticker": []}
            case "api/v2/symbols":
                data = [symbol.fill(self.pair) for symbol in symbols if not symbol.settle]
            case "api/v1/contracts/active":
                data = [
                    symbol.fill(self.contract)
                    | {"symbol": self.to_key(symbol), "baseCurrency": self._to_own_name(symbol)}
                    for symbol in symbols
                    if symbol.settle
                ]
            case "api/v1/market/candles":
                data = self._answer_candles(venue, request)
            case "api/v1/contract/funding-rates":
                first = request.get_seconds("from", 0)
                last = request.get_integer("to", venue.now_ms) // 1000
                market = self.find_listing(venue, request).market
                rows = market.list_settlements(venue.now, first, last)[-100:]
                data = [
                    {"symbol": request.key, "fundingRate": rate, "timepoint": at * 1000}
                    for at, rate in reversed(rows)
                ]
            case _:
                raise self.refuse("unknown_path")
        return {"code": "200000", "data": data}

    def _answer_candles(self, venue: VenueDouble, request: VenueRequest) -> Rows:
        market = self.find_market(venue, request, type="1hour")
        first, last = request.get_integer("startAt", 0), request.get_integer("endAt", 0)
        rows = []
        for bar in market.get_page(venue.now, first, last, 1500, is_newest=True)[::-1]:
            opened, high, low, closed, volume = to_texts(bar)
            rows.append([str(bar.open_time), opened, closed, high, low, volume, "0"])
        return rows


class Coinbase(Dialect):
    """Public products of Advanced Trade: newest first, at most 350 bars.

    A window of bars includes both its ends; if it is too long, it is refused.
    """

    name = "coinbase"

    products = "api/v3/brokerage/market/products"
    accounts: Mapping[str, Any] = {
        "v2/currencies": [],
        "v2/currencies/crypto": [],
        "v2/exchange-rates": {"currency": "USD", "rates": {}},
    }

    def to_key(self, symbol: Symbol) -> str:
        return f"{symbol.base}-{symbol.quote}"

    def fill_in_key(self, request: VenueRequest) -> None:
        if request.path.startswith(f"{self.products}/"):
            request.key = request.path.removeprefix(f"{self.products}/").split("/")[0]

    def answer(self, venue: VenueDouble, request: VenueRequest) -> Any:
        if request.path in self.accounts:
            return {"data": self.accounts[request.path]}
        if request.path == "v2/time":
            return {"data": {"epoch": venue.now}}
        if request.path == self.products:
            is_spot = request.query.get("product_type", "SPOT") == "SPOT"
            listed = [symbol.fill(self.pair) for _, symbol in venue.list_symbols() if is_spot]
            return {"products": listed, "num_products": len(listed)}
        if request.path != f"{self.products}/{request.key}/candles":
            raise self.refuse("unknown_path")
        market = self.find_listing(venue, request).market
        first, last = request.get_integer("start", 0), request.get_integer("end", 0)
        if request.query.get("granularity") != "ONE_HOUR" or (last - first) // HOUR_S >= 350:
            raise self.refuse("invalid_request")
        names = ("open", "high", "low", "close", "volume")
        bars = market.get_page(venue.now, first, last, 350, is_newest=True)[::-1]
        rows = [dict(zip(names, to_texts(bar), strict=True)) for bar in bars]
        opened = [{"start": str(bar.open_time)} for bar in bars]
        return {"candles": [start | row for start, row in zip(opened, rows, strict=True)]}
