"""A snapshot read on top of an earlier one equals one that is read whole.

Statements of both databases, and lanes: no read waits for one of another lane, nor for ever.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import HOUR_MS, find_latest_run
from store.codes import TIMEFRAME_SET_CODES
from store.digest import digest_bars
from store.market_rows import (
    BarBlock,
    Batch,
    ChangeRow,
    MissingBarsRow,
    SourceRow,
    StoredSnapshot,
    WatermarkRow,
)
from store.sql.database import READ_LIMITS_S, Lane
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    list_commits,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
    make_full_batch,
)
from tests.support.signals_command import ROOT
from tests.support.small_market import load_past
from tests.support.store_homes import HomeFactory, open_and_close

pytestmark = pytest.mark.clause("store", "monitoring")

LAST = find_latest_run(NOW)
EDGE = LAST - 365 * DAY_MS
TICKERS = ("BTC", "ETH", "XAU")
KEYS = ("enzo", "perpkit", "dexter")


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        # A catch-up writes several commits at the same market clock.
        (
            [
                make_batch(LAST, changes=[make_change(LAST)], written_at=LAST + 5),
                make_batch(
                    LAST + HOUR_MS, changes=[make_change(LAST + 1, after=-1)], written_at=LAST + 5
                ),
            ],
            (LAST + HOUR_MS, LAST + 1, -1),
        ),
        (
            [
                make_batch(LAST, changes=[make_change(LAST)], written_at=LAST),
                make_batch(LAST + HOUR_MS, written_at=LAST + HOUR_MS),
            ],
            (LAST + HOUR_MS, LAST, 1),
        ),
        (
            [
                make_batch(
                    LAST,
                    changes=[make_change(LAST)],
                    alerts=[make_alert(LAST + 1)],
                    written_at=LAST,
                )
            ],
            (LAST, LAST + 1, 1),
        ),
    ],
    ids=["two commits of an instant", "a commit without rows", "an alert, which moves no reading"],
)
async def test_the_state_of_an_instant_follows_from_all_commits_by_then(
    market: MarketStore, batches: list[Batch], expected: tuple[int, int, int]
) -> None:
    for batch in batches:
        await market.commit(batch)
    held = await load_past(market, batches[-1].written_at or 0)
    assert (held.market_time, held.last_created_at, held.readings["BTC"]["enzo"]["1h"]) == expected


async def test_history_starts_with_the_later_of_feed_and_first_commit(market: MarketStore) -> None:
    assert (await market.snapshot()).history_starts_at is None
    silent = [make_change(LAST, published=False), make_change(LAST + 1, "ETH", published=False)]
    feeds = {"BTC": LAST + 7, "ETH": LAST + 9}
    await market.commit(make_batch(LAST + HOUR_MS, changes=silent, publish_from=feeds))
    assert (await market.snapshot()).history_starts_at == LAST + 7
    assert (await load_past(market, LAST + 7)).history_starts_at == LAST + 7


async def test_the_last_bars_are_those_that_had_closed_by_then(market: MarketStore) -> None:
    """XAU has daily bars; ETH ends early; BTC opens off the hour, and its last bar is late."""
    hour = LAST // 1000 - 180
    day = hour // 86_400 * 86_400
    btc = [make_bar("BTC", hour - back * 3600 - 1800) for back in range(5, 0, -1)]
    eth = [make_bar("ETH", hour - back * 3600) for back in range(6, 2, -1)]
    xau = [make_bar("XAU", day - back * 86_400, "1d") for back in (3, 2, 1)]
    await market.commit(make_batch(LAST, bars=make_blocks(*btc, *eth, *xau)))
    expected = {"BTC": hour, "ETH": hour - 2 * 3600, "XAU": day}
    assert (await market.snapshot()).last_closes == expected
    # Inside the first commit, which holds several runs.
    assert (await load_past(market, LAST - 3 * HOUR_MS)).last_closes == {
        "BTC": hour - 3 * 3600,
        "ETH": hour - 3 * 3600,
        "XAU": max(d for d in (day, day - 86_400) if d <= hour - 3 * 3600),
    }
    assert (await load_past(market, LAST - 60 * DAY_MS)).last_closes == {}
    then, later = LAST + HOUR_MS, LAST + HOUR_MS + 60_000
    late = [WatermarkRow("BTC", hour, late=("1h",))]
    await market.commit(make_batch(then, watermarks=late, written_at=then))
    bars = make_blocks(make_bar("BTC", hour - 1800))
    await market.commit(make_batch(then, bars=bars, written_at=later))
    assert (await load_past(market, LAST)).last_closes == expected
    assert (await load_past(market, then)).last_closes == expected
    assert (await load_past(market, later)).last_closes == expected | {"BTC": hour + 3600}
    assert (await market.snapshot()).last_closes == expected | {"BTC": hour + 3600}


async def test_the_last_bars_are_of_the_newest_revision(market: MarketStore) -> None:
    hour = LAST // 1000 - 180
    await market.commit(make_batch(LAST, bars=make_blocks(make_bar("BTC", hour - 3600))))
    again = make_blocks(make_bar("BTC", hour - 7200), revision=1)
    await market.commit(make_batch(LAST + HOUR_MS, bars=again, written_at=LAST + HOUR_MS))
    assert (await market.snapshot()).last_closes == {"BTC": hour - 3600}


async def test_missing_bars_are_counted_for_330_days_by_revision_and_as_of_a_time(
    market: MarketStore,
) -> None:
    hour = LAST // 1000 - 180

    def missing(ticker: str, days_ago: float, bars: int, revision: int = 0) -> MissingBarsRow:
        last = hour - round(days_ago * 86_400)
        return MissingBarsRow(ticker, revision, bars, last - 3600 * (bars - 1), last)

    async def commit(at: int, *rows: MissingBarsRow, revision: int = 0) -> None:
        stored = make_blocks(
            *(make_bar(row.ticker, at // 1000 - 3780) for row in rows), revision=revision
        )
        await market.commit(make_batch(at, bars=stored, missing_bars=rows, written_at=at))

    assert (await market.snapshot()).missing_bars == {}
    await commit(LAST, missing("BTC", 331, 9), missing("ETH", 40, 5))
    assert (await market.snapshot()).missing_bars == {"ETH": 5}
    await commit(LAST + HOUR_MS, missing("BTC", 329, 2), missing("ETH", -1 / 24, 1))
    assert (await market.snapshot()).missing_bars == {"BTC": 2, "ETH": 6}
    assert (await load_past(market, LAST)).missing_bars == {"BTC": 2, "ETH": 5}
    # A restated history has its own holes.
    await commit(LAST + 2 * HOUR_MS, missing("ETH", 40, 3, revision=1), revision=1)
    assert (await market.snapshot()).missing_bars == {"BTC": 2, "ETH": 3}


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Draw commits around the edge of retention: nominal ones of many hours, then live ones."""
    hour, newest = EDGE - draw(st.integers(1, 6)) * HOUR_MS, 0
    passes: list[Batch] = []
    for is_live in [False] * draw(st.integers(1, 3)) + [True] * draw(st.integers(0, 4)):
        hours = draw(st.integers(1, 4))
        is_again = is_live and draw(st.booleans()) and passes[-1].written_at is not None
        ends = hour if is_again else hour + hours * HOUR_MS
        written_at = None
        if is_live:
            earlier = passes[-1].written_at or 0
            written_at = max(ends, earlier) + draw(st.sampled_from([0, 1, 30_000, 50 * 60_000]))
        runs = [ends] if is_again else range(hour + HOUR_MS, ends + 1, HOUR_MS)
        rows: list[ChangeRow] = []
        for run in runs:
            for _ in range(draw(st.integers(0, 4))):
                newest = max(newest + draw(st.sampled_from([1, 1, 400])), written_at or run)
                cell = draw(st.sampled_from(TICKERS)), draw(st.sampled_from(KEYS))
                rows.append(make_change(newest, *cell, after=draw(st.integers(-1, 1))))
        late = [
            WatermarkRow(ticker, 0, draw(st.sampled_from(list(TIMEFRAME_SET_CODES))))
            for ticker in draw(st.lists(st.sampled_from(TICKERS), unique=True))
        ]
        passes.append(make_batch(ends, changes=rows, written_at=written_at, watermarks=late))
        hour = ends
    return [*passes, make_batch(LAST, written_at=LAST)]


