"""The double of the venues, read by the real exchange library like the venues themselves."""

from typing import Any

import aiohttp
import httpx
import pytest

from compute.bars import HOUR_S, RawBar
from compute.sources.ccxt_venue import ccxt
from tests.doubles.venues.market import (
    EVER,
    FUNDED_EVERY_S,
    HOUR,
    NOW,
    Market,
    halve_bars,
    make_bar,
    make_market,
)
from tests.doubles.venues.server import VenuesDouble
from tests.doubles.venues.venue import FailureKind
from tests.support.ccxt_exchanges import EXCHANGES, PERPETUALS, SYMBOLS, open_exchange

pytestmark = pytest.mark.clause("live")

prove = pytest.mark.prove
every = pytest.mark.parametrize("name", EXCHANGES)


def shown(of: Market, now: int = NOW, limit: int = 4) -> list[RawBar]:
    return of.get_page(now, 0, EVER, limit, is_newest=True)


def test_a_page_counts_from_the_oldest_or_the_newest_and_ends_with_the_forming_bar() -> None:
    every = make_market()
    forming = shown(every)[-1]
    assert forming.open_time == HOUR
    assert make_bar(0).low < forming.low == forming.close < forming.open == forming.high
    assert shown(every, HOUR + HOUR_S)[-2] == make_bar(0)
    assert every.get_page(NOW, HOUR - 9 * HOUR_S, EVER, 2) == [make_bar(-9), make_bar(-8)]
    assert every.get_page(NOW, 0, HOUR - HOUR_S, 2, is_newest=True) == [make_bar(-2), make_bar(-1)]


def test_bars_can_be_late_missing_revised_repeated_and_out_of_order() -> None:
    faulty = make_market()
    faulty.delay(HOUR - HOUR_S, 200)
    assert make_bar(-1) not in shown(faulty, HOUR + 199)
    assert make_bar(-1) in shown(faulty, HOUR + 200)
    faulty.withhold(HOUR - 5 * HOUR_S, HOUR - 3 * HOUR_S)
    assert shown(faulty, HOUR + 200)[:-1] == [make_bar(-6), make_bar(-2), make_bar(-1)]
    other = make_bar(-2)._replace(close=20_003.0)
    faulty.revise(other, NOW + 50)
    assert make_bar(-2) in shown(faulty, NOW + 49)
    assert other in shown(faulty, NOW + 50)
    faulty.repeat(HOUR - HOUR_S)
    assert shown(faulty, NOW + 50)[:-1] == [other, make_bar(-1), make_bar(-1)]
    faulty.shuffle()
    assert shown(faulty) != sorted(shown(faulty))


def test_a_split_rescales_adjusted_history() -> None:
    split = make_market()
    split.split(4, HOUR - HOUR_S)
    before = make_bar(-2)
    scaled = [price / 4 for price in before[1:5]]
    assert shown(split, HOUR - HOUR_S - 1)[-1].open == before.open
    assert shown(split)[1] == RawBar(before.open_time, *scaled, 41.0)
    raw = split.get_page(NOW, 0, EVER, 3, is_newest=True, is_adjusted=False)
    assert [row.open for row in raw] == [before.open, make_bar(-1).open / 4, make_bar(0).open / 4]


def test_halves_make_the_hour_exactly() -> None:
    wholes = [make_bar(-1), make_bar(0)._replace(close=19_995.125)]
    halves = halve_bars(Market(wholes)).all_bars()
    for whole, first, second in zip(wholes, halves[::2], halves[1::2], strict=True):
        assert (first.open_time, second.open_time) == (whole.open_time, whole.open_time + 1800)
        assert (first.open, second.close) == (whole.open, whole.close)
        assert max(first.high, second.high) == whole.high
        assert min(first.low, second.low) == whole.low
        assert first.volume + second.volume == whole.volume


def list_both(double: VenuesDouble, name: str, before: int = 50) -> str:
    for symbol in filter(None, SYMBOLS[name]):
        double.get_venue(name).add_listing(symbol, make_market(before))
    return SYMBOLS[name][0]


def rows(hours: range) -> list[list[float]]:
    return [[of.open_time * 1000, *of[1:]] for of in map(make_bar, hours)]


def ms(hours: int) -> int:
    return (HOUR + hours * HOUR_S) * 1000


