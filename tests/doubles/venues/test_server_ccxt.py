"""The real exchange library reads every venue of the double like a real one."""

import pytest

from compute.bars import HOUR_S
from tests.doubles.venues.round_number_market import (
    FUNDED_EVERY_S,
    HOUR,
    NOW,
    make_bar,
    make_market,
)
from tests.doubles.venues.sample_markets import load_generated_market
from tests.doubles.venues.server import VenuesDouble
from tests.support.ccxt_exchanges import EXCHANGES, PERPETUALS, SYMBOLS, open_exchange
from tests.support.running_service import ManualClock

pytestmark = [pytest.mark.clause("live"), pytest.mark.prove]

every = pytest.mark.parametrize("name", EXCHANGES)
LOADING = {
    "binance": 3,
    "bybit": 11,
    "okx": 5,
    "kraken": 2,
    "hyperliquid": 5,
    "gate": 7,
    "kucoin": 4,
    "coinbase": 6,
}
# The number of bars on a page, and the index of its first among those since 5300 hours ago.
PAGES = {
    "binance": (1000, -5300),
    "bybit": (1000, -5300),
    "okx": (100, -5100),
    "kraken": (720, -719),
    "hyperliquid": (5000, -4999),
    "gate": (1000, -5300),
    "kucoin": (1500, -1499),
    "coinbase": (300, -5300),
}

# The same for settlements since the 600th last; a venue that returns the newest drops the first.
RATES = {
    "binance": (100, 600),
    "bybit": (200, 599),
    "okx": (400, 399),
    "hyperliquid": (500, 600),
    "gate": (100, 99),
    "kucoin": (100, 99),
}


def listed(double: VenuesDouble, name: str, before: int = 50) -> str:
    """List both markets of a venue and return the first's symbol."""
    first, second = SYMBOLS[name]
    for symbol in filter(None, (first, second)):
        double.get_venue(name).add_listing(symbol, make_market(before))
    return first


def rows(hours: range) -> list[list[float]]:
    return [[of.open_time * 1000, *of[1:]] for of in map(make_bar, hours)]


def ms(hours: int) -> int:
    return (HOUR + hours * HOUR_S) * 1000


@every
async def test_markets_are_loaded_under_their_unified_symbols(
    double: VenuesDouble, name: str
) -> None:
    listed(double, name)
    async with open_exchange(double, name) as exchange:
        markets = await exchange.load_markets()
    assert set(filter(None, SYMBOLS[name])) <= set(markets)
    assert double.get_venue(name).count_requests() == LOADING[name]


@every
async def test_bars_since_a_time_are_read_and_the_forming_one_comes_last(
    double: VenuesDouble, name: str
) -> None:
    symbol = listed(double, name)
    async with open_exchange(double, name) as exchange:
        read = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9), limit=20)
        few = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9), limit=3)
    assert read[:-1] == rows(range(-9, 0))
    assert read[-1][0] == ms(0)
    assert read[-1] != rows(range(1))[0]
    assert few == rows(range(-9, -6))


@every
async def test_a_page_holds_as_many_bars_as_the_venue_allows(
    double: VenuesDouble, name: str
) -> None:
    symbol = listed(double, name, before=5400)
    most, first = PAGES[name]
    async with open_exchange(double, name) as exchange:
        read = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-5300), limit=6000)
    assert (len(read), read[0]) == (most, rows(range(first, first + 1))[0])


async def test_okx_has_longer_pages_of_its_last_1440_bars(double: VenuesDouble) -> None:
    symbol = listed(double, "okx", before=1500)
    async with open_exchange(double, "okx") as exchange:
        read = await exchange.fetch_ohlcv(symbol, "1h", since=ms(-1400), limit=6000)
    assert read == rows(range(-1400, -1100))
    assert double.get_venue("okx").count_requests("market/candles") == 1


