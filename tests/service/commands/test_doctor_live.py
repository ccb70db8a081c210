"""The doctor on live venues: every asset is in some count, and each fault says what to do."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
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
from tests.support.live_service import START, UNIVERSE, list_universe, open_live_service
from tests.support.live_settings import KEY, build_live_settings
from tests.support.running_service import ManualClock
from tests.support.signals_command import COMMAND, build_environment, run_signals

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
    """Let what comes after the doctor log as before."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def examined(
    tmp_path: Path, double: VenuesDouble, clock: ManualClock, capsys: pytest.CaptureFixture[str]
):
    async def examine(universe: Universe = COINS, **changed: str) -> tuple[int, Told]:
        """Return the exit status, and by subject the grade and text of each finding."""
        given = build_live_settings(tmp_path, universe, double) | KEY | changed
        env = build_environment(tmp_path, **given)
        settings = Settings.read({n: v for n, v in env.items() if n.startswith("SIGNALS_")})
        status = await run_doctor(settings, clock)
        captured = capsys.readouterr()
        assert captured.err == ""
        told: Told = {}
        for line in captured.out.splitlines():
            found = re.fullmatch(r"(ok|warn|fix) +(\w+): (.*)", line)
            assert found, line
            told.setdefault(found[2], []).append((found[1], found[3]))
        return status, told

    return examine


