"""The doctor on live venues counts every asset, and says what to do if one has a problem."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path

import pytest
import structlog

from compute.bars import DAY_S
from compute.schedule import to_market_ms
from compute.universe import Universe
from service.commands.doctor import run_doctor
from service.config.settings import Settings
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.service.commands.test_cli import write_bars
from tests.support.live_service import (
    HISTORY_S,
    KEY,
    OKX_BTC,
    START,
    UNIVERSE,
    build_live_settings,
    list_universe,
    open_live_service,
)
from tests.support.running_service import ManualClock
from tests.support.signals_command import COMMAND, build_environment, capture_log, run_signals

pytestmark = pytest.mark.clause("live")

COINS = Universe(
    assets=tuple(asset for asset in UNIVERSE.assets if asset.venue != "alpaca"),
    renamed_on=UNIVERSE.renamed_on,
)
Told = dict[str, list[tuple[str, str]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(START) + 905_000)


@pytest.fixture
async def double(clock: ManualClock) -> AsyncIterator[VenuesDouble]:
    async with run_venues_double(clock) as running:
        await list_universe(running, UNIVERSE, START - 331 * DAY_S, START + DAY_S)
        yield running


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """Restore the log configuration after the doctor."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def examined(
    tmp_path: Path, double: VenuesDouble, clock: ManualClock, capsys: pytest.CaptureFixture[str]
):
    async def examine(universe: Universe = COINS, **changed: str) -> tuple[int, Told]:
        """Return the exit status, and the (grade, text) findings by subject."""
        given = build_live_settings(tmp_path, universe, double) | KEY | changed
        env = build_environment(tmp_path, **given)
        settings = Settings.read({n: v for n, v in env.items() if n.startswith("SIGNALS_")})
        capsys.readouterr()
        with capture_log():  # The doubles log their requests.
            status = await run_doctor(settings, clock)
        captured = capsys.readouterr()
        assert captured.err == ""
        checks: Told = {}
        for line in captured.out.splitlines():
            found = re.fullmatch(r"(ok|warn|fix) +(\w+): (.*)", line)
            assert found, line
            checks.setdefault(found[2], []).append((found[1], found[3]))
        return status, checks

    return examine


