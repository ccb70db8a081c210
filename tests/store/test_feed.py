"""The feed against a plain-Python model, and its plans."""

import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import TIMEFRAMES
from store.rows import MAX_OFFSET, ChangeRow, FeedQuery
from store.sqlite import SqliteMarketStore
from store.sqlite_reads import feed_statement
from tests.store.rows import NOW, change, query, work

OpenMarket = Callable[[Path], Awaitable[SqliteMarketStore]]

FILTERS = {"ticker": "BTC", "indicator": "enzo", "timeframe": "1h", "direction": 1}
COMBINATIONS = [
    {name: FILTERS[name] for name, is_on in zip(FILTERS, chosen, strict=True) if is_on}
    for chosen in product([False, True], repeat=len(FILTERS))
]

CELLS = st.tuples(
    st.sampled_from(["BTC", "ETH"]),
    st.sampled_from(["enzo", "dexter"]),
    st.sampled_from(TIMEFRAMES),
    st.sampled_from([1, -1, 0]),
    st.sampled_from([True, True, False]),
    st.integers(1, 3),
)
QUERIES = st.builds(
    FeedQuery,
    after=st.integers(0, 20),
    until=st.integers(20, 60),
    limit=st.integers(1, 30),
    offset=st.sampled_from([0, 0, 0, 1, 2, 9]),
    ticker=st.sampled_from([None, None, "BTC", "ETH"]),
    indicator=st.sampled_from([None, None, "enzo", "dexter"]),
    timeframe=st.sampled_from([None, None, *TIMEFRAMES]),
    direction=st.sampled_from([None, None, None, -1, 0, 1]),
)


def modelled(rows: list[ChangeRow], asked: FeedQuery) -> list[ChangeRow]:
    found = [
        row
        for row in reversed(rows)
        if row.published
        and asked.after < row.created_at <= asked.until
        and asked.ticker in (None, row.ticker)
        and asked.indicator in (None, row.indicator)
        and asked.timeframe in (None, row.timeframe)
        and asked.direction in (None, row.after)
    ]
    return found[asked.offset : asked.offset + asked.limit]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(CELLS, min_size=25, max_size=30),
    asked=st.lists(QUERIES, min_size=20, max_size=20),
)
async def test_a_page_is_what_a_plain_filter_of_all_rows_gives(
    open_market: OpenMarket,
    tmp_path: Path,
    cells: list[tuple[str, str, str, int, bool, int]],
    asked: list[FeedQuery],
) -> None:
    rows: list[ChangeRow] = []
    for ticker, indicator, timeframe, after, published, gap in cells:
        created_at = (rows[-1].created_at if rows else 0) + gap
        row = change(created_at, ticker, indicator, timeframe, after=after, published=published)
        rows.append(row)
    store = await open_market(Path(tempfile.mkdtemp(dir=tmp_path)) / "market.db")
    await store.commit(work(changes=rows))
    for one in asked:
        assert await store.feed(one) == modelled(rows, one)
    await store.close()


@pytest.mark.parametrize("filters", COMBINATIONS, ids=lambda filters: "+".join(filters) or "none")
async def test_every_combination_of_filters_is_read_by_index_and_never_sorted(
    market: SqliteMarketStore, path: Path, filters: dict[str, object]
) -> None:
    sql, values = feed_statement(query(**filters))
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    steps = [step for step in plan if "SUBQUERY" not in step]
    assert all(step.startswith("SEARCH ") for step in steps), plan
    assert "INDEX feed_" in steps[0]
    assert "created_at>?" in steps[0]
    assert "created_at<?" in steps[0]


@pytest.mark.parametrize("filters", COMBINATIONS, ids=lambda filters: "+".join(filters) or "none")
async def test_pages_of_every_combination_cover_each_row_once(
    market: SqliteMarketStore, filters: dict[str, object]
) -> None:
    cells = list(product(["BTC", "ETH"], ["enzo", "llnr"], ["1h", "1d"], [1, -1])) * 2
    rows = [
        change(NOW + at, ticker, indicator, timeframe, after=after)
        for at, (ticker, indicator, timeframe, after) in enumerate(cells)
    ]
    await market.commit(work(changes=rows))
    asked = query(limit=3, **filters)
    paged: list[ChangeRow] = []
    while page := await market.feed(replace(asked, offset=len(paged))):
        paged.extend(page)
    assert paged == modelled(rows, query(**filters))
    assert len(paged) == len(rows) >> len(filters)


async def test_a_page_begins_after_one_bound_and_ends_with_the_other(
    market: SqliteMarketStore,
) -> None:
    rows = [change(NOW + at) for at in range(5)]
    await market.commit(work(changes=rows))
    found = await market.feed(query(after=NOW + 1, until=NOW + 3))
    assert found == [rows[3], rows[2]]
    assert await market.feed(query(after=NOW + 2, until=NOW + 2)) == []


async def test_the_largest_offset_gives_an_empty_page(market: SqliteMarketStore) -> None:
    await market.commit(work(changes=[change(NOW)]))
    assert await market.feed(query(offset=MAX_OFFSET)) == []


async def test_a_filter_is_a_value_and_never_sql(market: SqliteMarketStore) -> None:
    await market.commit(work(changes=[change(NOW)]))
    assert await market.feed(query(ticker="BTC' OR 1=1 --")) == []
    assert await market.feed(query(indicator="enzo' OR 1=1 --")) == []
    assert await market.feed(query(ticker="")) == []
    assert await market.feed(query(timeframe="1w")) == []
    assert len(await market.feed(query())) == 1
