"""Statements of both databases, and lanes: no read waits for one of another lane, nor for ever."""

import asyncio
import re
from contextlib import AsyncExitStack, suppress

import pytest

from store.errors import StoreError
from store.sql import database
from store.sql.database import Lane
from store.sql.market_store import MarketStore
from tests.store.conftest import OpenMarket
from tests.support.row_builders import NOW, make_full_batch
from tests.support.signals_command import ROOT
from tests.support.small_market import load_past

pytestmark = pytest.mark.clause("monitoring")

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"
SHORT_S = 0.3


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit every read to a moment; a store has to be opened after this."""
    for lane in Lane:
        monkeypatch.setitem(database.READ_LIMITS_S, lane, SHORT_S)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("lane", Lane)
@pytest.mark.sampled(4)
async def test_an_endless_read_ends_with_its_cause_and_leaves_the_connection_usable(
    open_market: OpenMarket, lane: Lane
) -> None:
    market = await open_market()
    await market.commit(make_full_batch())
    for _ in range(2):
        with pytest.raises(StoreError, match=r"took longer than 0\.3 s|statement timeout"):
            async with market._engine.begin_read(lane) as db:
                await db.execute(ENDLESS)
        # Each of these would wait for the statement if it still ran.
        async with market._engine.begin_read(lane) as db:
            assert [tuple(row) for row in await db.execute("SELECT count(*) FROM clock")] == [(1,)]


@pytest.mark.usefixtures("short_limits")
async def test_a_page_that_takes_too_long_is_refused_and_the_next_one_is_read(
    open_market: OpenMarket,
) -> None:
    market = await open_market()
    await market.commit(make_full_batch())
    with pytest.raises(StoreError, match=r"took longer than 0\.3 s|statement timeout"):
        async with market._engine.acquire_connection() as db:
            await db.execute(ENDLESS)
    assert await market.find_access_id() is None


async def fill_lane(held: AsyncExitStack, market: MarketStore, lane: Lane) -> None:
    """Open read transactions until the lane admits no more."""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(1):
                await held.enter_async_context(market._engine.begin_read(lane))


@pytest.mark.sampled(2)
async def test_the_snapshot_and_probes_are_read_while_every_other_lane_is_full(
    open_market: OpenMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = await open_market()
    await market.commit(make_full_batch())
    async with AsyncExitStack() as held:
        for lane in (Lane.PAGES, Lane.PAST, Lane.BATCH):
            await fill_lane(held, market, lane)
        for _ in range(3):
            assert (await market.progress()).commit_count == 1
            assert (await market.snapshot()).market_time == (await market.progress()).market_time
        monkeypatch.setitem(database.READ_LIMITS_S, Lane.PAST, SHORT_S)
        with pytest.raises(StoreError, match=r"waiting for .* \(past\) took longer than 0\.3 s"):
            await load_past(market, NOW)
    monkeypatch.undo()
    assert await load_past(market, NOW)
    assert await market.readings()


async def test_pages_are_read_while_a_past_snapshot_is_rebuilt(market: MarketStore) -> None:
    await market.commit(make_full_batch())
    async with market._engine.begin_read(Lane.PAST):
        assert await market.find_access_id() is None
        assert await market.readings()


# Also as built by an f-string.
NUMBERED = re.compile(r"\?(\d|\{)")


@pytest.mark.clause("store")
def test_no_statement_has_a_numbered_placeholder() -> None:
    files = list((ROOT / "store").rglob("*.py"))
    statements = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if NUMBERED.search(line)
    ]
    assert len(files) > 30
    assert statements == []
