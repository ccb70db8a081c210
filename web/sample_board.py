"""The sample board that visitors see: fixed readings and prices in the format of live ones."""

from functools import cache

from mcp_server.tools.state_matrix import LETTERS
from rest_shim.sample import SAMPLE_NAMES, build_sample
from schemas.catalog import CatalogAsset
from schemas.state import AssetState, StateCounts, StateMeta, StateResponse
from schemas.vocabulary import HOUR_MS, TIMEFRAMES, AssetClass, IndicatorId, Reading
from serving.argument_values import parse_instant_ms
from serving.prices import PriceSummary
from web.board_model import BoardModel
from web.board_query import BoardTimeframe

_READINGS: dict[str, Reading] = {letter: reading for reading, letter in LETTERS.items()}
_COLUMNS: tuple[IndicatorId, ...] = (
    "trend_oracle",
    "bayesian_trend",
    "reversals",
    "ceres",
    "enzo",
    "llnr",
    "perpkit",
)
# One word per timeframe and one letter per column. They must agree with the sample feed.
_ROWS: tuple[tuple[str, str, AssetClass, str], ...] = (
    ("BTC", "Bitcoin", "crypto", "UUNUUNN UUNUUDN UUUNUNN"),
    ("ETH", "Ethereum", "crypto", "UNNNUUN UUNNUUN UNNUUNN"),
    ("SOL", "Solana", "crypto", "DDNDNND DDNDNUD NDNNNUN"),
    ("XRP", "XRP", "crypto", "NNUNDNN NDNNDNN DDNNDNN"),
    ("NVDA", "NVIDIA", "stock", "UUNNUNN UNNNUNN UUNNUUN"),
    ("AAPL", "Apple", "stock", "NDUNNDN NNUNNDN UNNNNNN"),
    ("TSLA", "Tesla", "stock", "DNUDDDN DDNDDDN DDNNDDN"),
    ("XAU", "Gold", "metal", "UUNNNUN UUNNNUN UUNUUUN"),
    ("XAG", "Silver", "metal", "NUDNUNN UNDNUNN UUNNUNN"),
)
# The last close and four-hourly closes of a week, oldest first: each letter is a close relative to
# the last one, in steps of 0.4 %, "m" for equal. The prices are those of the sample feed.
_CLOSES: dict[str, tuple[float, str]] = {
    "BTC": (114_250.5, "ccbdefedfghgfhijihjkkjlkjkllmlkklmnkllmmnm"),
    "ETH": (4145.2, "aabcbdccedefgfegihgijhkjiklkjlkmlkmllnmnlm"),
    "SOL": (208.62, "yxyzwxvwuvwtuvstursqtrqspqroqpnopnqopnoomm"),
    "XRP": (2.8471, "rqsrtqrsqrpqqroppqonpopnoqnopmonpmnonmonmm"),
    "NVDA": (187.24, "hhiiggfgghijhijjkijkkllkjkllmmlklmmnmllmmm"),
    "AAPL": (254.63, "nmonmmolmnnomnlmonmlmnnolmnmnolmnmmnlmnmnm"),
    "TSLA": (444.72, "qrsrqstrqrsqppqrpqopqoppqonpoqnoponqopnnom"),
    "XAU": (3865.4, "ffgfghgghghihhijiijijkjkkjkklklkllmlmmlmmm"),
    "XAG": (46.65, "bcdbcedcefdfghfgihgjhikjikjlkjllkmlkmllnlm"),
}
_STEP = 0.004


@cache
def build_sample_model(timeframe: BoardTimeframe, *, with_prices: bool = True) -> BoardModel:
    """Return the sample board; its states have every timeframe, whichever is shown."""
    feed = build_sample()
    meta = feed.meta.model_dump(include=set(StateMeta.model_fields), by_alias=True)
    states = [_build_state(*row) for row in _ROWS]
    shown = len(TIMEFRAMES) if timeframe == "all" else 1
    return BoardModel(
        tracked=[
            CatalogAsset(ticker=state.ticker, name=state.name, asset_class=state.asset_class)
            for state in states
        ],
        names=SAMPLE_NAMES,
        state=StateResponse(
            as_of=feed.meta.as_of,
            assets=states,
            counts=StateCounts(assets=len(states), readings=shown * len(states) * len(_COLUMNS)),
            meta=StateMeta(**meta, last_bars=[], not_covered=[], legacy_keys={}),
        ),
        prices=_build_prices(feed.meta.as_of) if with_prices else None,
    )


def _build_state(ticker: str, name: str, asset_class: AssetClass, words: str) -> AssetState:
    return AssetState(
        ticker=ticker,
        name=name,
        asset_class=asset_class,
        signals={
            indicator: {
                timeframe: _READINGS[word[column]]
                for timeframe, word in zip(TIMEFRAMES, words.split(), strict=True)
            }
            for column, indicator in enumerate(_COLUMNS)
        },
    )


def _build_prices(as_of: str) -> dict[str, PriceSummary]:
    closed_at = parse_instant_ms("as_of", as_of) // HOUR_MS * HOUR_MS
    return {
        ticker: _build_summary(last_close, letters, closed_at)
        for ticker, (last_close, letters) in _CLOSES.items()
    }


def _build_summary(last_close: float, letters: str, closed_at: int) -> PriceSummary:
    closes = [last_close * (1 + _STEP * (ord(letter) - ord("m"))) for letter in letters]
    # Six closes of four hours are a day.
    return PriceSummary(last_close, closed_at, last_close / closes[-7] - 1, closes)
