"""The small integers that stand for closed vocabularies in the SQLite tables."""

from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES, Timeframe

INDICATORS: tuple[str, ...] = (*INDICATOR_IDS, "dexter")
INDICATOR_CODES: dict[str, int] = {name: code for code, name in enumerate(INDICATORS)}
TIMEFRAME_CODES: dict[Timeframe, int] = {name: code for code, name in enumerate(TIMEFRAMES)}
