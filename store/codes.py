"""Maps between the keys of schemas/vocabulary.py and the integer codes that are stored."""

from itertools import combinations
from typing import NoReturn, TypeVar

from schemas.vocabulary import (
    ACTION_CODES,
    ENGINE_KEYS,
    INDICATOR_CODES,
    LEGACY_CODES,
    TIMEFRAME_CODES,
    TIMEFRAMES,
    Action,
    Timeframe,
)
from store.market_rows import History
from store.store_errors import DamagedError

Value = TypeVar("Value")


class Decoder(dict[int, Value]):
    """The meaning of each stored code; an unknown one raises DamagedError."""

    def __init__(self, column: str, codes: dict[Value, int]) -> None:
        """`column` names the codes in the error."""
        super().__init__({code: value for value, code in codes.items()})
        self._column = column

    def __missing__(self, code: int) -> NoReturn:
        raise DamagedError(f"a row has the unknown {self._column} {code}")


READING_CODES: dict[str, int] = {id_: code for id_, (code, _) in INDICATOR_CODES.items()}
ENGINE_CODES: dict[str, int] = {
    ENGINE_KEYS[id_]: code for id_, (_, code) in INDICATOR_CODES.items()
}
KEY_CODES: dict[str, int] = {**READING_CODES, **LEGACY_CODES, **ENGINE_CODES}
KEYS_BY_CODE = Decoder[str]("indicator", KEY_CODES)
TIMEFRAMES_BY_CODE = Decoder[Timeframe]("timeframe", TIMEFRAME_CODES)
ACTIONS_BY_CODE = Decoder[Action]("action", ACTION_CODES)
HISTORY_CODES: dict[History, int] = {"followed": 0, "building": 1, "built": 2}
HISTORIES_BY_CODE = Decoder[History]("history", HISTORY_CODES)
# One bit a timeframe.
TIMEFRAME_SET_CODES: dict[tuple[Timeframe, ...], int] = {
    tuple(timeframes): sum(1 << TIMEFRAME_CODES[timeframe] for timeframe in timeframes)
    for size in range(len(TIMEFRAMES) + 1)
    for timeframes in combinations(TIMEFRAMES, size)
}
TIMEFRAME_SETS_BY_CODE = Decoder[tuple[Timeframe, ...]]("set of timeframes", TIMEFRAME_SET_CODES)
