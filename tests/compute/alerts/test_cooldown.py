"""The cooldown holds in `created_at`: in a backfill, in late live runs and after a downtime."""

from collections.abc import Iterator

import numpy as np
import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.batch_rows import keep_cooldowns
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import to_market_ms
from compute.stepper import Cell
from schemas.vocabulary import Action
from store.market_rows import AlertRow
from tests.compute.audit.tampered_store import Market
from tests.doubles.scripted_source import ALTERNATING, march_s
from tests.support.store_homes import StoreHome, open_and_close
from tests.support.tampering import open_unguarded

pytestmark = pytest.mark.clause("indicators", "3.3.3")

WINDOWS_MS = {"4h": 80 * 3_600_000, "1d": 20 * 86_400_000}
STARTS = march_s("06:00", day=5)
STOPS, RESUMES = STARTS + 5 * DAY_S, STARTS + 14 * DAY_S
ENDS = STARTS + 35 * DAY_S


def list_run_hours() -> Iterator[int]:
    """Yield the hours at which the service runs; it is down for nine days in between."""
    yield from range(STARTS, STOPS, HOUR_S)
    yield from range(RESUMES, RESUMES + 5 * DAY_S, HOUR_S)
    yield from range(RESUMES + 5 * DAY_S, ENDS, 6 * HOUR_S)


async def run_service(home: StoreHome) -> list[AlertRow]:
    """Run up to ENDS, each run up to 90 s after its nominal time; return the alerts."""
    source = Market()
    source.begins_at = STARTS - 25 * DAY_S
    async with open_and_close(home.open_market()) as store:
        pipeline = None
        for hour in list_run_hours():
            source.time.now = to_market_ms(hour) + hour // HOUR_S * 7919 % 90_000
            if pipeline is None or hour == RESUMES:
                pipeline = await HourlyPipeline.open(
                    store, source, source.universe, ALTERNATING, source.time
                )
            await pipeline.run_until(hour)
        return [row async for row in store.alerts()]


async def list_findings(home: StoreHome) -> list[str]:
    async with open_and_close(home.open_market()) as store:
        return (await audit_market(store, Market().universe, ALTERNATING)).findings


def list_gaps(alerts: list[AlertRow]) -> list[tuple[AlertRow, int]]:
    """Return each alert that repeats an action, with the time since the one before, in windows."""
    last: dict[tuple[str, ...], int] = {}
    gaps = []
    for row in alerts:
        key = row.ticker, row.indicator, row.timeframe, row.action
        if key in last:
            gaps.append((row, row.created_at - last[key] - WINDOWS_MS[row.timeframe]))
        last[key] = row.created_at
    return gaps


async def test_no_two_rows_of_an_action_are_closer_than_their_window(home: StoreHome):
    gaps = list_gaps(await run_service(home))
    assert [gap for gap in gaps if gap[1] < 0] == []
    phases = [row.created_at // 1000 for row, _ in gaps]
    counts = [
        sum(first <= at < end for at in phases)
        for first, end in ((0, STARTS), (STARTS, STOPS), (RESUMES, ENDS))
    ]
    assert min(counts) >= 4, counts
    assert {row.timeframe for row, _ in gaps} == {"4h", "1d"}
    # Held alerts go out in the first run after their window.
    assert sum(gap <= 3_700_000 for _, gap in gaps) > len(gaps) // 2
    assert await list_findings(home) == []


async def test_an_audit_names_an_alert_that_was_published_within_its_cooldown(home: StoreHome):
    alerts = await run_service(home)
    row, gap = next(found for found in list_gaps(alerts) if found[0].created_at > STARTS * 1000)
    async with open_unguarded(home, "alerts") as session:
        sql = "UPDATE alerts SET created_at = $1 WHERE created_at = $2"
        assert await session.write(sql, row.created_at - gap - 1, row.created_at)
    early = row.created_at - gap - 1
    expected = f"created_at is {early}, but the bars give {row.created_at}"
    assert await list_findings(home) == [f"alerts: {row.id}: {expected}"]


def test_rows_move_until_a_cooldown_ends_and_those_after_them_too():
    cell, window = Cell("BTC", "4h", "alerts.enzo"), WINDOWS_MS["4h"]
    times = np.array([0, 1, 2, 10]) + window
    alerts: list[tuple[int, Cell, Action]] = [(0, cell, "LONG"), (1, cell, "CLOSE")]
    published: dict[Cell, dict[Action, int]] = {cell: {"LONG": 0, "CLOSE": 6}}
    keep_cooldowns(times, alerts, published)
    assert (times - window).tolist() == [0, 6, 7, 10]
    assert published == {cell: {"LONG": window, "CLOSE": window + 6}}
