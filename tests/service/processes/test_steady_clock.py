"""A clock that is set wrong for a while neither dates rows nor deletes them."""

from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from access.billing.provider import SandboxBilling
from access.maintenance import MaintenanceJob
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.sources.source import NotReadyError
from schemas.vocabulary import DAY_MS, HOUR_MS
from service.commands.backup import prune_stores
from service.commands.compute_command import run_jobs
from service.config.settings import Settings
from service.config.stores import open_both
from service.http.metrics import Metrics
from service.http.resources import open_resources, run_maintenance
from service.processes.steady_clock import (
    COMPUTE_HOLD_MS,
    DELETE_HOLD_MS,
    MAX_STEP_MS,
    SteadyClock,
    make_steady,
    read_boot_time_ms,
)
from store.access_rows import SignInRow
from store.market_rows import Batch
from store.opening import open_sqlite_market
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ClockEnded,
    ScriptedSource,
    load_changes,
    march_s,
)
from tests.support.access_store_calls import REQUEST
from tests.support.example_market import NOON
from tests.support.running_service import RunningService

WRONG_MS = 90 * DAY_MS


class Machine:
    """A wall clock that a test sets, and the time since an instant, which nobody can set."""

    def __init__(self, now: int) -> None:
        self.elapsed_ms = 0
        self.offset = now

    def read_elapsed(self) -> int:
        return self.elapsed_ms

    def read_wall(self) -> int:
        return self.offset + self.elapsed_ms


@pytest.fixture
def machine() -> Machine:
    return Machine(NOON)


