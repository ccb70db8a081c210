"""The errors of the real exchange library at a failing venue."""

from typing import Any

import aiohttp
import ccxt.async_support as ccxt
import pytest

from compute.bars import HOUR_S
from tests.doubles.venues.round_number_market import HOUR, NOW, make_bar, make_market
from tests.doubles.venues.server import VenuesDouble
from tests.doubles.venues.venue import FailureKind, VenueRequest
from tests.support.ccxt_exchanges import EXCHANGES, SYMBOLS, open_exchange

pytestmark = [pytest.mark.clause("live"), pytest.mark.prove]

every = pytest.mark.parametrize("name", EXCHANGES)
BUSY = {
    "binance": ccxt.DDoSProtection,
    "bybit": ccxt.RateLimitExceeded,
    "okx": ccxt.RateLimitExceeded,
    "kraken": ccxt.DDoSProtection,
    "hyperliquid": ccxt.RateLimitExceeded,
    "gate": ccxt.RateLimitExceeded,
    "kucoin": ccxt.ExchangeError,
    "coinbase": ccxt.RateLimitExceeded,
}
UNKNOWN = {
    "kraken": ccxt.ExchangeError,
    "kucoin": ccxt.BadRequest,
    "coinbase": ccxt.ExchangeError,
}


async def bars(exchange: Any, name: str) -> list[list[float]]:
    """Read the last three bars before the hour, and the forming one."""
    since = (HOUR - 3 * HOUR_S) * 1000
    read: list[list[float]] = await exchange.fetch_ohlcv(SYMBOLS[name][0], "1h", since=since)
    return read


async def failure(exchange: Any, name: str) -> Exception:
    with pytest.raises(ccxt.BaseError) as raised:
        await bars(exchange, name)
    return raised.value


@every
async def test_each_failing_response_is_an_exception_of_its_class_and_the_next_is_good(
    double: VenuesDouble, name: str
) -> None:
    venue = double.get_venue(name)
    venue.add_listing(SYMBOLS[name][0], make_market())
    expected: dict[FailureKind, type[Exception]] = {
        "rate_limited": BUSY[name],
        "banned": BUSY[name],
        "restricted": ccxt.RateLimitExceeded if name == "bybit" else ccxt.ExchangeNotAvailable,
        "unavailable": ccxt.ExchangeNotAvailable,
        "dropped": ccxt.ExchangeError,
    }
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        for kind, error in expected.items():
            venue.add_failure(kind)
            assert type(await failure(exchange, name)) is error, kind
            assert len(await bars(exchange, name)) == 4


async def test_a_restricted_country_is_refused_by_status_and_text(double: VenuesDouble) -> None:
    venue = double.get_venue("binance")
    venue.add_listing("BTC/USDT", make_market())
    async with open_exchange(double, "binance") as exchange:
        venue.add_failure("restricted", times=None)
        refusal = str(await failure(exchange, "binance"))
        assert " 451 " in refusal
        assert "restricted location" in refusal


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_any_status_can_be_given(double: VenuesDouble, status: int) -> None:
    venue = double.get_venue("binance")
    venue.add_listing("BTC/USDT", make_market())
    async with open_exchange(double, "binance") as exchange:
        await exchange.load_markets()
        venue.add_failure("unavailable", status=status)
        error = await failure(exchange, "binance")
    assert isinstance(error, ccxt.RequestTimeout if status == 504 else ccxt.NetworkError)


@every
async def test_retry_after_is_in_the_headers_and_not_in_the_exception(
    double: VenuesDouble, name: str
) -> None:
    venue = double.get_venue(name)
    venue.add_listing(SYMBOLS[name][0], make_market())
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        venue.add_failure("rate_limited", retry_after_s=7)
        assert not hasattr(await failure(exchange, name), "headers")
        assert exchange.last_response_headers["Retry-After"] == "7"
        venue.add_failure("rate_limited")
        await failure(exchange, name)
        assert "Retry-After" not in exchange.last_response_headers


@every
async def test_a_truncated_response_reads_as_no_bars(double: VenuesDouble, name: str) -> None:
    venue = double.get_venue(name)
    venue.add_listing(SYMBOLS[name][0], make_market())
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        venue.add_failure("truncated")
        assert await bars(exchange, name) == []
        assert exchange.last_json_response is None


