"""Which rows a page of the feed holds, and how many there are of each kind, as SQL over indexes.

What a filter leaves open is a merge of arms, one for each combination of codes. An arm searches one
index, which covers it and keeps the order of `created_at`: nothing is scanned or sorted, however
few rows match.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from schemas.vocabulary import ACTION_DIRECTIONS, ACTIONS, INDICATOR_IDS, STORED_KEYS, Tier
from store.codes import DIRECTION_CODES, TIMEFRAME_CODES
from store.market_rows import FeedQuery

CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id), c.indicator, c.timeframe,
  c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
ALERT = """
SELECT a.created_at, (SELECT ticker FROM assets WHERE id = a.asset_id), a.indicator, a.timeframe,
  a.close_time, a.epoch, a.action, a.price
"""
_ASSET = "asset_id = (SELECT id FROM assets WHERE ticker = :ticker)"


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

    all: str
    kind: str
    cell: str
    shown: Sequence[str]
    indicators: range
    turned: str
    turns: Mapping[int | None, Sequence[int]]

    def search(self, source: str, *conditions: str) -> str:
        """Name an index and the conditions on its rows, those of all shown rows among them."""
        return f"FROM {source} WHERE {' AND '.join([*conditions, *self.shown])}"


def _actions(direction: int) -> list[int]:
    """Return the codes of the actions with a direction."""
    return [
        code
        for code, action in enumerate(ACTIONS)
        if DIRECTION_CODES[ACTION_DIRECTIONS[action]] == direction
    ]


INDEXES: dict[Tier, TierIndexes] = {
    "universe": TierIndexes(
        all="changes INDEXED BY feed_all",
        kind="changes INDEXED BY feed_kind",
        cell="changes INDEXED BY cell",
        shown=("published = 1", "created_at > :after", "created_at <= :until"),
        indicators=range(len(STORED_KEYS)),
        turned='"after"',
        turns={None: (-1, 0, 1), -1: (-1,), 0: (0,), 1: (1,)},
    ),
    "alerts": TierIndexes(
        all="alerts NOT INDEXED",
        kind="alerts INDEXED BY alerts_kind",
        cell="alerts INDEXED BY alerts_cell",
        shown=("created_at > :alerts_after", "created_at <= :until"),
        indicators=range(len(INDICATOR_IDS)),
        turned="action",
        turns={None: range(len(ACTIONS)), **{side: _actions(side) for side in (-1, 0, 1)}},
    ),
}


def arms(query: FeedQuery, *tiers: Tier) -> list[str]:
    """Select the `created_at` of all that a query asks for, of one tier or of both."""
    return [
        f"SELECT created_at {search}"
        for tier in tiers
        for search in _searches(query, INDEXES[tier])
    ]


def of_page(query: FeedQuery) -> str:
    """Cut a page out of rows in the query's order."""
    return f"{in_order(query)} LIMIT :limit OFFSET :offset"


def in_order(query: FeedQuery) -> str:
    """Order by the first column, `created_at`."""
    return f"ORDER BY 1 {'ASC' if query.oldest_first else 'DESC'}"


def counts(tier: Tier) -> str:
    """Select indicator, timeframe, what was turned to, and how many rows, of every kind."""
    indexes = INDEXES[tier]
    kinds = product(indexes.indicators, TIMEFRAME_CODES.values(), indexes.turns[None])
    return " UNION ALL ".join(
        f"SELECT {', '.join(map(str, kind))}, count(*) {_kind(indexes, *kind)}" for kind in kinds
    )


def oldest(tier: Tier) -> str:
    """Select the oldest `created_at`."""
    return f"SELECT min(created_at) {INDEXES[tier].search(INDEXES[tier].all)}"


def _searches(query: FeedQuery, indexes: TierIndexes) -> list[str]:
    """Return the searches of which a page is the merge."""
    cells: list[tuple[object, object]] = [
        *product(
            indexes.indicators if query.indicator is None else [":indicator"],
            TIMEFRAME_CODES.values() if query.timeframe is None else [":timeframe"],
        )
    ]
    if query.ticker is not None:
        return [_cell(indexes, *cell, query.direction) for cell in cells]
    if (query.indicator, query.timeframe, query.direction) == (None, None, None):
        return [indexes.search(indexes.all)]
    turns = indexes.turns[query.direction]
    return [_kind(indexes, *cell, turn) for cell in cells for turn in turns]


def _kind(indexes: TierIndexes, indicator: object, timeframe: object, turn: int) -> str:
    codes = f"indicator = {indicator} AND timeframe = {timeframe} AND {indexes.turned} = {turn}"
    return indexes.search(indexes.kind, codes)


def _cell(indexes: TierIndexes, indicator: object, timeframe: object, direction: int | None) -> str:
    """Search a cell of the asked asset; so few are its rows that a direction is told one by one."""
    codes = f"{_ASSET} AND indicator = {indicator} AND timeframe = {timeframe}"
    if direction is not None:
        codes += f" AND {indexes.turned} IN ({', '.join(map(str, indexes.turns[direction]))})"
    return indexes.search(indexes.cell, codes)
