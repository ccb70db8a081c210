"""The client of crypto venues against the double: what is read, page by page, and how it fails."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from compute.bars import DAY_S, HOUR_S
from compute.sources.ccxt_venue import CcxtVenue
from compute.sources.venue import UnknownSymbolError, VenueError
from tests.serving import ManualClock
from tests.venues.double import VenuesDouble
from tests.venues.exchanges import EXCHANGES, PERPETUALS, SYMBOLS
from tests.venues.round_numbers import HOUR, bar, market

pytestmark = pytest.mark.clause("live")

Open = Callable[..., CcxtVenue]
DEFAULT = ("binance", "okx")
every = pytest.mark.parametrize(
    "name",
    [
        name if name in DEFAULT else pytest.param(name, marks=pytest.mark.prove)
        for name in EXCHANGES
    ],
)


@pytest.fixture
async def opened(double: VenuesDouble, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Open]:
    """Open clients of the double, without ccxt's pauses between requests."""
    async with AsyncExitStack() as closing:

        def open_one(name: str, *more: str, folder: Path = tmp_path) -> CcxtVenue:
            wanted = {*filter(None, SYMBOLS[name]), *more}
            kept = folder / f"{name}.json"
            venue = CcxtVenue(name, wanted, kept, clock, double.base_url, is_paced=False)
            closing.push_async_callback(venue.close)
            return venue

        yield open_one


async def refusal(asking: Awaitable[object]) -> VenueError:
    with pytest.raises(VenueError) as raised:
        await asking
    return raised.value


