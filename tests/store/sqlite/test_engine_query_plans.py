"""SQLite serves the feed by index searches, without scans and sorts.

`EXPLAIN QUERY PLAN` prints SCAN for a full read and TEMP B-TREE for a sort. The only scans are of
`page`, which holds the times of one page for both tiers, and of the current readings.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from schemas.vocabulary import RETENTION_MS, Tier
from store.market_rows import FeedQuery
from store.sql import past_snapshot as past
from store.sql.feed import MAX_MERGED_TICKERS
from store.sql.feed_pages import build_counts_query, build_oldest_query
from store.sql.lanes import Lane
from store.sql.market_statements import LIST_LAST_BARS
from store.sql.market_store import MarketStore
from store.sql.reading_changes import LIST_BLOCKS_AT, LIST_LAST_CHANGES
from store.sqlite import engine as sqlite_engine
from store.sqlite.feed_pages import SQLITE_FEED_STATEMENTS
from tests.support.row_builders import NOW, make_full_batch, make_query, run_sql
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("feed")


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """SQLite only: the tests parse its plans."""
    return SqliteHome(tmp_path)


STATEMENTS = {
    "universe": SQLITE_FEED_STATEMENTS.changes,
    "alerts": SQLITE_FEED_STATEMENTS.alerts,
    "all": SQLITE_FEED_STATEMENTS.merged,
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


def explain(connection: sqlite3.Connection, sql: str, query: FeedQuery | None = None) -> list[str]:
    """Return the steps of a plan, without the numbers of its subqueries."""
    names = ("after", "alerts_after", "until", "limit", "offset", *FILTERS)
    values = {name: getattr(query, name, None) for name in names} | {"tickers": ",A,B,"}
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values if query else ())
    return [row[3].rstrip("0123456789").rstrip() for row in plan]


def list_arms(tier: str, filters: dict[str, object]) -> dict[str, int]:
    """Return the expected search steps of a tier with their counts, one per open combination."""
    cells = 1 if filters["indicator"] else INDICATORS[tier]
    cells *= 1 if filters["timeframe"] else 3
    if filters["ticker"]:
        return {CELLS[tier]: cells}
    if set(filters.values()) == {None}:
        return {ALL[tier]: 1}
    return {KINDS[tier]: cells * TURNS[tier][filters["direction"]]}


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize("tier", STATEMENTS)
async def test_every_combination_of_filters_is_searched_by_covering_index_and_never_sorted(
    path: Path, tier: str, oldest_first: bool
) -> None:
    allowed = MERGED | LOOKED_UP | (OF_BOTH if tier == "all" else set())
    with closing(sqlite3.connect(path)) as connection:
        for filters in COMBINATIONS:
            query = make_query(**filters, oldest_first=oldest_first)
            steps = Counter(explain(connection, STATEMENTS[tier](query), query))
            for one in TIERS[tier]:
                for search, number in list_arms(one, filters).items():
                    assert steps.pop(search) == number, filters
            assert set(steps) <= allowed, filters


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize("tier", STATEMENTS)
async def test_the_rows_of_many_tickers_are_read_in_the_order_of_an_index(
    path: Path, tier: str, oldest_first: bool
) -> None:
    tickers = tuple(f"T{number}" for number in range(MAX_MERGED_TICKERS + 1))
    with closing(sqlite3.connect(path)) as connection:
        for filters in COMBINATIONS:
            query = make_query(
                **filters | {"ticker": None}, oldest_first=oldest_first, tickers=tickers
            )
            steps = explain(connection, STATEMENTS[tier](query), query)
            assert not any("TEMP B-TREE" in step for step in steps), filters
            scanned = {step.split(" USING")[0] for step in steps if step.startswith("SCAN")}
            assert scanned <= {"SCAN assets", "SCAN page"}, filters


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("sql", [LIST_LAST_CHANGES, LIST_BLOCKS_AT])
def test_changes_and_closes_are_searched_by_index(path: Path, sql: str) -> None:
    values = {"tickers": ",A,B,", "timeframe": 1, "until": NOW, "closed_at": NOW}
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    tables = r"SCAN (changes|bars|epochs|c|n|e|b)\b"
    assert [row[3] for row in plan if re.match(tables, row[3])] == []


def test_every_statement_of_the_feed_stays_prepared() -> None:
    texts = {
        statement(make_query(**filters, oldest_first=oldest_first))
        for statement in STATEMENTS.values()
        for filters in COMBINATIONS
        for oldest_first in (False, True)
    }
    assert len(texts) == 192 < sqlite_engine.STATEMENT_CACHE_SIZE


@pytest.fixture
async def recorded_statements(market: MarketStore) -> AsyncIterator[list[str]]:
    """Return a list that receives every statement of the store's readers."""
    ran: list[str] = []
    for lane in Lane:
        async with market._engine.begin_read(lane) as db:
            await db.connection.set_trace_callback(ran.append)
    yield ran
    for lane in Lane:
        async with market._engine.begin_read(lane) as db:
            await db.connection.set_trace_callback(None)


