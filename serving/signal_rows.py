"""Converts stored changes and alerts to rows of the feed, which share one schema."""

from functools import lru_cache
from typing import Any

from schemas.signals import Signal, Transition
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    READING_NAMES,
    AssetClass,
    classify_change,
    format_instant,
)
from serving.snapshot import Snapshot
from store.market_rows import AlertRow, ChangeRow, FeedRow

MAX_CACHED_ROWS = 512


def to_signal(row: FeedRow, snapshot: Snapshot) -> Signal:
    """Return a stored row as a row of the feed; fields that its tier lacks are null."""
    asset_class = snapshot.assets[row.ticker].asset_class
    return build_signal(row, asset_class, snapshot.get_indicator_name(row.indicator))


@lru_cache(maxsize=MAX_CACHED_ROWS)
def build_signal(row: FeedRow, asset_class: AssetClass, indicator_name: str) -> Signal:
    """Build a row, cached because polling clients keep requesting the newest ones."""
    tier_fields = (
        _build_alert_fields(row) if isinstance(row, AlertRow) else _build_change_fields(row)
    )
    return Signal.model_construct(
        id=row.id,
        ticker=row.ticker,
        asset_class=asset_class,
        indicator=row.indicator,
        indicator_name=indicator_name,
        timeframe=row.timeframe,
        price=row.price,
        created_at=format_instant(row.created_at),
        **tier_fields,
    )


def _build_alert_fields(row: AlertRow) -> dict[str, Any]:
    return {
        "tier": "alerts",
        "direction": ACTION_DIRECTIONS[row.action],
        "transition": None,
        "change_type": None,
        "action": row.action,
    }


def _build_change_fields(row: ChangeRow) -> dict[str, Any]:
    before, after = row.before, row.after
    return {
        "tier": "universe",
        "direction": READING_NAMES[after],
        "transition": None if before is None else _build_transition(before, after),
        "change_type": None if before is None else classify_change(before, after),
        "action": None,
    }


def _build_transition(before: int, after: int) -> Transition:
    return Transition.model_construct(from_=READING_NAMES[before], to=READING_NAMES[after])
