"""Alpaca's bars over a real socket: joined in pairs, with few requests, and every failure."""

import asyncio
import csv
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from compute.bars import DAY_S, HOUR_S, RawBar, validate_bars
from compute.sessions import list_expected_bars
from compute.sources.alpaca import SETTING_NAMES, AlpacaVenue
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from tests.doubles.alpaca_server import (
    HALF_S,
    SECRET_KEY,
    AlpacaDouble,
    Failure,
    run_alpaca_double,
    split_bar,
)
from tests.support.bar_sets import generate_folder

pytestmark = pytest.mark.clause("live")


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# Clocks in New York are five hours behind in winter: 09:30 there is 14:30.
DAY = utc("2026-01-20")
OPENING = DAY + 14 * HOUR_S + HALF_S
EVE = utc("2025-12-24")
NOW = utc("2026-01-21T12:00")


@pytest.fixture
async def alpaca() -> AsyncIterator[AlpacaDouble]:
    async with run_alpaca_double(lambda: NOW * 1000) as double:
        yield double


@pytest.fixture
async def venue(alpaca: AlpacaDouble) -> AsyncIterator[AlpacaVenue]:
    venue = alpaca.create_venue()
    yield venue
    await venue.close()


def half(opened: int, price: float = 100.0, volume: float = 10.0) -> RawBar:
    return RawBar(opened, price, price + 1, price - 1, price + 0.5, volume)


def around_the_clock(day: int) -> list[RawBar]:
    """Return the half hours of a date from 04:00 to 20:00 in New York, in winter."""
    openings = range(day + 9 * HOUR_S, day + 25 * HOUR_S, HALF_S)
    return [half(opened, 100.0 + place) for place, opened in enumerate(openings)]


def test_bars_may_come_a_quarter_of_an_hour_after_their_close():
    venue: Venue = AlpacaVenue("key", "secret")
    assert (venue.name, venue.delay_s) == ("alpaca", 900)


