"""148 misspelt, foreign and renamed names: no hint leads to another asset without naming it."""

import re
import tomllib
from pathlib import Path
from typing import Literal

import pytest

from compute.universe import load_universe
from schemas.coverage import CoveredAsset
from serving.argument_values import find_assets
from serving.arguments import ArgumentError
from serving.asset_hints import AssetHints, fold_asset_name, load_known_names
from tests.support.bad_inputs import SIGNALS, STATE
from tests.support.example_market import make_full_coverage
from tests.support.running_service import RunningService, Transport
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("7.38", "7.39")

ASSETS = {asset.ticker: asset for asset in make_full_coverage().assets}
TRACKED = [asset for asset in ASSETS.values() if asset.removed_on is None]
TABLE = tomllib.loads(Path("serving/asset_names.toml").read_text())

# The asset that each name means, from exchanges, index providers and the renamings' announcements.
RENAMED = {
    "MKR": "SKY", "mkr": "SKY", "Maker": "SKY", "EOS": "A", "FTM": "S", "Fantom": "S",
    "KLAY": "KAIA", "AGIX": "FET", "OCEAN": "FET", "Fetch.ai": "FET", "RNDR": "RENDER",
    "LEND": "AAVE", "GNT": "GLM", "ERD": "EGLD", "Elrond": "EGLD", "BCHA": "XEC", "BIT": "MNT",
    "VEN": "VET", "DRK": "DASH", "ANS": "NEO", "CGLD": "CELO", "MPL": "SYRUP", "HAV": "SNX",
    "MCO": "CRO", "Toncoin": "TON", "Matic Network": "POL", "Hedera Hashgraph": "HBAR",
    "FB": "META", "Facebook": "META", "MicroStrategy": "MSTR", "PCLN": "BKNG", "Praxair": "LIN",
}  # fmt: skip
COLLOQUIAL = {
    "XBT": "BTC", "XXBT": "BTC", "XDG": "DOGE", "Ether": "ETH", "Ripple": "XRP", "Lumens": "XLM",
    "BTT": "BTTC", "MIOTA": "IOTA", "kPEPE": "PEPE", "1000SHIB": "SHIB", "Polygon": "POL",
    "Cosmos": "ATOM", "0x": "ZRX", "GRAM": "TON", "Google": "GOOGL", "Coke": "KO", "J&J": "JNJ",
    "JP Morgan": "JPM", "Disney": "DIS", "BTCUSDT": "BTC", "ETH-PERP": "ETH",
    "SOL/USDT:USDT": "SOL", "NASDAQ:AAPL": "AAPL", "XAUUSD": "XAU",
    "nasdaq": "QQQ", "S&P 500": "SPY", "SPX": "SPY", "Russell 2000": "IWM",
}  # fmt: skip
FOREIGN = {
    "Биткоин": "BTC", "эфириум": "ETH", "比特币": "BTC", "以太坊": "ETH", "ビットコイン": "BTC",
    "비트코인": "BTC", "リップル": None, "золото": "XAU", "黄金": "XAU", "oro": "XAU",
    "plata": "XAG", "Silber": "XAG", "platino": "XPT", "特斯拉": "TSLA", "英伟达": "NVDA",
    "Toyota": None, "SAP": None, "Nestlé": None, "Samsung": None, "BABA": None, "TSMC": None,
    "Tencent": None, "LVMH": None, "BMW": None,
}  # fmt: skip
UNCOVERED = {
    "SQ": None, "BRK.B": None, "brk-b": None, "Berkshire": None, "oil": None, "WTI": None,
    "natgas": None, "copper": None, "EURUSD": None, "DXY": None, "VIX": None, "DAX": None,
    "USDT": None, "WBTC": None, "stETH": None, "LUNA": None, "UST": None, "TQQQ": None,
    "GLD": None, "IBIT": None, "VMW": None, "TWTR": None, "GME": None, "AMC": None, "NET": None,
    "LOW": None, "UBER": None, "Convex": None, "ETH/BTC": None, "DARK": None,
}  # fmt: skip
MISSPELT = {
    "BTCC": "BTC", "ETHH": "ETH", "SOLL": "SOL", "xrpp": "XRP", "DOGEE": "DOGE", "AVXA": "AVAX",
    "NVDX": "NVDA", "APPL": "AAPL", "TSLAA": "TSLA", "MSFTT": "MSFT", "Bitcon": "BTC",
    "Etherium": "ETH", "Etherum": "ETH", "Solona": "SOL", "Cardanno": "ADA", "Dogecion": "DOGE",
    "Litecion": "LTC", "Polkadott": "DOT", "Chainlnk": "LINK", "Avalanch": "AVAX",
    "Nvidai": "NVDA", "NVDIA": "NVDA", "Micorsoft": "MSFT", "Amazn": "AMZN", "Telsa": "TSLA",
    "Walmrt": "WMT", "Facebok": "META", "Goldd": "XAU", "Paladium": "XPD", "Silvr": "XAG",
    "BTX": None, "SO": None, "Berkshir": None, "zzzz": None,
}  # fmt: skip
NAMES: dict[str, str | None] = {**RENAMED, **COLLOQUIAL, **FOREIGN, **UNCOVERED, **MISSPELT}