def replay_commits(passes: Sequence[Batch], at: int) -> tuple[object, ...]:
    """Return market time, readings and late assets at a time by replaying all commits."""
    cells: dict[tuple[str, str], int] = {}
    late: dict[str, tuple[str, ...]] = {}
    market_time = 0
    for work_ in passes:
        rows = work_.changes
        if (work_.written_at or work_.market_time) <= at:
            market_time = work_.market_time
            late = {row.ticker: row.late for row in work_.watermarks if row.late}
        elif work_.written_at is None and (run := find_latest_run(at)) > market_time:
            market_time, late = run, {}
            rows = [row for row in rows if find_latest_run(row.created_at) <= run]
        else:
            break
        cells |= {(row.ticker, row.indicator): row.after for row in rows}
    return market_time, cells, late


def summarize(held: StoredSnapshot) -> tuple[object, ...]:
    cells = {
        (ticker, key): readings["1h"]
        for ticker, keys in held.readings.items()
        for key, readings in keys.items()
    }
    return held.market_time, cells, held.late


def list_moments(passes: Sequence[Batch]) -> list[int]:
    """Return each time at which something changes, and its neighbours, if within the history."""
    times = {EDGE, LAST}
    for work_ in passes:
        times |= {work_.market_time, work_.written_at or work_.market_time}
        times |= {row.created_at for row in work_.changes}
        times |= {find_latest_run(row.created_at) for row in work_.changes}
    beside = {at + by for at in times for by in (-1, 0, 1)}
    return sorted(at for at in beside if EDGE <= at <= LAST)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(passes=histories())
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_every_past_moment_equals_the_model_before_and_after_pruning(
    new_home: HomeFactory, passes: list[Batch]
) -> None:
    async with new_home() as home, open_and_close(home.open_market()) as store:
        for work_ in passes:
            await store.commit(work_)
        for _ in range(2):
            for at in list_moments(passes):
                assert summarize(await load_past(store, at)) == replay_commits(passes, at), at
            await store.prune()