async def test_half_hours_are_joined_in_pairs_from_half_past_nine(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    first = RawBar(OPENING, 10.0, 12.0, 9.0, 11.0, 300.0)
    second = RawBar(OPENING + HALF_S, 11.0, 11.5, 8.0, 8.5, 40.0)
    alpaca.add_bars("NVDA", [first, second])
    bars = await venue.fetch_bars("NVDA", DAY, DAY + DAY_S)
    assert bars == [RawBar(OPENING, 10.0, 12.0, 8.0, 8.5, 340.0)]


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_pair_with_one_half_that_never_traded_is_still_a_bar(
    alpaca: AlpacaDouble, venue: AlpacaVenue, missing: int
):
    pair = [half(OPENING, 10.0), half(OPENING + HALF_S, 20.0)]
    left = pair[1 - missing]
    alpaca.add_bars("NVDA", [left])
    assert await venue.fetch_bars("NVDA", DAY, DAY + DAY_S) == [left._replace(open_time=OPENING)]


async def test_bars_outside_regular_hours_are_left_out(alpaca: AlpacaDouble, venue: AlpacaVenue):
    """An early close, a holiday and a whole day, with trading around the clock."""
    traded = {
        bar.open_time: bar
        for day in (EVE, EVE + DAY_S, EVE + 2 * DAY_S)
        for bar in around_the_clock(day)
    }
    alpaca.add_bars("NVDA", traded.values())
    short, whole = (EVE + after + 14 * HOUR_S + HALF_S for after in (0, 2 * DAY_S))
    bars = await venue.fetch_bars("NVDA", EVE, EVE + 3 * DAY_S)
    assert [bar.open_time for bar in bars] == [
        *range(short, short + 4 * HOUR_S, HOUR_S),
        *range(whole, whole + 7 * HOUR_S, HOUR_S),
    ]
    for place, bar in enumerate(bars):
        is_days_last = place in (3, 10)
        assert bar.volume == (10.0 if is_days_last else 20.0)
        assert bar.close == traded[bar.open_time + (0 if is_days_last else HALF_S)].close


async def test_only_bars_that_close_in_the_window_are_requested_and_the_newest_end_long_ago(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    bars = await venue.fetch_bars("NVDA", DAY + 17 * HOUR_S, DAY + 19 * HOUR_S)
    assert [bar.open_time for bar in bars] == [OPENING + 2 * HOUR_S, OPENING + 3 * HOUR_S]
    [(path, given)] = alpaca.requests
    assert path == "stocks/bars"
    assert given == {
        "symbols": "NVDA",
        "timeframe": "30Min",
        "start": "2026-01-20T16:30:00.000Z",
        "end": "2026-01-20T18:00:00.000Z",
        "adjustment": "split",
        "limit": "10000",
        "sort": "asc",
    }


async def test_the_free_plan_returns_every_bar_at_the_full_hour_at_which_it_closes():
    now_s = 0
    async with run_alpaca_double(lambda: now_s * 1000) as alpaca:
        venue = alpaca.create_venue()
        for day in (EVE, DAY):
            alpaca.add_bars("NVDA", around_the_clock(day))
            for now_s in list_expected_bars("XNYS", day, day + DAY_S).close_time.tolist():
                assert len(await venue.fetch_bars("NVDA", now_s - HOUR_S, now_s)) == 1
        assert len(alpaca.requests) == 4 + 7
        await venue.close()


async def test_no_request_is_sent_while_the_exchange_is_closed(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    saturday = DAY + 4 * DAY_S
    assert await venue.fetch_bars("NVDA", saturday, saturday + DAY_S) == []
    assert await venue.fetch_bars("NVDA", DAY, DAY + 14 * HOUR_S) == []
    assert alpaca.requests == []


async def test_all_calls_for_the_same_hours_in_one_turn_share_one_request(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    symbols = [f"A{chr(65 + place // 26)}{chr(65 + place % 26)}" for place in range(71)]
    for place, symbol in enumerate(symbols):
        alpaca.add_bars(symbol, [half(OPENING, 100.0 + place)])
    close = DAY + 16 * HOUR_S
    found = await asyncio.gather(*(venue.fetch_bars(s, close - HOUR_S, close) for s in symbols))
    assert [bars[0].open for bars in found] == [100.0 + place for place in range(71)]
    assert alpaca.requested_symbols == [symbols]


async def test_more_than_a_hundred_symbols_are_requested_by_the_hundred(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    symbols = [f"A{chr(65 + place // 26)}{chr(65 + place % 26)}" for place in range(230)]
    for symbol in symbols:
        alpaca.add_bars(symbol, [half(OPENING)])
    found = await asyncio.gather(*(venue.fetch_bars(s, DAY, DAY + DAY_S) for s in symbols))
    assert all(len(bars) == 1 for bars in found)
    assert [len(calls) for calls in alpaca.requested_symbols] == [100, 100, 30]


async def test_a_call_for_other_hours_is_another_request(alpaca: AlpacaDouble, venue: AlpacaVenue):
    for symbol in ("IBM", "NVDA", "TSLA"):
        alpaca.add_bars(symbol, around_the_clock(DAY))
    found = await asyncio.gather(
        venue.fetch_bars("NVDA", DAY, DAY + 16 * HOUR_S),
        venue.fetch_bars("TSLA", DAY, DAY + 17 * HOUR_S),
        venue.fetch_bars("IBM", DAY + HOUR_S, DAY + 16 * HOUR_S),
    )
    assert [len(bars) for bars in found] == [1, 2, 1]
    assert alpaca.requested_symbols == [["IBM", "NVDA"], ["TSLA"]]


async def test_a_cancelled_call_cancels_no_other(alpaca: AlpacaDouble, venue: AlpacaVenue):
    for symbol in ("NVDA", "TSLA"):
        alpaca.add_bars(symbol, around_the_clock(DAY))
    alpaca.hold()
    first = asyncio.ensure_future(venue.fetch_bars("NVDA", DAY, DAY + DAY_S))
    other = asyncio.ensure_future(venue.fetch_bars("TSLA", DAY, DAY + DAY_S))
    while not alpaca.requests:  # noqa: ASYNC110 (the double offers no event)
        await asyncio.sleep(0)
    first.cancel()
    alpaca.release()
    assert len(await other) == 7
    assert first.cancelled()


@pytest.mark.parametrize("size", [1, 5, 32])
async def test_pages_are_followed_to_the_last(alpaca: AlpacaDouble, venue: AlpacaVenue, size: int):
    alpaca.page_size = size
    for symbol in ("NVDA", "TSLA"):
        alpaca.add_bars(symbol, around_the_clock(DAY)[11:24])
    found = await asyncio.gather(*(venue.fetch_bars(s, DAY, DAY + DAY_S) for s in ("NVDA", "TSLA")))
    assert [len(bars) for bars in found] == [7, 7]
    assert len(alpaca.requests) == -(-26 // size)


async def test_bars_out_of_order_and_repeated_count_once(alpaca: AlpacaDouble, venue: AlpacaVenue):
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    orderly = await venue.fetch_bars("NVDA", DAY, DAY + DAY_S)
    alpaca.is_disorderly, alpaca.page_size = True, 7
    assert await venue.fetch_bars("NVDA", DAY, DAY + DAY_S) == orderly


@pytest.mark.parametrize(("spacing_s", "sent"), [(0.0, 2), (3600.0, 1)])
async def test_requests_are_spaced_as_the_plan_requires(
    alpaca: AlpacaDouble, spacing_s: float, sent: int
):
    venue = alpaca.create_venue(spacing_s=spacing_s)
    await venue.fetch_time_ms()
    second = asyncio.ensure_future(venue.fetch_time_ms())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(alpaca.requests) == sent
    assert second.done() == (sent == 2)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await venue.close()


async def test_a_page_that_repeats_without_end_is_an_error(alpaca: AlpacaDouble):
    venue = alpaca.create_venue()
    alpaca.page_size = 0
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    with pytest.raises(VenueError, match="the same page twice"):
        await venue.fetch_bars("NVDA", DAY, DAY + DAY_S)
    await venue.close()


@pytest.mark.parametrize("ticker", ["NVDA", "TSLA"])
async def test_generated_hours_cut_into_halves_come_back_as_they_were(
    alpaca: AlpacaDouble, venue: AlpacaVenue, ticker: str
):
    with (generate_folder() / f"{ticker}_1h.csv").open(newline="") as lines:
        rows = [[float(cell) for cell in row.values()] for row in csv.DictReader(lines)]
    hours = [RawBar(int(row[0]), *row[1:]) for row in rows]
    recorded, _ = validate_bars(hours, HOUR_S)
    after, until = recorded[0].open_time, recorded[-1].open_time + 2 * HOUR_S
    expected = list_expected_bars("XNYS", after, until)
    # An early close cuts the last hour of its day.
    openings = set(expected.open_time[expected.end_time % HOUR_S == HOUR_S // 2].tolist())
    openings |= set(expected.open_time[expected.slot == 6].tolist())
    regular = [bar for bar in recorded if bar.open_time in openings]
    for bar in regular:
        alpaca.add_bars(ticker, split_bar(bar))
    assert await venue.fetch_bars(ticker, after, until) == regular


async def test_an_equity_settles_no_funding(venue: AlpacaVenue):
    assert await venue.fetch_funding("NVDA", DAY, DAY + DAY_S) == []


async def test_the_listed_symbols_are_the_active_equities(alpaca: AlpacaDouble, venue: AlpacaVenue):
    alpaca.add_bars("NVDA")
    alpaca.add_bars("TWTR", status="inactive")
    alpaca.add_bars("BRK.B")
    assert await venue.fetch_symbols() == {"NVDA", "BRK.B"}


async def test_its_time_is_returned_in_milliseconds(venue: AlpacaVenue):
    assert await venue.fetch_time_ms() == NOW * 1000


@pytest.mark.parametrize("status", ["inactive", None], ids=["no longer listed", "never listed"])
async def test_a_delisted_symbol_is_distinguished_from_one_that_did_not_trade(
    alpaca: AlpacaDouble, venue: AlpacaVenue, status: str | None
):
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    alpaca.add_bars("HALT")
    if status:
        alpaca.add_bars("GONE", status=status)
    calls = (venue.fetch_bars(s, DAY, DAY + DAY_S) for s in ("NVDA", "HALT", "GONE"))
    traded, halted, gone = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(traded, list)
    assert len(traded) == 7
    assert halted == []
    assert isinstance(gone, UnknownSymbolError)
    assert "GONE" in gone.reason


async def test_an_invalid_symbol_fails_without_the_rest_of_its_batch(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    calls = (venue.fetch_bars(s, DAY, DAY + DAY_S) for s in ("BTC/USDT", "NVDA", "xyz:GOLD"))
    pair, traded, perpetual = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(traded, list)
    assert len(traded) == 7
    for error, symbol in ((pair, "BTC/USDT"), (perpetual, "xyz:GOLD")):
        assert isinstance(error, UnknownSymbolError)
        assert symbol in error.reason


async def test_if_the_list_cannot_be_read_a_symbol_without_bars_is_not_called_unknown(
    alpaca: AlpacaDouble, venue: AlpacaVenue
):
    alpaca.add_failures(Failure(), Failure(status=500))
    assert await venue.fetch_bars("NVDA", DAY, DAY + DAY_S) == []
    assert len(alpaca.requests) == 2


async def failure(alpaca: AlpacaDouble, *troubles: Failure, **options: object) -> VenueError:
    """Return the error of a failing request; check that a second one fails the same way."""
    alpaca.add_bars("NVDA", around_the_clock(DAY))
    alpaca.add_bars("TSLA", around_the_clock(DAY))
    alpaca.add_failures(*troubles)
    venue = alpaca.create_venue(**options)
    calls = (venue.fetch_bars(symbol, DAY, DAY + DAY_S) for symbol in ("NVDA", "TSLA"))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    await venue.close()
    assert len(alpaca.requests) <= 1, "a failed request is not sent again for each who waits"
    assert errors[0] is errors[1]
    assert isinstance(errors[0], VenueError)
    assert not isinstance(errors[0], UnknownSymbolError)
    assert SECRET_KEY not in f"{errors[0]!r} {errors[0].reason}"
    return errors[0]


@pytest.mark.parametrize(
    "trouble", [Failure(status=401), Failure(status=403, message="forbidden.")]
)
async def test_a_refused_key_is_permanent_and_names_the_settings(
    alpaca: AlpacaDouble, trouble: Failure
):
    error = await failure(alpaca, trouble)
    assert error.is_permanent
    assert SETTING_NAMES in error.reason


async def test_a_wrong_key_is_refused_and_not_quoted(alpaca: AlpacaDouble):
    error = await failure(alpaca, key_id="PKWRONG", secret_key="not/the/one")
    assert error.is_permanent
    assert "not/the/one" not in f"{error!r}"


async def test_a_key_that_no_header_can_carry_is_not_quoted_either(alpaca: AlpacaDouble):
    error = await failure(alpaca, secret_key=f"{SECRET_KEY}\n")
    assert error.reason == "alpaca cannot be read: LocalProtocolError"
    assert error.__suppress_context__


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
    alpaca: AlpacaDouble, headers: dict[str, str], wait_s: float | None
):
    response_headers = {"date": DATE, **headers}
    error = await failure(alpaca, Failure(429, "too many requests.", response_headers))
    assert error.retry_after_s == wait_s
    assert not error.is_permanent


@pytest.mark.parametrize(
    "trouble",
    [
        Failure(status=500),
        Failure(status=502, message="bad gateway"),
        Failure(status=422, message="end is too late for subscription"),
        Failure(status=302, headers={"location": "https://alpaca.invalid/v2/stocks/bars"}),
        Failure(sent_share=0.5),
        Failure(sent_share=0.0),
        Failure(is_dropped=True),
    ],
)
async def test_temporary_failures_are_not_permanent(alpaca: AlpacaDouble, trouble: Failure):
    error = await failure(alpaca, trouble)
    assert not error.is_permanent
    assert error.retry_after_s is None


async def test_a_clock_that_is_ahead_is_not_reported_as_a_refused_key(alpaca: AlpacaDouble):
    message = "subscription does not permit querying recent SIP data"
    error = await failure(alpaca, Failure(status=403, message=message))
    assert not error.is_permanent
    assert "clock" in error.reason


async def test_a_socket_that_hangs_times_out(alpaca: AlpacaDouble):
    alpaca.hold()
    error = await failure(alpaca, timeout_s=0.05)
    assert error.reason == "alpaca did not answer within 0.05 s"
    assert not error.is_permanent


async def test_an_address_without_a_listener_is_a_venue_error():
    venue = AlpacaVenue("key", "secret", data_address="http://127.0.0.1:1", spacing_s=0.0)
    with pytest.raises(VenueError, match="alpaca cannot be read: ConnectError"):
        await venue.fetch_bars("NVDA", DAY, DAY + DAY_S)
    await venue.close()
    await venue.close()
