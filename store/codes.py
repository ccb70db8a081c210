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

READING_CODES: dict[str, int] = {id_: code for id_, (code, _) in INDICATOR_CODES.items()}
ENGINE_CODES: dict[str, int] = {
    ENGINE_KEYS[id_]: code for id_, (_, code) in INDICATOR_CODES.items()
}
KEY_CODES: dict[str, int] = {**READING_CODES, **LEGACY_CODES, **ENGINE_CODES}
KEYS_BY_CODE: dict[int, str] = {code: key for key, code in KEY_CODES.items()}
TIMEFRAMES_BY_CODE: dict[int, Timeframe] = {code: name for name, code in TIMEFRAME_CODES.items()}
ACTIONS_BY_CODE: dict[int, Action] = {code: name for name, code in ACTION_CODES.items()}