async def test_a_snapshot_has_the_last_reading_of_each_cell(market: MarketStore) -> None:
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
    assert (await market.snapshot()).readings == {
        "BTC": {"enzo": {"1h": 1, "4h": 0}, "llnr": {"1d": 1}, "ceres": {"1h": -1}},
        "ETH": {"enzo": {"1h": 1}},
        "XAU": {"enzo": {"1d": 1}},
    }
    assert before.readings["BTC"] == {"enzo": {"1h": 1, "4h": 1}, "llnr": {"1d": 1}}


BINANCE, OKX = "binance BTC/USDT", "okx BTC/USDT"


def make_bars(hour: int, source: str | None, revision: int = 0) -> list[BarBlock]:
    return make_blocks(make_bar("BTC", 3600 * hour), revision=revision, source=source)


async def test_a_source_is_recorded_with_the_first_bars_of_its_revision(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(None, OKX))
    for hour, (source, revision) in enumerate([(BINANCE, 0), (BINANCE, 0), (OKX, 1), (OKX, 1)]):
        await market.commit(make_batch(NOW + hour, bars=make_bars(hour, source, revision)))
    rows = [SourceRow("BTC", 0, BINANCE, 1), SourceRow("BTC", 1, OKX, 3)]
    assert await market.sources() == rows
    held = [(await market.commit_inputs(number)).sources for number in (1, 2, 3, 4)]
    assert held == [rows[:1], [], rows[1:], []]


async def test_a_revision_takes_no_bars_of_a_second_source(market: MarketStore) -> None:
    await market.commit(make_batch(bars=make_bars(0, BINANCE)))
    with pytest.raises(StoreError, match="one source"):
        await market.commit(make_batch(NOW + 1, bars=make_bars(1, OKX)))
    assert (await market.progress()).commit_count == 1
    assert [row.listing for row in await market.sources()] == [BINANCE]
    assert [len(block) for block in await market.bars()] == [1]


async def test_the_coverage_names_the_source_of_the_stored_bars(market: MarketStore) -> None:
    await market.publish_coverage(make_coverage(None, OKX))
    for revision, listing in enumerate([BINANCE, "gate BTC/USDT"]):
        await market.commit(make_batch(NOW + revision, bars=make_bars(0, listing, revision)))
        for snapshot in (await market.snapshot(), await load_past(market, NOW + revision)):
            assert snapshot.coverage == make_coverage(None, listing)


async def test_a_store_knows_one_source_for_good(market: MarketStore) -> None:
    assert (await market.progress()).source is None
    assert await market.adopt_source("files:/bars", NOW) == NOW
    assert await market.adopt_source("files:/bars", NOW + 1) == NOW
    with pytest.raises(StoreError, match="holds the bars of files:/bars"):
        await market.adopt_source("simulated", NOW)
    assert (await market.progress()).source == "files:/bars"