# Requests that load the markets; the bars on a page, and its first among those since 5300 hours
# ago; settlements on a page, and its first since the 600th last: a venue that returns the newest
# drops the first.
SIZES = {
    "binance": (3, 1000, -5300, 100, 600),
    "bybit": (11, 1000, -5300, 200, 600),
    "okx": (5, 300, -5300, 400, 399),
    "kraken": (2, 720, -719, 0, 0),
    "hyperliquid": (5, 5000, -4999, 500, 600),
    "gate": (7, 1000, -5300, 100, 99),
    "kucoin": (4, 1500, -1499, 100, 99),
    "coinbase": (6, 300, -5300, 0, 0),
}


@every
@prove
async def test_markets_bars_settlements_and_the_clock_are_read_page_by_page(
    double: VenuesDouble, name: str
) -> None:
    symbol, venue = list_both(double, name, before=5400), double.get_venue(name)
    loading, most, first, most_rates, first_rate = SIZES[name]
    async with open_exchange(double, name) as exchange:
        markets = await exchange.load_markets()
        assert set(filter(None, SYMBOLS[name])) <= set(markets)
        assert markets[symbol]["active"] is not False
        assert venue.count_requests() == loading
        whole = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9), limit=20)
        assert whole[:-1] == rows(range(-9, 0))
        assert (whole[-1][0], whole[-1] != rows(range(1))[0]) == (ms(0), True)
        few = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9), limit=3)
        assert few == rows(range(-9, -6))
        page = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-5300), limit=6000)
        assert (len(page), page[0]) == (most, rows(range(first, first + 1))[0])
        if name in PERPETUALS:
            for back in (4, 600):
                since = (HOUR - back * FUNDED_EVERY_S) * 1000 - 1
                rates = await exchange.fetch_funding_rate_history(PERPETUALS[name], since=since)
                shown = [(HOUR - row["timestamp"] // 1000) // FUNDED_EVERY_S for row in rates]
                last = first_rate if back == 600 else 4
                assert (len(rates), shown[0]) == ((most_rates, last) if back == 600 else (5, 4))
                assert [row["fundingRate"] for row in rates] == [n * 0.0001 for n in shown]
        venue.skew_ms = -45_000
        assert await exchange.fetch_time() == NOW * 1000 - 45_000
        venue.skew_ms = 0
        venue.remove_listing(symbol)
        gone = (await exchange.load_markets(True)).get(symbol)
    assert gone is None or gone["active"] is False
    assert (gone is None) == (name != "hyperliquid")


@prove
async def test_requests_are_counted_and_weighed_as_the_venue_does(double: VenuesDouble) -> None:
    double.get_venue("binance").add_listing("XAU/USDT:USDT", make_market())
    for name in ("binance", "hyperliquid"):
        symbol = list_both(double, name)
        async with open_exchange(double, name) as exchange:
            markets = await exchange.load_markets()
            await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9))
        if name == "binance":
            assert markets["XAU/USDT:USDT"]["info"]["contractType"] == "TRADIFI_PERPETUAL"
    binance, hyperliquid = double.get_venue("binance"), double.get_venue("hyperliquid")
    assert (binance.sum_weights("exchangeInfo"), binance.sum_weights("klines")) == (22, 2)
    assert (hyperliquid.sum_weights("candleSnapshot"), hyperliquid.sum_weights("eta")) == (20, 80)
    assert binance.count_requests("klines", symbol="BTC/USDT") == 1
    assert binance.count_requests(symbol="BTC/USDT:USDT") == 0


