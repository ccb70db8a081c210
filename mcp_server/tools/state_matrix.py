"""Renders readings as a letter matrix, in less than a tenth of the characters."""

from collections.abc import Sequence
from typing import Literal

from schemas.state import AssetState, Matrix, StateQuery
from schemas.vocabulary import INDICATOR_IDS, LEGACY_KEYS, TIMEFRAMES, Reading, StoredKey, Timeframe

Letter = Literal["U", "D", "N", "."]

LETTERS: dict[Reading, Letter] = {"bullish": "U", "bearish": "D", "neutral": "N"}
NO_READING_LETTER: Letter = "."
LEGEND: dict[Letter, str] = {
    **{letter: reading for reading, letter in LETTERS.items()},
    NO_READING_LETTER: "no reading, or excluded by a filter",
}


def build_matrix(states: Sequence[AssetState], query: StateQuery) -> Matrix:
    """Return the readings as a matrix with one row per asset."""
    indicators: tuple[StoredKey, ...] = (
        INDICATOR_IDS if query.indicator is None else (query.indicator,)
    )
    timeframes = TIMEFRAMES if query.timeframe is None else (query.timeframe,)
    return Matrix(
        legend=LEGEND,
        timeframes=list(timeframes),
        indicators=[
            *indicators,
            *(key for key in LEGACY_KEYS if any(key in s.signals for s in states)),
        ],
        rows=";".join(_format_row(state, indicators, timeframes) for state in states),
    )


def _format_row(
    state: AssetState, indicators: tuple[StoredKey, ...], timeframes: tuple[Timeframe, ...]
) -> str:
    # Legacy keys come last, so that the letters of the indicators keep their positions.
    keys = (*indicators, *(key for key in LEGACY_KEYS if key in state.signals))
    words = (
        "".join(_get_letter(state, key, timeframe) for key in keys) for timeframe in timeframes
    )
    return " ".join([state.ticker, *words])


def _get_letter(state: AssetState, key: StoredKey, timeframe: Timeframe) -> Letter:
    reading = state.signals.get(key, {}).get(timeframe)
    return NO_READING_LETTER if reading is None else LETTERS[reading]
