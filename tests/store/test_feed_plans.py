"""How SQLite reads the feed: what else a plan may hold beside its searches, and nothing more.

`EXPLAIN QUERY PLAN` says SCAN where all of something is read, and TEMP B-TREE where it is sorted.
Scanned are only `page`, the times of at most a page's rows that both tiers look up, and the board
of current readings, a row a cell.
"""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from schemas.vocabulary import RETENTION_MS
from store import sqlite_connections
from store.rows import FeedQuery
from store.sqlite import SqliteMarketStore
from store.sqlite_feed import alerts_statement, changes_statement, merged_statement
from tests.store.rows import NOW, full, query

pytestmark = pytest.mark.clause("feed")

STATEMENTS = {
    "universe": changes_statement,
    "alerts": alerts_statement,
    "all": merged_statement,
}
TIERS = {"universe": ["universe"], "alerts": ["alerts"], "all": ["universe", "alerts"]}
FILTERS = {
    "ticker": [None, "BTC"],
    "indicator": [None, "enzo"],
    "timeframe": [None, "1h"],
    "direction": [None, -1, 0, 1],
}
COMBINATIONS = [dict(zip(FILTERS, chosen, strict=True)) for chosen in product(*FILTERS.values())]
TIME, ROWID = "created_at>? AND created_at<?", "rowid>? AND rowid<?"
ALL = {
    "universe": f"SEARCH changes USING COVERING INDEX feed_all (published=? AND {ROWID})",
    "alerts": f"SEARCH alerts USING INTEGER PRIMARY KEY ({ROWID})",
}
CELL = "asset_id=? AND indicator=? AND timeframe=?"
CELLS = {
    "universe": f"SEARCH changes USING COVERING INDEX cell ({CELL} AND {TIME})",
    "alerts": f"SEARCH alerts USING COVERING INDEX alerts_cell ({CELL} AND {TIME})",
}
KINDS = {
    "universe": "SEARCH changes USING COVERING INDEX feed_kind "
    f"(indicator=? AND timeframe=? AND after=? AND published=? AND {ROWID})",
    "alerts": "SEARCH alerts USING COVERING INDEX alerts_kind "
    f"(indicator=? AND timeframe=? AND action=? AND {ROWID})",
}
INDICATORS = {"universe": 8, "alerts": 7}
TURNS = {
    "universe": {None: 3, -1: 1, 0: 1, 1: 1},
    "alerts": {None: 5, -1: 2, 0: 1, 1: 2},
}
MERGED = {"MERGE (UNION ALL)", "LEFT", "RIGHT"}
LOOKED_UP = {
    "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
    "SEARCH a USING INTEGER PRIMARY KEY (rowid=?)",
    "SEARCH assets USING INTEGER PRIMARY KEY (rowid=?)",
    "SEARCH assets USING COVERING INDEX sqlite_autoindex_assets_1 (ticker=?)",
    "LIST SUBQUERY",
    "SCALAR SUBQUERY",
    "CORRELATED SCALAR SUBQUERY",
}
BOARD = {"SCAN r", "SCAN a"}
OF_BOTH = {"MATERIALIZE page", "SCAN page"}


def plan_of(connection: sqlite3.Connection, sql: str, asked: FeedQuery | None = None) -> list[str]:
    """The steps of a plan, without the numbers that SQLite gives its subqueries."""
    names = ("after", "alerts_after", "until", "limit", "offset", *FILTERS)
    values = {name: getattr(asked, name, None) for name in names}
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values if asked else ())
    return [row[3].rstrip("0123456789").rstrip() for row in plan]


def arms(tier: str, filters: dict[str, object]) -> dict[str, int]:
    """How a tier is searched, and how often: once for each combination that is left open."""
    cells = 1 if filters["indicator"] else INDICATORS[tier]
    cells *= 1 if filters["timeframe"] else 3
    if filters["ticker"]:
        return {CELLS[tier]: cells}
    if set(filters.values()) == {None}:
        return {ALL[tier]: 1}
    return {KINDS[tier]: cells * TURNS[tier][filters["direction"]]}


@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize("tier", STATEMENTS)
async def test_every_combination_of_filters_is_searched_by_covering_index_and_never_sorted(
    market: SqliteMarketStore, path: Path, tier: str, oldest_first: bool
) -> None:
    allowed = MERGED | LOOKED_UP | (OF_BOTH if tier == "all" else set())
    with closing(sqlite3.connect(path)) as connection:
        for filters in COMBINATIONS:
            asked = query(**filters, oldest_first=oldest_first)
            steps = Counter(plan_of(connection, STATEMENTS[tier](asked), asked))
            for one in TIERS[tier]:
                for search, number in arms(one, filters).items():
                    assert steps.pop(search) == number, filters
            assert set(steps) <= allowed, filters


def test_every_statement_of_the_feed_stays_prepared() -> None:
    texts = {
        statement(query(**filters, oldest_first=oldest_first))
        for statement in STATEMENTS.values()
        for filters in COMBINATIONS
        for oldest_first in (False, True)
    }
    assert len(texts) == 192 < sqlite_connections.STATEMENTS


@pytest.fixture
async def read_statements(market: SqliteMarketStore) -> AsyncIterator[list[str]]:
    """Every statement that the store's reader runs from now on."""
    ran: list[str] = []
    async with market._connections.querying() as db:
        await db.set_trace_callback(ran.append)
    yield ran
    async with market._connections.querying() as db:
        await db.set_trace_callback(None)


async def test_whatever_else_reads_rows_neither_scans_nor_sorts_them(
    market: SqliteMarketStore, path: Path, read_statements: list[str]
) -> None:
    await market.commit(full())
    await market.snapshot()
    await market.snapshot_at(NOW)
    await market.progress()
    await market.pass_content(1)
    assert [row async for row in market.changes()]
    assert [row async for row in market.alerts()]
    for tier in RETENTION_MS:
        await market.statistics(tier, 0, NOW, 0)
    of_rows = {sql for sql in read_statements if "changes" in sql or "alerts" in sql}
    assert len(of_rows) >= 10
    with closing(sqlite3.connect(path)) as connection:
        for sql in of_rows:
            steps = plan_of(connection, sql)
            assert not [step for step in steps if "TEMP B-TREE" in step], sql
            scanned = {step for step in steps if step.startswith("SCAN")}
            assert scanned <= (BOARD if "FROM readings r" in sql else {"SCAN CONSTANT ROW"}), sql
