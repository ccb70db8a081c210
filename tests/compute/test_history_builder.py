"""Assets whose venue fails in a first start are built beside the runs, as if it had not failed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import date
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from compute import history_builder
from compute.audit.audit import Audit
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS as ALL_INDICATORS
from compute.sources.source import FetchResult
from compute.universe import Universe
from schemas.vocabulary import TIMEFRAMES
from store.market_rows import StoredSnapshot
from store.sql.market_store import MarketStore
from store.sqlite.market_store import open_sqlite_market
from tests.doubles.scripted_source import (
    AcceleratedClock,
    ClockEnded,
    ScriptedSource,
    list_stepped_closes,
    load_changes,
    march_s,
)

pytestmark = pytest.mark.clause("steps")

# Two of them, which take a third of the time: one of them has a legacy key.
INDICATORS = [one for one in ALL_INDICATORS if one.id in ("enzo", "reversals")]
SESSIONS = {"BTC": "24x7", "ETH": "24x7", "NVDA": "XNAS", "XAU": "24x5"}
START = march_s("09:40")
# Two batches of a first start, and longer than the longest warmup of 1h and 4h.
BEGINS = START // DAY_S * DAY_S - 55 * DAY_S
UNTIL = march_s("14:30", day=5)
FAILING = ("ETH", "NVDA")


class Content(NamedTuple):
    """What a store holds, without the times at which its rows were written."""

    readings: list[Any]
    carries: list[Any]
    epochs: list[Any]
    publish_from: dict[str, int]
    bars: list[Any]
    changes: list[Any]
    alerts: list[Any]


def script(clock: AcceleratedClock) -> ScriptedSource:
    """A source that, as live markets, shows nothing from before its first start."""
    source = ScriptedSource(clock, SESSIONS, BEGINS)
    source.shown_history_s = 0
    assets = tuple(asset.model_copy(update={"alerts": True}) for asset in source.universe.assets)
    source.universe = Universe(assets=assets, renamed_on=date(2026, 3, 4))
    return source


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[MarketStore]:
    store = await open_sqlite_market(path)
    try:
        yield store
    finally:
        await store.close()


async def run(
    path: Path,
    source: ScriptedSource,
    clock: AcceleratedClock,
    until: int,
    watched: "Watched | None" = None,
    indicators: Sequence[Indicator] = INDICATORS,
) -> None:
    """Start the loop, and kill it when the clock reaches a time."""
    clock.ends_at = until
    async with opened(path) as store:
        clock.watch = None if watched is None else partial(watched.look, store)
        opener = partial(HourlyPipeline.open, store, source, source.universe, indicators, clock)
        with suppress(ClockEnded):
            await HourlyLoop(opener, store, clock, clock.sleep).run()


async def load_content(path: Path) -> Content:
    async with opened(path) as store:
        return Content(
            await store.readings(),
            await store.carries(),
            sorted(map(repr, await store.epochs())),
            await store.publish_from(),
            [[*block.iter_rows()] for block in await store.bars()],
            sorted([row[1:] for row in [row async for row in store.changes()]], key=repr),
            sorted([row[1:] for row in [row async for row in store.alerts()]], key=repr),
        )


async def check_clean(path: Path, universe: Universe) -> None:
    async with opened(path) as store:
        assert (await (await Audit.open(store, universe, INDICATORS)).run()).findings == []
        times = [row.created_at async for row in store.changes()]
        times += [row.created_at async for row in store.alerts()]
    assert len(times) == len(set(times))


class Watched:
    """The building and late assets of a store's snapshots, whenever they change."""

    def __init__(self, clock: AcceleratedClock) -> None:
        self.seen: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
        self._clock = clock
        self._version = -1

    async def look(self, store: MarketStore) -> None:
        if store.version() == self._version:
            return
        self._version = store.version()
        snapshot = await store.snapshot()
        state = snapshot.building_tickers, snapshot.late_tickers
        if not self.seen or self.seen[-1][1:] != state:
            self.seen.append((self._clock.now_s, *state))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Content:
    path = tmp_path_factory.mktemp("undisturbed") / "m.db"
    clock = AcceleratedClock(START, step_s=60)
    source = script(clock)

    async def load() -> Content:
        await run(path, source, clock, UNTIL)
        return await load_content(path)

    return asyncio.run(load())


@pytest.mark.clause("2.1.18")
@pytest.mark.parametrize("outage_s", [20, 180, 2 * HOUR_S, 26 * HOUR_S])
async def test_a_first_start_with_an_outage_ends_as_one_without(
    tmp_path: Path, undisturbed: Content, outage_s: int
):
    path, clock = tmp_path / "m.db", AcceleratedClock(START, step_s=20)
    source = script(clock)
    source.outages = dict.fromkeys(FAILING, START + outage_s)
    watched = Watched(clock)
    await run(path, source, clock, START + outage_s + 600, watched)
    assert watched.seen[0][1:] == (FAILING, ())
    assert watched.seen[-1][1:] == ((), ())
    # All timeframes are there within two minutes after the outage, whatever the hour is.
    assert watched.seen[-1][0] <= START + outage_s + 120
    clock.now = max(clock.now, 1000 * START)
    await run(path, source, clock, UNTIL)
    assert await load_content(path) == undisturbed
    await check_clean(path, source.universe)
    rows = await load_changes(path)
    assert [row.created_at for row in rows] == sorted(row.created_at for row in rows)
    late = [row for row in rows if row.ticker in FAILING and row.close_time <= START + outage_s]
    assert all(row.created_at >= 1000 * (START + outage_s) for row in late)
    assert all(
        row.published == (row.close_time > START)
        for row in late
        if row.before is not None and row.indicator != "dexter"
    )
    assert {row.indicator for row in late} >= {"dexter"}
