"""Timeline lanes of an asset, compared with spans calculated by hand."""

from typing import Any

import pytest

from schemas.signals import Signal, Transition
from schemas.vocabulary import HOUR_MS, Reading, format_instant
from tools.example_market import NOON
from web.timeline import Lane, Span, build_lanes

pytestmark = pytest.mark.clause("pages")

BEGINS, ENDS = NOON - 10 * HOUR_MS, NOON


def turned(hours_ago: float, before: Reading, after: Reading, **others: Any) -> Signal:
    row: dict[str, Any] = {
        "id": f"{hours_ago}",
        "tier": "universe",
        "ticker": "BTC",
        "asset_class": "crypto",
        "indicator": "ceres",
        "indicator_name": "Ceres",
        "timeframe": "1h",
        "direction": after,
        "transition": Transition.model_validate({"from": before, "to": after}),
        "change_type": None,
        "action": None,
        "price": 1.0,
        "created_at": format_instant(int(NOON - hours_ago * HOUR_MS)),
    }
    return Signal.model_validate({**row, **others})


def lane(*rows: Signal, now: Reading | None = "bullish") -> Lane:
    """Return the lane of rows that are newest first."""
    present = {} if now is None else {"ceres": now}
    (only,) = build_lanes(rows, present, ["ceres"], BEGINS, ENDS)
    return only


def test_a_change_ends_one_reading_and_begins_the_next() -> None:
    rows = turned(2.5, "neutral", "bullish"), turned(6, "bearish", "neutral")
    assert lane(*rows) == Lane(
        "ceres",
        [Span("bearish", 0.0, 400.0), Span("neutral", 400.0, 350.0), Span("bullish", 750.0, 250.0)],
        changes=2,
    )


def test_without_a_change_the_current_reading_fills_the_lane() -> None:
    assert lane(now="bearish") == Lane("ceres", [Span("bearish", 0.0, 1000)], changes=0)


def test_an_indicator_without_readings_has_no_spans() -> None:
    assert lane(now=None) == Lane("ceres", [], changes=0)


def test_rows_written_after_the_end_stay_inside_the_lane() -> None:
    spilled = turned(0, "neutral", "bullish", created_at=format_instant(NOON + 5))
    assert lane(spilled).spans == [Span("neutral", 0.0, 1000.0), Span("bullish", 1000.0, 0.0)]


def test_alerts_and_other_indicators_do_not_change_a_lane() -> None:
    alert = turned(1, "neutral", "bullish", tier="alerts", transition=None, action="LONG")
    other = turned(2, "neutral", "bearish", indicator="enzo")
    assert lane(alert, other) == lane()