@every
async def test_a_hanging_socket_is_a_timeout(double: VenuesDouble, name: str) -> None:
    venue = double.get_venue(name)
    venue.add_listing(SYMBOLS[name][0], make_market())
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        exchange.timeout = 20
        held = venue.add_failure("hanging")
        assert type(await failure(exchange, name)) is ccxt.RequestTimeout
        held.released.set()
        exchange.timeout = 10_000
        assert len(await bars(exchange, name)) == 4


@every
async def test_a_symbol_delisted_between_two_lists_is_refused(
    double: VenuesDouble, name: str
) -> None:
    venue, symbol = double.get_venue(name), SYMBOLS[name][0]
    venue.add_listing(symbol, make_market())
    async with open_exchange(double, name) as exchange:
        await exchange.load_markets()
        venue.remove_listing(symbol, at_ms=(HOUR - 1) * 1000)
        if name == "hyperliquid":
            assert [row[0] for row in (await bars(exchange, name))[:-1]] == [
                make_bar(hours).open_time * 1000 for hours in (-3, -2)
            ]
        else:
            assert type(await failure(exchange, name)) is UNKNOWN.get(name, ccxt.BadSymbol)


@every
async def test_faulty_bars_reach_the_reader_sorted(double: VenuesDouble, name: str) -> None:
    wrong = double.get_venue(name).add_listing(SYMBOLS[name][0], make_market())
    wrong.shuffle()
    wrong.repeat(HOUR - 3 * HOUR_S)
    wrong.withhold(HOUR - 2 * HOUR_S)
    wrong.revise(make_bar(-1)._replace(volume=99.0), NOW)
    async with open_exchange(double, name) as exchange:
        read = await bars(exchange, name)
    assert [row[0] for row in read] == [
        make_bar(hours).open_time * 1000 for hours in (-3, -3, -1, 0)
    ]
    assert read[2][5] == 99.0


async def test_failures_can_concern_one_path_or_symbol_and_end_when_cleared(
    double: VenuesDouble,
) -> None:
    venue = double.get_venue("binance")
    for symbol in ("BTC/USDT", "ETH/USDT"):
        venue.add_listing(symbol, make_market())
    async with open_exchange(double, "binance") as exchange:
        venue.add_failure("unavailable", path="klines", symbol="BTC/USDT", times=None)
        assert len(await exchange.fetch_ohlcv("ETH/USDT", "1h")) == 51
        for _ in range(3):
            await failure(exchange, "binance")
        venue.clear_failures()
        assert len(await bars(exchange, "binance")) == 4


async def test_a_share_of_calls_fails_the_same_way_in_any_order_of_arrival(
    double: VenuesDouble,
) -> None:
    double.set_failure_share(0.05, seed=7)
    once = [_chosen(double, symbol) for symbol in _SYMBOLS]
    double.clear_failures()
    double.set_failure_share(0.05, seed=7)
    again = [_chosen(double, symbol) for symbol in reversed(_SYMBOLS)]
    assert once == again[::-1]
    assert 30 <= sum(map(bool, once)) <= 70
    assert len({trouble for trouble in once if trouble}) == 4


_SYMBOLS = tuple(f"S{number}USDT" for number in range(1000))


def _chosen(double: VenuesDouble, symbol: str) -> FailureKind | None:
    request = VenueRequest("api.binance.com", "api/v3/klines", {"symbol": symbol}, {}, 0)
    venue = double.get_venue("binance")
    venue.dialect.fill_in_key(request)
    trouble = venue.take_failure(request)
    return trouble.kind if trouble else None


async def test_a_dropped_connection_is_known_only_by_its_cause(double: VenuesDouble) -> None:
    venue = double.get_venue("binance")
    venue.add_listing("BTC/USDT", make_market())
    async with open_exchange(double, "binance") as exchange:
        await exchange.load_markets()
        venue.add_failure("dropped")
        error = await failure(exchange, "binance")
    assert not isinstance(error, ccxt.NetworkError)
    assert isinstance(error.__cause__, aiohttp.ClientPayloadError)