@pytest.mark.parametrize(("name", "symbol"), PERPETUALS.items())
async def test_settlements_of_a_perpetual_are_read(
    double: VenuesDouble, name: str, symbol: str
) -> None:
    listed(double, name)
    since = (HOUR - 4 * FUNDED_EVERY_S - 1) * 1000
    async with open_exchange(double, name) as exchange:
        read = await exchange.fetch_funding_rate_history(symbol, since=since)
    assert [row["timestamp"] for row in read] == [
        (HOUR - n * FUNDED_EVERY_S) * 1000 for n in (4, 3, 2, 1, 0)
    ]
    assert [row["fundingRate"] for row in read] == [n * 0.0001 for n in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(("name", "symbol"), PERPETUALS.items())
async def test_a_page_holds_as_many_settlements_as_the_venue_allows(
    double: VenuesDouble, name: str, symbol: str
) -> None:
    listed(double, name, before=700)
    most, first = RATES[name]
    since = (HOUR - 600 * FUNDED_EVERY_S) * 1000
    async with open_exchange(double, name) as exchange:
        read = await exchange.fetch_funding_rate_history(symbol, since=since)
    assert len(read) == most
    assert read[0]["timestamp"] == (HOUR - first * FUNDED_EVERY_S) * 1000


@every
async def test_server_time_is_the_clock_and_its_skew(
    double: VenuesDouble, clock: ManualClock, name: str
) -> None:
    venue = double.get_venue(name)
    async with open_exchange(double, name) as exchange:
        assert await exchange.fetch_time() == NOW * 1000
        venue.skew_ms = -45_000
        assert await exchange.fetch_time() == NOW * 1000 - 45_000


@every
async def test_a_delisted_symbol_is_no_longer_listed(double: VenuesDouble, name: str) -> None:
    symbol = listed(double, name)
    async with open_exchange(double, name) as exchange:
        assert (await exchange.load_markets())[symbol]["active"] is not False
        double.get_venue(name).remove_listing(symbol)
        gone = (await exchange.load_markets(True)).get(symbol)
    assert gone is None or gone["active"] is False
    assert (gone is None) == (name != "hyperliquid")


async def test_an_asset_outside_crypto_is_a_perpetual_of_its_own_kind(
    double: VenuesDouble,
) -> None:
    double.get_venue("binance").add_listing("XAU/USDT:USDT", make_market())
    async with open_exchange(double, "binance") as exchange:
        gold = (await exchange.load_markets())["XAU/USDT:USDT"]
        read = await exchange.fetch_ohlcv("XAU/USDT:USDT", "1h", since=ms(-2))
    assert gold["info"]["contractType"] == "TRADIFI_PERPETUAL"
    assert gold["swap"]
    assert read[:-1] == rows(range(-2, 0))


async def test_requests_are_counted_and_weighed_as_the_venue_does(double: VenuesDouble) -> None:
    for name in ("binance", "hyperliquid"):
        symbol = listed(double, name)
        async with open_exchange(double, name) as exchange:
            await exchange.load_markets()
            await exchange.fetch_ohlcv(symbol, "1h", since=ms(-9))
    binance, hyperliquid = double.get_venue("binance"), double.get_venue("hyperliquid")
    assert (binance.sum_weights("exchangeInfo"), binance.sum_weights("klines")) == (22, 2)
    assert (hyperliquid.sum_weights("candleSnapshot"), hyperliquid.sum_weights("eta")) == (20, 80)
    assert binance.count_requests("klines", symbol="BTC/USDT") == 1
    assert binance.count_requests(symbol="BTC/USDT:USDT") == 0


@every
async def test_bars_are_read_to_the_last_digit(
    double: VenuesDouble, clock: ManualClock, name: str
) -> None:
    symbol = SYMBOLS[name][0]
    recorded = double.get_venue(name).add_listing(symbol, load_generated_market("DOGE", newest=60))
    bars = recorded.all_bars()
    clock.now = (bars[-1].open_time + HOUR_S) * 1000
    async with open_exchange(double, name) as exchange:
        read = await exchange.fetch_ohlcv(symbol, "1h", since=bars[0].open_time * 1000, limit=60)
    assert read == [[of.open_time * 1000, *of[1:]] for of in bars]