async def test_every_other_read_neither_scans_nor_sorts(
    market: MarketStore, path: Path, recorded_statements: list[str]
) -> None:
    await market.commit(make_full_batch())
    await market.snapshot()
    await market.snapshot_at(NOW)
    await market.progress()
    await market.commit_content(1)
    assert [row async for row in market.changes()]
    assert [row async for row in market.alerts()]
    for tier in RETENTION_MS:
        await market.statistics(tier, 0, NOW, 0)
    of_rows = {sql for sql in recorded_statements if "changes" in sql or "alerts" in sql}
    assert len(of_rows) >= 10
    with closing(sqlite3.connect(path)) as connection:
        for sql in of_rows:
            steps = explain(connection, sql)
            assert not [step for step in steps if "TEMP B-TREE" in step], sql
            scanned = {step for step in steps if step.startswith("SCAN")}
            assert scanned <= (BOARD if "FROM readings r" in sql else {"SCAN CONSTANT ROW"}), sql


ALL_KINDS: dict[Tier, int] = {"universe": 8 * 3 * 3, "alerts": 7 * 3 * 5}


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("tier", ALL_KINDS)
async def test_statistics_search_each_kind_between_two_times_and_sort_nothing(
    path: Path, tier: Tier
) -> None:
    bounds = {"after": 0, "alerts_after": 0, "until": NOW}
    with closing(sqlite3.connect(path)) as connection:
        counted, found = (
            [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bounds)]
            for sql in (build_counts_query(tier), build_oldest_query(tier))
        )
    assert found == [ALL[tier]]
    searches = [step for step in counted if step.startswith("SEARCH")]
    assert searches == [KINDS[tier]] * ALL_KINDS[tier]
    assert set(counted) - {*searches} == {"COMPOUND QUERY", "LEFT-MOST SUBQUERY", "UNION ALL"}


PAST = {
    "the pass of a time": past.LATEST_COMMIT_AT,
    "whether the next is nominal": past.IS_NOMINAL,
    "its last row": past.LAST_CREATED_AT,
    "the readings": past.READINGS_AT,
}


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("name", PAST)
async def test_the_past_is_searched_by_index_and_never_sorted(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {PAST[name]}", [5]).fetchall()
    steps = [row[3] for row in plan]
    scanned = [step for step in steps if step.startswith("SCAN")]
    assert all(step.split()[1] in {"r", "a"} for step in scanned), (
        steps
    )  # as for the latest snapshot
    assert not any("TEMP B-TREE" in step for step in steps), steps
    assert any(step.startswith("SEARCH") for step in steps), steps


@pytest.mark.usefixtures("market")
async def test_a_cell_is_searched_to_its_newest_row_by_then(
    path: Path,
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {past.READINGS_AT}", [5])
        (cell,) = (row[3] for row in plan if "cell" in row[3])
    assert cell.startswith(
        "SEARCH c USING COVERING INDEX cell (asset_id=? AND indicator=? AND timeframe=?"
    )
    assert "created_at<?" in cell


@pytest.mark.usefixtures("market")
async def test_an_asset_is_read_by_its_key_and_a_commit_by_its_index(path: Path) -> None:
    plans = {
        "asset_id = 1 AND generation = 0 AND timeframe = 0 AND last_open > 0 ORDER BY last_open": (
            "PRIMARY KEY"
        ),
        "pass = 1": "INDEX bars_of_pass",
    }
    for condition, index in plans.items():
        plan = run_sql(path, f"EXPLAIN QUERY PLAN SELECT data FROM bars WHERE {condition}")
        assert len(plan) == 1
        assert plan[0][3].startswith(f"SEARCH bars USING {index}")


async def test_the_last_bars_are_found_without_reading_the_data_of_others(
    market: MarketStore, path: Path
) -> None:
    await market.commit(make_full_batch())
    with closing(sqlite3.connect(path)) as connection:
        values = {"number": 1, "run_s": 0}
        plan = connection.execute(f"EXPLAIN QUERY PLAN {LIST_LAST_BARS}", values)
        searches = [row[3] for row in plan if re.match("SEARCH (b|bars) ", row[3])]
    # The last one returns data, of the blocks in which a run ends.
    assert all("USING COVERING INDEX bar_ends" in step for step in searches[:-1])
    assert len(searches) == 4
