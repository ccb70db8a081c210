"""Alpaca's part of the double, read by a plain HTTP client."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from compute.bars import HOUR_S, RawBar
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY, set_withheld_s
from tests.doubles.venues.market import Market
from tests.doubles.venues.sample_markets import halve_bars
from tests.doubles.venues.server import VenuesDouble
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")

OPENED = 1_790_775_000  # Wednesday 2026-09-30T13:30:00Z, 9:30 in New York
HOURS = [
    RawBar(OPENED - 1800 + n * HOUR_S, 100.0 + n, 102.0 + n, 99.0 + n, 101.0 + n, 6000)
    for n in range(7)
]
KEYS = {"APCA-API-KEY-ID": API_KEY_ID, "APCA-API-SECRET-KEY": API_SECRET_KEY}
DAY = {"timeframe": "30Min", "start": "2026-09-30", "end": "2026-09-30T20:00:00Z"}


def stock() -> Market:
    return halve_bars(Market(HOURS))


@pytest.fixture
def evening_double(double: VenuesDouble, clock: ManualClock) -> VenuesDouble:
    """The double on that day at 21:03 UTC, with two stocks."""
    clock.now = (OPENED + 7 * HOUR_S + 1980) * 1000
    for symbol in ("NVDA", "AAPL"):
        double.get_venue("alpaca").add_listing(symbol, stock())
    return double


@pytest.fixture
async def client(double: VenuesDouble) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=double.base_url, headers=KEYS, verify=False) as opened:
        yield opened


async def bars(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/data.alpaca.markets/v2/stocks/bars", params=DAY | query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_a_page_is_filled_symbol_by_symbol_and_the_token_continues_it(
    evening_double: VenuesDouble, client: httpx.AsyncClient
) -> None:
    both = {"symbols": "NVDA,AAPL,GONE"}
    whole = (await bars(client, **both))["bars"]
    first = await bars(client, **both, limit=20)
    second = await bars(client, **both, limit=20, page_token=first["next_page_token"])
    assert {symbol: len(rows) for symbol, rows in whole.items()} == {"AAPL": 13, "NVDA": 13}
    assert {symbol: len(rows) for symbol, rows in first["bars"].items()} == {"AAPL": 13, "NVDA": 7}
    assert second == {"bars": {"NVDA": whole["NVDA"][7:]}, "next_page_token": None}
    assert whole["NVDA"][0]["t"] == "2026-09-30T13:30:00Z"
    assert evening_double.get_venue("alpaca").count_requests(symbol="NVDA") == 3


async def test_hours_lie_on_the_clock_so_a_day_begins_with_half_of_one(
    evening_double: VenuesDouble, client: httpx.AsyncClient
) -> None:
    rows = (await bars(client, symbols="NVDA", timeframe="1Hour"))["bars"]["NVDA"]
    assert [row["t"][11:16] for row in rows] == [f"{hour}:00" for hour in range(13, 20)]
    assert [row["o"] for row in rows] == [hour.open for hour in HOURS]
    assert (rows[0]["v"], rows[6]["c"]) == (HOURS[0].volume, HOURS[6].close)
    halves = (await bars(client, symbols="NVDA", timeframe="30Min"))["bars"]["NVDA"]
    assert [row["t"][11:16] for row in halves[:3]] == ["13:30", "14:00", "14:30"]


async def test_the_newest_quarter_of_an_hour_is_refused_and_left_out_by_default(
    evening_double: VenuesDouble, client: httpx.AsyncClient, clock: ManualClock
) -> None:
    clock.now = (OPENED + 2 * HOUR_S) * 1000
    recent = {**DAY, "symbols": "NVDA", "end": "2026-09-30T15:16:00Z"}
    refused = await client.get("/data.alpaca.markets/v2/stocks/bars", params=recent)
    assert refused.status_code == 403
    assert "recent SIP data" in refused.json()["message"]
    rows = (await bars(client, symbols="NVDA", end=""))["bars"]["NVDA"]
    assert rows[-1]["t"] == "2026-09-30T15:00:00Z"
    assert rows[-1]["v"] < HOURS[2].volume / 2


async def test_a_paid_plan_has_the_bar_of_this_minute(
    evening_double: VenuesDouble, client: httpx.AsyncClient, clock: ManualClock
) -> None:
    clock.now = (OPENED + 2 * HOUR_S) * 1000
    set_withheld_s(evening_double, 0)
    rows = (await bars(client, symbols="NVDA", end="2026-09-30T15:30:00Z"))["bars"]["NVDA"]
    assert rows[-1]["t"] == "2026-09-30T15:30:00Z"
    assert rows[-2]["v"] == HOURS[2].volume / 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"APCA-API-KEY-ID": API_KEY_ID}, 401), (KEYS | {"APCA-API-KEY-ID": "PK"}, 403)],
)
async def test_requests_without_keys_are_refused(
    double: VenuesDouble, headers: dict[str, str], status: int
) -> None:
    async with httpx.AsyncClient(base_url=double.base_url, verify=False) as stranger:
        for path in ("data.alpaca.markets/v2/stocks/bars", "paper-api.alpaca.markets/v2/clock"):
            assert (await stranger.get(f"/{path}", headers=headers)).status_code == status


async def test_a_split_rescales_bars_that_are_requested_adjusted(
    evening_double: VenuesDouble, client: httpx.AsyncClient
) -> None:
    at = OPENED + 3 * HOUR_S
    evening_double.get_venue("alpaca").get_market("NVDA").split(10, at)
    adjusted = (await bars(client, symbols="NVDA", adjustment="split"))["bars"]["NVDA"]
    raw = (await bars(client, symbols="NVDA"))["bars"]["NVDA"]
    assert (adjusted[0]["o"], adjusted[6]["o"]) == (10.0, 10.35)
    assert (raw[0]["o"], raw[6]["o"]) == (100.0, 10.35)


async def test_a_renamed_stock_has_bars_only_under_its_new_symbol(
    evening_double: VenuesDouble, client: httpx.AsyncClient
) -> None:
    venue = evening_double.get_venue("alpaca")
    venue.remove_listing("AAPL")
    venue.add_listing("PEAR", venue.get_market("AAPL"))
    assert set((await bars(client, symbols="AAPL,PEAR"))["bars"]) == {"PEAR"}
    assets = (await client.get("/paper-api.alpaca.markets/v2/assets")).json()
    assert [asset["symbol"] for asset in assets] == ["NVDA", "PEAR"]


async def test_the_clock_has_the_time_and_whether_the_exchange_is_open(
    evening_double: VenuesDouble, client: httpx.AsyncClient, clock: ManualClock
) -> None:
    closed = (await client.get("/api.alpaca.markets/v2/clock")).json()
    assert closed["timestamp"] == "2026-09-30T21:03:00.000+00:00"
    assert (closed["is_open"], closed["next_open"]) == (False, "2026-10-01T13:30:00Z")
    clock.now = OPENED * 1000
    opened = (await client.get("/api.alpaca.markets/v2/clock")).json()
    assert (opened["is_open"], opened["next_close"]) == (True, "2026-09-30T20:00:00Z")


async def test_failures_are_worded_as_alpacas(
    evening_double: VenuesDouble, client: httpx.AsyncClient
) -> None:
    evening_double.get_venue("alpaca").add_failure("rate_limited", retry_after_s=3)
    busy = await client.get("/paper-api.alpaca.markets/v2/clock")
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")
    assert busy.json() == {"message": "too many requests."}
