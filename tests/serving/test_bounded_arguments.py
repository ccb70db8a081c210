"""Every argument and body field has a bound, which its error names, and a full list fits.

148 misspelt, foreign and renamed names: no hint leads to another asset without naming it.
"""

import difflib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from compute.universe import load_universe
from mcp_server.tools.tool_table import TOOLS
from schemas.coverage import CoveredAsset
from schemas.purchase import Body
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS, Query
from schemas.signals import MAX_OFFSET
from serving.argument_values import MAX_TICKERS, find_assets
from serving.arguments import (
    MAX_COMPARED_CHARS,
    MAX_SUGGESTIONS,
    ArgumentError,
    get_argument_schemas,
    quote_value,
)
from serving.asset_hints import AssetHints, fold_asset_name, load_known_names
from serving.json_schema import Schema, build_input_schema
from serving.tool_runner import AnyTool
from tests.support.bad_inputs import CATALOG, SIGNALS, STATE
from tests.support.example_market import make_full_coverage
from tests.support.running_service import RunningService, Transport, served as served

INPUTS = [*Query.__subclasses__(), *Body.__subclasses__()]


def find_unbounded(name: str, part: Schema) -> Iterator[str]:
    """Yield the path of each part of a schema that accepts values of any size."""
    kind = part.get("type")
    if kind == "string" and not part.keys() & {"enum", "const", "maxLength"}:
        yield name
    if kind in {"integer", "number"} and not {"minimum", "maximum"} <= part.keys():
        yield name
    if kind == "array":
        if "maxItems" not in part:
            yield name
        yield from find_unbounded(f"{name}[]", part.get("items", {}))
    if kind == "object":
        if part.get("additionalProperties", True) is not False:
            yield name
        for key, value in part.get("properties", {}).items():
            yield from find_unbounded(f"{name}.{key}", value)
    if kind is None and not part.keys() & {"enum", "const"}:
        yield name


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("model", INPUTS, ids=lambda model: model.__name__)
def test_every_argument_and_field_is_bounded(model: type[BaseModel]) -> None:
    assert list(find_unbounded("", build_input_schema(model))) == []


@pytest.mark.clause("endpoint")
def test_every_tool_and_every_body_is_among_the_checked_models() -> None:
    assert {tool.query for tool in TOOLS} <= set(INPUTS)
    assert {model.__name__ for model in Body.__subclasses__()} == {
        "AccessRequestBody",
        "CheckoutBody",
        "ClaimBody",
    }


@pytest.mark.clause("endpoint")
def test_the_check_names_what_is_unbounded() -> None:
    class Unbounded(BaseModel):
        text: str
        pattern: str = Field(pattern="^a+$")
        number: int = Field(ge=0)
        names: list[str]
        choice: Literal["a", "b"]
        short: str = Field(max_length=3)

    found = list(find_unbounded("", build_input_schema(Unbounded)))
    assert found == [".text", ".pattern", ".number", ".names", ".names[]"]


@pytest.mark.clause("endpoint")
def test_a_list_of_all_tickers_fits() -> None:
    tickers = [asset.ticker for asset in load_universe().assets]
    assert len(tickers) <= MAX_TICKERS
    assert len(", ".join(tickers)) <= MAX_LIST_CHARS
    assert max(map(len, tickers)) <= MAX_NAME_CHARS


