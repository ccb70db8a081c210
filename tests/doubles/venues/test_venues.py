"""The double of the venues, read by the real exchange library like the venues themselves."""

import pytest

from compute.bars import HOUR_S, RawBar
from tests.doubles.venues.market import (
    EVER,
    HOUR,
    NOW,
    Market,
    make_bar,
    make_market,
)
from tests.doubles.venues.server import VenuesDouble
from tests.support.ccxt_exchanges import SYMBOLS, open_exchange

pytestmark = pytest.mark.clause("live")


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


def list_both(double: VenuesDouble, name: str) -> str:
    for symbol in filter(None, SYMBOLS[name]):
        double.get_venue(name).add_listing(symbol, make_market())
    return SYMBOLS[name][0]


@pytest.mark.prove
async def test_requests_are_counted_and_weighed_as_the_venue_does(double: VenuesDouble) -> None:
    double.get_venue("binance").add_listing("XAU/USDT:USDT", make_market())
    for name in ("binance", "hyperliquid"):
        symbol = list_both(double, name)
        async with open_exchange(double, name) as exchange:
            markets = await exchange.load_markets()
            await exchange.fetch_ohlcv(symbol, "1h", since=(HOUR - 9 * HOUR_S) * 1000)
        if name == "binance":
            assert markets["XAU/USDT:USDT"]["info"]["contractType"] == "TRADIFI_PERPETUAL"
    binance, hyperliquid = double.get_venue("binance"), double.get_venue("hyperliquid")
    assert (binance.sum_weights("exchangeInfo"), binance.sum_weights("klines")) == (22, 2)
    assert (hyperliquid.sum_weights("candleSnapshot"), hyperliquid.sum_weights("eta")) == (20, 80)
    assert binance.count_requests("klines", symbol="BTC/USDT") == 1
    assert binance.count_requests(symbol="BTC/USDT:USDT") == 0
