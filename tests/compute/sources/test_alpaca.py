"""Alpaca's bars over a real socket: as published, with few requests, and every failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from compute.bars import DAY_S, HOUR_S, RawBar, validate_bars
from compute.sources.alpaca import SETTING_NAMES, AlpacaVenue, _parse_page
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY, Alpaca, get_alpaca
from tests.doubles.venues.market import HALF_S, Market
from tests.doubles.venues.server import VenuesDouble
from tests.doubles.venues.venue import VenueDouble
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# Clocks in New York are five hours behind in winter: 09:30 there is 14:30.
DAY = utc("2026-01-20")
OPENING = DAY + 14 * HOUR_S + HALF_S
NOW = utc("2026-01-21T12:00")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


@pytest.fixture
def alpaca(double: VenuesDouble) -> VenueDouble:
    return double.get_venue("alpaca")


@pytest.fixture
def account(double: VenuesDouble) -> Alpaca:
    return get_alpaca(double)


Create = Callable[..., AlpacaVenue]


@pytest.fixture
async def create(double: VenuesDouble) -> AsyncIterator[Create]:
    """Create clients of the double, by default with the right key and without pauses."""
    async with AsyncExitStack() as closing:

        def create_one(
            key_id: str = API_KEY_ID, secret_key: str = API_SECRET_KEY, **options: Any
        ) -> AlpacaVenue:
            data, trading = (
                f"{double.base_url}/{host}.alpaca.markets" for host in ("data", "paper-api")
            )
            given = {"data_address": data, "trading_address": trading, "spacing_s": 0.0}
            created = AlpacaVenue(key_id, secret_key, **given | options)
            closing.push_async_callback(created.close)
            return created

        yield create_one


@pytest.fixture
def venue(create: Create) -> AlpacaVenue:
    return create()


def add_bars(alpaca: VenueDouble, *symbols: str, bars: Sequence[RawBar] = ()) -> None:
    for symbol in symbols:
        alpaca.add_listing(symbol, Market(bars, period_s=HALF_S))


def list_symbols(alpaca: VenueDouble) -> list[list[str]]:
    requests = [request.query for request in alpaca.requests]
    return [query["symbols"].split(",") for query in requests if "symbols" in query]


def answer_with(alpaca: VenueDouble, body: Any, status: int = 200, **more: Any) -> None:
    """Answer the next request, or those for a path, with something else."""
    alpaca.add_failure("garbled", status=status, garble=lambda _: body, **more)


def half(opened: int, price: float = 100.0, volume: float = 10.0) -> RawBar:
    return RawBar(opened, price, price + 1, price - 1, price + 0.5, volume)


def around_the_clock(day: int) -> list[RawBar]:
    """Return the half hours of a date from 04:00 to 20:00 in New York, in winter."""
    openings = range(day + 9 * HOUR_S, day + 25 * HOUR_S, HALF_S)
    return [half(opened, 100.0 + place) for place, opened in enumerate(openings)]


async def test_bars_of_all_hours_are_returned_as_published(alpaca: VenueDouble, venue: AlpacaVenue):
    add_bars(alpaca, "NVDA", bars=around_the_clock(DAY))
    whole = await venue.fetch_bars("NVDA", DAY, DAY + DAY_S, HALF_S)
    assert whole == [bar for bar in around_the_clock(DAY) if bar.open_time < DAY + DAY_S]


async def test_only_bars_that_close_in_the_window_are_requested(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    add_bars(alpaca, "NVDA", bars=around_the_clock(DAY))
    bars = await venue.fetch_bars("NVDA", DAY + 17 * HOUR_S, DAY + 19 * HOUR_S, HALF_S)
    first = DAY + 17 * HOUR_S
    assert [bar.open_time for bar in bars] == [first + n * HALF_S for n in range(4)]
    [request] = alpaca.requests
    assert request.path == "v2/stocks/bars"
    assert request.query == {
        "symbols": "NVDA",
        "timeframe": "30Min",
        "start": "2026-01-20T17:00:00.000Z",
        "end": "2026-01-20T18:30:00.000Z",
        "adjustment": "split",
        "limit": "10000",
        "sort": "asc",
    }
    assert await venue.fetch_bars("NVDA", first, first, HALF_S) == []
    assert len(alpaca.requests) == 1


@pytest.mark.parametrize(("withheld_s", "delay_s"), [(900, 900), (0, 0)], ids=["free", "paid"])
async def test_the_plan_decides_how_long_after_its_close_a_bar_may_come(
    account: Alpaca, venue: AlpacaVenue, withheld_s: int, delay_s: int
):
    steady: Venue = venue
    assert (steady.name, steady.delay_s) == ("alpaca", 900)
    account.withheld_s = withheld_s
    await venue.fetch_symbols()
    assert venue.delay_s == delay_s


async def test_a_paid_plan_that_has_ended_delays_bars_from_the_next_try_on(
    account: Alpaca, venue: AlpacaVenue
):
    account.withheld_s = 0
    await venue.fetch_symbols()
    account.withheld_s = 900
    with pytest.raises(VenueError, match="withholds bars this new"):
        await venue.fetch_bars("NVDA", NOW - HOUR_S, NOW + HALF_S, HALF_S)
    assert venue.delay_s == 900


async def test_a_plan_that_cannot_be_detected_is_no_paid_plan(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    answer_with(alpaca, {}, 500, path="stocks/bars")
    with pytest.raises(VenueError, match="500"):
        await venue.fetch_symbols()
    assert venue.delay_s == 900


async def test_all_calls_for_the_same_hours_in_one_turn_share_one_request(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    symbols = [f"A{chr(65 + place // 26)}{chr(65 + place % 26)}" for place in range(71)]
    for place, symbol in enumerate(symbols):
        add_bars(alpaca, symbol, bars=[half(OPENING, 100.0 + place)])
    close = DAY + 15 * HOUR_S
    found = await asyncio.gather(
        *(venue.fetch_bars(s, close - HOUR_S, close, HALF_S) for s in symbols)
    )
    assert [bars[0].open for bars in found] == [100.0 + place for place in range(71)]
    assert list_symbols(alpaca) == [symbols]


async def test_more_than_a_hundred_symbols_are_requested_by_the_hundred(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    symbols = [f"A{chr(65 + place // 26)}{chr(65 + place % 26)}" for place in range(230)]
    add_bars(alpaca, *symbols, bars=[half(OPENING)])
    found = await asyncio.gather(*(venue.fetch_bars(s, DAY, DAY + DAY_S, HALF_S) for s in symbols))
    assert all(len(bars) == 1 for bars in found)
    assert [len(calls) for calls in list_symbols(alpaca)] == [100, 100, 30]


async def test_a_call_for_other_hours_is_another_request(alpaca: VenueDouble, venue: AlpacaVenue):
    add_bars(alpaca, "IBM", "NVDA", "TSLA", bars=around_the_clock(DAY))
    found = await asyncio.gather(
        venue.fetch_bars("NVDA", DAY, DAY + 16 * HOUR_S, HALF_S),
        venue.fetch_bars("TSLA", DAY, DAY + 17 * HOUR_S, HALF_S),
        venue.fetch_bars("IBM", DAY + 1, DAY + 16 * HOUR_S + 1, HALF_S),
    )
    assert [len(bars) for bars in found] == [14, 16, 14]
    assert list_symbols(alpaca) == [["IBM", "NVDA"], ["TSLA"]]


async def test_a_cancelled_call_cancels_no_other(alpaca: VenueDouble, venue: AlpacaVenue):
    add_bars(alpaca, "NVDA", "TSLA", bars=around_the_clock(DAY))
    held = alpaca.add_failure("hanging")
    first = asyncio.ensure_future(venue.fetch_bars("NVDA", DAY, DAY + DAY_S, HALF_S))
    other = asyncio.ensure_future(venue.fetch_bars("TSLA", DAY, DAY + DAY_S, HALF_S))
    while not alpaca.requests:
        await asyncio.sleep(0)
    first.cancel()
    held.released.set()
    assert len(await other) == 30
    assert first.cancelled()


@pytest.mark.parametrize("size", [1, 5, 32])
async def test_pages_are_followed_to_the_last(
    alpaca: VenueDouble, account: Alpaca, venue: AlpacaVenue, size: int
):
    account.page_size = size
    add_bars(alpaca, "NVDA", "TSLA", bars=around_the_clock(DAY)[11:24])
    found = await asyncio.gather(
        *(venue.fetch_bars(s, DAY, DAY + DAY_S, HALF_S) for s in ("NVDA", "TSLA"))
    )
    assert [len(bars) for bars in found] == [13, 13]
    assert len(alpaca.requests) == -(-26 // size)


@pytest.mark.parametrize(("spacing_s", "sent"), [(0.0, 2), (3600.0, 1)])
async def test_requests_are_spaced_as_the_plan_requires(
    alpaca: VenueDouble, create: Create, spacing_s: float, sent: int
):
    venue = create(spacing_s=spacing_s)
    await venue.fetch_time_ms()
    second = asyncio.ensure_future(venue.fetch_time_ms())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(alpaca.requests) == sent
    assert second.done() == (sent == 2)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_page_that_repeats_without_end_is_an_error(alpaca: VenueDouble, venue: AlpacaVenue):
    answer_with(alpaca, {"bars": {}, "next_page_token": "99"}, times=None)
    with pytest.raises(VenueError, match="the same page twice"):
        await venue.fetch_bars("NVDA", DAY, DAY + DAY_S, HALF_S)


async def test_an_equity_settles_no_funding(venue: AlpacaVenue):
    assert await venue.fetch_funding("NVDA", DAY, DAY + DAY_S) == []


async def test_the_listed_symbols_are_the_active_equities(alpaca: VenueDouble, venue: AlpacaVenue):
    add_bars(alpaca, "NVDA", "TWTR", "BRK.B")
    alpaca.remove_listing("TWTR")
    assert await venue.fetch_symbols() == {"NVDA", "BRK.B"}


async def test_its_time_is_returned_in_milliseconds(venue: AlpacaVenue):
    assert await venue.fetch_time_ms() == NOW * 1000


@pytest.mark.parametrize("was_listed", [True, False])
async def test_a_delisted_symbol_is_distinguished_from_one_that_did_not_trade(
    alpaca: VenueDouble, venue: AlpacaVenue, was_listed: bool
):
    add_bars(alpaca, "NVDA", bars=around_the_clock(DAY))
    add_bars(alpaca, "HALT")
    if was_listed:
        add_bars(alpaca, "GONE")
        alpaca.remove_listing("GONE")
    calls = (venue.fetch_bars(s, DAY, DAY + DAY_S, HALF_S) for s in ("NVDA", "HALT", "GONE"))
    traded, halted, gone = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(traded, list)
    assert len(traded) == 30
    assert halted == []
    assert isinstance(gone, UnknownSymbolError)
    assert "GONE" in gone.reason


async def test_an_invalid_symbol_fails_without_the_rest_of_its_batch(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    add_bars(alpaca, "NVDA", bars=around_the_clock(DAY))
    calls = (
        venue.fetch_bars(s, DAY, DAY + DAY_S, HALF_S) for s in ("BTC/USDT", "NVDA", "xyz:GOLD")
    )
    pair, traded, perpetual = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(traded, list)
    assert len(traded) == 30
    for error, symbol in ((pair, "BTC/USDT"), (perpetual, "xyz:GOLD")):
        assert isinstance(error, UnknownSymbolError)
        assert symbol in error.reason


async def test_if_the_list_cannot_be_read_a_symbol_without_bars_is_not_called_unknown(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    answer_with(alpaca, {}, 500, path="v2/assets/")
    assert await venue.fetch_bars("NVDA", DAY, DAY + DAY_S, HALF_S) == []
    assert len(alpaca.requests) == 2


Fail = Callable[..., Awaitable[VenueError]]


@pytest.fixture
def fail(alpaca: VenueDouble, create: Create) -> Fail:
    """A function that fails a request, and returns the error; all who wait get the same one."""

    async def fail_once(
        kind: Any = "garbled", options: Mapping[str, Any] = {}, **trouble: Any
    ) -> VenueError:
        add_bars(alpaca, "NVDA", "TSLA", bars=around_the_clock(DAY))
        if trouble:
            alpaca.add_failure(kind, **trouble)
        venue = create(**options)
        calls = (venue.fetch_bars(symbol, DAY, DAY + DAY_S, HALF_S) for symbol in ("NVDA", "TSLA"))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert len(alpaca.requests) <= 1, "a failed request is not sent again for each who waits"
        assert errors[0] is errors[1]
        assert isinstance(errors[0], VenueError)
        assert not isinstance(errors[0], UnknownSymbolError)
        assert API_SECRET_KEY not in f"{errors[0]!r} {errors[0].reason}"
        return errors[0]

    return fail_once


def say(message: str) -> Callable[[Any], Any]:
    return lambda body: {"message": message}


REFUSED = f"alpaca refuses the key: check {SETTING_NAMES}"
WRONG_KEY = {"key_id": "PKWRONG", "secret_key": "not/the/one"}
MISMATCH = "alpaca's answer does not match its documentation"
# How a request fails, its reason, and whether that is permanent.
FAILURES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "401": ({"status": 401, "garble": say("")}, REFUSED, True),
    "403": ({"status": 403, "garble": say("forbidden.")}, REFUSED, True),
    "a wrong key": ({"options": WRONG_KEY}, REFUSED, True),
    # A page of a firewall says nothing of the key.
    "403 without a message": (
        {"status": 403, "garble": say("")},
        "alpaca answered HTTP 403",
        False,
    ),
    "a key that no header can carry": (
        {"options": {"secret_key": f"{API_SECRET_KEY}\n"}},
        "alpaca cannot be read: LocalProtocolError",
        False,
    ),
    "a clock that is ahead": (
        {"status": 403, "garble": say("subscription does not permit querying recent SIP data")},
        "alpaca withholds bars this new: check that this machine's clock is not ahead",
        False,
    ),
    "500": ({"kind": "unavailable", "status": 500}, "alpaca answered HTTP 500", False),
    "502": ({"status": 502, "garble": say("bad gateway")}, "alpaca answered HTTP 502", False),
    "422": (
        {"status": 422, "garble": say("end is too late for subscription")},
        "alpaca answered HTTP 422",
        False,
    ),
    "302": (
        {"status": 302, "headers": {"location": "https://alpaca.invalid/v2/stocks"}},
        "alpaca answered HTTP 302",
        False,
    ),
    "half an answer": ({"kind": "truncated", "times": 1}, MISMATCH, False),
    "a lost connection": ({"kind": "dropped", "times": 1}, "alpaca cannot be read: ", False),
    "a socket that hangs": (
        {"kind": "hanging", "options": {"timeout_s": 0.05}, "times": None},
        "alpaca did not answer within 0.05 s",
        False,
    ),
    **{
        f"the answer {answer!r}": ({"garble": lambda _, answer=answer: answer}, MISMATCH, False)
        for answer in (
            *(None, 1, "x", [], {}),
            *({"bars": [], "next_page_token": 7}, {"bars": 5, "next_page_token": ""}),
        )
    },
}


@pytest.mark.parametrize(
    ("trouble", "reason", "is_permanent"), FAILURES.values(), ids=list(FAILURES)
)
async def test_a_failure_is_one_line_without_the_key_and_permanent_only_if_that_is_refused(
    fail: Fail, trouble: dict[str, Any], reason: str, is_permanent: bool
):
    error = await fail(**trouble)
    assert error.reason.startswith(reason)
    assert (error.is_permanent, error.retry_after_s) == (is_permanent, None)
    assert "not/the/one" not in repr(error)
    assert error.__suppress_context__ or error.__context__ is None


DATE = "Tue, 20 Jan 2026 21:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "Tue, 20 Jan 2026 21:00:45 GMT"}, 45.0),
        ({"x-ratelimit-reset": str(utc("2026-01-20T21:00:30"))}, 30.0),
        ({"x-ratelimit-reset": str(utc("2026-01-20T20:59:00"))}, 0.0),
        ({"retry-after": "5", "x-ratelimit-reset": str(utc("2026-01-20T21:00:30"))}, 5.0),
        ({"retry-after": "soon", "x-ratelimit-reset": "never"}, None),
    ],
)
async def test_a_429_response_sets_the_time_to_wait(
    fail: Fail, headers: dict[str, str], wait_s: float | None
):
    error = await fail("rate_limited", headers={"date": DATE, **headers})
    assert error.retry_after_s == wait_s
    assert not error.is_permanent


async def test_an_address_without_a_listener_is_a_venue_error():
    venue = AlpacaVenue("key", "secret", data_address="http://127.0.0.1:1", spacing_s=0.0)
    with pytest.raises(VenueError, match="alpaca cannot be read: ConnectError"):
        await venue.fetch_bars("NVDA", DAY, DAY + DAY_S, HALF_S)
    await venue.close()
    await venue.close()


BAD_ROWS = (
    *(None, True, 1, "x", {}, [], [None], [[]], [1, 2], {"t": 1}),
    [{"t": "2026-01-20T15:00:00Z", "o": 1, "h": 1, "l": 1, "c": None, "v": 1}],
    [{"t": "2026-01-20T15:00:00Z", "o": "1", "h": 1, "l": 1, "c": 1, "v": 1}],
    [{"t": "2026-01-20T15:00:00Z", "o": 1, "h": 1, "l": 1, "c": 1, "v": True}],
    [{"t": "2026-01-20T15:00:00Z", "o": 1, "h": 1, "l": 1, "c": 1, "v": 10**400}],
    [{"t": "2026-01-20T15:00:00", "o": 1, "h": 1, "l": 1, "c": 1, "v": 1}],
    [{"t": "9999-12-31T23:59:59Z", "o": 1, "h": 1, "l": 1, "c": 1, "v": 1}],
    [{"t": None, "o": 1, "h": 1, "l": 1, "c": 1, "v": 1}],
)


@pytest.mark.parametrize("rows", BAD_ROWS, ids=repr)
def test_bad_rows_of_one_symbol_cost_the_others_nothing(rows: object):
    good = {"t": "2026-01-20T15:00:00Z", "o": 1, "h": 2, "l": 0.5, "c": 1.5, "v": 10}
    parsed, token = _parse_page({"bars": {"A": rows, "B": [good]}, "next_page_token": None})
    at = utc("2026-01-20T15:00:00")
    assert [bar for symbol, bar in parsed if symbol == "B"] == [
        RawBar(at, 1.0, 2.0, 0.5, 1.5, 10.0)
    ]
    usable, refused = validate_bars([bar for symbol, bar in parsed if symbol == "A"], HALF_S)
    assert usable == []
    assert bool(refused) == (rows != [])
    assert token is None


@pytest.mark.parametrize(
    "told", [None, 1, "x", "", "2026-01-21T12:00:00", "0001-01-01T00:00:00Z", {}], ids=repr
)
async def test_a_clock_that_is_no_time_is_an_error(
    alpaca: VenueDouble, venue: AlpacaVenue, told: object
):
    answer_with(alpaca, {"timestamp": told})
    with pytest.raises(VenueError, match="does not match its documentation"):
        await venue.fetch_time_ms()


async def test_assets_without_a_symbol_are_left_out_of_the_list(
    alpaca: VenueDouble, venue: AlpacaVenue
):
    entries = [{"symbol": "NVDA"}, {"symbol": None}, {"symbol": 1}, {}, None, 7, "x", []]
    answer_with(alpaca, entries, path="v2/assets")
    assert await venue.fetch_symbols() == {"NVDA"}