TEXTS = [
    (tool, name, schema["maxLength"])
    for tool in TOOLS
    for name, schema in get_argument_schemas(tool.query).items()
    if "maxLength" in schema
]


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    ("tool", "name", "limit"), TEXTS, ids=lambda value: getattr(value, "name", str(value))
)
async def test_a_text_beyond_its_bound_is_refused_with_the_bound(
    served: RunningService, transport: str, tool: AnyTool, name: str, limit: int
) -> None:
    stated = f"{name}: too long ({limit + 1} characters); accepted: text of at most {limit}"
    sent = {name: "x" * (limit + 1)}
    await served.check_refusal(transport, tool.name, 400, "invalid_parameter", stated, **sent)
    _, longest = await served.fetch_refusal(transport, tool.name, **{name: "x" * limit})
    assert "too long" not in longest["message"]


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("tool", [STATE, CATALOG])
async def test_a_list_of_too_many_tickers_is_refused(
    served: RunningService, transport: str, tool: str
) -> None:
    known = ["BTC"] * MAX_TICKERS
    assert "error" not in await served.fetch_answer(transport, tool, ticker=",".join(known))
    await served.check_refusal(
        transport,
        tool,
        400,
        "invalid_parameter",
        f"ticker: {MAX_TICKERS + 1} items are too many; accepted: at most",
        ticker=",".join([*known, "BTC"]),
    )


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    "text",
    [
        "x" * 58,
        "international business",
        "american incorporated holdings corp",
        "etaoinsrhldcu" * 4,
    ],
)
def test_the_work_of_suggestions_is_bounded(text: str) -> None:
    assets = {asset.ticker: asset for asset in make_full_coverage().assets}
    unknown = ",".join(f"{text}{number:02}" for number in range(20))
    with count_compared_chars() as compared, pytest.raises(ArgumentError, match="unknown"):
        find_assets(unknown, assets)
    assert sum(compared) <= MAX_SUGGESTIONS * MAX_COMPARED_CHARS


@contextmanager
def count_compared_chars() -> Iterator[list[int]]:
    """Collect the length of the text in each comparison with a name that difflib begins."""
    compared: list[int] = []

    def observe(frame: FrameType, event: str, argument: object) -> None:
        is_comparison = frame.f_code is difflib.SequenceMatcher.set_seq1.__code__
        # Without a text, a matcher is created and compares nothing yet.
        if event == "call" and is_comparison and (text := frame.f_locals["self"].b):
            compared.append(len(text))

    sys.setprofile(observe)
    try:
        yield compared
    finally:
        sys.setprofile(None)


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    "typo", ["Artificial Superinteligence Alliance", "Nvidai", "Goldd", "SOLL"]
)
def test_a_bounded_search_finds_the_nearest_name(typo: str) -> None:
    assets = {asset.ticker: asset for asset in make_full_coverage().assets}
    nearest = {"A": "FET", "N": "NVDA", "G": "XAU", "S": "SOL"}[typo[0]]
    with pytest.raises(ArgumentError, match=f"did you mean {nearest}"):
        find_assets(typo, assets)


@pytest.mark.clause("endpoint")
async def test_an_offset_beyond_its_bound_is_refused(
    served: RunningService, transport: str
) -> None:
    refusal = (400, "invalid_parameter", f"accepted: an integer from 0 to {MAX_OFFSET}")
    await served.check_refusal(transport, SIGNALS, *refusal, offset=MAX_OFFSET + 1)


@pytest.mark.clause("endpoint")
async def test_a_number_out_of_range_is_not_quoted_as_infinity(served: RunningService) -> None:
    body = (
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        f'{{"name":"{SIGNALS}","arguments":{{"limit":1e999}}}}}}'
    )
    headers = {
        "Authorization": f"Bearer {served.api_key}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    response = await served.client.post("/api/v1/mcp", content=body, headers=headers)
    assert "limit: a number out of range is not accepted" in response.text


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (float("inf"), "a number out of range"),
        ([1, float("-inf")], "[1, a number out of range]"),
        ("Infinity", '"Infinity"'),
        (["-Infinity"], '["-Infinity"]'),
    ],
)
def test_only_numbers_out_of_range_are_replaced(value: object, quoted: str) -> None:
    assert quote_value(value) == quoted


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


@pytest.mark.clause("7.38", "7.39")
def test_there_are_148_names() -> None:
    assert len(NAMES) == 148


@pytest.mark.clause("7.38", "7.39")
@pytest.mark.parametrize("text", NAMES)
def test_a_name_leads_to_its_asset_or_to_none_and_says_its_name(text: str) -> None:
    meant = NAMES[text]
    assert find_hinted(explain(text)) == ([] if meant is None else [(meant, ASSETS[meant].name)])


@pytest.mark.clause("7.38", "7.39")
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


@pytest.mark.clause("7.38", "7.39")
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


