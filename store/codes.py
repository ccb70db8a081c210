"""Maps between the keys of schemas/vocabulary.py and the integer codes that are stored."""

from schemas.vocabulary import (
    ACTION_CODES,
    ENGINE_KEYS,
    INDICATOR_CODES,
    LEGACY_CODES,
    TIMEFRAME_CODES,
    Action,
    Timeframe,
)
from store.market_rows import History

READING_CODES: dict[str, int] = {id_: code for id_, (code, _) in INDICATOR_CODES.items()}
ENGINE_CODES: dict[str, int] = {
    ENGINE_KEYS[id_]: code for id_, (_, code) in INDICATOR_CODES.items()
}
KEY_CODES: dict[str, int] = {**READING_CODES, **LEGACY_CODES, **ENGINE_CODES}
KEYS_BY_CODE: dict[int, str] = {code: key for key, code in KEY_CODES.items()}
TIMEFRAMES_BY_CODE: dict[int, Timeframe] = {code: name for name, code in TIMEFRAME_CODES.items()}
ACTIONS_BY_CODE: dict[int, Action] = {code: name for name, code in ACTION_CODES.items()}
HISTORY_CODES: dict[History, int] = {"followed": 0, "building": 1, "built": 2}
HISTORIES_BY_CODE: dict[int, History] = {code: name for name, code in HISTORY_CODES.items()}