@pytest.mark.clause("8.51")
@pytest.mark.parametrize("jump_ms", [WRONG_MS, -WRONG_MS, MAX_STEP_MS + 1])
def test_a_jump_is_followed_once_it_has_lasted(machine: Machine, jump_ms: int) -> None:
    clock = SteadyClock(machine.read_wall, machine.read_elapsed, COMPUTE_HOLD_MS)
    assert clock() == NOON
    machine.elapsed_ms += 1000
    machine.offset += jump_ms
    with capture_logs() as lines:
        assert clock() == NOON + 1000
        machine.elapsed_ms += COMPUTE_HOLD_MS - 1
        assert clock() == NOON + 1000 + COMPUTE_HOLD_MS - 1
        machine.elapsed_ms += 1
        assert clock() == machine.read_wall() == NOON + jump_ms + 1000 + COMPUTE_HOLD_MS
    assert [(line["event"], line["by_s"]) for line in lines] == [("clock_jumped", jump_ms // 1000)]
    machine.elapsed_ms += 1
    assert clock() == machine.read_wall()


@pytest.mark.clause("8.51")
def test_a_clock_that_is_set_again_and_again_has_to_stay_each_time(machine: Machine) -> None:
    clock = SteadyClock(machine.read_wall, machine.read_elapsed, COMPUTE_HOLD_MS)
    for day in range(1, 10):
        machine.offset = NOON + day * DAY_MS
        assert clock() == NOON + machine.elapsed_ms
        machine.elapsed_ms += COMPUTE_HOLD_MS - 1
        assert clock() == NOON + machine.elapsed_ms
        machine.offset = NOON
        assert clock() == NOON + machine.elapsed_ms
        # Back to the wrong time of before: the time that it had lasted then does not count.
        machine.offset = NOON + day * DAY_MS
        machine.elapsed_ms += 1
        assert clock() == NOON + machine.elapsed_ms


@pytest.mark.clause("8.51")
@pytest.mark.parametrize("step_ms", [-MAX_STEP_MS, -1, 0, 1, MAX_STEP_MS])
def test_a_small_step_is_followed_at_once(machine: Machine, step_ms: int) -> None:
    clock = SteadyClock(machine.read_wall, machine.read_elapsed, DELETE_HOLD_MS)
    machine.elapsed_ms += 5 * HOUR_MS  # as after a suspend
    machine.offset += step_ms
    with capture_logs() as lines:
        assert clock() == NOON + 5 * HOUR_MS + step_ms
    assert lines == []


@pytest.mark.clause("8.51")
def test_without_an_elapsed_clock_the_wall_clock_is_used(machine: Machine) -> None:
    assert make_steady(machine.read_wall, None, DELETE_HOLD_MS) == machine.read_wall
    first, second = read_boot_time_ms(), read_boot_time_ms()
    assert 0 < first <= second


class OverError(Exception):
    """The end of a test's time."""


@pytest.mark.clause("8.51", "sales")
async def test_a_clock_90_days_ahead_for_half_a_minute_deletes_nothing(
    served: RunningService, machine: Machine
) -> None:
    store = served.access
    session = SignInRow(bytes([7] * 32), "a@example.com", NOON + DAY_MS)
    await store.create_sign_in_link(session)
    await store.put_access_request(REQUEST, 9)
    await store.mark_event_handled("evt_1", NOON)
    wrong_from, wrong_until = HOUR_MS, HOUR_MS + 30_000

    async def sleep(seconds: float) -> None:
        machine.elapsed_ms += int(seconds * 1000)
        is_wrong = wrong_from <= machine.elapsed_ms < wrong_until
        machine.offset = NOON + is_wrong * 4 * WRONG_MS
        if machine.elapsed_ms > 3 * HOUR_MS:
            raise OverError

    provider = SandboxBilling(store, machine.read_wall, served.base_url)
    clock = SteadyClock(machine.read_wall, machine.read_elapsed, DELETE_HOLD_MS)
    with capture_logs() as lines, pytest.raises(OverError):
        await MaintenanceJob(store, provider, clock, sleep).run()
    done = [line for line in lines if line["event"] in {"maintenance_done", "clock_jumped"}]
    assert [line.get("pruned") for line in done] == [0, None]
    assert await store.is_event_handled("evt_1")
    assert await store.list_access_requests() == [REQUEST]
    assert await store.sign_in(session.token_hash, bytes(32), NOON, NOON + 1) == "a@example.com"


@pytest.mark.clause("steps")
@pytest.mark.parametrize("days", [90, -90])
@pytest.mark.prove
async def test_a_clock_that_is_wrong_for_half_a_minute_dates_no_row(
    tmp_path: Path, days: int
) -> None:
    # `real` is the time that passes; the wall clock is off from it for half a minute, once from
    # a run on and once between two runs.
    real = AcceleratedClock(march_s("10:20"), step_s=1)
    wrong_from = [march_s("12:03:00"), march_s("13:30:00")]

    def read_wall() -> int:
        is_wrong = any(at <= real.now_s < at + 30 for at in wrong_from)
        return real.now + is_wrong * days * DAY_MS

    clock = SteadyClock(read_wall, real, COMPUTE_HOLD_MS)
    source = ScriptedSource(clock, {"BTC": "24x7"}, march_s("00:00", day=2))
    path = tmp_path / "m.db"
    store = await open_sqlite_market(path)
    real.ends_at = march_s("15:30")
    open_pipeline = partial(HourlyPipeline.open, store, source, source.universe, ALTERNATING, clock)
    try:
        with suppress(ClockEnded):
            await HourlyLoop(open_pipeline, store, clock, real.sleep).run()
    finally:
        await store.close()
    created = [row.created_at for row in await load_changes(path)]
    assert all(first < second for first, second in pairwise(created))
    assert created[-1] // 1000 == march_s("15:03")
    hours = [row.close_time for row in await load_changes(path) if row.timeframe == "1h"]
    assert hours[-4:] == [march_s(f"{hour}:00") for hour in range(12, 16)]
    assert len(hours) == len(set(hours))


@pytest.mark.clause("steps")
@pytest.mark.parametrize(
    ("days", "line"),
    [(-400, True), (0, False), (30, False), (31, True), (60, True), (180, True), (181, None)],
)
@pytest.mark.prove
async def test_a_start_far_from_the_last_run_is_named_and_one_too_far_computes_nothing(
    tmp_path: Path, days: int, line: bool | None
) -> None:
    path, clock = tmp_path / "m.db", AcceleratedClock(march_s("12:03"))
    source = ScriptedSource(clock, {"BTC": "24x7"}, march_s("00:00", day=2))
    store = await open_sqlite_market(path)
    reopen = partial(HourlyPipeline.open, store, source, source.universe, ALTERNATING, clock)
    try:
        first = await reopen()
        await first.run_until(first.due_hour)
        before = await store.progress()
        clock.now += days * DAY_MS
        with capture_logs() as lines:
            if line is None:
                # While it runs, too, in case a wrong clock is set and stays.
                for refused in (reopen(), first.run_until(first.due_hour)):
                    with pytest.raises(NotReadyError, match=f"{days} days after the last run"):
                        await refused
                assert await store.progress() == before
                second = await reopen(believes_clock=True)
            else:
                second = await reopen()
            await second.run_until(second.due_hour)
        named = [one["days"] for one in lines if one["event"] == "clock_far_from_last_run"]
        assert named == ([] if line is False else [days])
        after = await store.progress()
        assert (after.commit_count > before.commit_count) is (days > 0)
        assert after.market_time == (before.market_time or 0) + max(days, 0) * DAY_MS
    finally:
        await store.close()


@pytest.mark.clause("sales")
@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.prove
async def test_nothing_is_deleted_by_a_clock_that_is_far_from_the_last_run(
    tmp_path: Path, computes: bool
) -> None:
    settings = Settings(database_url=SecretStr(f"sqlite:///{tmp_path}/signals.db"))

    def clock() -> int:
        return NOON + 400 * DAY_MS

    async with open_both(settings) as (market, access):
        await market.commit(Batch(NOON))
        await access.mark_event_handled("evt_1", NOON)
    with pytest.raises(NotReadyError, match="400 days after the last run"):
        await prune_stores(settings, clock)
    async with open_resources(settings, clock) as resources:
        jobs = (
            run_jobs(settings, resources, clock, None, Metrics(()))
            if computes
            else run_maintenance(settings, resources, clock, None)
        )
        with pytest.raises(NotReadyError, match="400 days after the last run"):
            await jobs
        assert await resources.access.is_event_handled("evt_1")
        await prune_stores(settings.model_copy(update={"believe_clock": True}), clock)
        assert not await resources.access.is_event_handled("evt_1")