BINANCE, GATE = "api.binance.com/api/v3/klines", "api.gateio.ws/api/v4/spot/candlesticks"
PRODUCTS = "api.coinbase.com/api/v3/brokerage/market/products"
REFUSALS = {
    f"{BINANCE}?symbol=NOPE&interval=1h": (400, {"code": -1121, "msg": "Invalid symbol."}),
    f"{BINANCE}?symbol=BTCUSDT&interval=9h": (400, {"code": -1120, "msg": "Invalid interval."}),
    "api.bybit.com/v5/market/kline?category=spot&symbol=NOPE": (200, {"retCode": 10001}),
    "api.bybit.com/v5/market/funding/history?category=linear&symbol=BTCUSDT&startTime=0": (
        200,
        {"retCode": 10001},
    ),
    "www.okx.com/api/v5/market/candles?instId=NOPE": (200, {"code": "51001"}),
    "api.kraken.com/0/public/OHLC?pair=NOPE": (200, {"error": ["EQuery:Unknown asset pair"]}),
    f"{GATE}?currency_pair=NOPE_USDT&interval=1h": (400, {"label": "INVALID_CURRENCY_PAIR"}),
    f"{GATE}?currency_pair=BTC_USDT&interval=1h&from=0": (400, {"label": "INVALID_PARAM_VALUE"}),
    "api.kucoin.com/api/v1/market/candles?symbol=NOPE-USDT&type=1hour": (400, {"code": "400100"}),
    f"{PRODUCTS}/NOPE-USD/candles": (404, {"error": "NOT_FOUND"}),
    f"{PRODUCTS}/BTC-USD/candles?granularity=ONE_HOUR&start={HOUR - 350 * HOUR_S}&end={HOUR}": (
        400,
        {"error": "INVALID_ARGUMENT"},
    ),
}


@prove
async def test_refusals_are_worded_as_documented(double: VenuesDouble) -> None:
    for name in EXCHANGES:
        list_both(double, name)
    async with httpx.AsyncClient(base_url=double.base_url, verify=False) as client:
        for path, (status, refusal) in REFUSALS.items():
            answer = await client.get(f"/{path}")
            assert answer.status_code == status, path
            assert answer.json().items() >= refusal.items(), path


BUSY = {
    "binance": ccxt.DDoSProtection,
    "kraken": ccxt.DDoSProtection,
    "kucoin": ccxt.ExchangeError,
}
UNKNOWN = {
    "kraken": ccxt.ExchangeError,
    "kucoin": ccxt.BadRequest,
    "coinbase": ccxt.ExchangeError,
}


async def bars(exchange: Any, name: str) -> list[list[float]]:
    """Read the last three bars before the hour, and the forming one."""
    read: list[list[float]] = await exchange.fetch_ohlcv(SYMBOLS[name][0], "1h", since=ms(-3))
    return read


async def failure(exchange: Any, name: str) -> Exception:
    with pytest.raises(ccxt.BaseError) as raised:
        await bars(exchange, name)
    return raised.value


@every
@prove
async def test_each_failing_response_is_an_exception_of_its_class_and_the_next_is_good(
    double: VenuesDouble, name: str
) -> None:
    venue, busy = double.get_venue(name), BUSY.get(name, ccxt.RateLimitExceeded)
    wrong = venue.add_listing(SYMBOLS[name][0], make_market())
    expected: dict[FailureKind, type[Exception]] = {
        "rate_limited": busy,
        "banned": busy,
        "restricted": ccxt.RateLimitExceeded if name == "bybit" else ccxt.ExchangeNotAvailable,
        "unavailable": ccxt.ExchangeNotAvailable,
        "dropped": ccxt.ExchangeError,
    }
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        for kind, error in expected.items():
            venue.add_failure(kind)
            failed = await failure(exchange, name)
            assert type(failed) is error, kind
            assert isinstance(failed.__cause__, aiohttp.ClientPayloadError) == (kind == "dropped")
            assert len(await bars(exchange, name)) == 4
        for wait_s in (7, None):
            venue.add_failure("rate_limited", retry_after_s=wait_s)
            assert not hasattr(await failure(exchange, name), "headers")
            assert exchange.last_response_headers.get("Retry-After") == (wait_s and str(wait_s))
        venue.add_failure("truncated")
        assert await bars(exchange, name) == []
        assert exchange.last_json_response is None
        exchange.timeout = 20
        held = venue.add_failure("hanging")
        assert type(await failure(exchange, name)) is ccxt.RequestTimeout
        held.released.set()
        exchange.timeout = 10_000
        wrong.shuffle()
        wrong.repeat(HOUR - 3 * HOUR_S)
        wrong.withhold(HOUR - 2 * HOUR_S)
        assert [row[0] for row in await bars(exchange, name)] == [ms(n) for n in (-3, -3, -1, 0)]
        venue.remove_listing(SYMBOLS[name][0], at_ms=ms(0) - 1000)
        if name != "hyperliquid":
            assert type(await failure(exchange, name)) is UNKNOWN.get(name, ccxt.BadSymbol)
