from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from compute.universe import Universe, UniverseError, load_universe

pytestmark = pytest.mark.clause("sources")

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


@pytest.mark.clause("1.5", "1.6")
def test_the_packaged_universe_tracks_251_assets_including_176_of_crypto(packaged: Universe):
    assert len(packaged.tracked_assets) == 251
    assert packaged.counts["crypto"] == 176
    assert packaged.counts["stock"] + packaged.counts["metal"] == 75


@pytest.mark.clause("9.8", "9.10")
def test_one_removed_asset_is_not_counted_and_continues_as_a_tracked_one(
    packaged: Universe,
):
    [removed] = [asset for asset in packaged.assets if asset.removed_on]
    assert (removed.ticker, removed.removed_on) == ("MATIC", date(2026, 9, 27))
    assert removed not in packaged.tracked_assets
    assert packaged.by_ticker["MATIC"] is removed
    assert removed.continues_as == "POL"
    assert packaged.by_ticker["POL"] in packaged.tracked_assets


def test_only_the_removed_asset_ends_at_the_midnight_that_begins_its_day(packaged: Universe):
    assert dict(packaged.end_time_by_ticker) == {
        "MATIC": int(datetime(2026, 9, 27, tzinfo=UTC).timestamp())
    }


def test_tickers_and_names_are_distinct(packaged: Universe):
    assert len({asset.ticker for asset in packaged.assets}) == 252
    assert len({asset.name for asset in packaged.assets}) == 252


def test_the_assets_everyone_expects_are_tracked(packaged: Universe):
    assert {asset.ticker for asset in packaged.tracked_assets} >= set(REQUIRED.split())


def test_the_metals_are_gold_silver_platinum_and_palladium(packaged: Universe):
    metals = {asset.ticker for asset in packaged.assets if asset.asset_class == "metal"}
    assert metals == {"XAU", "XAG", "XPT", "XPD"}


def test_a_session_belongs_to_its_asset_class(packaged: Universe):
    sessions = {(asset.asset_class, asset.session) for asset in packaged.assets}
    assert sessions == {("crypto", "24x7"), ("stock", "XNYS"), ("stock", "XNAS"), ("metal", "24x5")}


def test_assets_come_as_crypto_then_stocks_then_metals_then_removed_by_ticker(packaged: Universe):
    order = ["crypto", "stock", "metal"]
    keys = [
        (asset.removed_on is not None, order.index(asset.asset_class), asset.ticker)
        for asset in packaged.assets
    ]
    assert keys == sorted(keys)


def test_the_rename_lies_between_june_and_late_september_of_2026(packaged: Universe):
    assert date(2026, 6, 1) <= packaged.renamed_on <= date(2026, 9, 24)


def test_at_least_twenty_assets_were_added_after_the_rename(packaged: Universe):
    assert sum(asset.added_on > packaged.renamed_on for asset in packaged.tracked_assets) >= 20


def test_every_asset_was_added_between_january_2024_and_september_2026(packaged: Universe):
    added = [asset.added_on for asset in packaged.assets]
    assert date(2024, 1, 15) == min(added)
    assert max(added) <= date(2026, 9, 30)


def test_a_universe_of_twelve_assets_is_accepted(tmp_path: Path):
    text = HEAD + "".join(entry(f"T{number}") for number in range(12))
    universe = load_universe(written(tmp_path, text))
    assert [asset.ticker for asset in universe.assets] == [f"T{number}" for number in range(12)]
    assert dict(universe.counts) == {"crypto": 12, "stock": 0, "metal": 0}
    assert universe.renamed_on == date(2026, 8, 17)


def test_an_asset_may_be_removed_without_continuing(tmp_path: Path):
    text = HEAD + entry("BTC") + entry("OLD", "removed_on = 2025-01-01\n")
    assert [asset.ticker for asset in load_universe(written(tmp_path, text)).tracked_assets] == [
        "BTC"
    ]


def test_a_universe_can_not_be_changed(packaged: Universe):
    with pytest.raises(ValidationError):
        packaged.assets[0].ticker = "OTHER"  # type: ignore[misc]


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


def test_a_missing_file_is_named(tmp_path: Path):
    path = tmp_path / "absent.toml"
    with pytest.raises(UniverseError) as raised:
        load_universe(path)
    assert str(raised.value).startswith(f"{path}: cannot be read: ")


def test_a_folder_is_not_a_universe_file(tmp_path: Path):
    with pytest.raises(UniverseError) as raised:
        load_universe(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}: cannot be read: ")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path):
    path = tmp_path / "other.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UniverseError) as raised:
        load_universe(path)
    assert str(raised.value).startswith(f"{path}: not TOML: ")