def explain(text: str, assets: dict[str, CoveredAsset] = ASSETS) -> str:
    """Return the message about an unknown ticker, without its first and last words."""
    with pytest.raises(ArgumentError) as refused:
        find_assets(text, assets)
    return refused.value.message


def find_hinted(message: str) -> list[tuple[str, str]]:
    """Return every ticker that a message leads to, with the name after it."""
    hints: list[tuple[str, str]] = re.findall(r"did you mean (\w+) \((.+?)\)\?\)", message)
    for ticker in re.findall(r"Use (\w+)\.", message):
        (name,) = re.findall(rf"\b{ticker} \((.+?)\)(?:\.| follows)", message)
        hints.append((ticker, name))
    return hints


def test_there_are_148_names() -> None:
    assert len(NAMES) == 148


@pytest.mark.parametrize("text", NAMES)
def test_a_name_leads_to_its_asset_or_to_none_and_says_its_name(text: str) -> None:
    meant = NAMES[text]
    expected = [] if meant is None else [(meant, ASSETS[meant].name)]
    assert find_hinted(explain(text)) == expected


@pytest.mark.parametrize(
    ("text", "tickers"),
    [
        ("bitcoin", ["BTC"]),
        ("$doge", ["DOGE"]),
        ("P&G", ["PG"]),
        ("btc;eth", ["BTC", "ETH"]),
        ("btc eth sol", ["BTC", "ETH", "SOL"]),
        ("Bitcoin Cash, gold", ["BCH", "XAU"]),
    ],
)
def test_exact_names_and_other_separators_select_assets(text: str, tickers: list[str]) -> None:
    assert [*find_assets(text, ASSETS)] == tickers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("MKR", "MKR was renamed SKY (Sky). Use SKY."),
        ("ocean", "OCEAN was merged into FET (Artificial Superintelligence Alliance). Use FET."),
        ("XBT", "XBT means BTC (Bitcoin). Use BTC."),
        ("sq", "SQ was renamed XYZ (Block), which is not covered."),
        ("Berkshire", "Berkshire means BRK.B (Berkshire Hathaway Class B), which is not covered."),
        ("brk b", "BRK.B (Berkshire Hathaway Class B) is not covered."),
        ("toyota", "TM (Toyota) is not covered."),
        ("OIL", "oil (crude oil) is not covered."),
        (
            "nasdaq",
            "NASDAQ is not covered. QQQ (Invesco QQQ Trust) follows the same index. Use QQQ.",
        ),
        ("bitcoine", 'unknown "bitcoine" (did you mean BTC (Bitcoin)?); accepted: one of the 252'),
        ("BTX", 'unknown "BTX"; accepted: one of the 252 known tickers in any case, as the'),
    ],
)
def test_the_message_says_what_became_of_a_name(text: str, sentence: str) -> None:
    assert sentence in explain(text)


