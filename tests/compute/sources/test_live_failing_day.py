"""A day of the whole universe at failing venues, compared with a replay of the same bars."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.universe import Universe
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded
from tests.doubles.venues.server import DIALECTS, VenuesDouble
from tests.support.live_recording import (
    ALPACA_DELAY_S,
    Late,
    StoredResult,
    find_delayed,
    replay_recording,
    write_recording,
)
from tests.support.live_service import RETRY_POLICY, START, open_live_service
from tests.support.live_universe import (
    SAMPLE_TICKERS,
    list_packaged_universe,
    load_covered_universe,
)

pytestmark = pytest.mark.clause("live")

SEED = 7
RUN_S = to_market_ms(0) // 1000
LAST_PASS_S = ALPACA_DELAY_S + 120


class Size(NamedTuple):
    """The assets, hours and days of history of a test, and share of failures."""

    tickers: tuple[str, ...] | None
    hours: int
    history_days: int
    share: float = 0.05


@pytest.fixture
def clock() -> AcceleratedClock:
    return AcceleratedClock(START + RUN_S + 300)


async def day(
    double: VenuesDouble, clock: AcceleratedClock, folder: Path, universe: Universe, size: Size
) -> tuple[StoredResult, Late]:
    """Start without failures, then run some hours with them; return the late assets by hour."""
    late: Late = set()
    patience = RETRY_POLICY._replace(max_tries=1)
    history_s = size.history_days * DAY_S
    async with open_live_service(
        double, clock, folder, universe, patience, history_s, timeout_s=60
    ) as one:
        await one.runs.run_until(START)

        async def watch() -> None:
            late.update((one.runs.done_hour, ticker) for ticker in one.runs.late)

        clock.watch = watch
        clock.ends_at = START + size.hours * HOUR_S + RUN_S + LAST_PASS_S + 60
        double.set_failure_share(size.share, SEED)
        with suppress(ClockEnded):
            await HourlyLoop(
                one.reopen_pipeline, one.store, clock, clock.sleep, pipeline=one.runs
            ).run()
        assert (await audit_market(one.store, universe, INDICATORS)).findings == []
        return await StoredResult.load(one.store), late


@pytest.mark.parametrize(
    "size",
    [
        Size(SAMPLE_TICKERS, hours=4, history_days=25, share=0.25),
        pytest.param(
            Size(None, hours=24, history_days=42), marks=[pytest.mark.prove, pytest.mark.long]
        ),
    ],
    ids=["few", "whole universe"],
)
@pytest.mark.prove
async def test_a_day_of_failing_calls_loses_no_change_that_the_bars_contain(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path, size: Size
) -> None:
    universe = load_covered_universe(size.tickers)
    made = await list_packaged_universe(double, universe, size.history_days)
    begin, end = (START - size.history_days * DAY_S) // DAY_S * DAY_S, START + size.hours * HOUR_S
    live_store, late = await day(double, clock, tmp_path, universe, size)
    assert sum(double.get_venue(name).failed for name in DIALECTS) > 2 * size.hours
    funded = [asset.ticker for asset in universe.assets if asset.perpetual is not None]
    folder = write_recording(tmp_path / "bars", made, funded, begin, end)
    replayed = await replay_recording(folder, tmp_path / "replayed.db", universe, end)
    assert live_store.created_before(START) == replayed.created_before(START)
    delayed = find_delayed(live_store, replayed, universe, START)
    assert delayed <= late
    assert delayed
