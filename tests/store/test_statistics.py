"""Counts of the feed against a plain-Python model, and the plans that make them."""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import TIMEFRAMES, Tier
from store.rows import ChangeRow, Statistics
from store.sqlite import SqliteMarketStore
from store.sqlite_page import counts, oldest
from tests.store.rows import NOW, alert, change, work

pytestmark = pytest.mark.clause("feed")

OpenMarket = Callable[[Path], Awaitable[SqliteMarketStore]]

CELLS = st.tuples(
    st.sampled_from(["BTC", "ETH"]),
    st.sampled_from(["enzo", "perpkit", "dexter"]),
    st.sampled_from(TIMEFRAMES),
    st.sampled_from([1, -1, 0]),
    st.sampled_from([True, True, False]),
    st.integers(1, 3),
)
BOUNDS = st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 30))


def modelled(rows: list[ChangeRow], after: int, until: int, kept_after: int) -> Statistics:
    shown = [row for row in rows if row.published and row.created_at <= until]
    return Statistics(
        Counter(
            (row.indicator, row.timeframe, row.after) for row in shown if row.created_at > after
        ),
        min((row.created_at for row in shown if row.created_at > kept_after), default=None),
    )


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(CELLS, min_size=0, max_size=30),
    asked=st.lists(BOUNDS, min_size=20, max_size=20),
)
async def test_counts_are_those_of_a_plain_walk_over_all_rows(
    open_market: OpenMarket,
    tmp_path: Path,
    cells: list[tuple[str, str, str, int, bool, int]],
    asked: list[tuple[int, int, int]],
) -> None:
    rows: list[ChangeRow] = []
    for ticker, indicator, timeframe, after, published, gap in cells:
        created_at = (rows[-1].created_at if rows else 0) + gap
        row = change(created_at, ticker, indicator, timeframe, after=after, published=published)
        rows.append(row)
    store = await open_market(Path(tempfile.mkdtemp(dir=tmp_path)) / "market.db")
    await store.commit(work(changes=rows))
    for bounds in asked:
        assert await store.statistics("universe", *bounds) == modelled(rows, *bounds)
    await store.close()


async def test_a_window_begins_after_one_bound_and_ends_with_the_other(
    market: SqliteMarketStore,
) -> None:
    await market.commit(work(changes=[change(NOW + at) for at in range(5)]))
    found = await market.statistics("universe", after=NOW + 1, until=NOW + 3, kept_after=NOW)
    assert found == Statistics({("enzo", "1h", 1): 2}, NOW + 1)


async def test_rows_that_are_not_published_count_nowhere(market: SqliteMarketStore) -> None:
    await market.commit(work(changes=[change(NOW, published=False)]))
    assert await market.statistics("universe", 0, NOW, 0) == Statistics({}, None)


async def test_an_empty_store_counts_nothing(market: SqliteMarketStore) -> None:
    assert await market.statistics("universe", 0, NOW, 0) == Statistics({}, None)


async def test_alerts_are_counted_by_action_in_a_window_of_their_own(
    market: SqliteMarketStore,
) -> None:
    rows = [alert(NOW), alert(NOW + 1), alert(NOW + 2, "CLOSE"), alert(NOW + 4, "CLOSE")]
    await market.commit(work(alerts=rows, changes=[change(NOW + 3)]))
    found = await market.statistics("alerts", after=NOW, until=NOW + 3, kept_after=NOW - 1)
    counts = {("perpkit", "4h", "LONG"): 1, ("perpkit", "4h", "CLOSE"): 1}
    assert found == Statistics(counts, NOW)
    assert (await market.statistics("universe", NOW, NOW + 3, 0)).oldest == NOW + 3


KINDS = {
    "universe": "SEARCH changes USING COVERING INDEX feed_kind "
    "(indicator=? AND timeframe=? AND after=? AND published=? AND rowid>? AND rowid<?)",
    "alerts": "SEARCH alerts USING COVERING INDEX alerts_kind "
    "(indicator=? AND timeframe=? AND action=? AND rowid>? AND rowid<?)",
}
ALL = {
    "universe": "SEARCH changes USING COVERING INDEX feed_all "
    "(published=? AND rowid>? AND rowid<?)",
    "alerts": "SEARCH alerts USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
}
ALL_KINDS: dict[Tier, int] = {"universe": 8 * 3 * 3, "alerts": 7 * 3 * 5}


@pytest.mark.parametrize("tier", ALL_KINDS)
async def test_statistics_search_each_kind_between_two_times_and_sort_nothing(
    market: SqliteMarketStore, path: Path, tier: Tier
) -> None:
    bounds = {"after": 0, "alerts_after": 0, "until": NOW}
    with closing(sqlite3.connect(path)) as connection:
        counted, found = (
            [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bounds)]
            for sql in (counts(tier), oldest(tier))
        )
    assert found == [ALL[tier]]
    searches = [step for step in counted if step.startswith("SEARCH")]
    assert searches == [KINDS[tier]] * ALL_KINDS[tier]
    assert set(counted) - {*searches} == {"COMPOUND QUERY", "LEFT-MOST SUBQUERY", "UNION ALL"}
