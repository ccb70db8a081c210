"""The client of crypto venues against the double: bars and rates page by page, and failures."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compute.bars import DAY_S, HOUR_S, RawBar, Series, find_settlement_fault, validate_bars
from compute.sources.alpaca import AlpacaVenue
from compute.sources.ccxt_venue import REFUSED_AFTER_MS, CcxtVenue
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from compute.universe import VenueOptions
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.doubles.venues.dialects import Okx
from tests.doubles.venues.market import HOUR, Market, halve_bars, make_bar, make_market
from tests.doubles.venues.server import VenuesDouble
from tests.doubles.venues.venue import RECORDED, FailureKind, VenueDouble
from tests.support.live_service import load_venue_options
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")


# A market with bars, and one that also has funding if the venue has perpetuals.
SYMBOLS = {
    "binance": ("BTC/USDT", "BTC/USDT:USDT"),
    "bybit": ("BTC/USDT", "BTC/USDT:USDT"),
    "okx": ("BTC/USDT", "BTC/USDT:USDT"),
    "kraken": ("BTC/USD", None),
    "hyperliquid": ("BTC/USDC:USDC", "XYZ-GOLD/USDC:USDC"),
    "gate": ("BTC/USDT", "BTC/USDT:USDT"),
    "kucoin": ("BTC/USDT", "BTC/USDT:USDT"),
    "coinbase": ("BTC/USD", None),
}
EXCHANGES = tuple(SYMBOLS)
PERPETUALS = {name: perpetual for name, (_, perpetual) in SYMBOLS.items() if perpetual}
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

        def open_one(
            name: str,
            *more: str,
            folder: Path = tmp_path,
            given: VenueOptions | None = None,
            timeout_s: float = 5.0,
            is_paced: bool = False,
        ) -> CcxtVenue:
            wanted, kept = {*filter(None, SYMBOLS[name]), *more}, folder / f"{name}.json"
            options = given or load_venue_options(name)
            venue = CcxtVenue(
                *(name, wanted, options, kept, clock, double.base_url),
                timeout_s=timeout_s,
                is_paced=is_paced,
            )
            closing.push_async_callback(venue.close)
            return venue

        yield open_one


@pytest.fixture
def binance(double: VenuesDouble) -> VenueDouble:
    """Binance with a market of Bitcoin."""
    venue = double.get_venue("binance")
    venue.add_listing("BTC/USDT", make_market())
    return venue


async def refusal(asking: Awaitable[object]) -> VenueError:
    with pytest.raises(VenueError) as raised:
        await asking
    return raised.value


RESPONSES = [(name, method) for name in RECORDED for method in RECORDED[name].get("methods", ())]


@pytest.mark.parametrize(("name", "method"), RESPONSES)
async def test_a_recorded_response_is_read_as_the_exchange_client_reads_it(
    double: VenuesDouble, opened: Open, name: str, method: str
) -> None:
    [recorded] = RECORDED[name]["methods"][method]
    symbol, since_ms = recorded["input"][0], recorded["input"][-2]
    venue, client = double.get_venue(name), opened(name)
    venue.add_listing(symbol, make_market())
    venue.add_failure(
        "garbled", path=recorded["path"], garble=lambda body: recorded["httpResponse"]
    )
    if method == "fetchOHLCV":
        bars = await client.fetch_bars(symbol, since_ms // 1000, HOUR, HOUR_S)
        expected = [RawBar(row[0] // 1000, *row[1:]) for row in recorded["parsedResponse"]]
        assert sorted(bars) == expected
    else:
        rates = await client.fetch_funding(symbol, since_ms // 1000, HOUR)
        expected_rates = [
            (row["timestamp"] // 1000, row["fundingRate"]) for row in recorded["parsedResponse"]
        ]
        assert sorted(rates) == expected_rates
    assert venue.count_requests(recorded["path"]) == 1


@every
async def test_bars_are_those_that_close_in_the_requested_hours(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol = SYMBOLS[name][0]
    double.get_venue(name).add_listing(symbol, make_market())
    bars = await opened(name).fetch_bars(symbol, HOUR - 3 * HOUR_S, HOUR, HOUR_S)
    requested = [one for one in bars if HOUR - 3 * HOUR_S <= one.open_time < HOUR]
    assert sorted(requested) == [make_bar(-3), make_bar(-2), make_bar(-1)]
    if name != "kraken":
        assert len(bars) == 3


@every
async def test_a_long_history_is_read_in_pages_across_its_gaps(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, hours = SYMBOLS[name][0], 5500 if name in ("hyperliquid", "kucoin") else 2100
    venue = double.get_venue(name)
    venue.add_listing(symbol, make_market(before=hours)).withhold(
        HOUR - 900 * HOUR_S, HOUR - 500 * HOUR_S
    )
    bars = await opened(name).fetch_bars(symbol, HOUR - (hours + 50) * HOUR_S, HOUR, HOUR_S)
    read = [(one.open_time - HOUR) // HOUR_S for one in bars if one.open_time < HOUR]
    first = -4999 if name == "hyperliquid" else -hours
    there = [n for n in range(first, 0) if not -900 <= n <= -500]
    assert sorted(read) == (there[-719:] if name == "kraken" else there)


@pytest.mark.parametrize(("history_rows", "requests"), [(300, 7), (100, 22)])
async def test_okx_is_read_in_its_largest_pages_even_if_they_are_smaller_again(
    double: VenuesDouble, opened: Open, history_rows: int, requests: int
) -> None:
    venue = double.get_venue("okx")
    venue.add_listing("BTC/USDT", make_market(before=2100))
    assert isinstance(venue.dialect, Okx)
    venue.dialect.history_rows = history_rows
    bars = await opened("okx").fetch_bars("BTC/USDT", HOUR - 2100 * HOUR_S, HOUR, HOUR_S)
    assert sorted(bars) == [make_bar(n) for n in range(-2100, 0)]
    assert venue.count_requests("candles") == requests


def test_an_exchange_is_imported_without_all_others_of_ccxt() -> None:
    code = "import sys; from compute.sources.ccxt_venue import import_exchange as found; "
    code += "print(found('binance').__name__, found('nope'), found('base')); "
    code += "print('ccxt.async_support.bitget' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "binance None None\nFalse\n"


@pytest.mark.parametrize("name", PERPETUALS)
async def test_settlements_of_every_hour_are_all_read(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, one = PERPETUALS[name], make_market()
    one = type(one)(one.all_bars(), [(HOUR - n * HOUR_S, n * 1e-6) for n in range(1500, -1, -1)])
    double.get_venue(name).add_listing(symbol, one)
    fetched_rates = await opened(name).fetch_funding(symbol, HOUR - 50 * DAY_S, HOUR)
    assert sorted(fetched_rates) == [row for row in one.settlements if row[0] > HOUR - 50 * DAY_S]


@every
async def test_the_clock_is_the_venues_own(
    double: VenuesDouble, opened: Open, clock: ManualClock, name: str
) -> None:
    double.get_venue(name).skew_ms = 45_000
    if name == "hyperliquid":
        double.get_venue(name).add_listing(SYMBOLS[name][0], make_market())
    assert abs(await opened(name).fetch_time_ms() - clock.now - 45_000) < 1000


@every
async def test_lists_hold_the_wanted_symbols_and_are_fetched_once_a_day_even_over_restarts(
    double: VenuesDouble, opened: Open, clock: ManualClock, name: str
) -> None:
    venue, symbol = double.get_venue(name), SYMBOLS[name][0]
    venue.add_listing(symbol, make_market())
    venue.add_listing(symbol.replace("BTC", "DOGE"), make_market())
    assert await opened(name).fetch_symbols() == {symbol}
    requested = venue.count_requests()
    assert await opened(name).fetch_symbols() == {symbol}
    assert venue.count_requests() == requested
    clock.now += DAY_S * 1000
    venue.remove_listing(symbol)
    assert await opened(name).fetch_symbols() == frozenset()


async def test_the_list_of_hyperliquid_goes_at_once_and_its_bars_at_their_pace(
    double: VenuesDouble, opened: Open
) -> None:
    double.get_venue("hyperliquid").add_listing("BTC/USDC:USDC", make_market())
    client = opened("hyperliquid", is_paced=True)
    bucket = client._exchange.throttler.config
    assert await client.fetch_symbols() == {"BTC/USDC:USDC"}
    # No request had to wait. The four units of bars have a weight of 20, of 1,200 a minute.
    assert bucket["tokens"] >= 0
    assert bucket["refillRate"] * 60_000 / 4 * 20 <= 1200


@pytest.mark.parametrize("kind", ["unavailable", "garbled"])
async def test_an_old_list_serves_while_the_venue_has_none_that_can_be_read(
    binance: VenueDouble, opened: Open, clock: ManualClock, kind: FailureKind
) -> None:
    client = opened("binance")
    assert await client.fetch_symbols() == {"BTC/USDT"}
    clock.now += DAY_S * 1000
    binance.add_failure(
        kind, path="exchangeInfo", times=None, garble=lambda body: {"symbols": [None]}
    )
    for each in (client, opened("binance")):
        assert await each.fetch_symbols() == {"BTC/USDT"}
    with pytest.raises(VenueError, match=r"^binance (answered HTTP 503|gave an unreadable answer)"):
        await opened("binance", folder=Path("/dev/null")).fetch_symbols()


@pytest.mark.prove
async def test_a_kept_list_that_cannot_be_read_is_fetched_again(
    binance: VenueDouble, opened: Open, tmp_path: Path
) -> None:
    kept = tmp_path / "binance.json"
    wanted = [symbol for symbol in SYMBOLS["binance"] if symbol]
    await opened("binance").fetch_symbols()
    good = json.loads(kept.read_text())
    assert good["wanted"] == sorted(wanted)
    broken = (
        {"markets": {"X": 1}},
        {"markets": {"BTC/USDT": None}},
        {"markets": {"BTC/USDT": {"symbol": "ETH/USDT"}}},
        {"markets": []},
        {"listed_at": None},
        {"listed_at": "x"},
        {"wanted": None},
        {"ccxt": "4.0.0"},
    )
    for text in ("", "[]", "[" * 100_000, *(json.dumps(good | change) for change in broken)):
        kept.write_text(text)
        requested = binance.count_requests("exchangeInfo")
        assert await opened("binance").fetch_symbols() == {"BTC/USDT"}
        assert binance.count_requests("exchangeInfo") > requested, text[:80]


@pytest.mark.parametrize("folder", ["file", "file/in-it"])
async def test_a_list_that_cannot_be_saved_stops_nothing(
    binance: VenueDouble, opened: Open, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    client = opened("binance", folder=tmp_path / folder)
    assert await client.fetch_symbols() == {"BTC/USDT"}
    assert await client.fetch_bars("BTC/USDT", HOUR - HOUR_S, HOUR, HOUR_S)
    assert binance.count_requests("api/v3/exchangeInfo") == 1


async def test_a_kept_list_serves_only_clients_that_want_no_further_symbols(
    double: VenuesDouble, opened: Open
) -> None:
    for symbol in ("BTC/USDT", "DOGE/USDT"):
        double.get_venue("binance").add_listing(symbol, make_market())
    assert await opened("binance").fetch_symbols() == {"BTC/USDT"}
    assert await opened("binance", "DOGE/USDT").fetch_symbols() == {"BTC/USDT", "DOGE/USDT"}


async def test_a_list_dated_in_the_future_is_fetched_again(
    binance: VenueDouble, opened: Open, clock: ManualClock
) -> None:
    clock.now += DAY_S * 1000
    assert await opened("binance").fetch_symbols() == {"BTC/USDT"}
    clock.now -= DAY_S * 1000
    binance.remove_listing("BTC/USDT")
    assert await opened("binance").fetch_symbols() == frozenset()


async def test_bars_of_a_relisted_symbol_come_within_an_hour(
    double: VenuesDouble, opened: Open, clock: ManualClock
) -> None:
    client, span = opened("binance"), (HOUR - HOUR_S, HOUR)
    await client.fetch_symbols()
    double.get_venue("binance").add_listing("BTC/USDT", make_market())
    assert isinstance(
        await refusal(client.fetch_bars("BTC/USDT", *span, HOUR_S)), UnknownSymbolError
    )
    clock.now += HOUR_S * 1000
    assert await client.fetch_bars("BTC/USDT", *span, HOUR_S)


async def test_a_symbol_delisted_between_two_lists_is_reported_as_unknown(
    binance: VenueDouble, opened: Open
) -> None:
    client = opened("binance")
    await client.fetch_symbols()
    binance.remove_listing("BTC/USDT")
    error = await refusal(client.fetch_bars("BTC/USDT", HOUR - HOUR_S, HOUR, HOUR_S))
    assert isinstance(error, UnknownSymbolError)
    assert error.reason == "binance does not list BTC/USDT, or no longer does"


@every
async def test_a_symbol_that_is_not_listed_is_reported_as_unknown(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    double.get_venue(name).add_listing(SYMBOLS[name][0].replace("BTC", "DOGE"), make_market())
    error = await refusal(opened(name).fetch_bars(SYMBOLS[name][0], HOUR - HOUR_S, HOUR, HOUR_S))
    assert isinstance(error, UnknownSymbolError)


@every
async def test_every_trouble_ends_as_one_line_and_the_next_answer_is_good(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    venue, symbol = double.get_venue(name), SYMBOLS[name][0]
    venue.add_listing(symbol, make_market())
    client = opened(name)
    await client.fetch_symbols()
    for kind in ("rate_limited", "unavailable", "maintenance", "truncated", "dropped", "banned"):
        venue.add_failure(kind)
        error = await refusal(client.fetch_bars(symbol, HOUR - HOUR_S, HOUR, HOUR_S))
        assert not isinstance(error, UnknownSymbolError), kind
        assert not error.is_permanent, kind
        assert error.reason.startswith(name), kind
        assert "\n" not in error.reason, kind
        assert len(error.reason) < 120, kind
        assert await client.fetch_bars(symbol, HOUR - HOUR_S, HOUR, HOUR_S), kind


async def test_the_requested_wait_is_reported(binance: VenueDouble, opened: Open) -> None:
    client = opened("binance")
    await client.fetch_symbols()
    for wait_s in (17, None):
        binance.add_failure("rate_limited", retry_after_s=wait_s)
        error = await refusal(client.fetch_bars("BTC/USDT", HOUR - HOUR_S, HOUR, HOUR_S))
        assert error.retry_after_s == wait_s


async def test_a_status_or_code_for_a_restricted_location_is_a_refusal(
    double: VenuesDouble, opened: Open
) -> None:
    double.get_venue("binance").add_failure("restricted", times=None)
    assert (await refusal(opened("binance").fetch_symbols())).is_permanent
    double.get_venue("bybit").add_failure("non_compliant", times=None)
    assert (await refusal(opened("bybit").fetch_symbols())).is_permanent


async def test_a_page_with_403_is_a_refusal_once_it_was_the_only_answer_for_three_hours(
    double: VenuesDouble, opened: Open, clock: ManualClock
) -> None:
    bybit, client = double.get_venue("bybit"), opened("bybit")

    async def is_refused() -> bool:
        return (await refusal(client.fetch_time_ms())).is_permanent

    bybit.add_failure("restricted", times=None)
    assert not await is_refused()
    clock.now += REFUSED_AFTER_MS - 1
    assert not await is_refused()
    clock.now += 1
    assert await is_refused()
    double.clear_failures()
    await client.fetch_time_ms()
    bybit.add_failure("restricted", times=None)
    assert not await is_refused()
    clock.now += REFUSED_AFTER_MS
    bybit.clear_failures()
    bybit.add_failure("unavailable", times=None)
    assert not await is_refused()


@pytest.mark.parametrize("name", ["bybit", "kucoin"])
async def test_a_403_of_the_venue_itself_is_a_limit_however_long_it_lasts(
    double: VenuesDouble, opened: Open, clock: ManualClock, name: str
) -> None:
    double.get_venue(name).add_failure("banned", times=None)
    client = opened(name)
    for _ in range(2):
        assert not (await refusal(client.fetch_time_ms())).is_permanent
        clock.now += REFUSED_AFTER_MS


async def test_an_option_that_ccxt_lacks_fails_its_venue_alone_and_is_named(
    double: VenuesDouble, opened: Open
) -> None:
    given = VenueOptions(client={"options": {"fetchMarkets": {"kinds": ["spot"]}}})
    error = await refusal(opened("binance", given=given).fetch_symbols())
    assert error.reason == "ccxt has no option options.fetchMarkets.kinds of binance"
    assert (error.is_permanent, double.get_venue("binance").requests) == (False, [])


async def test_a_request_that_hangs_times_out(double: VenuesDouble, opened: Open) -> None:
    double.get_venue("binance").add_failure("hanging", times=None)
    error = await refusal(opened("binance", timeout_s=0.05).fetch_time_ms())
    assert (error.reason, error.is_permanent) == ("binance did not answer in time", False)


@pytest.mark.parametrize(("name", "halves"), [("binance", 3300), ("hyperliquid", 5500)])
@pytest.mark.prove
async def test_half_hours_are_read_in_pages_as_far_back_as_the_venue_has_them(
    double: VenuesDouble, opened: Open, name: str, halves: int
) -> None:
    symbol, period_s = SYMBOLS[name][0], HOUR_S // 2
    opens = range(HOUR - halves * period_s, HOUR, period_s)
    rows = [make_bar(0)._replace(open_time=at, volume=float(at % 977)) for at in opens]
    double.get_venue(name).add_listing(symbol, Market(rows, period_s=period_s))
    bars = await opened(name).fetch_bars(symbol, opens[0] - DAY_S, HOUR, period_s)
    read = sorted(bar for bar in bars if bar.open_time < HOUR)
    assert read == (rows[-4999:] if name == "hyperliquid" else rows)


def read_hours(bars: Sequence[RawBar]) -> list[int]:
    return [(bar.open_time - HOUR) // HOUR_S for bar in validate_bars(bars, HOUR_S)[0]]


class Row(NamedTuple):
    """A whole row instead of one cell."""

    value: Any


BAD_CELLS = (
    *(None, True, "", "x", {}, [], "NaN", "Infinity", "1e400", 1e308, -1, 10**40),
    *(Row(None), Row(True), Row("x"), Row([]), Row({}), Row([None] * 12), Row([1e18] * 12)),
    *(Row([2**70, "1", "1", "1", "1", "1"]), Row([HOUR, "1", "1", "1", "1", "1"])),
)


def spoil_row(opened: int, bad: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that replaces a row of Binance's answer, or its volume."""

    def spoil(row: list[Any]) -> Any:
        if row[0] != 1000 * opened:
            return row
        return bad.value if isinstance(bad, Row) else [*row[:5], bad, *row[6:]]

    return lambda rows: [spoil(row) for row in rows]


