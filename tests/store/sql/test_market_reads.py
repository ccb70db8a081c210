"""A snapshot read on top of an earlier one equals one that is read whole."""

import pytest
from hypothesis import HealthCheck, given, settings

from schemas.vocabulary import HOUR_MS
from store.market_rows import Batch
from store.sql.market_store import MarketStore
from tests.store.sql.test_past_snapshot import LAST, histories
from tests.support.row_builders import make_batch, make_change
from tests.support.store_homes import HomeFactory, open_and_close

pytestmark = pytest.mark.clause("store")


async def test_only_the_assets_that_changed_get_new_readings(market: MarketStore) -> None:
    cells = [
        ("BTC", "enzo", "1h"),
        ("BTC", "enzo", "4h"),
        ("BTC", "llnr", "1d"),
        ("ETH", "enzo", "1h"),
    ]
    rows = [make_change(LAST + n, *cell) for n, cell in enumerate(cells)]
    await market.commit(make_batch(LAST, changes=rows))
    before = await market.snapshot()
    later = LAST + HOUR_MS
    turned = [
        make_change(later, "BTC", "enzo", "4h", before=1, after=-1),
        make_change(later + 1, "BTC", "enzo", "4h", before=-1, after=0),
        make_change(later + 2, "BTC", "ceres", "1h", after=-1, published=False),
        make_change(later + 3, "XAU", "enzo", "1d"),
    ]
    await market.commit(make_batch(later, changes=turned))
    after = await market.snapshot(before)
    assert after.readings == {
        "BTC": {"enzo": {"1h": 1, "4h": 0}, "llnr": {"1d": 1}, "ceres": {"1h": -1}},
        "ETH": {"enzo": {"1h": 1}},
        "XAU": {"enzo": {"1d": 1}},
    }
    assert after.readings["ETH"] is before.readings["ETH"]
    assert before.readings["BTC"] == {"enzo": {"1h": 1, "4h": 1}, "llnr": {"1d": 1}}
    assert after == await market.snapshot()


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=histories())
async def test_every_earlier_snapshot_leads_to_the_same_newer_one(
    new_home: HomeFactory, batches: list[Batch]
) -> None:
    """The last commit is a year after the others, beyond the hours whose changes are read."""
    async with new_home() as home, open_and_close(home.open_market()) as store:
        earlier = [await store.snapshot()]
        for batch in batches:
            await store.commit(batch)
            whole = await store.snapshot()
            for known in earlier:
                assert await store.snapshot(known) == whole
            earlier.append(whole)
