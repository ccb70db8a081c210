"""Feed pages compared to a model in plain Python."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.signals import MAX_OFFSET
from schemas.vocabulary import TIMEFRAMES
from store.errors import StoreError
from store.market_rows import AlertRow, ChangeRow, FeedQuery, FeedRow
from store.sql.feed import MAX_MERGED_TICKERS
from store.sql.market_store import MarketStore
from tests.support.row_builders import NOW, make_alert, make_batch, make_change, make_query
from tests.support.store_homes import StoreHome

pytestmark = pytest.mark.clause("feed")

FILTERS = {
    "ticker": [None, "BTC", "SOL"],
    "indicator": [None, "enzo", "llnr"],
    "timeframe": [None, "1h", "1d"],
    "direction": [None, 1, -1, 0],
}
COMBINATIONS = [dict(zip(FILTERS, chosen, strict=True)) for chosen in product(*FILTERS.values())]

SIDES = {"LONG": 1, "BUY": 1, "SHORT": -1, "SELL": -1, "CLOSE": 0}
# Too many for their pages to be merged.
MANY_TICKERS = ("BTC", *(f"T{number}" for number in range(MAX_MERGED_TICKERS)))
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
    oldest_first=st.booleans(),
    tickers=st.sampled_from([None, None, None, ("BTC", "SOL"), ("BTC", "ETH"), MANY_TICKERS]),
).map(lambda query: replace(query, ticker=None) if query.tickers else query)


def filter_changes(rows: list[ChangeRow], query: FeedQuery) -> list[ChangeRow]:
    found = [
        row
        for row in (rows if query.oldest_first else reversed(rows))
        if row.published
        and query.after < row.created_at <= query.until
        and query.ticker in (None, row.ticker)
        and (query.tickers is None or row.ticker in query.tickers)
        and query.indicator in (None, row.indicator)
        and query.timeframe in (None, row.timeframe)
        and query.direction in (None, row.after)
    ]
    return found[query.offset : query.offset + query.limit]


async def find_next_start(market: MarketStore) -> int:
    """Return a time after all rows of the store, which all examples share."""
    return (await market.progress()).last_created_at + 100


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(CELLS, min_size=25, max_size=30),
    queries=st.lists(QUERIES, min_size=20, max_size=20),
)
@pytest.mark.sampled(2)
async def test_a_page_equals_a_plain_filter_of_all_rows(
    market: MarketStore,
    cells: list[tuple[str, str, str, int, bool, int]],
    queries: list[FeedQuery],
) -> None:
    start = await find_next_start(market)
    rows: list[ChangeRow] = []
    for ticker, indicator, timeframe, after, published, gap in cells:
        created_at = (rows[-1].created_at if rows else start) + gap
        row = make_change(
            created_at, ticker, indicator, timeframe, after=after, published=published
        )
        rows.append(row)
    await market.commit(make_batch(changes=rows))
    for one in queries:
        moved = replace(one, after=start + one.after, until=start + one.until)
        assert await market.changes_feed(moved) == filter_changes(rows, moved)


async def test_a_page_begins_after_one_bound_and_ends_with_the_other(
    market: MarketStore,
) -> None:
    rows = [make_change(NOW + at) for at in range(5)]
    await market.commit(make_batch(changes=rows))
    found = await market.changes_feed(make_query(after=NOW + 1, until=NOW + 3))
    assert found == [rows[3], rows[2]]
    assert await market.changes_feed(make_query(after=NOW + 2, until=NOW + 2)) == []


async def test_the_largest_offset_gives_an_empty_page(market: MarketStore) -> None:
    await market.commit(make_batch(changes=[make_change(NOW)]))
    assert await market.changes_feed(make_query(offset=MAX_OFFSET)) == []


async def test_a_filter_is_a_value_and_never_sql(market: MarketStore) -> None:
    await market.commit(make_batch(changes=[make_change(NOW)]))
    assert await market.changes_feed(make_query(ticker="BTC' OR 1=1 --")) == []
    assert await market.changes_feed(make_query(indicator="enzo' OR 1=1 --")) == []
    assert await market.changes_feed(make_query(ticker="")) == []
    assert await market.changes_feed(make_query(timeframe="1w")) == []
    assert len(await market.changes_feed(make_query())) == 1


ALERTS = st.tuples(
    st.sampled_from(["BTC", "ETH"]),
    st.sampled_from(["enzo", "perpkit"]),
    st.sampled_from(["4h", "1d"]),
    st.sampled_from([*SIDES]),
)


def filter_rows(rows: list[FeedRow], query: FeedQuery, after: int, *kinds: type) -> list[FeedRow]:
    """Return the expected rows of both tiers; `after` bounds the alerts."""
    found = [
        row
        for row in (rows if query.oldest_first else reversed(rows))
        if isinstance(row, kinds)
        and (isinstance(row, AlertRow) or row.published)
        and (after if isinstance(row, AlertRow) else query.after) < row.created_at <= query.until
        and query.ticker in (None, row.ticker)
        and (query.tickers is None or row.ticker in query.tickers)
        and query.indicator in (None, row.indicator)
        and query.timeframe in (None, row.timeframe)
        and query.direction in (None, SIDES[row.action] if isinstance(row, AlertRow) else row.after)
    ]
    return found[query.offset : query.offset + query.limit]


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.one_of(ALERTS, CELLS), min_size=25, max_size=30),
    queries=st.lists(st.tuples(QUERIES, st.integers(0, 20)), min_size=20, max_size=20),
)
@pytest.mark.sampled(2)
async def test_a_page_of_both_tiers_equals_a_plain_filter_of_all_rows(
    market: MarketStore,
    rows: list[tuple[object, ...]],
    queries: list[tuple[FeedQuery, int]],
) -> None:
    start = await find_next_start(market)
    made: list[FeedRow] = []
    for at, row in enumerate(rows, 1):
        created_at = start + 2 * at
        if len(row) == 4:
            ticker, indicator, timeframe, action = row
            made.append(make_alert(created_at, action, ticker, indicator, timeframe))
        else:
            ticker, indicator, timeframe, after, *_ = row
            made.append(make_change(created_at, ticker, indicator, timeframe, after=after))
    changes = [row for row in made if isinstance(row, ChangeRow)]
    alerts = [row for row in made if isinstance(row, AlertRow)]
    await market.commit(make_batch(changes=changes, alerts=alerts))
    for one, alerts_after in queries:
        moved, after = (
            replace(one, after=start + one.after, until=start + one.until),
            start + alerts_after,
        )
        both = filter_rows(made, moved, after, ChangeRow, AlertRow)
        assert await market.merged_feed(moved, after) == both
        assert await market.alerts_feed(moved) == filter_rows(made, moved, moved.after, AlertRow)
    assert [row async for row in market.alerts() if row.created_at > start] == alerts
    assert [row async for row in market.changes() if row.created_at > start] == changes


def make_rows_of_both_tiers() -> list[FeedRow]:
    """Rows with few of 1d, no neutral ones of llnr, and no published ones of SOL."""
    made: list[FeedRow] = []
    for number in range(96):
        at, ticker = NOW + number, ("BTC", "ETH", "SOL")[number % 3]
        indicator, timeframe = ("enzo", "llnr")[number % 2], "1d" if number % 16 == 5 else "1h"
        if number % 4 == 3:
            made.append(make_alert(at, list(SIDES)[number % 5], ticker, indicator, timeframe))
        else:
            after = number % 5 % 3 - 1 or (indicator == "llnr")
            shown = ticker != "SOL"
            made.append(make_change(at, ticker, indicator, timeframe, after=after, published=shown))
    return made


@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize(
    "kinds", [(ChangeRow,), (AlertRow,), (ChangeRow, AlertRow)], ids=["universe", "alerts", "all"]
)
@pytest.mark.sampled(2)
async def test_joined_pages_of_every_combination_equal_a_plain_filter(
    market: MarketStore, kinds: tuple[type, ...], oldest_first: bool
) -> None:
    rows = make_rows_of_both_tiers()
    changes = [row for row in rows if isinstance(row, ChangeRow)]
    await market.commit(
        make_batch(changes=changes, alerts=[row for row in rows if isinstance(row, AlertRow)])
    )
    for filters in COMBINATIONS:
        query = make_query(**filters, oldest_first=oldest_first)
        paged: list[FeedRow] = []
        while page := await read(market, replace(query, limit=13, offset=len(paged)), kinds):
            paged.extend(page)
        assert paged == filter_rows(rows, query, NOW + 9, *kinds), filters


async def read(market: MarketStore, query: FeedQuery, kinds: tuple[type, ...]) -> Sequence[FeedRow]:
    """Return a page of one tier or both; alerts start later than changes."""
    if kinds == (ChangeRow,):
        return await market.changes_feed(query)
    if kinds == (AlertRow,):
        return await market.alerts_feed(replace(query, after=NOW + 9))
    return await market.merged_feed(query, NOW + 9)


async def test_an_alert_and_a_change_never_share_a_time(market: MarketStore) -> None:
    with pytest.raises(StoreError):
        await market.commit(make_batch(changes=[make_change(NOW)], alerts=[make_alert(NOW)]))
    await market.commit(make_batch(changes=[make_change(NOW)], alerts=[make_alert(NOW + 1)]))
    for late in ({"changes": [make_change(NOW + 1)]}, {"alerts": [make_alert(NOW + 1, "CLOSE")]}):
        with pytest.raises(StoreError):
            await market.commit(make_batch(**late))
    assert (await market.snapshot()).last_created_at == NOW + 1


async def test_a_page_of_a_store_that_was_closed_is_refused(home: StoreHome) -> None:
    store = await home.open_market()
    assert await store.changes_feed(make_query()) == []
    await store.close()
    with pytest.raises(StoreError):
        await store.changes_feed(make_query())
