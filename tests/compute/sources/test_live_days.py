"""A day on which a different fault hits every run: each costs its own asset an hour at most."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from compute.bars import DAY_S, HOUR_S
from compute.schedule import to_market_ms
from compute.sources.alpaca import SPACING_S
from compute.trading_sessions import list_expected_bars
from compute.universe import Universe
from store.market_rows import ChangeRow
from tests.doubles.scripted_source import AcceleratedClock
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble
from tests.doubles.venues.venue import Failure
from tests.support.live_service import (
    RETRY_POLICY,
    SAMPLE_TICKERS,
    START,
    Late,
    LiveService,
    StoredResult,
    find_delayed,
    list_packaged_universe,
    load_covered_universe,
    open_live_service,
    replay_recording,
    write_recording,
)

pytestmark = pytest.mark.clause("live")


RUN_S = to_market_ms(0) // 1000
# Faults begin when a bar closes and end before the next one does.
FAULT_S = 20 * 60
HOURS = 13
RESTART_HOUR = 8
HISTORY_DAYS = 45


class Fault(NamedTuple):
    """What begins at the close of an hour (1 to HOURS); it makes `late` late at that run.

    `begin` returns what ends it.
    """

    hour: int
    late: tuple[str, ...]
    begin: Callable[[VenuesDouble], Callable[[], None]]


def fail(venue: str, kind: Any = "unavailable", **more: Any) -> Any:
    """Return a fault that fails every request to a venue, or those for a path or symbol."""

    def begin(double: VenuesDouble) -> Callable[[], None]:
        failure: Failure = double.get_venue(venue).add_failure(kind, **{"times": None, **more})
        return partial(double.get_venue(venue).end_failure, failure)

    return begin


def turn_clock(venue: str, by_s: int) -> Any:
    """Return a fault that sets the clock of a venue ahead by some seconds."""

    def begin(double: VenuesDouble) -> Callable[[], None]:
        double.get_venue(venue).skew_ms = 1000 * by_s
        return partial(setattr, double.get_venue(venue), "skew_ms", 0)

    return begin


def spoil_rows(rows: list[list[Any]]) -> list[list[Any]]:
    """Return rows of Binance whose closes are null."""
    return [[*row[:4], None, *row[5:]] for row in rows]


FAULTS = (
    Fault(
        1, ("BTC",), fail("binance", "garbled", symbol="BTC/USDT", path="klines", garble=spoil_rows)
    ),
    Fault(2, (), fail("binance", "garbled", path="time", garble=lambda body: {})),
    Fault(3, (), turn_clock("okx", 600)),
    Fault(4, ("AKT",), turn_clock("gate", -600)),
    Fault(7, ("FLR",), fail("okx")),
    Fault(RESTART_HOUR, ("BTC", "XAU"), fail("binance", status=403)),
    Fault(
        10,
        ("XMR",),
        fail("kucoin", "garbled", symbol="XMR/USDT", path="candles", garble=lambda body: 1e308),
    ),
    Fault(12, ("HYPE",), fail("hyperliquid", "hanging", symbol="HYPE/USDC:USDC", times=1)),
)
# These are in the markets from the beginning: a bar at ten times its price until 27 minutes after
# its close, a bar that comes 25 minutes late, and one that never comes.
SPIKE_HOUR, LATE_HOUR, MISSING_HOUR = 6, 11, 9
# One that never comes lies in the first of two parts in which the history is built.
MISSING_OPENS = START - 10 * DAY_S, START + (MISSING_HOUR - 1) * HOUR_S
MARKET_FAULTS = ((SPIKE_HOUR, "XMR"), (LATE_HOUR, "FLR"), (MISSING_HOUR, "MNT"))
EXPECTED_LATE: Late = {
    *((START + fault.hour * HOUR_S, ticker) for fault in FAULTS for ticker in fault.late),
    *((START + hour * HOUR_S, ticker) for hour, ticker in MARKET_FAULTS),
}


def add_market_faults(double: VenuesDouble, made: Mapping[str, Market]) -> None:
    """Add the faults of single bars to the markets of a double."""
    opened = START + (SPIKE_HOUR - 1) * HOUR_S
    true = made["XMR"].get_bar(opened)
    spike = true._replace(high=10 * true.close, close=10 * true.close)
    bars = [spike if bar == true else bar for bar in made["XMR"].all_bars()]
    spiked = Market(bars, made["XMR"].settlements)
    spiked.revise(true, opened + HOUR_S + 27 * 60)
    double.get_venue("kucoin").add_listing("XMR/USDT", spiked)
    flare = double.get_venue("okx").get_market("FLR/USDT")
    flare.delay(START + (LATE_HOUR - 1) * HOUR_S, 25 * 60)
    mantle = double.get_venue("bybit").get_market("MNT/USDT")
    for opened in MISSING_OPENS:
        mantle.withhold(opened)
    mantle.shorten(200)


@dataclass
class Day:
    """Begins and ends the faults by the clock, and watches what is published."""

    double: VenuesDouble
    clock: AcceleratedClock
    late: Late = field(default_factory=set)
    reported: Late = field(default_factory=set)
    published: list[ChangeRow] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=lambda: list(FAULTS))
    ends: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    version: int = -1

    async def watch(self, one: LiveService) -> None:
        """Look at the clock and the store between two sleeps."""
        while self.faults and self.clock.now_s >= START + self.faults[0].hour * HOUR_S:
            fault = self.faults.pop(0)
            until = START + fault.hour * HOUR_S + FAULT_S
            self.ends.append((until, fault.begin(self.double)))
        while self.ends and self.clock.now_s >= self.ends[0][0]:
            self.ends.pop(0)[1]()
        self.late.update((one.runs.done_hour, ticker) for ticker in one.runs.late)
        if one.store.version() != self.version:
            self.version = one.store.version()
            rows = await one.load_changes()
            assert rows[: len(self.published)] == self.published
            self.published = rows
            freshness = await one.load_freshness()
            self.reported.update((one.runs.done_hour, t) for t in freshness["late_assets"])


@pytest.fixture
def clock() -> AcceleratedClock:
    return AcceleratedClock(START + RUN_S + 300)


@asynccontextmanager
async def started(
    day: Day, folder: Path, universe: Universe, timeout_s: float
) -> AsyncIterator[LiveService]:
    patience = RETRY_POLICY._replace(max_tries=1)
    async with open_live_service(
        day.double, day.clock, folder, universe, patience, HISTORY_DAYS * DAY_S, timeout_s
    ) as one:
        day.clock.watch = partial(day.watch, one)
        yield one


def count_gaps(made: Mapping[str, Market], universe: Universe, begin: int, end: int) -> Any:
    """Return how many bars of its session each market lacks between its bars in (begin, end]."""
    gaps = {}
    for ticker, market in made.items():
        opened = [bar.open_time for bar in market.all_bars()]
        closes = {-(-time // HOUR_S) * HOUR_S + HOUR_S for time in opened}
        within = [close for close in closes if begin < close <= end]
        session = universe.by_ticker[ticker].session
        expected = list_expected_bars(session, min(within) - 1, max(within))
        gaps[ticker] = len(set(expected.close_time.tolist()) - closes)
    return {ticker: count for ticker, count in gaps.items() if count}


def list_warnings(logged: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return event and subject of the warnings, without those of the double and of gaps."""
    return [
        (line["event"], line.get("ticker") or line.get("venue") or ",".join(line["assets"]))
        for line in logged
        if line["log_level"] == "warning" and line["event"] not in {"refused", "bars_skipped"}
    ]