@pytest.mark.parametrize("hour", [-3, -2, -1])
async def test_a_bad_row_costs_only_itself_wherever_it_is(
    binance: VenueDouble, opened: Open, hour: int
) -> None:
    client = opened("binance")
    for bad in BAD_CELLS:
        binance.clear_failures()
        garble = spoil_row(HOUR + hour * HOUR_S, bad)
        binance.add_failure("garbled", path="klines", times=None, garble=garble)
        bars = await client.fetch_bars("BTC/USDT", HOUR - 3 * HOUR_S, HOUR, HOUR_S)
        assert read_hours(bars) == [n for n in (-3, -2, -1) if n != hour], bad
        assert validate_bars(bars, HOUR_S)[1], bad


async def test_a_bad_row_from_the_future_does_not_end_the_reading_of_pages(
    double: VenuesDouble, opened: Open
) -> None:
    venue = double.get_venue("binance")
    venue.add_listing("BTC/USDT", make_market(before=2100))
    ahead = [1000 * (HOUR + 5000 * HOUR_S), *["1"] * 11]
    venue.add_failure("garbled", path="klines", garble=lambda rows: [*rows[:-1], ahead])
    bars = await opened("binance").fetch_bars("BTC/USDT", HOUR - 2100 * HOUR_S, HOUR, HOUR_S)
    assert [n for n in read_hours(bars) if n < 0] == list(range(-2100, 0))


