"""The small integers that stand for closed vocabularies in the SQLite tables."""

from schemas.vocabulary import (
    ACTIONS,
    ENGINE_KEYS,
    STORED_KEYS,
    TIMEFRAMES,
    Action,
    Direction,
    Timeframe,
)

INDICATORS: tuple[str, ...] = (*STORED_KEYS, *ENGINE_KEYS.values())
INDICATOR_CODES: dict[str, int] = {name: code for code, name in enumerate(INDICATORS)}
TIMEFRAME_CODES: dict[Timeframe, int] = {name: code for code, name in enumerate(TIMEFRAMES)}
ACTION_CODES: dict[Action, int] = {name: code for code, name in enumerate(ACTIONS)}
DIRECTION_CODES: dict[Direction, int] = {"bullish": 1, "bearish": -1, "neutral": 0, "exit": 0}
