"""Builds the sample: fixed documentation rows in the live shape, the same bytes everywhere."""

from functools import cache
from typing import Any

from mcp_server.tools.get_signals import (
    CLOSE_NOTE,
    COOLDOWN_NOTE,
    RETENTION_DAYS,
    TIMING_NOTE,
)
from schemas.result import NextUpdate
from schemas.signals import Pagination, Signal, SignalsMeta, SignalsResponse
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    DIRECTION_CODES,
    INDICATOR_IDS,
    Action,
    IndicatorId,
    Reading,
    Timeframe,
    classify_change,
    format_instant,
)

# Written here rather than read from coverage: the sample is the same in every deployment.
SAMPLE_NAMES: dict[IndicatorId, str] = {
    **{id_: id_.replace("_", " ").title() for id_ in INDICATOR_IDS},
    "llnr": "LLNR",
    "perpkit": "PerpKit",
}
SAMPLE_NOTE = "Fixed documentation rows, not live data."

_MIDNIGHT_S = 1_790_812_800  # 2026-10-01T00:00:00Z
_MORNING_S = _MIDNIGHT_S + 14_400
# About 3 minutes after the close, as in a live feed; not rounded, like a real created_at.
_RUN_DELAY_MS = 184_118
_ASSET_CLASSES = {"BTC": "crypto", "SOL": "crypto", "NVDA": "stock", "XAU": "metal"}

_Row = dict[str, Any]


@cache
def render_sample() -> str:
    """Return the sample as minified JSON."""
    return build_sample().model_dump_json(by_alias=True)


@cache
def build_sample() -> SignalsResponse:
    """Return a page with the rows of two runs, newest first."""
    night = [
        _build_change("BTC", "trend_oracle", "4h", _MIDNIGHT_S, "bearish", "bullish", 114_250.5),
        _build_change("NVDA", "enzo", "1d", _MIDNIGHT_S, "neutral", "bullish", 187.24),
        _build_alert("BTC", "trend_oracle", "4h", _MIDNIGHT_S, "LONG", 114_250.5),
        _build_alert("NVDA", "ceres", "1d", _MIDNIGHT_S, "CLOSE", 187.24),
    ]
    morning = [
        _build_change("XAU", "ceres", "4h", _MORNING_S, "bullish", "neutral", 3865.4),
        _build_alert("SOL", "perpkit", "4h", _MORNING_S, "SHORT", 208.62),
    ]
    # Rows are written in this order, so reversing them gives the newest first.
    oldest_first = [*_build_run(night, _MIDNIGHT_S), *_build_run(morning, _MORNING_S)]
    signals = oldest_first[::-1]
    return SignalsResponse(
        signals=signals,
        pagination=Pagination(
            limit=50,
            offset=0,
            returned=len(signals),
            has_more=False,
            next_cursor=signals[0].created_at,
        ),
        meta=_build_meta(),
    )


def _build_change(
    ticker: str,
    indicator: IndicatorId,
    timeframe: Timeframe,
    close_s: int,
    before: Reading,
    after: Reading,
    price: float,
) -> _Row:
    return {
        **_build_cell(ticker, indicator, timeframe, price),
        "id": f"universe.{ticker}.{indicator}.{timeframe}.{close_s}.0",
        "tier": "universe",
        "direction": after,
        "transition": {"from": before, "to": after},
        "change_type": classify_change(DIRECTION_CODES[before], DIRECTION_CODES[after]),
        "action": None,
    }


def _build_alert(
    ticker: str,
    indicator: IndicatorId,
    timeframe: Timeframe,
    close_s: int,
    action: Action,
    price: float,
) -> _Row:
    return {
        **_build_cell(ticker, indicator, timeframe, price),
        "id": f"alerts.{ticker}.{indicator}.{timeframe}.{close_s}.{action}.0",
        "tier": "alerts",
        "direction": ACTION_DIRECTIONS[action],
        "transition": None,
        "change_type": None,
        "action": action,
    }


def _build_cell(ticker: str, indicator: IndicatorId, timeframe: Timeframe, price: float) -> _Row:
    return {
        "ticker": ticker,
        "asset_class": _ASSET_CLASSES[ticker],
        "indicator": indicator,
        "indicator_name": SAMPLE_NAMES[indicator],
        "timeframe": timeframe,
        "price": price,
    }


def _build_run(rows: list[_Row], close_s: int) -> list[Signal]:
    """Return the rows of one run, a millisecond apart in the given order."""
    first_ms = close_s * 1000 + _RUN_DELAY_MS
    return [
        Signal.model_validate({**row, "created_at": format_instant(first_ms + number)})
        for number, row in enumerate(rows)
    ]


def _build_meta() -> SignalsMeta:
    return SignalsMeta(
        source="sample",
        simulated=False,
        as_of=format_instant(_MORNING_S * 1000 + _RUN_DELAY_MS),
        next_update=NextUpdate.model_validate({"1h": None, "4h": None, "1d": None}),
        nothing_new_before=None,
        stale=False,
        late_assets={},
        building_assets=[],
        ended_assets=[],
        missing_bars={},
        most_delay_seconds=0,
        removed_assets=[],
        note=SAMPLE_NOTE,
        retention_days=RETENTION_DAYS,
        timing=TIMING_NOTE,
        cooldown=COOLDOWN_NOTE,
        close=CLOSE_NOTE,
    )