@pytest.mark.parametrize("name", PERPETUALS)
async def test_a_settlement_without_a_rate_or_time_costs_only_itself(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    symbol, one = PERPETUALS[name], make_market()
    venue = double.get_venue(name)
    venue.add_listing(symbol, one)
    client, span = opened(name), (HOUR - 3 * DAY_S, HOUR)
    right = sorted(await client.fetch_funding(symbol, *span))
    for value in (None, "x", {}, 10**15, "253402300800000", 1e308):
        for keys in (
            ["fundingRate", "realizedRate", "r"],
            ["fundingTime", "fundingRateTimestamp", "t", "time", "timepoint"],
        ):
            venue.clear_failures()
            venue.add_failure(
                "garbled", times=None, garble=lambda body, k=keys, v=value: spoil_first(body, k, v)
            )
            found = await client.fetch_funding(symbol, *span)
            usable = sorted(row for row in found if not find_settlement_fault(*row))
            assert len(set(right) - set(usable)) == 1, (keys, value)
            assert set(usable) <= set(right), (keys, value)


def spoil_first(body: Any, keys: Collection[str], value: Any) -> Any:
    """Replace the values of these keys in the first row of an answer."""
    if isinstance(body, list) and body:
        return [{key: value if key in keys else own for key, own in body[0].items()}, *body[1:]]
    if isinstance(body, dict):
        return {key: spoil_first(own, keys, value) for key, own in body.items()}
    return body


@every
async def test_a_clock_that_is_no_time_is_an_error_in_one_line(
    double: VenuesDouble, opened: Open, name: str
) -> None:
    venue, client = double.get_venue(name), opened(name)
    for answer in ({}, [], [[]], {"a": 1}, None, "x", 1, {"serverTime": None}, {"serverTime": 1}):
        venue.add_failure("garbled", garble=lambda body, answer=answer: answer)
        error = await refusal(client.fetch_time_ms())
        assert error.reason.startswith(name), answer
        assert len(error.reason) < 120, answer


async def test_a_market_without_a_state_is_listed(binance: VenueDouble, opened: Open) -> None:
    client = opened("binance")
    await client.fetch_symbols()
    market = client._exchange.markets["BTC/USDT"]
    for state in (None, True):
        market["active"] = state
        assert await client.fetch_symbols() == {"BTC/USDT"}
    del market["active"]
    assert await client.fetch_symbols() == {"BTC/USDT"}


NUMBERS = st.sampled_from(
    [0, 1, -1, 2**63, 10**30, 1e18, 1e308, -1e308, 5e-324, 1e-320, HOUR, 1000 * HOUR, 1e15]
)
TEXTS = st.sampled_from(
    ["", "x", "0", "-1", "1e400", "NaN", "Infinity", "1e-320", str(1000 * HOUR)]
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=7),
        st.dictionaries(st.sampled_from(["result", "list", "data", "t", "o", "bars"]), inner),
    ),
    max_leaves=12,
)
# A step into the right answer: the n-th entry of a list or an object; then it is replaced there.
PATHS = st.lists(st.integers(0, 11), max_size=4)
NAMES = ["binance", "bybit", "okx", "hyperliquid", "alpaca"]


