"""The history of one asset's readings, compared to hand-made rows."""

import pytest

from store.sql.market_store import MarketStore
from tests.support.row_builders import NOW, make_batch, make_change

pytestmark = pytest.mark.clause("15.1")


async def test_history_has_one_timeframe_in_a_window_and_the_newest_change_of_each_cell(
    market: MarketStore,
) -> None:
    rows = [
        make_change(NOW, "BTC", "enzo", "1h", after=1),
        make_change(NOW + 1, "BTC", "enzo", "1d", after=1),
        make_change(NOW + 2, "BTC", "llnr", "1h", after=-1, published=False),
        make_change(NOW + 3, "ETH", "enzo", "1h", after=-1),
        make_change(NOW + 4, "BTC", "enzo", "1d", after=0, before=1),
        make_change(NOW + 5, "BTC", "enzo", "1h", after=0, before=1, published=False),
        make_change(NOW + 6, "BTC", "perpkit", "1h", after=1, published=False),
        make_change(NOW + 7, "BTC", "enzo", "1h", after=-1, before=0),
    ]
    await market.commit(make_batch(changes=rows))
    # Of 1h, the rows in the window and llnr's newest one before it; of 1d, only the newest.
    assert await market.asset_history("BTC", "1h", NOW + 3, NOW + 6) == [
        rows[2],
        rows[4],
        rows[5],
        rows[6],
    ]
    assert await market.asset_history("BTC", "1h", NOW + 3, NOW + 9) == [
        rows[2],
        rows[4],
        rows[5],
        rows[6],
        rows[7],
    ]
    assert await market.asset_history("BTC", "1d", NOW - 1, NOW + 9) == [
        rows[1],
        rows[2],
        rows[4],
        rows[6],
        rows[7],
    ]
    assert await market.asset_history("SOL", "1h", NOW - 1, NOW + 9) == []