async def test_before_a_first_start_it_checks_the_venues_and_stores_nothing(examined, tmp_path):
    status, checks = await examined(UNIVERSE)
    assert (status, checks["store"][0][0]) == (1, "fix")
    assert checks["venue"] == [
        ("ok", "binance lists all of 3 first choices, 1 perpetuals"),
        ("ok", "okx lists all of 1 first choices, 1 fallbacks, 1 perpetuals"),
        ("ok", "alpaca lists all of 1 first choices"),
    ]
    confirmed = "3 of 3 venues that reported their time confirm this machine's"
    assert checks["clock"] == [("ok", confirmed)]
    assert checks["assets"] == [
        ("ok", "5 of 5 assets have a source: 3 at binance, 1 at okx, 1 at alpaca"),
        ("ok", "1 use a perpetual as proxy (XAU)"),
    ]
    assert checks["bars"] == [
        ("ok", "5 of 5 have history for readings of 1d"),
        ("ok", "5 of 5 have a fresh bar"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["universe.toml"]


@pytest.mark.prove
async def test_a_refusing_venue_and_a_missing_key_name_the_uncovered_assets(examined, double):
    double.get_venue("binance").add_failure("restricted", times=None)
    _, checks = await examined(UNIVERSE, alpaca_key_id="", alpaca_secret_key="")
    (grade, text), _ = checks["venue"]
    assert grade == "warn"
    assert text.startswith(
        "binance refuses requests from this IP address, perhaps by country (binance "
    )
    assert checks["assets"] == [
        ("ok", "2 of 5 assets have a source: 2 at okx"),
        (
            "warn",
            "1 are not covered (NVDA): set SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY",
        ),
        ("warn", "2 are not covered, because no available venue lists them (ETH, XAU)"),
    ]
    assert checks["bars"][-1] == ("ok", "2 of 2 have a fresh bar")


async def test_a_wrong_key_must_be_fixed_and_is_not_printed(examined):
    status, checks = await examined(UNIVERSE, alpaca_secret_key="not-the-secret")
    assert status == 1
    fix = "alpaca refuses the key: check SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"
    assert checks["venue"][-1] == ("fix", fix)
    assert "not-the-secret" not in str(checks)
    assert KEY["alpaca_key_id"] not in str(checks)


async def test_half_a_key_is_one_finding(examined):
    status, checks = await examined(UNIVERSE, alpaca_secret_key="")
    assert (status, [grade for grade, _ in checks["source"]]) == (1, ["fix"])
    assert "venue" not in checks


@pytest.mark.prove
async def test_an_unlisted_asset_is_named_with_its_symbol(examined, double):
    double.get_venue("okx").remove_listing("OKB/USDT")
    double.get_venue("okx").remove_listing("BTC/USDT:USDT")
    _, checks = await examined()
    assert checks["venue"][1] == (
        "warn",
        "okx does not list 1 of 1 first choices (OKB as OKB/USDT); "
        "1 of 1 perpetuals (BTC as BTC/USDT:USDT)",
    )
    assert checks["assets"][-1] == (
        "warn",
        "1 are not covered, because no available venue lists them (OKB)",
    )


async def test_a_listing_that_has_ended_is_neither_expected_nor_chosen(examined, double):
    ended = OKX_BTC.model_copy(update={"until": date(2026, 9, 30)})
    okb = COINS.assets[2].model_copy(update={"until": date(2026, 9, 30)})
    btc = COINS.assets[0].model_copy(update={"fallbacks": (ended,)})
    double.get_venue("okx").remove_listing("BTC/USDT")
    _, checks = await examined(Universe(assets=(btc, okb), renamed_on=COINS.renamed_on))
    assert checks["venue"][1] == ("ok", "okx has no open listing in the universe file")
    assert checks["assets"][0] == ("ok", "1 of 2 assets have a source: 1 at binance")


@pytest.mark.prove
async def test_an_asset_without_a_fresh_bar_is_named_with_the_reason(examined, double):
    double.get_venue("binance").get_market("ETH/USDT").withhold(START - 7200, START)
    double.get_venue("okx").add_failure("restricted", path="candles", times=None)
    _, checks = await examined()
    late = dict([reversed(finding) for finding in checks["bars"]])
    assert late["2 of 4 have a fresh bar"] == "ok"
    history, text = [text for text, grade in late.items() if grade == "warn"]
    assert history.endswith("the history of 1 was not checked, okx answered HTTP 403 (OKB)")
    assert "ETH: the venue has no newer bar yet" in text
    assert "OKB: okx answered HTTP 403" in text


@pytest.mark.prove
async def test_a_venue_that_is_down_gets_no_requests_for_bars(examined, double):
    double.get_venue("okx").add_failure("unavailable", times=None)
    only_okb = Universe(assets=COINS.assets[2:3], renamed_on=COINS.renamed_on)
    _, checks = await examined(only_okb)
    assert checks["venue"][0][1].startswith("okx is not responding")
    assert checks["clock"][0][0] == "warn"
    assert checks["bars"] == [
        ("warn", "the history of 1 was not checked, okx answered HTTP 503 (OKB)"),
        ("warn", "0 of 1 have a fresh bar"),
        ("warn", "1 have no fresh bar (OKB: okx answered HTTP 503)"),
    ]
    assert double.get_venue("okx").count_requests("candles") == 0


@pytest.mark.prove
async def test_a_history_whose_request_failed_is_not_called_complete(examined, double):
    double.get_venue("binance").add_failure("unavailable", path="klines", times=None)
    _, checks = await examined()
    history, fresh, *_ = checks["bars"]
    assert history[0] == "warn"
    assert history[1].startswith("1 of 1 have history for readings of 1d; the history of ")
    assert "not checked, binance answered HTTP 503 (BTC, ETH, XAU)" in history[1]
    assert fresh == ("ok", "1 of 4 have a fresh bar")
    double.get_venue("okx").add_failure("unavailable", path="candles", times=None)
    _, checks = await examined()
    assert [grade for grade, _ in checks["bars"][:2]] == ["warn", "warn"]
    assert "have history" not in checks["bars"][0][1]
    assert checks["bars"][1][1] == "0 of 4 have a fresh bar"


@pytest.mark.prove
async def test_a_history_too_short_for_daily_readings_is_reported(examined, double):
    market = double.get_venue("binance").get_market("XAU/USDT:USDT")
    market.withhold(0, START - 100 * DAY_S)
    _, checks = await examined()
    assert checks["bars"][0] == (
        "warn",
        "3 of 4 have history for readings of 1d; 1 lack bars of 200 trading days (XAU)",
    )


@pytest.mark.prove
async def test_a_wrong_clock_must_be_fixed(examined, double):
    for name in ("binance", "okx"):
        double.get_venue(name).skew_ms = -45_000
    status, checks = await examined()
    ((grade, text),) = checks["clock"]
    assert (status, grade) == (1, "fix")
    assert "45 s ahead of that of the venues" in text


@pytest.mark.prove
async def test_a_venue_with_a_wrong_clock_is_a_warning_if_the_others_confirm_this_machines(
    examined, double
):
    double.get_venue("okx").skew_ms = 600_000
    _, checks = await examined()
    assert checks["clock"] == [
        ("ok", "1 of 2 venues that reported their time confirm this machine's"),
        ("warn", "the clock of okx is 600 s ahead of this machine's, so it is not believed"),
    ]


@pytest.mark.prove
async def test_many_assets_are_summed_up_in_a_few_lines(examined):
    assets = tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{n}", "symbol": f"{n}{asset.symbol}"})
        for n in range(50)
        for asset in UNIVERSE.assets[1:3]
    )
    _, checks = await examined(Universe(assets=assets, renamed_on=UNIVERSE.renamed_on))
    assert checks["assets"][0] == ("fix", "0 of 100 assets have a source")
    ((_, text),) = checks["assets"][1:]
    assert text.startswith("100 are not covered")
    assert text.endswith("and 90 more)")
    assert len(max((t for found in checks.values() for _, t in found), key=len)) < 400


@pytest.mark.prove
async def test_with_a_snapshot_the_store_says_which_assets_have_daily_readings(
    examined, double, clock, tmp_path
):
    clock.now = to_market_ms(START) + 5000
    holes = {}
    for symbol, hours in (("BTC/USDT", 2), ("ETH/USDT", 30)):
        market = double.get_venue("binance").get_market(symbol)
        market.withhold(START - 72 * 3600, START - (73 - hours) * 3600)
        # Simulated markets have some holes of their own.
        history = range((START - HISTORY_S) // DAY_S * DAY_S, START, 3600)
        holes[symbol] = len(history) - len(market.get_page(START, history[0], START - 1, 1000))
    async with open_live_service(double, clock, tmp_path, COINS) as one:
        await one.runs.run_until(START)
        asked = len(double.get_venue("binance").requests)
        clock.now += 900_000
        _, checks = await examined(database_url=f"sqlite:///{tmp_path}/market.db")
        assert one.runs.has_snapshot
    assert checks["bars"][0][1].startswith("0 of 4 have history for readings of 1d")
    counts = f"ETH {holes['ETH/USDT']}, BTC {holes['BTC/USDT']}"
    text = f"2 lack bars in the last 330 days, which their venues do not return ({counts})"
    assert checks["bars"][1] == ("warn", text)
    assert checks["bars"][2] == ("ok", "4 of 4 have a fresh bar")
    asked_for = [asked.path for asked in double.get_venue("binance").requests[asked:]]
    assert sum("klines" in path for path in asked_for) == 3


async def test_a_store_of_another_source_is_reported_before_any_request(examined, double, tmp_path):
    bars = write_bars(tmp_path / "bars")
    await asyncio.to_thread(run_signals, tmp_path, "replay", "--bars", str(bars))
    _, checks = await examined()
    assert checks["source"][0][0] == "fix"
    assert double.get_venue("binance").requests == []


@pytest.mark.prove
def test_without_the_extra_it_says_how_to_install_it(tmp_path):
    hidden = "import sys; sys.modules['ccxt'] = None; " + COMMAND[-1]
    done = subprocess.run(
        [*COMMAND[:-1], hidden, "doctor"],
        env=build_environment(tmp_path, source="live"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    checks = [line for line in done.stdout.splitlines() if "source:" in line]
    assert (done.returncode, len(checks)) == (1, 1)
    assert checks[0].endswith("pip install 'signals-mcp[live]'")
    assert done.stderr == ""
