"""The formats of the crypto venues as documented: listings, bars, settlements and refusals."""

from collections.abc import Mapping
from typing import Any

from compute.bars import HOUR_S
from tests.doubles.venues.market import EVER, PERIODS
from tests.doubles.venues.venue import (
    Answer,
    Dialect,
    FailureKind,
    RefusedError,
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

    hosts = ("api.binance.com", "fapi.binance.com", "dapi.binance.com")
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (
            429,
            {
                "code": -1003,
                "msg": "Too much request weight used; current limit is 6000 request weight per 1 "
                "MINUTE. Please use WebSocket Streams for live updates to avoid polling the API.",
            },
        ),
        "banned": (
            418,
            {
                "code": -1003,
                "msg": "Way too much request weight used; IP banned until 1890000000000.",
            },
        ),
        "restricted": (
            451,
            {
                "code": 0,
                "msg": "Service unavailable from a restricted location according to 'b. "
                "Eligibility' in https://www.binance.com/en/terms. Please contact customer "
                "service if you believe you received this message in error.",
            },
        ),
    }
    no_symbol = 400, {"code": -1121, "msg": "Invalid symbol."}
    no_path = 404, {"code": -1100, "msg": "Not found."}
    pair: Mapping[str, Any] = {
        "symbol": "{base}{quote}",
        "status": "TRADING",
        "baseAsset": "{base}",
        "baseAssetPrecision": 8,
        "quoteAsset": "{quote}",
        "quotePrecision": 8,
        "quoteAssetPrecision": 8,
        "orderTypes": ["LIMIT", "MARKET"],
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "0", "tickSize": "0.01"},
            {"filterType": "LOT_SIZE", "minQty": "0.1", "maxQty": "9000", "stepSize": "0.1"},
        ],
        "permissions": [],
        "permissionSets": [["SPOT"]],
    }
    contract: Mapping[str, Any] = {
        **pair,
        "pair": "{base}{quote}",
        "deliveryDate": 4_133_404_800_000,
        "onboardDate": 1_569_398_400_000,
        "marginAsset": "{settle}",
        "pricePrecision": 2,
        "quantityPrecision": 3,
    }

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
        raise RefusedError(*self.no_path)

    def _format(self, symbol: Symbol) -> Any:
        if not symbol.settle:
            return symbol.fill(self.pair)
        kind = "TRADIFI_PERPETUAL" if symbol.base in ("XAU", "XAG", "XPT", "XPD") else "PERPETUAL"
        return symbol.fill(self.contract) | {"contractType": kind}

    def _answer_klines(self, venue: VenueDouble, request: VenueRequest, is_spot: bool) -> Rows:
        market = self.find_listing(venue, request).market
        if PERIODS.get(request.query.get("interval", "")) != market.period_s:
            raise RefusedError(400, {"code": -1120, "msg": "Invalid interval."})
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

    hosts = ("api.bybit.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (200, {"retCode": 10006, "retMsg": "Too many visits!", "result": {}}),
        "banned": (403, {"retCode": 10018, "retMsg": "Exceeded the IP Rate Limit.", "result": {}}),
        "restricted": (
            403,
            "<html><body>The Amazon CloudFront distribution is configured to block access from "
            "your country.</body></html>",
        ),
        "non_compliant": (
            200,
            {"retCode": 10024, "retMsg": "Compliance rules triggered", "result": {}},
        ),
    }
    no_symbol = 200, {"retCode": 10001, "retMsg": "Not supported symbols", "result": {}}
    no_path = 404, "404 page not found"
    pair: Mapping[str, Any] = {
        "symbol": "{base}{quote}",
        "status": "Trading",
        "baseCoin": "{base}",
        "quoteCoin": "{quote}",
        "priceFilter": {"tickSize": "0.01"},
        "innovation": "0",
        "marginTrading": "none",
        "lotSizeFilter": {
            "basePrecision": "0.000001",
            "minOrderQty": "0.00004",
            "maxOrderQty": "71",
        },
    }
    contract: Mapping[str, Any] = {
        **pair,
        "contractType": "LinearPerpetual",
        "settleCoin": "{settle}",
        "launchTime": "1585526400000",
        "deliveryTime": "0",
        "leverageFilter": {"minLeverage": "1", "maxLeverage": "100.00"},
        "lotSizeFilter": {"qtyStep": "0.001", "minOrderQty": "0.001", "maxOrderQty": "1190"},
        "fundingInterval": 480,
    }

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
                market = self.find_listing(venue, request).market
                if request.query.get("interval") != "60":
                    raise self.refuse("Invalid period!")
                is_newest = "start" not in request.query or "end" in request.query
                window, limit = request.get_window("start", "end"), request.get_limit(200, 1000)
                bars = market.get_page(venue.now, *window, limit, is_newest=is_newest)
                rows = [[str(bar.open_time * 1000), *to_texts(bar), "0"] for bar in bars[::-1]]
                result = result | {"list": rows}
            case "v5/market/funding/history":
                if "startTime" in request.query and "endTime" not in request.query:
                    raise self.refuse("endTime must be passed with startTime")
                rates = self.list_settlements(venue, request, "startTime", "endTime")
                newest = rates[-request.get_limit(200, 200) :][::-1]
                symbol = result["symbol"]
                rows = format_rates(newest, "fundingRate", "fundingRateTimestamp", symbol=symbol)
                result = result | {"list": rows}
            case _:
                raise RefusedError(*self.no_path)
        return {"retCode": 0, "retMsg": "OK", "result": result, "time": venue.now_ms}

    def refuse(self, message: str) -> RefusedError:
        return RefusedError(200, self.no_symbol[1] | {"retMsg": message})


