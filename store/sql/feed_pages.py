"""Which rows a page of the feed holds, and how many there are of each kind, as SQL over indexes.

What a filter leaves open is a merge of arms, one for each combination of codes. An arm searches one
index, which covers it and keeps the order of `created_at`: nothing is scanned or sorted, however
few rows match.
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
_ASSET_CONDITION = "asset_id = (SELECT id FROM assets WHERE ticker = :ticker)"


class FeedStatements(NamedTuple):
    """How an engine selects a page: of published changes, of alerts, or of both.

    Their columns are those of CHANGE, of ALERT, and of CHANGE with the action of an alert, which is
    NULL of a change.
    """

    changes: Callable[[FeedQuery], str]
    alerts: Callable[[FeedQuery], str]
    merged: Callable[[FeedQuery], str]


@dataclass(frozen=True, slots=True)
class TierIndexes:
    """How a tier is searched: all that it shows, or a kind of it, or a cell.

    A kind is an indicator, a timeframe and what was turned to; a cell is an indicator and a
    timeframe of an asset. `turned` is the column of what was turned to, `turns` are its codes by
    direction, None for any.
    """

    all_source: str
    kind_source: str
    cell_source: str
    visible_conditions: Sequence[str]
    indicators: Sequence[int]
    outcome_column: str
    outcome_codes: Mapping[int | None, Sequence[int]]

    def build_search(self, source: str, *conditions: str) -> str:
        """Name an index and the conditions on its rows, those of all shown rows among them."""
        return f"FROM {source} WHERE {' AND '.join([*conditions, *self.visible_conditions])}"


def _list_action_codes(direction: int) -> list[int]:
    """Return the codes of the actions with a direction."""
    return [
        code
        for action, code in ACTION_CODES.items()
        if DIRECTION_CODES[ACTION_DIRECTIONS[action]] == direction
    ]


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
    """Select the `created_at` of all that a query asks for, of one tier or of both."""
    return [
        f"SELECT created_at {search}"
        for tier in tiers
        for search in _build_searches(query, INDEXES[tier])
    ]


def build_page_clause(query: FeedQuery) -> str:
    """Cut a page out of rows in the query's order."""
    return f"{build_order_clause(query)} LIMIT :limit OFFSET :offset"


def build_order_clause(query: FeedQuery) -> str:
    """Order by the first column, `created_at`."""
    return f"ORDER BY 1 {'ASC' if query.oldest_first else 'DESC'}"


def build_counts_query(tier: Tier) -> str:
    """Select indicator, timeframe, what was turned to, and how many rows, of every kind."""
    indexes = INDEXES[tier]
    kinds = product(indexes.indicators, TIMEFRAME_CODES.values(), indexes.outcome_codes[None])
    return " UNION ALL ".join(
        f"SELECT {indicator} AS indicator, {timeframe} AS timeframe, {outcome} AS outcome, "
        f"count(*) AS number {_search_kind(indexes, indicator, timeframe, outcome)}"
        for indicator, timeframe, outcome in kinds
    )


def build_oldest_query(tier: Tier) -> str:
    """Select the oldest `created_at`."""
    return (
        f"SELECT min(created_at) AS oldest {INDEXES[tier].build_search(INDEXES[tier].all_source)}"
    )


def _build_searches(query: FeedQuery, indexes: TierIndexes) -> list[str]:
    """Return the searches of which a page is the merge."""
    cells: list[tuple[object, object]] = [
        *product(
            indexes.indicators if query.indicator is None else [":indicator"],
            TIMEFRAME_CODES.values() if query.timeframe is None else [":timeframe"],
        )
    ]
    if query.ticker is not None:
        return [_search_cell(indexes, *cell, query.direction) for cell in cells]
    if (query.indicator, query.timeframe, query.direction) == (None, None, None):
        return [indexes.build_search(indexes.all_source)]
    codes = indexes.outcome_codes[query.direction]
    return [_search_kind(indexes, *cell, code) for cell in cells for code in codes]


def _search_kind(
    indexes: TierIndexes, indicator: object, timeframe: object, outcome_code: int
) -> str:
    outcome = f"{indexes.outcome_column} = {outcome_code}"
    codes = f"indicator = {indicator} AND timeframe = {timeframe} AND {outcome}"
    return indexes.build_search(indexes.kind_source, codes)


def _search_cell(
    indexes: TierIndexes, indicator: object, timeframe: object, direction: int | None
) -> str:
    """Search a cell of the asked asset; so few are its rows that a direction is told one by one."""
    codes = f"{_ASSET_CONDITION} AND indicator = {indicator} AND timeframe = {timeframe}"
    if direction is not None:
        outcome_codes = ", ".join(map(str, indexes.outcome_codes[direction]))
        codes += f" AND {indexes.outcome_column} IN ({outcome_codes})"
    return indexes.build_search(indexes.cell_source, codes)