@pytest.mark.clause("7.38", "7.39")
def test_several_names_are_explained_once_each() -> None:
    assert explain("MKR,BTCC,maker,mkr,zzzz") == (
        'ticker: unknown "MKR", "BTCC" (did you mean BTC (Bitcoin)?), "maker", "mkr", "zzzz"; '
        "accepted: one of the 252 known tickers in any case, as the catalog lists them. "
        "MKR was renamed SKY (Sky). Use SKY. Maker was renamed SKY (Sky). Use SKY."
    )


@pytest.mark.clause("7.38", "7.39")
@pytest.mark.parametrize("asset_class", ["stock", "metal"])
def test_no_asset_of_another_class_than_the_requested_one_is_suggested(
    asset_class: Literal["stock", "metal"],
) -> None:
    hints = AssetHints(TRACKED, asset_class)
    assert [hints.find_similar(text) for text in ("BTCC", "BTCUSDT", "Etherium")] == [None] * 3
    # Without cryptocurrencies, another name would be the most similar one.
    assert AssetHints(TRACKED).find_similar("Goldd") is ASSETS["XAU"]


@pytest.mark.clause("7.38", "7.39")
def test_equally_similar_names_of_two_classes_suggest_neither() -> None:
    coin = ASSETS["BTC"].model_copy(update={"ticker": "ABCX", "name": "Coin"})
    stock = ASSETS["AAPL"].model_copy(update={"ticker": "ABCY", "name": "Share"})
    assert AssetHints([coin, stock]).find_similar("ABCZ") is None
    assert AssetHints([coin]).find_similar("ABCZ") is coin


@pytest.mark.clause("7.38", "7.39")
def test_a_ticker_that_belongs_to_another_class_in_this_universe_is_not_used() -> None:
    agilent = ASSETS["AAPL"].model_copy(update={"ticker": "A", "name": "Agilent"})
    hints = AssetHints([agilent, ASSETS["SKY"].model_copy(update={"name": "Sky"})])
    assert hints.explain("EOS") == "EOS was renamed A, which is not covered"
    assert hints.explain("MKR") == "MKR was renamed SKY (Sky). Use SKY"


@pytest.mark.clause("7.38", "7.39")
def test_a_universe_that_covers_a_known_name_suggests_it() -> None:
    toyota = ASSETS["AAPL"].model_copy(update={"ticker": "TM", "name": "Toyota"})
    hints = AssetHints([toyota])
    assert hints.explain("toyota") == ""
    assert hints.find_similar("toyota") is toyota


@pytest.mark.clause("7.38", "7.39")
def test_removed_assets_are_not_suggested() -> None:
    assert find_hinted(explain("MATICC")) == [("POL", "Polygon (POL)")]


@pytest.mark.clause("7.38", "7.39")
def test_the_table_names_only_assets_that_exist() -> None:
    universe = {asset.ticker: asset.asset_class for asset in load_universe().tracked_assets}
    for group, relations in TABLE.items():
        for relation, names in relations.items():
            targets = {*names.values()} if relation != "assets" else set()
            others = relations.get("assets", {})
            assert {universe.get(one, group if one in others else "") for one in targets} <= {group}


@pytest.mark.clause("7.38", "7.39")
def test_the_table_has_no_name_twice_and_no_covered_ticker() -> None:
    names = [name for parts in TABLE.values() for relation in parts.values() for name in relation]
    folded = [fold_asset_name(name) for name in names]
    assert len(set(folded)) == len(folded) <= len(load_known_names())
    assert not {asset.ticker for asset in TRACKED} & {name.upper() for name in names}


@pytest.mark.clause("7.38", "7.39")
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


@pytest.mark.clause("7.38", "7.39")
@pytest.mark.parametrize("tool", [STATE, SIGNALS])
async def test_both_transports_explain_a_name(
    served: RunningService, transport: Transport, tool: str
) -> None:
    refusal = (400, "unknown_ticker", "XBT means BTC (Bitcoin). Use BTC.")
    await served.check_refusal(transport, tool, *refusal, ticker="XBT")
