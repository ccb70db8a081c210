"""The fixed vocabularies of the API, their codes in the store, and the format of times."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

from pydantic import WithJsonSchema

# The indicators in the order in which they are published, each with the numbers that databases hold
# instead of its name: one for its readings and alerts, one for the carries of its alert engines.
# A number is never changed or reused, and a new name takes numbers that were never used.
INDICATOR_CODES: dict[str, tuple[int, int]] = {
    "trend_oracle": (0, 8),
    "bayesian_trend": (1, 9),
    "reversals": (2, 10),
    "ceres": (3, 11),
    "enzo": (4, 12),
    "llnr": (5, 13),
    "perpkit": (6, 14),
}
# These have no rows in the universe feed.
UNLOGGED_IDS = ("perpkit",)
INDICATOR_IDS: tuple["IndicatorId", ...] = tuple(INDICATOR_CODES)
LOGGED_IDS: tuple["LoggedId", ...] = tuple(id_ for id_ in INDICATOR_IDS if id_ not in UNLOGGED_IDS)
# A type checker knows no literals that are computed.
if TYPE_CHECKING:
    LoggedId: TypeAlias = str
    IndicatorId: TypeAlias = str
    StoredKey: TypeAlias = str
else:
    LoggedId = Literal[LOGGED_IDS]
    IndicatorId = Literal[INDICATOR_IDS]
    StoredKey = Literal[IndicatorId, "dexter"]
Timeframe = Literal["1h", "4h", "1d"]
AssetClass = Literal["crypto", "stock", "metal"]
Reading = Literal["bullish", "bearish", "neutral"]
Direction = Literal["bullish", "bearish", "neutral", "exit"]
Tier = Literal["universe", "alerts"]
ChangeType = Literal["reversal", "activation", "deactivation"]
Action = Literal["LONG", "SHORT", "BUY", "SELL", "CLOSE"]
Side = Literal["bullish", "bearish"]
IndicatorStatus = Literal["stable", "experimental", "legacy"]
Mode = Literal["test", "live"]
Billing = Literal["monthly", "yearly"]
SourceKind = Literal["simulated", "recorded", "live"]
ErrorCode = Literal[
    "missing_key",
    "invalid_key",
    "revoked_key",
    "rate_limited",
    "not_provisioned",
    "invalid_parameter",
    "unknown_ticker",
    "unknown_indicator",
    "unavailable",
]

# Codes are append-only, as those of indicators.
LEGACY_CODES: dict[str, int] = {"dexter": 7}
TIMEFRAME_CODES: dict[Timeframe, int] = {"1h": 0, "4h": 1, "1d": 2}
ACTION_CODES: dict[Action, int] = {"LONG": 0, "SHORT": 1, "BUY": 2, "SELL": 3, "CLOSE": 4}

INDICATOR_COUNT_TEXT = dict(
    enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"))
).get(len(INDICATOR_IDS), str(len(INDICATOR_IDS)))
TIMEFRAMES: tuple[Timeframe, ...] = get_args(Timeframe)
TIMEFRAME_DURATIONS_S: dict[Timeframe, int] = {"1h": 3600, "4h": 14_400, "1d": 86_400}
READING_NAMES: dict[int, Reading] = {1: "bullish", 0: "neutral", -1: "bearish"}
LEGACY_KEYS: dict[StoredKey, IndicatorId] = {"dexter": "enzo"}
ACTION_DIRECTIONS: dict[Action, Direction] = {
    "LONG": "bullish",
    "SHORT": "bearish",
    "BUY": "bullish",
    "SELL": "bearish",
    "CLOSE": "exit",
}
STORED_KEYS: tuple[StoredKey, ...] = (*INDICATOR_IDS, *LEGACY_KEYS)
ENGINE_KEYS: dict[str, str] = {id_: f"alerts.{id_}" for id_ in INDICATOR_IDS}
INDICATORS_BY_ENGINE_KEY: dict[str, str] = {key: id_ for id_, key in ENGINE_KEYS.items()}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Runs start three minutes after the hour, so that venues have published the bar that closed.
RUN_DELAY_MS = 180_000
UNIVERSE_RETENTION_MS = 365 * DAY_MS
ALERTS_RETENTION_MS = 90 * DAY_MS
RETENTION_MS: dict[Tier, int] = {
    "universe": UNIVERSE_RETENTION_MS,
    "alerts": ALERTS_RETENTION_MS,
}
ACTIONS: tuple[Action, ...] = get_args(Action)
CURRENT_ACTIONS: tuple[Action, ...] = ("LONG", "SHORT", "CLOSE")
COOLDOWN_CANDLES = 20
POLL_INTERVAL_S = 900
DAILY_LIMIT = 10_000

# A fixed width, so that comparing instants as text gives their order in time.
INSTANT_SCHEMA = {
    "type": "string",
    "format": "date-time",
    "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$",
}
Uri = Annotated[str, WithJsonSchema({"type": "string", "format": "uri"})]
Instant = Annotated[str, WithJsonSchema(INSTANT_SCHEMA)]


def format_instant(epoch_ms: int) -> str:
    """Format epoch milliseconds as ISO 8601 in UTC, with three decimals and `Z`."""
    seconds, milliseconds = divmod(epoch_ms, 1000)
    return f"{_format_second(seconds)}.{milliseconds:03d}Z"


# Every response names the second in which it is sent.
@lru_cache(64)
def _format_second(epoch_s: int) -> str:
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%dT%H:%M:%S}"


def find_latest_run(at: int) -> int:
    """Return the nominal time of the last hourly run at or before a time, both epoch ms."""
    return (at - RUN_DELAY_MS) // HOUR_MS * HOUR_MS + RUN_DELAY_MS


def compute_midnight_s(day: date) -> int:
    """Return the epoch seconds at which a day begins in UTC."""
    return int(datetime.combine(day, time.min, UTC).timestamp())


def classify_change(before: int, after: int) -> ChangeType:
    """Return the type of a change between two readings (+1, 0 or -1)."""
    # A change never has equal readings on both sides, so `before` is not 0 here.
    if after == 0:
        return "deactivation"
    return "activation" if before == 0 else "reversal"


@lru_cache(4096)
def fold_name(name: str) -> str:
    """Normalize a name, so that an indicator's id, screener id and display name compare equal."""
    return name.casefold().replace(" ", "").replace("-", "").replace("_", "")


Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds: the wall clock's, unless the parameter's name says otherwise."""
