"""The sample board that visitors see: fixed readings in the format of live ones."""

from functools import cache

from mcp_server.tools.get_confluence import build_result, rank_results
from mcp_server.tools.get_flips import WINDOW_HOURS
from mcp_server.tools.state_matrix import LETTERS
from rest_shim.sample import SAMPLE_NAMES, build_sample
from schemas.catalog import CatalogAsset
from schemas.confluence import ConfluenceResult
from schemas.flips import Flip, FlipGroup
from schemas.signals import Signal
from schemas.state import AssetState, StateCounts, StateMeta, StateResponse
from schemas.vocabulary import AssetClass, IndicatorId, Reading, Side, Timeframe
from web.board_model import MIN_AGREEING, BoardModel

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
# One letter per column. They must agree with the sample feed, whose changes the board also shows.
_ROWS: tuple[tuple[str, str, AssetClass, str], ...] = (
    ("BTC", "Bitcoin", "crypto", "UUNUUDN"),
    ("ETH", "Ethereum", "crypto", "UUNNUUN"),
    ("SOL", "Solana", "crypto", "DDNDNUD"),
    ("XRP", "XRP", "crypto", "NDNNDNN"),
    ("NVDA", "NVIDIA", "stock", "UNNNUNN"),
    ("AAPL", "Apple", "stock", "NNUNNDN"),
    ("TSLA", "Tesla", "stock", "DDNDDDN"),
    ("XAU", "Gold", "metal", "UUNNNUN"),
    ("XAG", "Silver", "metal", "UNDNUNN"),
)


@cache
def build_sample_model(timeframe: Timeframe) -> BoardModel:
    """Return the sample board; its readings are the same on every timeframe."""
    feed = build_sample()
    meta = feed.meta.model_dump(include=set(StateMeta.model_fields), by_alias=True)
    states = [_build_state(*row, timeframe) for row in _ROWS]
    return BoardModel(
        tracked=[
            CatalogAsset(ticker=state.ticker, name=state.name, asset_class=state.asset_class)
            for state in states
        ],
        names=SAMPLE_NAMES,
        state=StateResponse(
            as_of=feed.meta.as_of,
            assets=states,
            counts=StateCounts(assets=len(states), readings=len(states) * len(_COLUMNS)),
            meta=StateMeta(**meta, last_bars=[], not_covered=[], legacy_keys={}),
        ),
        changes=feed.signals,
        flips=[_build_flip_group(row) for row in feed.signals if row.tier == "universe"],
        flips_until=feed.meta.as_of,
        hours=WINDOW_HOURS[timeframe].default,
        agreeing={
            "bullish": _rank_agreeing(states, "bullish", timeframe),
            "bearish": _rank_agreeing(states, "bearish", timeframe),
        },
    )


def _build_state(
    ticker: str, name: str, asset_class: AssetClass, letters: str, timeframe: Timeframe
) -> AssetState:
    return AssetState(
        ticker=ticker,
        name=name,
        asset_class=asset_class,
        signals={
            indicator: {timeframe: _READINGS[letter]}
            for indicator, letter in zip(_COLUMNS, letters, strict=True)
        },
    )


def _build_flip_group(row: Signal) -> FlipGroup:
    """Return a flip group with a single change of the sample feed."""
    assert row.transition is not None
    bullish, bearish = int(row.direction == "bullish"), int(row.direction == "bearish")
    flip = {
        "indicator": row.indicator,
        "indicator_name": row.indicator_name,
        "from": row.transition.from_,
        "to": row.transition.to,
        "change_type": row.change_type,
        "price": row.price,
        "created_at": row.created_at,
    }
    return FlipGroup(
        ticker=row.ticker,
        name=next(name for ticker, name, *_ in _ROWS if ticker == row.ticker),
        asset_class=row.asset_class,
        dominant="bullish" if bullish else "bearish" if bearish else "mixed",
        bullish=bullish,
        bearish=bearish,
        score=max(bullish, bearish),
        latest_at=row.created_at,
        flips=[Flip.model_validate(flip)],
    )


def _rank_agreeing(
    states: list[AssetState], side: Side, timeframe: Timeframe
) -> list[ConfluenceResult]:
    polled = [
        build_result(state, {key: cells[timeframe] for key, cells in state.signals.items()}, side)
        for state in states
    ]
    return rank_results(result for result in polled if result.agree >= MIN_AGREEING)
