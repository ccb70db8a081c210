"""`signals doctor --universe` on the venues' doubles: each fault and its report."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from compute.bars import HOUR_S
from compute.schedule import to_market_ms
from service.commands.doctor_venues import check_universe
from service.config.settings import Settings, SettingsError
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.support.live_service import KEY, START
from tests.support.running_service import ManualClock
from tests.support.signals_command import build_environment, capture_log, run_signals

pytestmark = pytest.mark.clause("live")

FILE = """\
# A comment at the top.
[universe]
renamed_on = 2026-08-17

[[asset]]
ticker = "BTC"
name = "Bitcoin"        # the first one
asset_class = "crypto"
session = "24x7"
symbol = "BTC/USDT"
venue = "binance"
perpetual = "BTC/USDT:USDT"
# Kraken is last.
fallbacks = [
  {venue = "okx", symbol = "BTC/USDT", perpetual = "BTC/USDT:USDT"},
  {venue = "kraken", symbol = "BTC/USD"},
]
added_on = 2024-01-15

[[asset]]
ticker = "TON"
name = "Gram"
asset_class = "crypto"
session = "24x7"
symbol = "TON/USDT"
venue = "binance"
fallbacks = [{venue = "okx", symbol = "GRAM/USDT"}]
added_on = 2024-01-15

