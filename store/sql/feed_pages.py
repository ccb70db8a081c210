"""Builds the SQL that selects and counts feed rows using covering indexes only.

A page is a merge of arms, one for each combination of codes that its filter leaves open. Each arm
searches one index that covers it and is sorted by `created_at`, so nothing is scanned or sorted,
even if few rows match.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from schemas.vocabulary import (
    ACTION_CODES,
    ACTION_DIRECTIONS,
    DIRECTION_CODES,
    LEGACY_CODES,
    TIMEFRAME_CODES,
    Tier,
)
from store.codes import READING_CODES
from store.market_rows import FeedQuery

SELECT_CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id) AS ticker, c.indicator,
  c.timeframe,  c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
SELECT_ALERT = """
SELECT a.created_at, (SELECT ticker FROM assets WHERE id = a.asset_id) AS ticker, a.indicator,
  a.timeframe,  a.close_time, a.epoch, a.action, a.price
"""
# The changes of an asset's cells, published or not; the index `cell` sorts each cell's by time.
_CELL_CONDITION = """
n.asset_id = r.asset_id AND n.indicator = r.indicator AND n.timeframe = r.timeframe
    AND n.created_at <= :until
"""
_ASSET_READINGS = "readings r WHERE r.asset_id = (SELECT id FROM assets WHERE ticker = :ticker)"
ASSET_HISTORY = f"""
{SELECT_CHANGE} FROM changes c WHERE c.created_at IN (
  SELECT n.created_at FROM changes n INDEXED BY cell, {_ASSET_READINGS}
    AND r.timeframe = :timeframe AND n.created_at > :after AND {_CELL_CONDITION}
  UNION SELECT (SELECT max(n.created_at) FROM changes n INDEXED BY cell WHERE {_CELL_CONDITION})
  FROM {_ASSET_READINGS}
) ORDER BY c.created_at
"""
_ASSET_CONDITION = "asset_id = (SELECT id FROM assets WHERE ticker = :ticker)"
# The tickers are one text, so that their number does not change the statement.
_ASSETS_CONDITION = """
asset_id IN (SELECT id FROM assets WHERE CAST(:tickers AS TEXT) LIKE '%,' || ticker || ',%')
"""


class FeedStatements(NamedTuple):
    """An engine's statements for a page of published changes, of alerts, or of both.

    Their columns are those of SELECT_CHANGE, of SELECT_ALERT, and of SELECT_CHANGE followed by the
    action, which is NULL for a change.
    """

    changes: Callable[[FeedQuery], str]
    alerts: Callable[[FeedQuery], str]
    merged: Callable[[FeedQuery], str]


@dataclass(frozen=True, slots=True)
class TierIndexes:
    """The indexes of a tier: for all visible rows, for the rows of a kind, and for those of a cell.

    A kind is an indicator, a timeframe and an outcome (the new reading or the action); a cell is an
    indicator and a timeframe of one asset. `outcome_codes` maps a direction to the codes of
    `outcome_column`; the key None holds all codes.
    """

    all_source: str
    kind_source: str
    cell_source: str
    visible_conditions: Sequence[str]
    indicators: Sequence[int]
    outcome_column: str
    outcome_codes: Mapping[int | None, Sequence[int]]

    def build_search(self, source: str, *conditions: str) -> str:
        """Return FROM and WHERE with the given conditions and those of every visible row."""
        return f"FROM {source} WHERE {' AND '.join([*conditions, *self.visible_conditions])}"


def _list_action_codes(direction: int) -> list[int]:
    """Return the codes of the actions with a direction."""
    return [
        code
        for action, code in ACTION_CODES.items()
        if DIRECTION_CODES[ACTION_DIRECTIONS[action]] == direction
    ]


# INDEXED BY makes SQLite fail if an index is missing or does not fit. Without it the planner walked
# one index past the rows that a sparse filter leaves out: 31 to 55 ms at half a million rows, now
# 0.8. Every index ends in the rowid, which is created_at, so it sorts the rows of a kind by time.
INDEXES: dict[Tier, TierIndexes] = {
    "universe": TierIndexes(
        all_source="changes INDEXED BY feed_all",
        kind_source="changes INDEXED BY feed_kind",
        cell_source="changes INDEXED BY cell",
        visible_conditions=("published = 1", "created_at > :after", "created_at <= :until"),
        indicators=[*READING_CODES.values(), *LEGACY_CODES.values()],
        outcome_column='"after"',
        outcome_codes={None: (-1, 0, 1), -1: (-1,), 0: (0,), 1: (1,)},
    ),
    "alerts": TierIndexes(
        all_source="alerts NOT INDEXED",
        kind_source="alerts INDEXED BY alerts_kind",
        cell_source="alerts INDEXED BY alerts_cell",
        visible_conditions=("created_at > :alerts_after", "created_at <= :until"),
        indicators=[*READING_CODES.values()],
        outcome_column="action",
        outcome_codes={
            None: [*ACTION_CODES.values()],
            **{side: _list_action_codes(side) for side in (-1, 0, 1)},
        },
    ),
}


def build_arms(query: FeedQuery, *tiers: Tier) -> list[str]:
    """Return the arms of a query: SELECTs of `created_at`, for one tier or both."""
    return [
        f"SELECT created_at {search}"
        for tier in tiers
        for search in _build_searches(query, INDEXES[tier])
    ]


def build_page_clause(query: FeedQuery) -> str:
    """Return ORDER BY, LIMIT and OFFSET of a page."""
    return f"{build_order_clause(query)} LIMIT :limit OFFSET :offset"


def build_order_clause(query: FeedQuery) -> str:
    """Return ORDER BY on the first column, `created_at`."""
    return f"ORDER BY 1 {'ASC' if query.oldest_first else 'DESC'}"


def build_counts_query(tier: Tier) -> str:
    """Return the statement that counts the rows of every indicator, timeframe and outcome."""
    indexes = INDEXES[tier]
    kinds = product(indexes.indicators, TIMEFRAME_CODES.values(), indexes.outcome_codes[None])
    return " UNION ALL ".join(
        f"SELECT {indicator} AS indicator, {timeframe} AS timeframe, {outcome} AS outcome, "
        f"count(*) AS number {_search_kind(indexes, indicator, timeframe, outcome)}"
        for indicator, timeframe, outcome in kinds
    )


def build_oldest_query(tier: Tier) -> str:
    """Return the statement for the oldest visible `created_at`."""
    return (
        f"SELECT min(created_at) AS oldest {INDEXES[tier].build_search(INDEXES[tier].all_source)}"
    )


def _build_searches(query: FeedQuery, indexes: TierIndexes) -> list[str]:
    """Return FROM and WHERE of each arm of a page."""
    # Arms cover all codes, including those that are not published: the store does not know which.
    cells: list[tuple[object, object]] = [
        *product(
            indexes.indicators if query.indicator is None else [":indicator"],
            TIMEFRAME_CODES.values() if query.timeframe is None else [":timeframe"],
        )
    ]
    if query.ticker is not None:
        return [_search_cell(indexes, *cell, query.direction) for cell in cells]
    filters = [_ASSETS_CONDITION] * (query.tickers is not None)
    if (query.indicator, query.timeframe, query.direction) == (None, None, None):
        return [indexes.build_search(indexes.all_source, *filters)]
    codes = indexes.outcome_codes[query.direction]
    return [_search_kind(indexes, *cell, code, *filters) for cell in cells for code in codes]


def _search_kind(
    indexes: TierIndexes, indicator: object, timeframe: object, outcome_code: int, *filters: str
) -> str:
    outcome = f"{indexes.outcome_column} = {outcome_code}"
    codes = f"indicator = {indicator} AND timeframe = {timeframe} AND {outcome}"
    return indexes.build_search(indexes.kind_source, codes, *filters)


def _search_cell(
    indexes: TierIndexes, indicator: object, timeframe: object, direction: int | None
) -> str:
    """Search one asset, indicator and timeframe."""
    # A cell has so few rows that the direction is a filter on them, not a further set of arms.
    codes = f"{_ASSET_CONDITION} AND indicator = {indicator} AND timeframe = {timeframe}"
    if direction is not None:
        outcome_codes = ", ".join(map(str, indexes.outcome_codes[direction]))
        codes += f" AND {indexes.outcome_column} IN ({outcome_codes})"
    return indexes.build_search(indexes.cell_source, codes)