class Okx(Dialect):
    """Newest first, bounds exclusive; of a window with more bars, only the newest are returned."""

    hosts = ("www.okx.com",)
    failures: Mapping[FailureKind, Answer] = dict.fromkeys(
        ("rate_limited", "banned"), (429, {"code": "50011", "msg": "Too Many Requests", "data": []})
    )
    no_symbol = (
        200,
        {
            "code": "51001",
            "msg": "Instrument ID, Instrument ID code, or Spread ID doesn't exist.",
            "data": [],
        },
    )
    no_path = 404, {"code": "50404", "msg": "Not Found", "data": []}
    key_name = "instId"
    # It was 100 for years; a client that relies on 300 loses bars.
    history_rows = 300
    pair: Mapping[str, Any] = {
        "instId": "{base}-{quote}",
        "instType": "SPOT",
        "baseCcy": "{base}",
        "quoteCcy": "{quote}",
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
    contract: Mapping[str, Any] = {
        **pair,
        "instId": "{base}-{quote}-SWAP",
        "instType": "SWAP",
        "baseCcy": "",
        "quoteCcy": "",
        "settleCcy": "{settle}",
        "uly": "{base}-{quote}",
        "instFamily": "{base}-{quote}",
        "ctVal": "0.01",
        "ctType": "linear",
        "lever": "100",
    }

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
                raise RefusedError(*self.no_path)
        return {"code": "0", "msg": "", "data": data}

    def _answer_candles(
        self, venue: VenueDouble, request: VenueRequest, oldest: int, most: int
    ) -> Rows:
        market = self.find_listing(venue, request).market
        if request.query.get("bar") != "1H":
            raise RefusedError(200, {"code": "51000", "msg": "Parameter bar error", "data": []})
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

    hosts = ("api.kraken.com",)
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (200, {"error": ["EGeneral:Too many requests"]}),
        "banned": (200, {"error": ["EGeneral:Temporary lockout"]}),
    }
    no_symbol = 200, {"error": ["EQuery:Unknown asset pair"]}
    no_path = 200, {"error": ["EGeneral:Unknown method"]}
    key_name = "pair"
    own_names: Mapping[str, str] = {"BTC": "XBT", "DOGE": "XDG"}
    old_coins = ("XBT", "ETH", "LTC", "XRP", "XMR", "ZEC", "ETC", "REP", "MLN", "XLM")
    old_money = ("USD", "EUR", "GBP", "CAD", "JPY")
    asset: Mapping[str, Any] = {
        "aclass": "currency",
        "decimals": 10,
        "display_decimals": 5,
        "status": "enabled",
    }
    pair: Mapping[str, Any] = {
        "aclass_base": "currency",
        "aclass_quote": "currency",
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
                raise RefusedError(*self.no_path)
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
        market = self.find_listing(venue, request).market
        if request.query.get("interval") != "60":
            raise RefusedError(200, {"error": ["EGeneral:Invalid arguments"]})
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

    hosts = ("api.hyperliquid.xyz",)
    failures: Mapping[FailureKind, Answer] = dict.fromkeys(("rate_limited", "banned"), (429, None))
    no_symbol = 500, None
    no_path = 422, "Failed to deserialize the JSON body into the target type"
    key_name = "coin"
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
        raise RefusedError(*self.no_path)

    def _answer_meta(self, venue: VenueDouble, request: VenueRequest) -> dict[str, Any]:
        universe = []
        for key, listing in venue.list_ever_listed():
            if key.rpartition(":")[0] == request.query.get("dex", ""):
                row = {"name": key, "szDecimals": 3, "maxLeverage": 20, "marginTableId": 20}
                mark = {} if listing.is_listed(venue.now_ms) else {"isDelisted": True}
                universe.append(row | mark)
        return {"universe": universe, "marginTables": [], "collateralToken": 0}

    def _answer_candles(self, venue: VenueDouble, request: VenueRequest) -> Rows:
        listing = self.find_listing(venue, request)
        interval, period_s = request.query.get("interval", ""), listing.market.period_s
        if PERIODS.get(interval) != period_s:
            raise RefusedError(*self.no_path)
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

    hosts = ("api.gateio.ws",)
    failures: Mapping[FailureKind, Answer] = dict.fromkeys(
        ("rate_limited", "banned"),
        (429, {"label": "TOO_MANY_REQUESTS", "message": "Request Rate limit Exceeded"}),
    )
    no_symbol = 400, {"label": "INVALID_CURRENCY_PAIR", "message": "Invalid currency pair"}
    no_path = 404, {"label": "NOT_FOUND", "message": "Not found"}
    pair: Mapping[str, Any] = {
        "id": "{base}_{quote}",
        "base": "{base}",
        "base_name": "{base}",
        "quote": "{quote}",
        "quote_name": "{quote}",
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
    contract: Mapping[str, Any] = {
        "name": "{base}_{quote}",
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
        raise RefusedError(*self.no_path)

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
            raise RefusedError(400, {"label": "INVALID_PARAM_VALUE", "message": message})
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

    hosts = ("api.kucoin.com", "api-futures.kucoin.com")
    failures: Mapping[FailureKind, Answer] = {
        "rate_limited": (429, {"code": "429000", "msg": "Too Many Requests"}),
        "banned": (403, {"code": "403000", "msg": "Rate limit exceeded, try again later"}),
    }
    no_symbol = 400, {"code": "400100", "msg": "This pair is not provided at present"}
    no_path = 404, {"code": "404000", "msg": "Not Found"}
    pair: Mapping[str, Any] = {
        "symbol": "{base}-{quote}",
        "name": "{base}-{quote}",
        "baseCurrency": "{base}",
        "quoteCurrency": "{quote}",
        "feeCurrency": "{quote}",
        "market": "USDS",
        "baseMinSize": "0.00001",
        "quoteMinSize": "0.1",
        "baseMaxSize": "10000000000",
        "quoteMaxSize": "99999999",
        "baseIncrement": "0.00000001",
        "quoteIncrement": "0.000001",
        "priceIncrement": "0.1",
        "priceLimitRate": "0.1",
        "isMarginEnabled": True,
        "enableTrading": True,
    }
    contract: Mapping[str, Any] = {
        "type": "FFWCSX",
        "firstOpenDate": 1_585_555_200_000,
        "expireDate": None,
        "quoteCurrency": "{quote}",
        "settleCurrency": "{settle}",
        "maxOrderQty": 1_000_000,
        "maxPrice": 1_000_000.0,
        "lotSize": 1,
        "tickSize": 0.1,
        "multiplier": 0.001,
        "isInverse": False,
        "status": "Open",
        "nextFundingRateTime": 25_481_884,
        "maxLeverage": 100,
    }

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
                raise RefusedError(*self.no_path)
        return {"code": "200000", "data": data}

    def _answer_candles(self, venue: VenueDouble, request: VenueRequest) -> Rows:
        market = self.find_listing(venue, request).market
        if request.query.get("type") != "1hour":
            message = "This type of K line is not provided"
            raise RefusedError(400, {"code": "400100", "msg": message})
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

    hosts = ("api.coinbase.com",)
    failures: Mapping[FailureKind, Answer] = dict.fromkeys(
        ("rate_limited", "banned"),
        (429, {"errors": [{"id": "rate_limit_exceeded", "message": "Too many requests"}]}),
    )
    no_symbol = (
        404,
        {"error": "NOT_FOUND", "error_details": "valid product_id is required", "message": ""},
    )
    no_path = 404, {"error": "NOT_FOUND", "error_details": "Not found", "message": "Not found"}
    products = "api/v3/brokerage/market/products"
    accounts: Mapping[str, Any] = {
        "v2/currencies": [],
        "v2/currencies/crypto": [],
        "v2/exchange-rates": {"currency": "USD", "rates": {}},
    }
    pair: Mapping[str, Any] = {
        "product_id": "{base}-{quote}",
        "price": "20000.5",
        "base_increment": "0.00000001",
        "quote_increment": "0.01",
        "quote_min_size": "1",
        "quote_max_size": "150000000",
        "base_min_size": "0.00000001",
        "base_max_size": "3400",
        "base_name": "{base}",
        "quote_name": "{quote}",
        "is_disabled": False,
        "status": "online",
        "trading_disabled": False,
        "product_type": "SPOT",
        "quote_currency_id": "{quote}",
        "base_currency_id": "{base}",
        "alias": "",
        "alias_to": [],
        "price_increment": "0.01",
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
            raise RefusedError(*self.no_path)
        market = self.find_listing(venue, request).market
        first, last = request.get_integer("start", 0), request.get_integer("end", 0)
        if request.query.get("granularity") != "ONE_HOUR" or (last - first) // HOUR_S >= 350:
            message = "number of candles requested should be less than 350"
            raise RefusedError(400, {"error": "INVALID_ARGUMENT", "message": message})
        names = ("open", "high", "low", "close", "volume")
        bars = market.get_page(venue.now, first, last, 350, is_newest=True)[::-1]
        rows = [dict(zip(names, to_texts(bar), strict=True)) for bar in bars]
        opened = [{"start": str(bar.open_time)} for bar in bars]
        return {"candles": [start | row for start, row in zip(opened, rows, strict=True)]}
