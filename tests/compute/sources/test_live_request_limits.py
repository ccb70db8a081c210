"""The requests of an hour of the whole universe, compared with the limits of venues and ccxt."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compute.bars import HOUR_S
from compute.schedule import to_market_ms
from compute.sources.alpaca import SPACING_S
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import START, open_live_service
from tests.support.live_universe import (
    SAMPLE_TICKERS,
    list_packaged_universe,
    load_covered_universe,
)
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")

HOUR = START + 4 * HOUR_S  # by which all sessions have had a bar
MOST_S = 120


class Limit(NamedTuple):
    """A limit of a venue's path as in docs/sources.md, in requests or in weight."""

    said: str
    venue: str
    path: str
    most: int
    is_weight: bool = False


LIMITS = (
    Limit("weight 6,000 a minute", "binance", "api/v3/", 6000, is_weight=True),
    Limit("weight 2,400 a minute", "binance", "fapi/v1/", 2400, is_weight=True),
    Limit("funding 500 requests in 5 minutes", "binance", "fundingRate", 500),
    Limit("600 requests in 5 seconds", "bybit", "", 600),
    Limit("`candles` 40,", "okx", "market/candles", 40),
    Limit("funding 10 requests in 2 seconds", "okx", "funding-rate-history", 10),
    Limit("200 requests in 10 seconds", "gate", "", 200),
    Limit("weight 1,200 a minute", "hyperliquid", "", 1200, is_weight=True),
    Limit("200 requests a minute", "alpaca", "", 200),
)


class Toll:
    """A replacement of ccxt's throttler that lets every call pass and adds up the costs."""

    def __init__(self) -> None:
        self.paid = 0.0
        self.loop: Any = None

    async def __call__(self, cost: float) -> None:
        self.paid += cost


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(HOUR) + 1000 * 1000)


def test_the_limits_are_those_of_the_page_of_sources() -> None:
    page = Path("docs/sources.md").read_text(encoding="utf-8")
    assert [limit for limit in LIMITS if limit.said not in page] == []


@pytest.mark.parametrize("tickers", [SAMPLE_TICKERS, None], ids=["few", "whole universe"])
@pytest.mark.prove
async def test_an_hour_is_within_every_limit_and_two_minutes(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, tickers: tuple[str, ...] | None
) -> None:
    universe = load_covered_universe(tickers)
    await list_packaged_universe(double, universe, days=1)
    tolls: dict[str, Toll] = {}
    async with open_live_service(
        double, clock, tmp_path, universe, history_s=0, timeout_s=60
    ) as one:
        exchanges = {n: each._exchange for n, each in one.clients.items() if n != "alpaca"}
        for name, exchange in exchanges.items():
            exchange.throttler = tolls[name] = Toll()
            exchange.enableRateLimit = True
        await one.runs.run_until(HOUR)
        assert one.runs.late == {}
        taken_s = {n: tolls[n].paid * each.rateLimit / 1000 for n, each in exchanges.items()}
    taken_s["alpaca"] = double.get_venue("alpaca").count_requests() * SPACING_S
    assert 0 < min(taken_s.values()) <= max(taken_s.values()) < MOST_S
    for limit in LIMITS:
        venue = double.get_venue(limit.venue)
        used = (venue.sum_weights if limit.is_weight else venue.count_requests)(limit.path)
        assert 0 < used <= limit.most, limit
