"""The board as letters: all readings in a tenth of the characters."""

from collections.abc import Sequence
from typing import Literal

from schemas.state import AssetState, Matrix, StateQuery
from schemas.vocabulary import INDICATOR_IDS, LEGACY_KEYS, TIMEFRAMES, Reading, StoredKey, Timeframe

Letter = Literal["U", "D", "N", "."]

LETTERS: dict[Reading, Letter] = {"bullish": "U", "bearish": "D", "neutral": "N"}
NONE: Letter = "."
LEGEND: dict[Letter, str] = {
    **{letter: reading for reading, letter in LETTERS.items()},
    NONE: "no reading, or none that was asked for",
}


def matrix(states: Sequence[AssetState], query: StateQuery) -> Matrix:
    """Return the readings of an answer, a row an asset."""
    asked: tuple[StoredKey, ...] = INDICATOR_IDS if query.indicator is None else (query.indicator,)
    timeframes = TIMEFRAMES if query.timeframe is None else (query.timeframe,)
    return Matrix(
        legend=LEGEND,
        timeframes=list(timeframes),
        indicators=[*asked, *(key for key in LEGACY_KEYS if any(key in s.signals for s in states))],
        rows=";".join(_row(state, asked, timeframes) for state in states),
    )


def _row(state: AssetState, asked: tuple[StoredKey, ...], timeframes: tuple[Timeframe, ...]) -> str:
    keys = (*asked, *(key for key in LEGACY_KEYS if key in state.signals))
    words = ("".join(_letter(state, key, timeframe) for key in keys) for timeframe in timeframes)
    return " ".join([state.ticker, *words])


def _letter(state: AssetState, key: StoredKey, timeframe: Timeframe) -> Letter:
    reading = state.signals.get(key, {}).get(timeframe)
    return NONE if reading is None else LETTERS[reading]