WARNINGS = [
    ("bars_missing", "MNT"),
    ("bars_rejected", "BTC"),
    ("bars_missing", "BTC"),
    ("venue_clock_wrong", "okx"),
    ("venue_clock_wrong", "gate"),
    ("bars_missing", "AKT"),
    ("bar_held", "XMR"),
    ("bars_missing", "FLR"),
    ("bars_missing", "BTC"),
    ("circuit_opened", "binance"),
    ("bars_missing", "MNT"),
    ("bars_missing", "XMR"),
    ("bars_missing", "FLR"),
    ("bars_missing", "HYPE"),
]


@pytest.mark.parametrize(
    "tickers",
    [SAMPLE_TICKERS, pytest.param(None, marks=pytest.mark.long)],
    ids=["few", "all"],
)
@pytest.mark.prove
async def test_a_day_with_a_fault_in_every_run_ends_as_a_replay_of_the_true_bars(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path, tickers: tuple[str, ...] | None
) -> None:
    universe = load_covered_universe(tickers)
    made = await list_packaged_universe(double, universe, HISTORY_DAYS)
    begin, end = (START - HISTORY_DAYS * DAY_S) // DAY_S * DAY_S, START + HOURS * HOUR_S
    bars = [bar for bar in made["MNT"].all_bars() if bar.open_time not in MISSING_OPENS]
    there = made | {"MNT": Market(bars, made["MNT"].settlements)}
    gaps = count_gaps(there, universe, begin, end)
    add_market_faults(double, made)
    day = Day(double, clock)
    with capture_logs() as logged:
        end_outage = fail("bybit", path="kline")(double)
        async with started(day, tmp_path, universe, 60) as one:
            await one.start()
            assert "MNT" in one.runs.building_tickers
            end_outage()
            await one.run_loop(clock, START + (RESTART_HOUR - 1) * HOUR_S, 1200)
        clock.now = 1000 * (START + RESTART_HOUR * HOUR_S + 60)
        async with started(day, tmp_path, universe, 2 if tickers else 20) as one:
            await day.watch(one)
            await one.run_loop(clock, end, 1200)
            live = await StoredResult.load(one.store)
            await one.check_audit()
    funded = [asset.ticker for asset in universe.assets if asset.perpetual is not None]
    folder = write_recording(tmp_path / "bars", there, funded, begin, end)
    replayed = await replay_recording(folder, tmp_path / "replayed.db", universe, end)
    assert find_delayed(live, replayed, universe, START) <= day.late
    assert day.late == day.reported
    assert live.snapshot.missing_bars == gaps
    if tickers is None:
        assert day.late >= EXPECTED_LATE
        return
    assert day.late == EXPECTED_LATE
    assert list_warnings(logged) == WARNINGS


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