def make_coverage(recorded_until: int | None, listing: str | None = None) -> Coverage:
    """Return a recorded coverage, or with the listing of its asset a live one."""
    return Coverage(
        published_at=NOW,
        source="recorded" if listing is None else "live",
        recorded_until=recorded_until,
        assets=(
            CoveredAsset(
                ticker="BTC", name="B", asset_class="crypto", timeframes=("1h",), listing=listing
            ),
        ),
        indicators=(CoveredIndicator(id="enzo", name="Enzo", logged=True),),
        renamed_on=date(2026, 7, 1),
    )


@pytest.mark.clause("2.4.16")
async def test_a_snapshot_tells_assets_that_are_being_built_from_late_ones(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(recorded_until=None))
    rows = [
        WatermarkRow("BTC", -1, history="building"),
        WatermarkRow("ETH", 3600, late=("1h",), history="building"),
        WatermarkRow("NVDA", -1, history="building"),
        WatermarkRow("SOL", 3600, history="built"),
    ]
    publish_from = {"BTC": NOW, "ETH": NOW, "NVDA": NOW + 1, "SOL": NOW}
    await market.commit(make_batch(watermarks=rows, publish_from=publish_from))
    for snapshot in (await market.snapshot(), await load_past(market, NOW + 3_600_000)):
        assert (snapshot.building_tickers, snapshot.unbuilt_tickers, tuple(snapshot.late)) == (
            ("BTC", "ETH", "NVDA"),
            ("BTC",),
            ("ETH",),
        )
    assert await market.watermarks() == rows
    (commit,) = await list_commits(market)
    assert commit.bars_digest == digest_bars((), (), rows)
    other = [replace(row, history="followed") for row in rows]
    assert digest_bars((), (), other) != commit.bars_digest


async def test_a_covered_asset_without_bars_is_late_if_the_source_is_live(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(recorded_until=NOW))
    assert (await market.snapshot()).late == {}
    await market.publish_coverage(make_coverage(recorded_until=None))
    assert tuple((await market.snapshot()).late) == ("BTC",)
    await market.commit(make_batch(bars=make_blocks(make_bar("BTC"))))
    assert (await market.snapshot()).late == {}


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"
# A usable connection answers within this, even on a busy machine.
SHORT_S = 1.0


@pytest.mark.parametrize("lane", [*Lane, None])
@pytest.mark.sampled(4)
async def test_an_endless_read_ends_with_its_cause_and_leaves_the_connection_usable(
    open_market: OpenMarket, monkeypatch: pytest.MonkeyPatch, lane: Lane | None
) -> None:
    # A store takes these limits over when it is opened.
    for limited in Lane:
        monkeypatch.setitem(READ_LIMITS_S, limited, SHORT_S)
    market = await open_market()
    await market.commit(make_full_batch())
    engine = market._engine
    for _ in range(2):
        with pytest.raises(StoreError, match=r"took longer than 1 s|statement timeout"):
            async with engine.begin_read(lane) if lane else engine.acquire_connection() as db:
                await db.execute(ENDLESS)
        # Each of these would wait for the statement if it still ran.
        async with engine.begin_read(lane) if lane else engine.acquire_connection() as db:
            assert [tuple(row) for row in await db.execute("SELECT count(*) FROM clock")] == [(1,)]


@pytest.mark.sampled(2)
async def test_the_snapshot_and_probes_are_read_while_every_other_lane_is_full(
    open_market: OpenMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = await open_market()
    await market.commit(make_full_batch())
    async with AsyncExitStack() as held:
        for lane in (Lane.PAST, Lane.PAGES, Lane.BATCH):
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(1):
                        await held.enter_async_context(market._engine.begin_read(lane))
            if lane is Lane.PAST:
                assert await market.find_access_id() is None
                assert await market.readings()
        for _ in range(3):
            assert (await market.progress()).commit_count == 1
            assert (await market.snapshot()).market_time == (await market.progress()).market_time
        monkeypatch.setitem(READ_LIMITS_S, Lane.PAST, SHORT_S)
        with pytest.raises(StoreError, match=r"waiting for .* \(past\) took longer than 1 s"):
            await load_past(market, NOW)
    monkeypatch.undo()
    assert await load_past(market, NOW)
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
