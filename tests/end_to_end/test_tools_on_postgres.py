"""The tools over PostgreSQL: test bodies that other modules run over SQLite."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from asyncpg.connection import LoggedQuery

from store.postgres.engine import POOL_SIZE, PostgresEngine
from tests.access import test_quota_transports as test_quota
from tests.mcp_server.tools import test_get_confluence as test_get_confluence
from tests.mcp_server.tools import test_get_flips as test_get_flips
from tests.mcp_server.tools import test_get_signals as test_get_signals
from tests.mcp_server.tools import test_get_signals_alerts as test_get_alerts
from tests.mcp_server.tools import test_get_signals_forward_paging as test_reading_forward
from tests.mcp_server.tools import test_get_state as test_get_state
from tests.mcp_server.tools import test_get_stats as test_get_stats
from tests.mcp_server.tools import test_get_usage as test_get_usage
from tests.mcp_server.tools import test_state_matrix as test_matrix
from tests.serving import test_snapshot_cache_past as test_past
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, Transport, run_service
from tests.support.store_homes import wait_for_version
from tests.verifier import test_real_service as test_verifier

pytestmark = pytest.mark.clause("postgres")


@pytest.fixture
def transport() -> Transport:
    """One transport is enough, because both share everything below."""
    return "mcp"


@pytest.fixture
async def served(database: str) -> AsyncIterator[RunningService]:
    """The service on a seeded simulated store."""
    async with run_service(database, make_coverage()) as running:
        yield running


BODIES = (
    test_get_alerts.test_pages_of_all_are_the_whole_feed_and_polling_loses_nothing,
    test_get_confluence.test_a_result_has_exactly_the_fields_of_its_table,
    test_get_flips.test_groups_and_flips_have_exactly_the_fields_of_their_tables,
    test_get_signals.test_filters_together_narrow_the_feed,
    test_get_signals.test_offset_pages_together_are_the_whole_feed,
    test_get_signals.test_polling_with_the_cursor_neither_loses_nor_repeats_a_row,
    test_get_signals.test_rows_beyond_retention_are_never_returned,
    test_get_state.test_an_unfiltered_state_lists_every_asset_with_readings_by_ticker,
    test_get_stats.test_counts_by_indicator_timeframe_and_direction_add_up,
    test_get_usage.test_mode_and_quota_are_returned_and_the_call_itself_counts,
    test_matrix.test_each_view_leaves_the_field_of_the_other_empty,
    test_past.test_a_past_board_that_waits_too_long_is_unavailable_and_delays_no_other_call,
    test_past.test_dexter_has_its_reading_of_that_time,
    test_past.test_hourly_runs_within_one_nominal_batch_are_distinguished,
    test_quota.test_calls_are_counted_per_key,
    test_reading_forward.test_filters_and_offset_work_in_both_orders,
    test_reading_forward.test_the_cursor_of_a_page_is_its_newest_row_in_both_orders,
    test_verifier.test_every_row_of_every_run_is_verified_while_the_log_grows,
)
globals().update({body.__name__: body for body in BODIES})


@asynccontextmanager
async def recorded_statements(engine: PostgresEngine) -> AsyncIterator[list[str]]:
    """Yield the list of statements that a pool's sessions run meanwhile."""
    said: list[str] = []

    def hear(query: LoggedQuery) -> None:
        said.append(query.query)

    async with AsyncExitStack() as held:
        sessions = [
            await held.enter_async_context(engine._pool.acquire()) for _ in range(POOL_SIZE)
        ]
        for session in sessions:
            session.add_query_logger(hear)
    yield said


async def test_a_call_on_recent_rows_costs_the_database_only_its_count(
    served: RunningService,
) -> None:
    await wait_for_version(served.market, 0)
    async with (
        recorded_statements(served.market._engine) as read,
        recorded_statements(served.access._engine) as counted,
    ):
        # Pages come from the database until the feed is read. No two queries are equal, because a
        # response could be cached.
        for limit in range(1, 200):
            read.clear()
            await served.call("signals_get_signals", {"limit": limit})
            if not read:
                break
        for tool in ("signals_get_state", "signals_get_signals"):
            await served.call(tool, {})
            read.clear()
            counted.clear()
            await served.call(tool, {"ticker": "BTC"})
            assert (len(read), len(counted)) == (0, 1), (read, counted)
        counted.clear()
        await asyncio.gather(*(served.call("signals_get_usage", {}) for _ in range(40)))
        assert len(counted) < 40
