"""The doctor on live venues, and on the universe file: a line for each fault."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
import structlog

from compute.bars import DAY_S, HOUR_S
from compute.schedule import to_market_ms
from compute.universe import Universe
from service.commands.doctor import run_doctor
from service.config.settings import Settings, SettingsError
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.service.commands.test_cli import write_bars
from tests.service.commands.test_doctor import Told, check_findings, read_findings
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
ENDED = Universe(
    assets=(
        COINS.assets[0].model_copy(
            update={"fallbacks": (OKX_BTC.model_copy(update={"until": date(2026, 9, 30)}),)}
        ),
        COINS.assets[2].model_copy(update={"until": date(2026, 9, 30)}),
    ),
    renamed_on=COINS.renamed_on,
)
MANY = Universe(
    assets=tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{n}", "symbol": f"{n}{asset.symbol}"})
        for n in range(50)
        for asset in UNIVERSE.assets[1:3]
    ),
    renamed_on=UNIVERSE.renamed_on,
)
NO_KEY = {"alpaca_key_id": "", "alpaca_secret_key": ""}
WRONG_KEY = {"alpaca_secret_key": "not-the-secret"}
KEY_SETTINGS = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"

Harm = Callable[[VenuesDouble], object]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(START) + 905_000)


@pytest.fixture
async def double(clock: ManualClock) -> AsyncIterator[VenuesDouble]:
    async with run_venues_double(clock) as running:
        yield running


@pytest.fixture
async def listed(double: VenuesDouble) -> VenuesDouble:
    await list_universe(double, UNIVERSE, START - 331 * DAY_S, START + DAY_S)
    return double


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """Restore the log configuration after the doctor."""
    yield
    structlog.reset_defaults()


def read_settings(folder: Path, **given: str) -> Settings:
    env = build_environment(folder, **given)
    return Settings.read({n: v for n, v in env.items() if n.startswith("SIGNALS_")})


@pytest.fixture
def examined(
    tmp_path: Path, listed: VenuesDouble, clock: ManualClock, capsys: pytest.CaptureFixture[str]
):
    async def examine(universe: Universe = COINS, **changed: str) -> Told:
        given = build_live_settings(tmp_path, universe, listed) | KEY | changed
        settings = read_settings(tmp_path, **given)
        capsys.readouterr()
        with capture_log():  # The doubles log their requests.
            status = await run_doctor(settings, clock)
        captured = capsys.readouterr()
        assert captured.err == ""
        for secret in (KEY["alpaca_key_id"], *WRONG_KEY.values()):
            assert secret not in captured.out
        assert max(map(len, captured.out.splitlines())) < 400
        return Told(status, read_findings(captured.out))

    return examine


@pytest.mark.prove
async def test_before_a_first_start_it_checks_the_venues_and_stores_nothing(examined, tmp_path):
    told = await examined(UNIVERSE)
    assert told.status == 0
    check_findings(
        told,
        {
            "store": ["warn not started yet: …", "…"],
            "venue": [
                "ok binance lists all of 3 first choices, 1 perpetuals",
                "ok okx lists all of 1 first choices, 1 fallbacks, 1 perpetuals",
                "ok alpaca lists all of 1 first choices",
            ],
            "clock": ["ok 3 of 3 venues that reported their time confirm this machine's"],
            "assets": [
                "ok 5 of 5 assets have a source that answers: 3 at binance, 1 at okx, 1 at alpaca",
                "ok 1 use a perpetual as proxy (XAU)",
            ],
            "bars": ["ok 5 of 5 have history for readings of 1d", "ok 5 of 5 have a fresh bar"],
        },
    )
    assert [path.name for path in tmp_path.iterdir()] == ["universe.toml"]


def fail(venue: str, kind: str, path: str | None = None) -> Harm:
    given = {} if path is None else {"path": path}
    return lambda double: double.get_venue(venue).add_failure(kind, times=None, **given)


def remove(**symbols: str) -> Harm:
    """Remove listings, given as venue=SYMBOLS."""

    def harm(double: VenuesDouble) -> None:
        for venue, names in symbols.items():
            for name in names.split():
                double.get_venue(venue).remove_listing(name)

    return harm


def withhold(symbol: str, since: int, until: int) -> Harm:
    return lambda double: double.get_venue("binance").get_market(symbol).withhold(since, until)


def skew(ms: int, *venues: str) -> Harm:
    return lambda double: [setattr(double.get_venue(name), "skew_ms", ms) for name in venues]


@pytest.mark.parametrize(
    ("harms", "universe", "given", "expected"),
    [
        pytest.param(
            [fail("binance", "restricted")],
            UNIVERSE,
            NO_KEY,
            {
                "venue": [
                    "warn binance refuses requests from this IP address, perhaps by country "
                    "(binance …",
                    "ok okx lists all of …",
                ],
                "assets": [
                    "ok 2 of 5 assets have a source that answers: 2 at okx",
                    f"warn 1 are not covered (NVDA): set {KEY_SETTINGS}",
                    "warn 2 are not covered, because no available venue lists them (ETH, XAU)",
                ],
                "bars": ["…", "ok 2 of 2 have a fresh bar"],
            },
            id="a venue refuses and a key is missing",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [],
            UNIVERSE,
            WRONG_KEY,
            {"venue": ["…", f"fix alpaca refuses the key: check {KEY_SETTINGS}"]},
            id="a key is wrong",
        ),
        pytest.param(
            [],
            UNIVERSE,
            {"alpaca_secret_key": ""},
            {"source": ["fix …"], "venue": []},
            id="half a key",
        ),
        pytest.param(
            [remove(okx="OKB/USDT BTC/USDT:USDT")],
            COINS,
            {},
            {
                "venue": [
                    "ok binance …",
                    "warn okx does not list 1 of 1 first choices (OKB as OKB/USDT); "
                    "1 of 1 perpetuals (BTC as BTC/USDT:USDT)",
                ],
                "assets": [
                    "…",
                    "warn 1 are not covered, because no available venue lists them (OKB)",
                ],
            },
            id="a symbol is not listed",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [remove(okx="BTC/USDT")],
            ENDED,
            {},
            {
                "venue": ["ok binance …", "ok okx has no open listing in the universe file"],
                "assets": ["ok 1 of 2 assets have a source that answers: 1 at binance", "…"],
            },
            id="a listing has ended",
        ),
        pytest.param(
            [withhold("ETH/USDT", START - 7200, START), fail("okx", "restricted", "candles")],
            COINS,
            {},
            {
                "bars": [
                    "warn …the history of 1 was not checked, okx answered HTTP 403 (OKB)",
                    "ok 2 of 4 have a fresh bar",
                    "warn …ETH: the venue has no newer bar yet…OKB: okx answered HTTP 403…",
                ]
            },
            id="two assets have no fresh bar",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [fail("binance", "unavailable", "klines")],
            COINS,
            {},
            {
                "bars": [
                    "warn 1 of 1 have history for readings of 1d; the history of 3 was not "
                    "checked, binance answered HTTP 503 (BTC, ETH, XAU)",
                    "ok 1 of 4 have a fresh bar",
                    "…",
                ]
            },
            id="a venue returns no bars",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [
                fail("binance", "unavailable", "klines"),
                fail("okx", "unavailable", "candles"),
            ],
            COINS,
            {},
            {"bars": ["warn the history of …", "warn 0 of 4 have a fresh bar", "…"]},
            id="no venue returns bars",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [withhold("XAU/USDT:USDT", 0, START - 100 * DAY_S)],
            COINS,
            {},
            {
                "bars": [
                    "warn 3 of 4 have history for readings of 1d; 1 lack bars of 200 trading days "
                    "(XAU)",
                    "…",
                ]
            },
            id="a history is too short for daily readings",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [skew(-45_000, "binance", "okx")],
            COINS,
            {},
            {"clock": ["fix …45 s ahead of that of the venues…"]},
            id="this machine's clock is wrong",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [skew(600_000, "okx")],
            COINS,
            {},
            {
                "clock": [
                    "ok 1 of 2 venues that reported their time confirm this machine's",
                    "warn the clock of okx is 600 s ahead of this machine's, so it is not believed",
                ]
            },
            id="a venue's clock is wrong",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [],
            MANY,
            {},
            {
                "assets": [
                    "fix 0 of 100 assets have a source that answers",
                    "warn 100 are not covered…and 90 more)",
                ]
            },
            id="many assets are summed up",
            marks=pytest.mark.prove,
        ),
    ],
)
@pytest.mark.prove
async def test_each_fault_of_a_live_source_is_named(
    examined, listed, harms, universe, given, expected
):
    for harm in harms:
        harm(listed)
    check_findings(await examined(universe, **given), expected)


@pytest.mark.prove
async def test_a_venue_that_is_down_gets_no_requests_for_bars(examined, listed):
    fail("okx", "unavailable")(listed)
    check_findings(
        await examined(Universe(assets=COINS.assets[2:3], renamed_on=COINS.renamed_on)),
        {
            "venue": ["warn okx is not responding…"],
            "clock": ["warn …"],
            "assets": ["fix 0 of 1 assets have a source that answers"],
            "bars": [
                "warn the history of 1 was not checked, okx answered HTTP 503 (OKB)",
                "warn 0 of 1 have a fresh bar",
                "warn 1 have no fresh bar (OKB: okx answered HTTP 503)",
            ],
        },
    )
    assert listed.get_venue("okx").count_requests("candles") == 0


@pytest.mark.prove
async def test_with_a_snapshot_the_store_says_which_assets_have_daily_readings(
    examined, listed, clock, tmp_path
):
    clock.now = to_market_ms(START) + 5000
    holes = {}
    for symbol, hours in (("BTC/USDT", 2), ("ETH/USDT", 30)):
        market = listed.get_venue("binance").get_market(symbol)
        market.withhold(START - 72 * 3600, START - (73 - hours) * 3600)
        # Simulated markets have some holes of their own.
        history = range((START - HISTORY_S) // DAY_S * DAY_S, START, 3600)
        holes[symbol] = len(history) - len(market.get_page(START, history[0], START - 1, 1000))
    async with open_live_service(listed, clock, tmp_path, COINS) as one:
        await one.start()
        asked = len(listed.get_venue("binance").requests)
        clock.now += 900_000
        told = await examined(database_url=f"sqlite:///{tmp_path}/market.db")
        assert one.runs.has_snapshot
    counts = f"ETH {holes['ETH/USDT']}, BTC {holes['BTC/USDT']}"
    text = "2 lack bars in the last 330 days, which their venues do not return"
    check_findings(
        told,
        {
            "bars": [
                "… 0 of 4 have history for readings of 1d…",
                f"warn {text} ({counts})",
                "ok 4 of 4 have a fresh bar",
            ]
        },
    )
    asked_for = [asked.path for asked in listed.get_venue("binance").requests[asked:]]
    assert sum("klines" in path for path in asked_for) == 3


@pytest.mark.prove
async def test_a_store_of_another_source_is_reported_before_any_request(examined, listed, tmp_path):
    bars = write_bars(tmp_path / "bars")
    await asyncio.to_thread(run_signals, tmp_path, "replay", "--bars", str(bars))
    check_findings(await examined(), {"source": ["fix …", "…"]})
    assert listed.get_venue("binance").requests == []


@pytest.mark.prove
def test_without_the_extra_it_says_how_to_install_it(tmp_path):
    done = subprocess.run(
        [*COMMAND[:-1], "import sys; sys.modules['ccxt'] = None; " + COMMAND[-1], "doctor"],
        env=build_environment(tmp_path, source="live"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    checks = [line for line in done.stdout.splitlines() if "source:" in line]
    assert (done.returncode, len(checks)) == (1, 1)
    assert checks[0].endswith(f"{sys.executable} -m pip install ccxt==4.5.64")
    assert done.stderr == ""


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
WITH_EIGHT_COINS = FILE + "".join(
    f'\n[[asset]]\nticker = "C{number}"\nname = "C{number}"\nasset_class = "crypto"\n'
    f'session = "24x7"\nsymbol = "C{number}/USDT"\nvenue = "bybit"\nadded_on = 2024-01-15\n'
    for number in range(8)
)
UNKNOWN_OPTION = f"{FILE}[venue.okx.client]\noptions = {{fetchMarkets = {{kinds = ['spot']}}}}\n"
GRAM_ENDED = FILE.replace(
    'venue = "okx", symbol = "GRAM/USDT"',
    'venue = "okx", symbol = "GRAM/USDT", until = 2026-09-30',
)


def list_symbols(**symbols: str) -> Harm:
    """List symbols, given as venue=SYMBOLS."""

    def harm(double: VenuesDouble) -> None:
        for venue, names in symbols.items():
            for name in names.split():
                double.get_venue(venue).add_listing(name, Market([(START, 1, 1, 1, 1, 1)]))

    return harm


@pytest.fixture
def listings(double: VenuesDouble) -> VenuesDouble:
    list_symbols(
        binance="BTC/USDT BTC/USDT:USDT TON/USDT",
        okx="BTC/USDT BTC/USDT:USDT GRAM/USDT",
        kraken="BTC/USD",
        alpaca="NVDA",
    )(double)
    return double


@pytest.fixture
def examined_file(
    tmp_path: Path, listings: VenuesDouble, clock: ManualClock, capsys: pytest.CaptureFixture[str]
):
    async def examine(text: str = FILE, **changed: str) -> Told:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        given = {"universe": str(path), "live_api_base": listings.base_url} | KEY | changed
        settings = read_settings(tmp_path, **given)
        capsys.readouterr()
        with capture_log():  # The doubles log their requests.
            status = await run_doctor(settings, clock, universe=True)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert WRONG_KEY["alpaca_secret_key"] not in captured.out
        assert path.read_text() == text
        return Told(status, read_findings(captured.out))

    return examine


@pytest.mark.parametrize(
    ("harms", "text", "given", "status", "expected"),
    [
        pytest.param(
            [],
            FILE,
            {},
            0,
            {
                "alpaca": ["ok lists 1 of 1 symbols"],
                "binance": ["ok lists 3 of 3 symbols"],
                "kraken": ["ok lists 1 of 1 symbols"],
                "okx": ["ok lists 3 of 3 symbols"],
                "universe": ["ok 3 of 3 assets have a listing that a venue confirms"],
            },
            id="all listings trade",
        ),
        pytest.param(
            [remove(binance="BTC/USDT BTC/USDT:USDT", okx="BTC/USDT:USDT GRAM/USDT")],
            FILE,
            {},
            0,
            {
                "binance": [
                    "warn lists 1 of 3 symbols",
                    "warn BTC: does not list BTC/USDT (first choice)",
                ],
                "okx": [
                    "warn lists 1 of 3 symbols",
                    "warn BTC: does not list the perpetual BTC/USDT:USDT",
                    "warn TON: does not list GRAM/USDT (fallback)",
                ],
            },
            id="listings and perpetuals are gone",
        ),
        pytest.param(
            [],
            FILE,
            NO_KEY,
            0,
            {
                "alpaca": [f"warn not checked: set {KEY_SETTINGS} (1 symbols)"],
                "universe": [
                    "warn 2 of 3 assets have a listing that a venue confirms; "
                    "1 without one have listings that are not checked"
                ],
            },
            id="an asset has only unchecked listings",
        ),
        pytest.param(
            [],
            FILE,
            WRONG_KEY,
            1,
            {"alpaca": ["fix …alpaca refuses the key…"]},
            id="a key is wrong",
        ),
        pytest.param(
            [fail(name, "unavailable") for name in ("binance", "okx", "kraken", "alpaca")],
            FILE,
            {},
            1,
            {"universe": ["fix no venue was checked: check that this machine is online"]},
            id="no venue answers",
            marks=pytest.mark.prove,
        ),
        *(
            pytest.param(
                [list_symbols(bybit=left)],
                WITH_EIGHT_COINS,
                {},
                0,
                {"bybit": ["warn not checked: its list lacks most of the file's 8 symbols"]},
                id=f"a list has {len(left.split())} of 8 symbols",
                marks=pytest.mark.prove,
            )
            for left in ("", "C0/USDT C1/USDT")
        ),
        pytest.param(
            [],
            UNKNOWN_OPTION,
            {},
            0,
            {
                "okx": [
                    "warn not checked: ccxt has no option options.fetchMarkets.kinds of okx "
                    "(3 symbols)"
                ]
            },
            id="an option of a venue is unknown",
        ),
        pytest.param(
            [remove(binance="TON/USDT", okx="GRAM/USDT")],
            FILE,
            {},
            1,
            {
                "universe": [
                    "…",
                    "fix without any listing left: TON; add one each, or set removed_on",
                ]
            },
            id="an asset has no listing left",
        ),
        pytest.param(
            [remove(okx="GRAM/USDT")],
            GRAM_ENDED,
            {},
            0,
            {"okx": ["ok lists 2 of 2 symbols"]},
            id="an ended listing is gone",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            [],
            GRAM_ENDED,
            {},
            0,
            {
                "okx": [
                    "ok lists 2 of 2 symbols",
                    "warn TON: lists GRAM/USDT, which the file ends on 2026-09-30",
                ]
            },
            id="an ended listing still trades",
            marks=pytest.mark.prove,
        ),
    ],
)
async def test_each_fault_of_the_universe_file_is_named(
    examined_file, listings, harms, text, given, status, expected
):
    for harm in harms:
        harm(listings)
    told = await examined_file(text, **given)
    assert told.status == status
    check_findings(told, expected)


@pytest.mark.parametrize("kind", ["unavailable", "restricted", "truncated", "dropped"])
@pytest.mark.sampled(4)
@pytest.mark.prove
async def test_a_venue_that_does_not_answer_is_not_checked_and_the_others_are(
    examined_file, listings, kind
):
    fail("okx", kind)(listings)
    remove(binance="BTC/USDT:USDT")(listings)
    told = await examined_file()
    assert told.status == 0
    expected = {
        "okx": ["warn not checked: okx … (3 symbols)"],
        "binance": ["…", "warn BTC: does not list the perpetual BTC/USDT:USDT"],
    }
    check_findings(told, expected)


async def test_a_venue_that_does_not_exist_is_one_clear_error(examined_file):
    with pytest.raises(SettingsError, match="names the venue binanse, which ccxt does not have"):
        await examined_file(FILE.replace('"binance"', '"binanse"'))


@pytest.mark.clause("operation")
@pytest.mark.prove
async def test_the_command_checks_the_file_of_the_settings(listings, clock, tmp_path):
    clock.now = to_market_ms(START + HOUR_S)
    (tmp_path / "mine.toml").write_text(FILE)
    given = {"universe": str(tmp_path / "mine.toml"), "live_api_base": listings.base_url} | KEY
    remove(binance="TON/USDT")(listings)
    done = await asyncio.to_thread(run_signals, tmp_path, "doctor", "--universe", **given)
    assert (done.returncode, "lists of markets: 100%" in done.stderr) == (0, True)
    assert "warn binance: TON: does not list TON/USDT (first choice)\n" in done.stdout