async def test_before_a_first_start_it_says_what_that_would_find_and_keeps_nothing(
    examined, tmp_path
):
    status, told = await examined(UNIVERSE)
    assert (status, told["store"][0][0]) == (1, "fix")
    assert told["venue"] == [
        ("ok", "binance lists all of 3 first choices, 1 perpetuals"),
        ("ok", "okx lists all of 1 first choices, 1 fallbacks, 1 perpetuals"),
        ("ok", "alpaca lists all of 1 first choices"),
    ]
    assert told["clock"] == [("ok", "this machine's clock is 0.0 s behind the venues'")]
    assert told["assets"] == [
        ("ok", "5 of 5 assets have a source: 3 at binance, 1 at okx, 1 at alpaca"),
        ("ok", "for 1 a perpetual stands in (XAU)"),
    ]
    assert told["bars"] == [
        ("ok", "5 of 5 have history for readings of 1d"),
        ("ok", "5 of 5 have a fresh bar"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["universe.toml"]


async def test_a_venue_that_refuses_and_a_missing_key_say_what_is_not_covered(examined, double):
    double.get_venue("binance").add_failure("restricted", times=None)
    _, told = await examined(UNIVERSE, alpaca_key_id="", alpaca_secret_key="")
    (grade, text), _ = told["venue"]
    assert grade == "warn"
    assert text.startswith("binance refuses this address, as venues do by country (binance ")
    assert told["assets"] == [
        ("ok", "2 of 5 assets have a source: 2 at okx"),
        (
            "warn",
            "1 are not covered (NVDA): set SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY",
        ),
        ("warn", "2 are not covered, for no venue that can be asked lists them (ETH, XAU)"),
    ]
    assert told["bars"][-1] == ("ok", "2 of 2 have a fresh bar")


async def test_a_wrong_key_is_to_be_fixed_and_not_repeated(examined):
    status, told = await examined(UNIVERSE, alpaca_secret_key="not-the-secret")
    assert status == 1
    fix = "alpaca refuses the key: check SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"
    assert told["venue"][-1] == ("fix", fix)
    assert "not-the-secret" not in str(told)
    assert KEY["alpaca_key_id"] not in str(told)


async def test_half_a_key_is_one_line(examined):
    status, told = await examined(UNIVERSE, alpaca_secret_key="")
    assert (status, [grade for grade, _ in told["source"]]) == (1, ["fix"])
    assert "venue" not in told


@pytest.mark.prove
async def test_what_a_venue_does_not_list_is_named_with_its_symbol(examined, double):
    double.get_venue("okx").remove_listing("OKB/USDT")
    double.get_venue("okx").remove_listing("BTC/USDT:USDT")
    _, told = await examined()
    assert told["venue"][1] == (
        "warn",
        "okx does not list 1 of 1 first choices (OKB as OKB/USDT); "
        "1 of 1 perpetuals (BTC as BTC/USDT:USDT)",
    )
    assert told["assets"][-1] == (
        "warn",
        "1 are not covered, for no venue that can be asked lists them (OKB)",
    )


async def test_what_has_no_fresh_bar_is_named_with_the_reason(examined, double):
    double.get_venue("binance").get_market("ETH/USDT").withhold(START - 7200, START)
    double.get_venue("okx").add_failure("restricted", path="candles", times=None)
    _, told = await examined()
    late = dict([reversed(finding) for finding in told["bars"]])
    assert late["2 of 4 have a fresh bar"] == "ok"
    (text,) = [text for text, grade in late.items() if grade == "warn"]
    assert "ETH: the venue has no newer bar yet" in text
    assert "OKB: okx answered HTTP 403" in text


@pytest.mark.prove
async def test_a_venue_that_does_not_answer_is_not_asked_for_bars(examined, double):
    double.get_venue("okx").add_failure("unavailable", times=None)
    only_okb = Universe(assets=COINS.assets[2:3], renamed_on=COINS.renamed_on)
    _, told = await examined(only_okb)
    assert told["venue"][0][1].startswith("okx cannot be asked at the moment")
    assert told["clock"][0][0] == "warn"
    assert [grade for grade, _ in told["bars"]] == ["warn", "ok", "warn"]
    assert "OKB: okx answered HTTP 503" in told["bars"][2][1]
    assert double.get_venue("okx").count("candles") == 0


@pytest.mark.prove
async def test_a_history_too_short_for_daily_readings_is_told(examined, double):
    market = double.get_venue("binance").get_market("XAU/USDT:USDT")
    market.withhold(0, START - 100 * DAY_S)
    _, told = await examined()
    assert told["bars"][0] == (
        "warn",
        "3 of 4 have history for readings of 1d; of 1 there are no bars of 200 trading days (XAU)",
    )


@pytest.mark.prove
async def test_a_wrong_clock_is_to_be_fixed(examined, double):
    for name in ("binance", "okx"):
        double.get_venue(name).skew_ms = -45_000
    status, told = await examined()
    ((grade, text),) = told["clock"]
    assert (status, grade) == (1, "fix")
    assert "45.0 s ahead of" in text


@pytest.mark.prove
async def test_many_assets_stay_a_few_lines_that_count_all(examined):
    assets = tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{n}", "symbol": f"{n}{asset.symbol}"})
        for n in range(50)
        for asset in UNIVERSE.assets[1:3]
    )
    _, told = await examined(Universe(assets=assets, renamed_on=UNIVERSE.renamed_on))
    assert told["assets"][0] == ("fix", "0 of 100 assets have a source")
    ((_, text),) = told["assets"][1:]
    assert text.startswith("100 are not covered")
    assert text.endswith("and 90 more)")
    assert len(max((t for found in told.values() for _, t in found), key=len)) < 400


async def test_beside_a_store_it_reads_there_which_have_daily_readings(
    examined, double, clock, tmp_path
):
    clock.now = to_market_ms(START) + 5000
    async with open_live_service(double, clock, tmp_path, COINS) as one:
        await one.runs.run_until(START)
        asked = len(double.get_venue("binance").requests)
        clock.now += 900_000
        _, told = await examined(database_url=f"sqlite:///{tmp_path}/market.db")
        assert one.runs.has_snapshot
    assert told["bars"][0][1].startswith("0 of 4 have history for readings of 1d")
    assert told["bars"][1] == ("ok", "4 of 4 have a fresh bar")
    asked_for = [asked.path for asked in double.get_venue("binance").requests[asked:]]
    assert sum("klines" in path for path in asked_for) == 3


async def test_a_store_of_another_source_is_told_before_any_venue_is_asked(
    examined, double, tmp_path
):
    bars = write_bars(tmp_path / "bars")
    await asyncio.to_thread(run_signals, tmp_path, "replay", "--bars", str(bars))
    _, told = await examined()
    assert told["source"][0][0] == "fix"
    assert double.get_venue("binance").requests == []


def test_without_the_extra_libraries_it_is_one_line_that_says_how_to_get_them(tmp_path):
    hidden = "import sys; sys.modules['ccxt'] = None; " + COMMAND[-1]
    done = subprocess.run(
        [*COMMAND[:-1], hidden, "doctor"],
        env=build_environment(tmp_path, source="live"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = [line for line in done.stdout.splitlines() if "source:" in line]
    assert (done.returncode, len(told)) == (1, 1)
    assert told[0].endswith("pip install 'signals-mcp[live]'")
    assert done.stderr == ""
