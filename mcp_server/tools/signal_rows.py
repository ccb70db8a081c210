"""Rows of the store as rows of the feed: one schema for changes and alerts."""

from functools import lru_cache
from typing import Any

from schemas.signals import Signal, Transition
from schemas.vocabulary import ACTION_DIRECTIONS, READING_NAMES, AssetClass, change_type, instant
from serving.snapshot_cache import Board
from store.market_rows import AlertRow, ChangeRow, FeedRow

MOST_ROWS = 512


def signal(row: FeedRow, board: Board) -> Signal:
    """Return a row as users see it; what its tier does not have is null."""
    asset_class = board.assets[row.ticker].asset_class
    return _shown(row, asset_class, board.indicator_name(row.indicator))


@lru_cache(maxsize=MOST_ROWS)
def _shown(row: FeedRow, asset_class: AssetClass, indicator_name: str) -> Signal:
    """Return a row as shown; clients that poll ask for the newest ones again and again."""
    own = _alert_fields(row) if isinstance(row, AlertRow) else _change_fields(row)
    return Signal.model_construct(
        id=row.id,
        ticker=row.ticker,
        asset_class=asset_class,
        indicator=row.indicator,
        indicator_name=indicator_name,
        timeframe=row.timeframe,
        price=row.price,
        created_at=instant(row.created_at),
        **own,
    )


def _alert_fields(row: AlertRow) -> dict[str, Any]:
    return {
        "tier": "alerts",
        "direction": ACTION_DIRECTIONS[row.action],
        "transition": None,
        "change_type": None,
        "action": row.action,
    }


def _change_fields(row: ChangeRow) -> dict[str, Any]:
    before, after = row.before, row.after
    return {
        "tier": "universe",
        "direction": READING_NAMES[after],
        "transition": None if before is None else _transition(before, after),
        "change_type": None if before is None else change_type(before, after),
        "action": None,
    }


def _transition(before: int, after: int) -> Transition:
    return Transition.model_construct(from_=READING_NAMES[before], to=READING_NAMES[after])
