"""Feed statistics compared to a model in plain Python."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.vocabulary import TIMEFRAMES
from store.market_rows import ChangeRow, Statistics
from store.sql.market_store import MarketStore
from tests.store.sql.test_feed import find_next_start
from tests.support.row_builders import NOW, make_alert, make_batch, make_change

pytestmark = pytest.mark.clause("feed")

CELLS = st.tuples(
    st.sampled_from(["BTC", "ETH"]),
    st.sampled_from(["enzo", "perpkit", "dexter"]),
    st.sampled_from(TIMEFRAMES),
    st.sampled_from([1, -1, 0]),
    st.sampled_from([True, True, False]),
    st.integers(1, 3),
)
BOUNDS = st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 30))


def count_rows(rows: list[ChangeRow], after: int, until: int, kept_after: int) -> Statistics:
    shown = [row for row in rows if row.published and row.created_at <= until]
    return Statistics(
        Counter(
            (row.indicator, row.timeframe, row.after) for row in shown if row.created_at > after
        ),
        min((row.created_at for row in shown if row.created_at > kept_after), default=None),
    )


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(CELLS, min_size=0, max_size=30),
    windows=st.lists(BOUNDS, min_size=20, max_size=20),
)
async def test_counts_are_those_of_a_plain_walk_over_all_rows(
    market: MarketStore,
    cells: list[tuple[str, str, str, int, bool, int]],
    windows: list[tuple[int, int, int]],
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
    for bounds in windows:
        moved = [start + bound for bound in bounds]
        assert await market.statistics("universe", *moved) == count_rows(rows, *moved)


async def test_a_window_begins_after_one_bound_and_ends_with_the_other(
    market: MarketStore,
) -> None:
    await market.commit(make_batch(changes=[make_change(NOW + at) for at in range(5)]))
    found = await market.statistics("universe", after=NOW + 1, until=NOW + 3, visible_after=NOW)
    assert found == Statistics({("enzo", "1h", 1): 2}, NOW + 1)


async def test_unpublished_rows_are_not_counted(market: MarketStore) -> None:
    await market.commit(make_batch(changes=[make_change(NOW, published=False)]))
    assert await market.statistics("universe", 0, NOW, 0) == Statistics({}, None)


async def test_an_empty_store_counts_nothing(market: MarketStore) -> None:
    assert await market.statistics("universe", 0, NOW, 0) == Statistics({}, None)


async def test_alerts_are_counted_by_action_in_a_window_of_their_own(
    market: MarketStore,
) -> None:
    rows = [
        make_alert(NOW),
        make_alert(NOW + 1),
        make_alert(NOW + 2, "CLOSE"),
        make_alert(NOW + 4, "CLOSE"),
    ]
    await market.commit(make_batch(alerts=rows, changes=[make_change(NOW + 3)]))
    found = await market.statistics("alerts", after=NOW, until=NOW + 3, visible_after=NOW - 1)
    counts = {("perpkit", "4h", "LONG"): 1, ("perpkit", "4h", "CLOSE"): 1}
    assert found == Statistics(counts, NOW)
    assert (await market.statistics("universe", NOW, NOW + 3, 0)).oldest == NOW + 3
