"""The packaged universe and its listings, and the faults that a universe file may have."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import ValidationError

from compute.covered_assets import add_dropped_assets, build_coverage
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.files import FilesSource
from compute.universe import Asset, Listing, Universe, UniverseError, load_universe
from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import TIMEFRAMES, compute_midnight_s, format_instant
from tests.support.example_market import make_batch, make_change, make_coverage as published
from tests.support.small_market import END, START, list_opens, make_bars, open_store, write_bars

REQUIRED = """
BTC ETH BNB SOL XRP DOGE ADA AVAX LINK LTC SUI HYPE PAXG BCH ZEC INJ POL
NVDA TSLA MSFT AAPL GOOG GOOGL AMZN META IBM SPY QQQ XAU XAG XPT XPD
"""
HEAD = '[universe]\nrenamed_on = 2026-08-17\nrenamed = {dexter = "enzo"}\n'


def entry(ticker: str, rest: str = "", /, **changed: str) -> str:
    fields = {
        "ticker": f'"{ticker}"',
        "name": f'"Name of {ticker}"',
        "asset_class": '"crypto"',
        "session": '"24x7"',
        "symbol": f'"{ticker}/USDT"',
        "venue": '"binance"',
        "added_on": "2024-01-15",
    } | changed
    return "\n[[asset]]\n" + "".join(f"{k} = {v}\n" for k, v in fields.items() if v) + rest


def written(folder: Path, text: str) -> Path:
    path = folder / "other.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def packaged() -> Universe:
    return load_universe()


EXCHANGES = {"binance", "bybit", "okx", "kraken", "hyperliquid", "kucoin", "gate", "coinbase"}
VENUES = EXCHANGES | {"alpaca"}
RENAMED = {
    "IP": "DATA: the coin's name since mid-2026",
    "TON": "GRAM: the coin's name since June 2026",
    "BTTC": "BTT: the same token on some venues",
    "NEIRO": "NEIROCTO: distinguishes it from another coin of that name",
}
ANOTHER_BASE = {
    ("binance", "RAYSOL/USDT:USDT"): "RAY",
    ("bybit", "PUMPFUN/USDT:USDT"): "PUMP",
}
WITHOUT_FUNDING = {
    "BTTC": "no perpetual on Binance; its fallback on Gate has one",
    "DCR": "no perpetual on a venue that this build knows",
    "LEO": "no perpetual on a venue that this build knows",
    "OKB": "no perpetual of an exchange's own token there",
    "PI": "no perpetual known on OKX; its fallback on Gate has one",
}
METALS = {"XAU": "GOLD", "XAG": "SILVER", "XPT": "PLATINUM", "XPD": "PALLADIUM"}


def base(symbol: str) -> str:
    """Return the coin of a symbol, without the multiplier of a contract such as 1000PEPE."""
    return re.sub(r"^1000(?=[A-Z])|(?<=[A-Z])1000$", "", symbol.split("/")[0])


def of_class(universe: Universe, asset_class: str) -> list[Asset]:
    return [asset for asset in universe.tracked_assets if asset.asset_class == asset_class]


def lasting(asset: Asset) -> list[Listing]:
    return [listing for listing in asset.listings if listing.until is None]


def every_listing(universe: Universe) -> list[tuple[Asset, Listing]]:
    return [(asset, listing) for asset in universe.assets for listing in asset.listings]


def repeats(found: Iterable[object]) -> list[object]:
    return [one for one, count in Counter(found).items() if count > 1]


def list_orders(universe: Universe) -> list[tuple[object, ...]]:
    order = ["crypto", "stock", "metal"]
    return [
        (asset.removed_on is not None, order.index(asset.asset_class), asset.ticker)
        for asset in universe.assets
    ]


CRYPTO, STOCKS = 176, 75 - 4
# Counts of the packaged universe, and the expected ones.
PACKAGED: dict[str, tuple[Callable[[Universe], object], object]] = {
    "counts": (
        lambda u: Counter(a.asset_class for a in u.tracked_assets),
        {"crypto": CRYPTO, "stock": STOCKS, "metal": 4},
    ),
    "tracked": (lambda u: len(u.tracked_assets), 251),
    "distinct tickers": (lambda u: len({asset.ticker for asset in u.assets}), 252),
    "distinct names": (lambda u: len({asset.name for asset in u.assets}), 252),
    "expected by everyone": (
        lambda u: set(REQUIRED.split()) - {asset.ticker for asset in u.tracked_assets},
        set(),
    ),
    "metals": (
        lambda u: {asset.ticker for asset in u.assets if asset.asset_class == "metal"},
        {"XAU", "XAG", "XPT", "XPD"},
    ),
    "sessions of classes": (
        lambda u: {(asset.asset_class, asset.session) for asset in u.assets},
        {("crypto", "24x7"), ("stock", "XNYS"), ("stock", "XNAS"), ("metal", "24x5")},
    ),
    "crypto, then stocks, then metals, then removed, each by ticker": (
        lambda u: list_orders(u) == sorted(list_orders(u)),
        True,
    ),
    "removed": (
        lambda u: [(a.ticker, a.removed_on, a.continues_as) for a in u.assets if a.removed_on],
        [("MATIC", date(2026, 9, 27), "POL")],
    ),
    "ends at the midnight that begins its day": (
        lambda u: dict(u.end_time_by_ticker),
        {"MATIC": int(datetime(2026, 9, 27, tzinfo=UTC).timestamp())},
    ),
    "continues as a tracked one": (
        lambda u: [a.ticker for a in u.tracked_assets if a.ticker in ("MATIC", "POL")],
        ["POL"],
    ),
    "renamed between June and late September": (
        lambda u: date(2026, 6, 1) <= u.renamed_on <= date(2026, 9, 24),
        True,
    ),
    "at least twenty were added after the renaming": (
        lambda u: sum(asset.added_on > u.renamed_on for asset in u.tracked_assets) >= 20,
        True,
    ),
    "the first was added": (lambda u: min(a.added_on for a in u.assets), date(2024, 1, 15)),
    "none was added after September 2026": (
        lambda u: max(a.added_on for a in u.assets) <= date(2026, 9, 30),
        True,
    ),
    "the listing of an asset without fallbacks": (
        lambda u: u.by_ticker["MATIC"].listings,
        (Listing(venue="binance", symbol="MATIC/USDT"),),
    ),
    "the first choice, then the fallbacks in their order": (
        lambda u: [(x.venue, x.symbol, x.perpetual) for x in u.by_ticker["SHIB"].listings],
        [
            ("binance", "SHIB/USDT", "1000SHIB/USDT:USDT"),
            ("bybit", "SHIB/USDT", "SHIB1000/USDT:USDT"),
            ("okx", "SHIB/USDT", "SHIB/USDT:USDT"),
            ("kraken", "SHIB/USD", None),
        ],
    ),
    "every venue has a client": (lambda u: {x.venue for _, x in every_listing(u)}, VENUES),
    "no first choice has ended": (
        lambda u: [asset.ticker for asset in u.tracked_assets if asset.until is not None],
        [],
    ),
    "listed once a venue at a time": (
        lambda u: [a.ticker for a in u.assets if repeats(x.venue for x in lasting(a))],
        [],
    ),
    "no two assets share a symbol or a perpetual of a venue": (
        lambda u: repeats(
            (x.venue, symbol)
            for _, x in every_listing(u)
            for symbol in (x.symbol, x.perpetual)
            if symbol
        ),
        [],
    ),
    "the ambiguous symbol SPX is not listed": (
        lambda u: [asset for asset, each in every_listing(u) if "SPX" in each.symbol],
        [],
    ),
    "coins under another symbol than their ticker": (
        lambda u: {
            asset.ticker
            for asset in of_class(u, "crypto")
            for listing in lasting(asset)
            if listing.symbol.split("/")[0] != asset.ticker
        },
        RENAMED.keys(),
    ),
    "a perpetual belongs to the coin of the spot market": (
        lambda u: [
            asset.ticker
            for asset, x in every_listing(u)
            if x.perpetual
            and ANOTHER_BASE.get((x.venue, x.perpetual), base(x.perpetual)) != base(x.symbol)
        ],
        [],
    ),
    "tickers of one letter": (
        lambda u: {a.ticker: a.asset_class for a in u.assets if len(a.ticker) == 1},
        {"A": "crypto", "S": "crypto", "W": "crypto", "V": "stock"},
    ),
    "symbols of coins of one letter": (
        lambda u: {x.symbol.split("/")[0] for t in "ASW" for x in u.by_ticker[t].listings},
        {"A", "S", "W"},
    ),
    "coins without spot bars": (
        lambda u: [a for a in of_class(u, "crypto") for x in a.listings if x.is_proxy],
        [],
    ),
    "coins without a fallback": (
        lambda u: [a.ticker for a in of_class(u, "crypto") if len(lasting(a)) < 2],
        [],
    ),
    "coins without funding at their first choice": (
        lambda u: {a.ticker for a in of_class(u, "crypto") if a.perpetual is None},
        WITHOUT_FUNDING.keys(),
    ),
    # It serves 720 bars only.
    "Kraken never precedes another venue": (
        lambda u: [
            a.ticker
            for a in u.assets
            if "kraken" in [x.venue for x in [*lasting(a)[:-1], lasting(a)[0]]]
        ],
        [],
    ),
    "stocks come from Alpaca by their ticker": (
        lambda u: [
            a.ticker
            for a in of_class(u, "stock")
            if a.listings[0] != Listing(venue="alpaca", symbol=a.ticker) or a.listings[0].is_proxy
        ],
        [],
    ),
    "stocks fall back on proxy instruments of their name": (
        lambda u: [
            a.ticker
            for a in of_class(u, "stock")
            for x in a.listings[1:]
            if not x.is_proxy or x.symbol.split("/")[0].removeprefix("XYZ-") != a.ticker
        ],
        [],
    ),
    "metals come from proxy instruments": (
        lambda u: {
            a.ticker: [(x.venue, x.symbol, x.is_proxy) for x in a.listings]
            for a in of_class(u, "metal")
        },
        {
            ticker: [
                ("binance", f"{ticker}/USDT:USDT", True),
                ("hyperliquid", f"XYZ-{name}/USDC:USDC", True),
            ]
            for ticker, name in METALS.items()
        },
    ),
    "endings": (
        lambda u: {f"{a.ticker} {x}": x.until for a, x in every_listing(u) if x.until},
        {
            "IP okx IP/USDT": date(2026, 8, 31),
            "IP kucoin IP/USDT": date(2026, 11, 22),
            "IP coinbase IP/USD": date(2026, 11, 22),
            "LRC binance LRC/USDT": date(2026, 4, 1),
            "TON okx TON/USDT": date(2026, 6, 16),
        },
    ),
    "renamed listings": (
        lambda u: [str(u.by_ticker[ticker].listings[0]) for ticker in ("IP", "LRC")],
        ["okx DATA/USDT", "bybit LRC/USDT"],
    ),
    "both names of a renamed coin": (
        lambda u: [word for word in ("Gram", "Toncoin") if word in u.by_ticker["TON"].name],
        ["Gram", "Toncoin"],
    ),
}


@pytest.mark.clause("sources", "live", "1.5", "1.6", "9.8", "9.10")
@pytest.mark.parametrize(("find", "expected"), PACKAGED.values(), ids=list(PACKAGED))
def test_the_packaged_universe_is_as_its_page_says(
    packaged: Universe, find: Callable[[Universe], object], expected: object
):
    assert find(packaged) == expected


@pytest.mark.clause("operation")
def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path, packaged: Universe):
    path = tmp_path / "universe.toml"
    path.write_bytes(b"\xef\xbb\xbf" + files("compute").joinpath("universe.toml").read_bytes())
    assert load_universe(path).assets == packaged.assets


@pytest.mark.clause("sources")
def test_a_universe_of_twelve_assets_is_accepted(tmp_path: Path):
    # A removed asset need not continue as another one.
    text = HEAD + "".join(entry(f"T{number}") for number in range(11)) + entry("OLD", REMOVED)
    universe = load_universe(written(tmp_path, text))
    tickers = [f"T{number}" for number in range(11)]
    assert [asset.ticker for asset in universe.assets] == [*tickers, "OLD"]
    assert [asset.ticker for asset in universe.tracked_assets] == tickers
    assert universe.renamed_on == date(2026, 8, 17)


@pytest.mark.clause("sources")
def test_a_universe_can_not_be_changed(packaged: Universe):
    with pytest.raises(ValidationError):
        packaged.assets[0].ticker = "OTHER"


REMOVED = "removed_on = 2025-01-01\n"

FAULTS = {
    "not TOML": ("[universe\n", ["not TOML", "line 1"]),
    "no head": (entry("BTC"), ["universe: is missing"]),
    "no rename date": ("[universe]\n" + entry("BTC"), ["universe.renamed_on: is missing"]),
    "another rename": (
        '[universe]\nrenamed_on = 2026-08-17\nrenamed = {ceres = "enzo"}\n' + entry("BTC"),
        ["universe.renamed", "'ceres'"],
    ),
    "no assets": (HEAD, ["no tracked asset"]),
    "removed assets alone": (HEAD + entry("OLD", REMOVED), ["no tracked asset"]),
    "assets not a list of tables": (HEAD.replace("[uni", "asset = 3\n[uni"), ["asset: ", "not 3"]),
    "an entry not a table": (HEAD.replace("[uni", "asset = [3]\n[uni"), ["asset 1: ", "not 3"]),
    "unknown table": (HEAD + entry("BTC") + "[extra]\n", ["extra: is not a known field"]),
    "duplicate ticker": (
        HEAD + entry("BTC") + entry("ETH") + entry("BTC"),
        ["asset 3 (BTC): ticker: is already taken"],
    ),
    "unknown class": (
        HEAD + entry("BTC") + entry("EURUSD", asset_class='"forex"'),
        ["asset 2 (EURUSD): asset_class: ", "'forex'"],
    ),
    "unknown session": (HEAD + entry("BTC", session='"9to5"'), ["(BTC): session: ", "'9to5'"]),
    "bad ticker": (HEAD + entry("btc-usd"), ["asset 1 (btc-usd): ticker: "]),
    "empty ticker": (HEAD + entry(""), ["asset 1 (): ticker: "]),
    "ticker with a newline": (HEAD + entry("B\\nTC"), ["asset 1 (B TC): ticker: "]),
    "ticker not a string": (HEAD + entry("BTC", ticker="7"), ["asset 1: ticker: ", "not 7"]),
    "empty name": (HEAD + entry("BTC", name='""'), ["asset 1 (BTC): name: "]),
    "missing field": (HEAD + entry("BTC", venue=""), ["asset 1 (BTC): venue: is missing"]),
    "unknown field": (
        HEAD + entry("BTC", "removed_at = 2025-01-01\n"),
        ["asset 1 (BTC): removed_at: is not a known field"],
    ),
    "a fallback without symbol": (
        HEAD + entry("BTC") + entry("ETH", 'fallbacks = [{venue = "okx"}]\n'),
        ["asset 2 (ETH): fallbacks.1.symbol: is missing"],
    ),
    "an empty venue in a second fallback": (
        HEAD
        + entry(
            "BTC",
            'fallbacks = [{venue = "okx", symbol = "B/U"}, {venue = "", symbol = "B/U"}]\n',
        ),
        ["asset 1 (BTC): fallbacks.2.venue: "],
    ),
    "an unknown field of a fallback": (
        HEAD + entry("BTC", 'fallbacks = [{venue = "okx", symbol = "B/U", funding = "x"}]\n'),
        ["asset 1 (BTC): fallbacks.1.funding: is not a known field"],
    ),
    "fallbacks not a list": (
        HEAD + entry("BTC", 'fallbacks = "okx"\n'),
        ["asset 1 (BTC): fallbacks: ", "not 'okx'"],
    ),
    "a perpetual that is a spot market": (
        HEAD + entry("BTC", 'perpetual = "BTC/USDT"\n'),
        ["asset 1 (BTC): perpetual: ", "not 'BTC/USDT'"],
    ),
    "a first choice that ends before it begins": (
        HEAD + entry("BTC", "since = 2026-06-02\nuntil = 2026-06-02\n"),
        ["asset 1 (BTC): until: is not after since"],
    ),
    "a fallback that ends before it begins": (
        HEAD
        + entry(
            "BTC",
            'fallbacks = [{venue = "okx", symbol = "B/U"}, '
            '{venue = "okx", symbol = "C/U", since = 2026-06-02, until = 2026-06-01}]\n',
        ),
        ["asset 1 (BTC): fallbacks.2.until: is not after since"],
    ),
    "an end of a listing as text": (
        HEAD
        + entry("BTC", 'fallbacks = [{venue = "okx", symbol = "B/U", until = "2026-06-01"}]\n'),
        ["asset 1 (BTC): fallbacks.1.until: ", "not '2026-06-01'"],
    ),
    "date as text": (HEAD + entry("BTC", added_on='"2024-01-15"'), ["(BTC): added_on: "]),
    "date with a time": (HEAD + entry("BTC", added_on="2024-01-15T00:00:00Z"), ["added_on: "]),
    "continuing as an uncovered ticker": (
        HEAD + entry("BTC") + entry("MATIC", REMOVED + 'continues_as = "POL"\n'),
        ["asset 2 (MATIC): continues_as: POL is not a tracked ticker"],
    ),
    "continuing as itself": (
        HEAD + entry("BTC") + entry("MATIC", REMOVED + 'continues_as = "MATIC"\n'),
        ["asset 2 (MATIC): continues_as: MATIC is not a tracked ticker"],
    ),
    "continuing without being removed": (
        HEAD + entry("BTC") + entry("MATIC", 'continues_as = "BTC"\n'),
        ["asset 2 (MATIC): continues_as: needs removed_on"],
    ),
    "removed before it was added": (
        HEAD + entry("BTC") + entry("OLD", "removed_on = 2023-12-31\n"),
        ["asset 2 (OLD): removed_on: is before added_on"],
    ),
}


@pytest.mark.clause("sources")
@pytest.mark.clause("1.7")
@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_file_is_refused_in_one_line_naming_file_entry_and_fault(
    tmp_path: Path, text: str, said: list[str]
):
    path = written(tmp_path, text)
    with pytest.raises(UniverseError) as raised:
        load_universe(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    assert [part for part in said if part not in message] == []


@pytest.mark.clause("sources")
@pytest.mark.parametrize(
    ("name", "fault"),
    [("absent.toml", "cannot be read"), ("", "cannot be read"), ("binary.toml", "not TOML")],
    ids=["missing", "a folder", "not UTF-8"],
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, name: str, fault: str):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UniverseError, match=rf"^{re.escape(str(tmp_path / name))}: {fault}: "):
        load_universe(tmp_path / name)


@pytest.mark.clause("live")
def test_the_clock_decides_whether_a_listing_is_open():
    noon, day = compute_midnight_s(date(2026, 6, 1)) + 43_200, 86_400
    listing = Listing(venue="okx", symbol="B/U", since=date(2026, 6, 1), until=date(2026, 6, 3))
    found = [listing.is_open(noon + days * day) for days in (-1, 0, 1, 2)]
    assert found == [False, True, True, False]
    assert listing.is_open(compute_midnight_s(date(2026, 6, 1)))
    assert not listing.is_open(compute_midnight_s(date(2026, 6, 3)))


@pytest.mark.clause("live")
def test_the_page_of_sources_counts_coins_and_stocks_by_their_listings(packaged: Universe):
    page = " ".join(Path("docs/sources.md").read_text(encoding="utf-8").split())
    coins, stocks = of_class(packaged, "crypto"), of_class(packaged, "stock")
    first = Counter(asset.listings[0].venue for asset in coins)
    assert f"Of {len(coins)} coins, Binance is the first choice for {first['binance']}" in page
    assert f"OKX for {first['okx']} and Bybit for {first['bybit']}" in page
    covered = sum(bool(asset.fallbacks) for asset in stocks)
    assert f"Without a key {covered} stocks and funds" in page
    assert f"the other {len(stocks) - covered} are not covered" in page


DAY = date(2026, 9, 30)


def asset(ticker: str, *, alerts: bool = False, removed_on: date | None = None) -> Asset:
    return Asset(
        ticker=ticker,
        name=f"Name of {ticker}",
        asset_class="crypto",
        session="24x7",
        symbol=ticker,
        venue="made up",
        added_on=date(2024, 1, 1),
        removed_on=removed_on,
        alerts=alerts,
    )


def universe_of(*assets: Asset) -> Universe:
    return Universe(assets=assets, renamed_on=date(2024, 6, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """BTC by the hour, IBM by the day."""
    bars = tmp_path / "bars"
    bars.mkdir()
    write_bars(bars, "BTC", make_bars("BTC", list_opens(START, START + 3 * 3600)))
    write_bars(bars, "IBM", make_bars("IBM", list_opens(START, START + 86_400, 24)), "1d")
    return bars


def covered(*tickers: str, removed: Mapping[str, date] = {}) -> Coverage:
    assets = [
        CoveredAsset(
            ticker=ticker,
            name=ticker,
            asset_class="crypto",
            timeframes=TIMEFRAMES,
            alerts=("4h", "1d"),
            removed_on=removed.get(ticker),
        )
        for ticker in tickers
    ]
    return published().model_copy(update={"assets": tuple(assets)})


def by_ticker(held: Coverage) -> dict[str, CoveredAsset]:
    return {one.ticker: one for one in held.assets}


@pytest.mark.clause("sources")
@pytest.mark.parametrize(
    ("session", "timeframe", "last_close", "outdated_from"),
    [
        ("24x7", "1h", "2013-05-03T10:00", "2013-05-03T11:00"),
        ("24x7", "1d", "2013-05-03T00:00", "2013-05-04T00:00"),
        # A Friday: New York trades until 20:00 UTC, and from 13:30 on Monday.
        ("XNYS", "1h", "2013-05-03T19:00", "2013-05-03T20:00"),
        ("XNYS", "1h", "2013-05-03T20:00", "2013-05-06T14:00"),
        ("XNYS", "half past", "2013-05-03T21:00", "2013-05-06T14:00"),
        ("XNYS", "1d", "2013-05-04T00:00", "2013-05-07T00:00"),
    ],
)
def test_a_recorded_asset_is_outdated_from_the_next_close_of_its_session(
    tmp_path, session, timeframe, last_close, outdated_from
):
    hours = {"1d": 24}.get(timeframe, 1)
    last = int(datetime.fromisoformat(f"{last_close}+00:00").timestamp())
    # The day's last bar, from 15:30 to 16:00 in New York, counts as closed at 17:00.
    early_s = 1800 if timeframe == "half past" else 0
    rows = make_bars("BTC", list_opens(last - early_s - 3 * hours * 3600, last, hours)[:3])
    write_bars(tmp_path, "BTC", rows, "1d" if timeframe == "1d" else "1h")
    known = universe_of(asset("BTC").model_copy(update={"session": session}), asset("ETH"))
    held = by_ticker(build_coverage(known, FilesSource(tmp_path, known), INDICATORS, 5, 7))
    assert held["BTC"].last_close == last * 1000
    assert format_instant(held["BTC"].outdated_from) == f"{outdated_from}:00.000Z"
    assert (held["ETH"].last_close, held["ETH"].outdated_from) == (None, None)


EARLIER, LATER = date(2026, 1, 1), date(2026, 12, 31)


@pytest.mark.clause("1.2", "1.17", "1.18", "1.23", "1.24")
@pytest.mark.clause("sources")
@pytest.mark.parametrize("alerts", [False, True])
def test_the_coverage_follows_from_the_bars_and_the_universe(folder: Path, alerts: bool):
    known = universe_of(*(asset(ticker, alerts=alerts) for ticker in ("BTC", "IBM", "ETH")))
    held = build_coverage(known, FilesSource(folder, known), INDICATORS, 5, 7)
    followed = ("4h", "1d") if alerts else ()
    assert {one.ticker: (one.timeframes, one.alerts) for one in held.assets} == {
        "BTC": (("1h", "4h", "1d"), followed),
        "IBM": (("1d",), followed[1:]),
        "ETH": ((), ()),
    }
    assert (held.source, held.published_at, held.recorded_until) == ("recorded", 5, 7)
    assert [one.id for one in held.indicators if not one.logged] == ["perpkit"]
    assert [(one.name, one.note) for one in held.indicators] == [
        (indicator.name, indicator.note) for indicator in INDICATORS
    ]


@pytest.mark.clause("sources")
@pytest.mark.parametrize(
    ("old", "removed_on"),
    [
        (None, None),
        (covered("BTC", "DOGE"), DAY),
        # Dropped, or announced to be removed, before that day or after it.
        (covered("BTC", "DOGE", removed={"DOGE": EARLIER}), EARLIER),
        (covered("BTC", "DOGE", removed={"DOGE": LATER}), DAY),
    ],
)
def test_a_dropped_asset_is_removed_from_that_day_on_at_the_latest_and_covers_nothing(
    old: Coverage | None, removed_on: date | None
):
    held = add_dropped_assets(covered("BTC"), old, DAY)
    assert [one.ticker for one in held.tracked] == ["BTC"]
    assert by_ticker(held)["BTC"] == by_ticker(covered("BTC"))["BTC"]
    dropped = [(one.removed_on, one.timeframes, one.alerts, one.name) for one in held.assets[1:]]
    assert dropped == ([] if old is None else [(removed_on, (), (), "DOGE")])


@pytest.mark.clause("sources")
def test_an_asset_that_returns_is_tracked_as_if_it_had_never_left():
    both = covered("BTC", "DOGE")
    without = add_dropped_assets(covered("BTC"), both, date(2026, 1, 1))
    assert add_dropped_assets(both, without, DAY) == both


@pytest.mark.clause("1.2")
@pytest.mark.clause("sources")
async def test_a_store_follows_the_universe_file_of_each_start(tmp_path: Path, folder: Path):
    """An asset is dropped on the day of the market clock, not of the wall clock."""
    some, all_ = [asset("BTC"), asset("IBM")], [asset("BTC"), asset("IBM"), asset("DOGE")]
    async with open_store(tmp_path / "market.db") as store:

        async def started_with(*assets: Asset) -> dict[str, date | None]:
            known = universe_of(*assets)
            await HourlyPipeline.open(
                store, FilesSource(folder, known), known, INDICATORS, lambda: to_market_ms(END)
            )
            held = (await store.snapshot()).coverage
            assert held is not None
            return {one.ticker: one.removed_on for one in held.assets}

        assert await started_with(*all_) == {"BTC": None, "IBM": None, "DOGE": None}
        at = to_market_ms(START)
        await store.commit(make_batch(at, [make_change(at, "DOGE", "enzo", "1h", 1)]))
        dropped = {"BTC": None, "IBM": None, "DOGE": date(2024, 1, 3)}
        assert await started_with(*some) == dropped
        await store.commit(make_batch(at + 40 * 86_400_000, []))
        assert await started_with(*some) == dropped
        assert await started_with(*all_) == {"BTC": None, "IBM": None, "DOGE": None}


@pytest.mark.clause("sources")
def test_recorded_assets_with_bars_off_the_hour_are_marked(tmp_path: Path):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + 9 * 3600)))
    opening = START // 86_400 * 86_400 + 14 * 3600
    off_hour = [opening, opening + 3600, opening + 2 * 3600 + 1800]
    write_bars(tmp_path, "NVDA", make_bars("NVDA", off_hour))
    write_bars(tmp_path, "IBM", make_bars("IBM", list_opens(START + 1800, END, 24)), "1d")
    universe = universe_of(asset("BTC"), asset("IBM"), asset("NVDA"), asset("TSLA"))
    source = FilesSource(tmp_path, universe)
    made = build_coverage(universe, source, INDICATORS, 0, to_market_ms(END))
    assert made.off_hour_tickers == ("IBM", "NVDA")
    assert Coverage.model_validate_json(made.model_dump_json()) == made
