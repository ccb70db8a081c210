"""The closed vocabularies of SPEC.md, and instants as they are written to users."""

from datetime import UTC, date, datetime, time
from typing import Annotated, Literal, get_args

from pydantic import WithJsonSchema

IndicatorId = Literal[
    "trend_oracle", "bayesian_trend", "reversals", "ceres", "enzo", "llnr", "perpkit"
]
Timeframe = Literal["1h", "4h", "1d"]
AssetClass = Literal["crypto", "stock", "metal"]
Reading = Literal["bullish", "bearish", "neutral"]
Direction = Literal["bullish", "bearish", "neutral", "exit"]
Tier = Literal["universe", "alerts"]
ChangeType = Literal["reversal", "activation", "deactivation"]
Action = Literal["LONG", "SHORT", "BUY", "SELL", "CLOSE"]
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

INDICATOR_IDS: tuple[IndicatorId, ...] = get_args(IndicatorId)
TIMEFRAMES: tuple[Timeframe, ...] = get_args(Timeframe)
PERIOD_S: dict[Timeframe, int] = {"1h": 3600, "4h": 14_400, "1d": 86_400}
READING_NAMES: dict[int, Reading] = {1: "bullish", 0: "neutral", -1: "bearish"}
UNIVERSE_RETENTION_MS = 365 * 86_400_000

Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


def instant(epoch_ms: int) -> str:
    """Write epoch milliseconds as ISO 8601 in UTC with three decimals and `Z`."""
    seconds, milliseconds = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def midnight_s(day: date) -> int:
    """Return the epoch seconds at which a day begins in UTC."""
    return int(datetime.combine(day, time.min, UTC).timestamp())


def change_type(before: int, after: int) -> ChangeType:
    """Name the change between two readings (+1, 0, -1) as SPEC.md's table does."""
    if after == 0:
        return "deactivation"
    return "activation" if before == 0 else "reversal"


def folded(name: str) -> str:
    """Fold a name so that id, screener id and display name of an indicator compare equal."""
    return name.casefold().replace(" ", "").replace("-", "").replace("_", "")