def test_the_limits_are_those_of_the_page_of_sources() -> None:
    page = Path("docs/sources.md").read_text(encoding="utf-8")
    assert [limit for limit in LIMITS if limit.said not in page] == []


@pytest.mark.parametrize("tickers", [SAMPLE_TICKERS, None], ids=["few", "whole universe"])
@pytest.mark.prove
async def test_an_hour_is_within_every_limit_and_two_minutes(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path, tickers: tuple[str, ...] | None
) -> None:
    clock.now = to_market_ms(HOUR) + 1000 * 1000
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
        heavy = double.get_venue("hyperliquid")
        weight = heavy.sum_weights()
        await one.start(HOUR)
        assert one.runs.late == {}
        taken_s = {n: tolls[n].paid * each.rateLimit / 1000 for n, each in exchanges.items()}
    # ccxt takes a request of this venue for lighter than it is.
    assert taken_s["hyperliquid"] >= 60 / 1200 * (heavy.sum_weights() - weight)
    taken_s["alpaca"] = double.get_venue("alpaca").count_requests() * SPACING_S
    assert 0 < min(taken_s.values()) <= max(taken_s.values()) < MOST_S
    for limit in LIMITS:
        venue = double.get_venue(limit.venue)
        used = (venue.sum_weights if limit.is_weight else venue.count_requests)(limit.path)
        assert 0 < used <= limit.most, limit