@every
async def test_bars_are_those_that_close_in_the_hours_asked_for(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol = SYMBOLS[name][0]
    double.venue(name).lists(symbol, market())
    bars = await opened(name).bars(symbol, HOUR - 3 * HOUR_S, HOUR)
    asked = [one for one in bars if HOUR - 3 * HOUR_S <= one.open_time < HOUR]
    assert sorted(asked) == [bar(-3), bar(-2), bar(-1)]
    if name != "kraken":
        assert len(bars) == 3


@every
async def test_a_long_history_is_read_in_pages_across_its_gaps(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, hours = SYMBOLS[name][0], 5500 if name in ("hyperliquid", "kucoin") else 2100
    venue = double.venue(name)
    venue.lists(symbol, market(before=hours)).withhold(HOUR - 900 * HOUR_S, HOUR - 500 * HOUR_S)
    bars = await opened(name).bars(symbol, HOUR - (hours + 50) * HOUR_S, HOUR)
    read = [(one.open_time - HOUR) // HOUR_S for one in bars if one.open_time < HOUR]
    first = -4999 if name == "hyperliquid" else -hours
    there = [n for n in range(first, 0) if not -900 <= n <= -500]
    assert sorted(read) == (there[-719:] if name == "kraken" else there)


@pytest.mark.parametrize("name", PERPETUALS)
async def test_settlements_are_those_in_the_hours_asked_for(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, one = PERPETUALS[name], market()
    double.venue(name).lists(symbol, one)
    told = await opened(name).funding(symbol, HOUR - 3 * DAY_S, HOUR)
    assert sorted(told) == [row for row in one.settlements if HOUR - 3 * DAY_S < row[0] <= HOUR]


@pytest.mark.parametrize("name", PERPETUALS)
async def test_settlements_of_every_hour_are_all_read(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, one = PERPETUALS[name], market()
    one = type(one)(one.bars(), [(HOUR - n * HOUR_S, n * 1e-6) for n in range(1500, -1, -1)])
    double.venue(name).lists(symbol, one)
    told = await opened(name).funding(symbol, HOUR - 50 * DAY_S, HOUR)
    assert sorted(told) == [row for row in one.settlements if row[0] > HOUR - 50 * DAY_S]


@every
async def test_the_clock_is_the_venues_own(
    double: VenuesDouble, opened: Open, clock: ManualClock, name: str
) -> None:
    double.venue(name).skew_ms = 45_000
    if name == "hyperliquid":
        double.venue(name).lists(SYMBOLS[name][0], market())
    assert abs(await opened(name).clock() - clock.now - 45_000) < 1000


@every
async def test_lists_are_of_what_is_wanted_and_asked_once_a_day_over_restarts(
    double: VenuesDouble, opened: Open, clock: ManualClock, name: str
) -> None:
    venue, symbol = double.venue(name), SYMBOLS[name][0]
    venue.lists(symbol, market())
    venue.lists(symbol.replace("BTC", "DOGE"), market())
    assert await opened(name).listed() == {symbol}
    asked = venue.count()
    assert await opened(name).listed() == {symbol}
    assert venue.count() == asked
    clock.now += DAY_S * 1000
    venue.delists(symbol)
    assert await opened(name).listed() == frozenset()


async def test_an_old_list_serves_while_the_venue_does_not_answer(
    double: VenuesDouble, opened: Open, clock: ManualClock
) -> None:
    venue = double.venue("binance")
    venue.lists("BTC/USDT", market())
    assert await opened("binance").listed() == {"BTC/USDT"}
    clock.now += DAY_S * 1000
    venue.misbehaves("unavailable", path="exchangeInfo", times=None)
    assert await opened("binance").listed() == {"BTC/USDT"}


async def test_a_kept_list_that_cannot_be_read_is_asked_for_again(
    double: VenuesDouble, opened: Open, tmp_path: Path
) -> None:
    double.venue("binance").lists("BTC/USDT", market())
    kept = tmp_path / "binance.json"
    wanted = [symbol for symbol in SYMBOLS["binance"] if symbol]
    broken = {"listed_at": 1, "wanted": wanted, "markets": {"X": 1}}
    for text in ("", "[]", json.dumps(broken)):
        kept.write_text(text)
        assert await opened("binance").listed() == {"BTC/USDT"}


@pytest.mark.parametrize("folder", ["file", "file/in-it"])
async def test_a_list_that_cannot_be_kept_stops_nothing(
    double: VenuesDouble, opened: Open, tmp_path: Path, folder: str
) -> None:
    double.venue("binance").lists("BTC/USDT", market())
    (tmp_path / "file").touch()
    client = opened("binance", folder=tmp_path / folder)
    assert await client.listed() == {"BTC/USDT"}
    assert await client.bars("BTC/USDT", HOUR - HOUR_S, HOUR)
    assert double.venue("binance").count("api/v3/exchangeInfo") == 1


async def test_a_kept_list_serves_those_alone_who_want_no_more(
    double: VenuesDouble, opened: Open
) -> None:
    for symbol in ("BTC/USDT", "DOGE/USDT"):
        double.venue("binance").lists(symbol, market())
    assert await opened("binance").listed() == {"BTC/USDT"}
    assert await opened("binance", "DOGE/USDT").listed() == {"BTC/USDT", "DOGE/USDT"}


async def test_a_list_of_a_time_to_come_is_asked_for_again(
    double: VenuesDouble, opened: Open, clock: ManualClock
) -> None:
    double.venue("binance").lists("BTC/USDT", market())
    clock.now += DAY_S * 1000
    assert await opened("binance").listed() == {"BTC/USDT"}
    clock.now -= DAY_S * 1000
    double.venue("binance").delists("BTC/USDT")
    assert await opened("binance").listed() == frozenset()


async def test_bars_of_what_was_not_listed_come_within_the_hour_of_its_return(
    double: VenuesDouble, opened: Open, clock: ManualClock
) -> None:
    client, span = opened("binance"), (HOUR - HOUR_S, HOUR)
    await client.listed()
    double.venue("binance").lists("BTC/USDT", market())
    assert isinstance(await refusal(client.bars("BTC/USDT", *span)), UnknownSymbolError)
    clock.now += HOUR_S * 1000
    assert await client.bars("BTC/USDT", *span)


async def test_a_symbol_that_went_away_between_lists_is_named_unknown(
    double: VenuesDouble, opened: Open
) -> None:
    double.venue("binance").lists("BTC/USDT", market())
    client = opened("binance")
    await client.listed()
    double.venue("binance").delists("BTC/USDT")
    error = await refusal(client.bars("BTC/USDT", HOUR - HOUR_S, HOUR))
    assert isinstance(error, UnknownSymbolError)
    assert error.reason == "binance does not list BTC/USDT, or no longer"


@every
async def test_a_symbol_that_is_not_listed_is_named_unknown(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    double.venue(name).lists(SYMBOLS[name][0].replace("BTC", "DOGE"), market())
    error = await refusal(opened(name).bars(SYMBOLS[name][0], HOUR - HOUR_S, HOUR))
    assert isinstance(error, UnknownSymbolError)


@every
async def test_every_trouble_ends_as_one_line_and_the_next_answer_is_good(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    venue, symbol = double.venue(name), SYMBOLS[name][0]
    venue.lists(symbol, market())
    client = opened(name)
    await client.listed()
    for kind in ("rate_limited", "unavailable", "truncated", "dropped", "banned"):
        venue.misbehaves(kind)
        error = await refusal(client.bars(symbol, HOUR - HOUR_S, HOUR))
        assert not isinstance(error, UnknownSymbolError), kind
        assert not error.is_permanent, kind
        assert error.reason.startswith(name), kind
        assert "\n" not in error.reason, kind
        assert len(error.reason) < 120, kind
        assert await client.bars(symbol, HOUR - HOUR_S, HOUR), kind


async def test_how_long_to_wait_is_told(double: VenuesDouble, opened: Open) -> None:
    venue = double.venue("binance")
    venue.lists("BTC/USDT", market())
    client = opened("binance")
    await client.listed()
    for wait_s in (17, None):
        venue.misbehaves("rate_limited", retry_after_s=wait_s)
        error = await refusal(client.bars("BTC/USDT", HOUR - HOUR_S, HOUR))
        assert error.retry_after_s == wait_s


@pytest.mark.parametrize("name", ["binance", "bybit"])
async def test_a_venue_that_refuses_the_country_refuses_for_good(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    double.venue(name).lists(SYMBOLS[name][0], market())
    double.venue(name).misbehaves("restricted", times=None)
    assert (await refusal(opened(name).listed())).is_permanent


async def test_a_venue_that_hangs_is_given_up(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    venue = double.venue("binance")
    venue.misbehaves("hanging", times=None)
    client = CcxtVenue(
        "binance", {"BTC/USDT"}, tmp_path / "kept", clock, double.base_url, timeout_s=0.05
    )
    try:
        error = await refusal(client.listed())
        assert not error.is_permanent
    finally:
        await client.close()