def test_several_names_are_explained_once_each() -> None:
    message = explain("MKR,BTCC,maker,mkr,zzzz")
    assert message == (
        'ticker: unknown "MKR", "BTCC" (did you mean BTC (Bitcoin)?), "maker", "mkr", "zzzz"; '
        "accepted: one of the 252 known tickers in any case, as the catalog lists them. "
        "MKR was renamed SKY (Sky). Use SKY. Maker was renamed SKY (Sky). Use SKY."
    )


@pytest.mark.parametrize("asset_class", ["stock", "metal"])
def test_no_asset_of_another_class_than_the_requested_one_is_suggested(
    asset_class: Literal["stock", "metal"],
) -> None:
    hints = AssetHints(TRACKED, asset_class)
    assert [hints.find_similar(text) for text in ("BTCC", "BTCUSDT", "Etherium")] == [None] * 3
    # Without cryptocurrencies, another name would be the most similar one.
    assert AssetHints(TRACKED).find_similar("Goldd") is ASSETS["XAU"]


def test_equally_similar_names_of_two_classes_suggest_neither() -> None:
    coin = ASSETS["BTC"].model_copy(update={"ticker": "ABCX", "name": "Coin"})
    stock = ASSETS["AAPL"].model_copy(update={"ticker": "ABCY", "name": "Share"})
    assert AssetHints([coin, stock]).find_similar("ABCZ") is None
    assert AssetHints([coin]).find_similar("ABCZ") is coin


def test_a_ticker_that_belongs_to_another_class_in_this_universe_is_not_used() -> None:
    agilent = ASSETS["AAPL"].model_copy(update={"ticker": "A", "name": "Agilent"})
    sky = ASSETS["SKY"].model_copy(update={"name": "Sky"})
    hints = AssetHints([agilent, sky])
    assert hints.explain("EOS") == "EOS was renamed A, which is not covered"
    assert hints.explain("MKR") == "MKR was renamed SKY (Sky). Use SKY"


def test_a_universe_that_covers_a_known_name_suggests_it() -> None:
    toyota = ASSETS["AAPL"].model_copy(update={"ticker": "TM", "name": "Toyota"})
    hints = AssetHints([toyota])
    assert hints.explain("toyota") == ""
    assert hints.find_similar("toyota") is toyota


def test_removed_assets_are_not_suggested() -> None:
    assert find_hinted(explain("MATICC")) == [("POL", "Polygon (POL)")]


def test_the_table_names_only_assets_that_exist() -> None:
    universe = {asset.ticker: asset.asset_class for asset in load_universe().tracked_assets}
    for group, relations in TABLE.items():
        for relation, names in relations.items():
            targets = {*names.values()} if relation != "assets" else set()
            others = relations.get("assets", {})
            assert {universe.get(one, group if one in others else "") for one in targets} <= {group}


def test_the_table_has_no_name_twice_and_no_covered_ticker() -> None:
    names = [name for parts in TABLE.values() for relation in parts.values() for name in relation]
    folded = [fold_asset_name(name) for name in names]
    assert len(set(folded)) == len(folded) <= len(load_known_names())
    assert not {asset.ticker for asset in TRACKED} & {name.upper() for name in names}


def test_the_table_maps_at_least_120_names_to_covered_assets() -> None:
    tickers = {asset.ticker for asset in TRACKED}
    mapped = [
        name
        for parts in TABLE.values()
        for relation, names in parts.items()
        for name, ticker in names.items()
        if relation != "assets" and ticker in tickers
    ]
    assert len(mapped) >= 120


@pytest.mark.parametrize("tool", [STATE, SIGNALS])
async def test_both_transports_explain_a_name(
    served: RunningService, transport: Transport, tool: str
) -> None:
    status, error = await served.fetch_refusal(transport, tool, ticker="XBT")
    assert (status, error["error"]) == (400, "unknown_ticker")
    assert error["message"].endswith("XBT means BTC (Bitcoin). Use BTC.")