[[asset]]
ticker = "NVDA"
name = "Nvidia"
asset_class = "stock"
session = "XNAS"
symbol = "NVDA"
venue = "alpaca"
added_on = 2024-01-15
# The end.
"""
LISTED = {
    "binance": ["BTC/USDT", "BTC/USDT:USDT", "TON/USDT"],
    "okx": ["BTC/USDT", "BTC/USDT:USDT", "GRAM/USDT"],
    "kraken": ["BTC/USD"],
    "alpaca": ["NVDA"],
}


class Told(NamedTuple):
    """The exit status, and the findings by subject."""

    status: int
    findings: dict[str, list[tuple[str, str]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(START) + 905_000)


@pytest.fixture
async def double(clock: ManualClock) -> AsyncIterator[VenuesDouble]:
    async with run_venues_double(clock) as running:
        for name, symbols in LISTED.items():
            list_symbols(running, name, symbols)
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
    async def examine(text: str = FILE, **changed: str) -> Told:
        settings = write_settings(tmp_path, double, text, **changed)
        capsys.readouterr()
        with capture_log():  # The doubles log their requests.
            status = await check_universe(settings, clock)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert (tmp_path / "mine.toml").read_text() == text
        findings: dict[str, list[tuple[str, str]]] = {}
        for line in captured.out.splitlines():
            found = re.fullmatch(r"(ok|warn|fix) +(\w+): (.*)", line)
            assert found, line
            findings.setdefault(found[2], []).append((found[1], found[3]))
        return Told(status, findings)

    return examine


def list_symbols(double: VenuesDouble, name: str, symbols: list[str]) -> None:
    for symbol in symbols:
        double.get_venue(name).add_listing(symbol, Market([(START, 1, 1, 1, 1, 1)]))


def write_settings(folder: Path, double: VenuesDouble, text: str, **changed: str) -> Settings:
    path = folder / "mine.toml"
    path.write_bytes(text.encode())
    given = {"universe": str(path), "live_api_base": double.base_url} | KEY | changed
    env = build_environment(folder, **given)
    return Settings.read({n: v for n, v in env.items() if n.startswith("SIGNALS_")})


async def test_a_file_whose_listings_all_trade_is_confirmed(examined):
    assert await examined() == Told(
        0,
        {
            "alpaca": [("ok", "lists 1 of 1 symbols")],
            "binance": [("ok", "lists 3 of 3 symbols")],
            "kraken": [("ok", "lists 1 of 1 symbols")],
            "okx": [("ok", "lists 3 of 3 symbols")],
            "universe": [("ok", "3 of 3 assets have a listing that a venue confirms")],
        },
    )


async def test_ended_listings_and_perpetuals_that_are_gone_are_named(examined, double):
    double.get_venue("binance").remove_listing("BTC/USDT")
    double.get_venue("binance").remove_listing("BTC/USDT:USDT")
    double.get_venue("okx").remove_listing("BTC/USDT:USDT")
    double.get_venue("kraken").remove_listing("BTC/USD")
    list_symbols(double, "kraken", ["TON/USD"])
    told = await examined()
    assert told.status == 0
    assert told.findings["binance"] == [
        ("warn", "lists 1 of 3 symbols"),
        ("warn", "BTC: does not list BTC/USDT (first choice)"),
    ]
    perpetual = "BTC: does not list the perpetual BTC/USDT:USDT"
    assert ("warn", perpetual) in told.findings["okx"]
    assert ("warn", "BTC: does not list BTC/USD (fallback)") in told.findings["kraken"]


@pytest.mark.prove
async def test_a_possible_rename_is_named(examined, double):
    double.get_venue("binance").remove_listing("TON/USDT")
    list_symbols(double, "binance", ["GRAM/USDT"])
    told = await examined()
    assert told.findings["binance"][1] == (
        "warn",
        "TON: does not list TON/USDT (first choice); renamed? It lists GRAM/USDT",
    )


@pytest.mark.prove
async def test_new_listings_are_named_if_their_venue_is_preferred(examined, double):
    # Kraken comes after the first choice, and ETH is no asset of the file.
    list_symbols(double, "kraken", ["TON/USD", "GRAM/USD"])
    list_symbols(double, "binance", ["ETH/USDT", "NVDA/USDT:USDT", "TON/USDT:USDT"])
    told = await examined()
    possible = "a possible proxy instrument if it is the same asset"
    assert told.findings["binance"] == [
        ("ok", "lists 3 of 3 symbols"),
        ("ok", "TON: lists the perpetual TON/USDT:USDT, which could give its funding"),
        ("ok", f"NVDA: lists NVDA/USDT:USDT, {possible}"),
    ]
    assert told.findings["kraken"] == [("ok", "lists 1 of 1 symbols")]
    moved = FILE.replace(
        'symbol = "TON/USDT"\nvenue = "binance"', 'symbol = "TON/USD"\nvenue = "kraken"'
    )
    told = await examined(moved)
    possible = "TON: lists TON/USDT, a possible listing if it is the same asset"
    assert ("ok", possible) in told.findings["binance"]


@pytest.mark.prove
async def test_the_symbol_of_another_asset_is_not_offered(examined, double):
    # The asset BTC of the file has the symbol that the ticker of this one would have.
    text = FILE.replace('ticker = "TON"', 'ticker = "BTCX"').replace("TON/USDT", "BTCX/USDT")
    text = text.replace('"GRAM/USDT"', '"BTC/USDT"')
    list_symbols(double, "binance", ["BTCX/USDT"])
    told = await examined(text)
    assert told.findings["binance"] == [("ok", "lists 3 of 3 symbols")]


@pytest.mark.parametrize("kind", ["unavailable", "restricted", "truncated", "dropped"])
@pytest.mark.sampled(4)
async def test_a_venue_that_does_not_answer_is_not_checked_and_the_others_are(
    examined, double, kind
):
    double.get_venue("okx").add_failure(kind, times=None)
    double.get_venue("kraken").remove_listing("BTC/USD")
    list_symbols(double, "kraken", ["TON/USD"])
    told = await examined()
    [(grade, text)] = told.findings["okx"]
    assert (told.status, grade) == (0, "warn")
    assert text.startswith("not checked: okx ")
    assert text.endswith(" (3 symbols)")
    assert ("warn", "BTC: does not list BTC/USD (fallback)") in told.findings["kraken"]


async def test_an_asset_with_only_unchecked_listings_is_counted_as_such(examined, double):
    told = await examined(alpaca_key_id="", alpaca_secret_key="")
    assert told.findings["alpaca"] == [
        (
            "warn",
            "not checked: set SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY (1 symbols)",
        )
    ]
    assert (told.status, told.findings["universe"]) == (
        0,
        [
            (
                "warn",
                "2 of 3 assets have a listing that a venue confirms; "
                "1 without one have listings that are not checked",
            )
        ],
    )


async def test_a_wrong_key_must_be_fixed_and_is_not_printed(examined):
    told = await examined(alpaca_secret_key="not-the-secret")
    [(grade, text)] = told.findings["alpaca"]
    assert (told.status, grade) == (1, "fix")
    assert "alpaca refuses the key" in text
    assert "not-the-secret" not in str(told)


@pytest.mark.prove
async def test_if_no_venue_answers_the_command_fails(examined, double):
    for name in LISTED:
        double.get_venue(name).add_failure("unavailable", times=None)
    told = await examined()
    assert told.status == 1
    assert told.findings["universe"][0] == (
        "fix",
        "no venue was checked: check that this machine is online",
    )


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.prove
async def test_a_list_that_lacks_most_symbols_is_not_believed(examined, double, left):
    coins = [f"C{number}" for number in range(8)]
    entries = "".join(
        f'\n[[asset]]\nticker = "{coin}"\nname = "{coin}"\nasset_class = "crypto"\n'
        f'session = "24x7"\nsymbol = "{coin}/USDT"\nvenue = "bybit"\nadded_on = 2024-01-15\n'
        for coin in coins
    )
    list_symbols(double, "bybit", [f"{coin}/USDT" for coin in coins[:left]])
    told = await examined(FILE + entries)
    text = "not checked: its list lacks most of the file's 8 symbols"
    assert told.findings["bybit"] == [("warn", text)]


async def test_an_asset_without_any_listing_must_be_fixed(examined, double):
    double.get_venue("binance").remove_listing("TON/USDT")
    double.get_venue("okx").remove_listing("GRAM/USDT")
    told = await examined()
    assert told.status == 1
    assert ("fix", "without any listing left: TON; add one each, or set removed_on") in (
        told.findings["universe"]
    )


@pytest.mark.prove
async def test_an_ended_listing_is_not_expected_and_is_named_if_it_trades(examined, double):
    ended = FILE.replace(
        'venue = "okx", symbol = "GRAM/USDT"',
        'venue = "okx", symbol = "GRAM/USDT", until = 2026-09-30',
    )
    double.get_venue("okx").remove_listing("GRAM/USDT")
    told = await examined(ended)
    assert told.findings["okx"] == [("ok", "lists 2 of 2 symbols")]
    list_symbols(double, "okx", ["GRAM/USDT"])
    told = await examined(ended)
    text = "TON: lists GRAM/USDT, which the file ends on 2026-09-30"
    assert told.findings["okx"] == [("ok", "lists 2 of 2 symbols"), ("warn", text)]


async def test_a_venue_that_does_not_exist_is_one_clear_error(examined):
    with pytest.raises(SettingsError, match="names the venue binanse, which ccxt does not have"):
        await examined(FILE.replace('"binance"', '"binanse"'))


@pytest.mark.clause("operation")
async def test_the_command_checks_the_file_of_the_settings(double, clock, tmp_path):
    clock.now = to_market_ms(START + HOUR_S)
    (tmp_path / "mine.toml").write_text(FILE)
    given = {"universe": str(tmp_path / "mine.toml"), "live_api_base": double.base_url} | KEY
    double.get_venue("binance").remove_listing("TON/USDT")
    done = await asyncio.to_thread(run_signals, tmp_path, "doctor", "--universe", **given)
    assert (done.returncode, "lists of markets: 100%" in done.stderr) == (0, True)
    assert "warn binance: TON: does not list TON/USDT (first choice)\n" in done.stdout