def replace_at(body: Any, path: list[int], value: Any) -> Any:
    """Return an answer with another value at the place to which the path leads."""
    if not path or not isinstance(body, list | dict) or not body:
        return value
    keys = list(body) if isinstance(body, dict) else list(range(len(body)))
    chosen = keys[path[0] % len(keys)]
    replaced = {key: body[key] for key in keys}
    replaced[chosen] = replace_at(body[chosen], path[1:], value)
    return replaced if isinstance(body, dict) else list(replaced.values())


@pytest.fixture(params=NAMES)
async def venue(
    request: pytest.FixtureRequest, double: VenuesDouble, opened: Open
) -> AsyncIterator[tuple[Venue, str, str]]:
    """A client of each dialect, with a symbol to spoil and another one."""
    name: str = request.param
    symbol = "A" if name == "alpaca" else PERPETUALS[name]
    other = symbol.replace("BTC", "ETH").replace("GOLD", "SILVER") if symbol != "A" else "B"
    for one in (symbol, other):
        market = make_market()
        bars = halve_bars(market) if name == "alpaca" else Market(market.table, market.settlements)
        double.get_venue(name).add_listing(one, bars)
    client: Venue
    if name == "alpaca":
        data, trading = (
            f"{double.base_url}/{host}.alpaca.markets" for host in ("data", "paper-api")
        )
        client = AlpacaVenue(
            API_KEY_ID, API_SECRET_KEY, data_address=data, trading_address=trading, spacing_s=0
        )
    else:
        client = opened(name, other)
    await client.fetch_symbols()
    yield client, symbol, other
    await client.close()


