"""The small integers that stand for closed vocabularies in the SQLite tables."""

from schemas.vocabulary import STORED_KEYS, TIMEFRAMES, Timeframe

INDICATORS: tuple[str, ...] = STORED_KEYS
INDICATOR_CODES: dict[str, int] = {name: code for code, name in enumerate(INDICATORS)}
TIMEFRAME_CODES: dict[Timeframe, int] = {name: code for code, name in enumerate(TIMEFRAMES)}