async def read_usable(client: Venue, symbol: str) -> tuple[int, list[tuple[int, float]]]:
    """Fetch a symbol as the live source does; return the numbers of usable bars and rates."""
    period_s = HOUR_S // 2 if client.name == "alpaca" else HOUR_S
    rows = await client.fetch_bars(symbol, HOUR - DAY_S, HOUR - HOUR_S, period_s)
    bars = Series.from_rows(validate_bars(rows, period_s)[0], period_s)
    settlements = await client.fetch_funding(symbol, HOUR - 3 * DAY_S, HOUR)
    return len(bars), [row for row in settlements if not find_settlement_fault(*row)]


@pytest.mark.parametrize(
    "size", [12, pytest.param(200, marks=pytest.mark.prove)], ids=["few", "many"]
)
@pytest.mark.sampled(3)
async def test_any_json_for_one_symbol_costs_the_others_nothing(
    double: VenuesDouble, venue: tuple[Venue, str, str], size: int
) -> None:
    client, symbol, other = venue
    right = await read_usable(client, other)
    assert right[0] >= 20

    @settings(
        max_examples=size,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(path=PATHS, value=ANY_JSON)
    def collect(path: list[int], value: Any) -> None:
        cases.append((path, value))

    cases: list[tuple[list[int], Any]] = []
    collect()
    server = double.get_venue(client.name)
    for path, value in cases:
        server.clear_failures()
        server.add_failure(
            "garbled",
            symbol=symbol,
            times=None,
            garble=lambda body, path=path, value=value: spoil(body, symbol, path, value),
        )
        spoiled, others = await asyncio.gather(
            read_usable(client, symbol), read_usable(client, other), return_exceptions=True
        )
        assert isinstance(spoiled, VenueError | tuple), (path, value)
        assert others == right, (path, value)


def spoil(body: Any, symbol: str, path: list[int], value: Any) -> Any:
    """Spoil the answer for one symbol; of Alpaca's, which is for several, only its rows."""
    if symbol == "A" and isinstance(body, dict) and "bars" in body:
        rows = replace_at(body["bars"].get(symbol, []), path, value)
        return body | {"bars": body["bars"] | {symbol: rows}}
    return replace_at(body, path, value)
