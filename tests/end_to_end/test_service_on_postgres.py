"""The commands, and several processes, on PostgreSQL: only the database URL changes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from access.maintenance import compute_cutoffs
from access.throttle import Limit
from schemas.vocabulary import format_instant
from service.commands.compute_command import PLAYED_OUT_NOTE, compute
from service.config.settings import Settings
from store.access_rows import AttemptLimit
from store.postgres.engine import POOL_SIZE, PostgresEngine
from tests.mcp_server.tools import (
    test_get_confluence as test_get_confluence,
    test_get_flips as test_get_flips,
    test_get_signals as test_get_signals,
    test_get_signals_forward_paging as test_reading_forward,
    test_get_state as test_get_state,
    test_get_stats as test_get_stats,
)
from tests.service.commands.test_cli import only_line, write_bars
from tests.serving import test_snapshot_cache_past as test_past
from tests.support.bad_inputs import STATE
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_coverage
from tests.support.postgres.server import cut_sessions
from tests.support.row_builders import run_sql
from tests.support.running_service import ManualClock, RunningService, Transport, run_service
from tests.support.signals_command import (
    RunningCommand,
    find_free_port,
    run_signals,
    start_signals,
    write_cut_universe,
)
from tests.support.store_homes import PostgresHome, run_sql as run_sql_on, wait_for_version
from tests.verifier import test_real_service as test_verifier
from tests.web import test_buy_pages

# The statements are tested with the stores.
pytestmark = [pytest.mark.clause("postgres"), pytest.mark.prove]


HIDDEN = "hidden"


@pytest.fixture
def url(database: str) -> str:
    """The URL of an empty database, with a password that the server does not require."""
    return database.replace("@", f":{HIDDEN}@")


def drop_schema(url: str, schema: str) -> None:
    asyncio.run(run_sql_on(PostgresHome(url), f"DROP SCHEMA {schema} CASCADE"))


def test_each_command_works_on_postgresql_as_on_files(tmp_path: Path, url: str):
    said = []

    def run(*arguments: str, status: int = 0, **settings: str) -> str:
        done = run_signals(tmp_path, *arguments, database_url=url, **settings)
        said.append(done.stdout + done.stderr)
        assert done.returncode == status, said[-1]
        return done.stdout.strip()

    bars = write_bars(tmp_path / "bars", count=210)
    source = f"files:{bars}"
    for command in ("audit", "prune", "keys list", "keys create --label me", "access-requests"):
        run(*command.split(), status=1)
        assert only_line(said[-1]).startswith("signals: there is no store at postgresql://")
    assert "warn store: not started yet: `signals serve` creates postgresql://" in run("doctor")
    run("replay", "--bars", str(bars))
    api_key = run("keys", "create", "--label", "me")
    assert api_key.startswith("ek_")
    assert '"label": "me"' in run("keys", "list", "--json")
    assert run("audit").splitlines()[-1] == "clean"
    assert run("prune") == "pruned 0 rows"
    output = run("doctor", source=source)
    assert {line.split()[0] for line in output.splitlines()} == {"ok"}
    assert "PostgreSQL" in output
    assert "computing: no process at the moment" in output
    run("backup", status=1)
    assert "pg_dump" in only_line(said[-1])
    run("restore", "copy", status=1)
    assert "pg_restore" in only_line(said[-1])
    run("compute", source=source)
    assert said[-1].splitlines()[-1] == PLAYED_OUT_NOTE
    run("keys", "list", source="simulated")
    run("compute", source="simulated", status=1)
    assert "holds bars of the source files:" in only_line(said[-1])
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, database_url=url) as process:
        process.wait_for_line("Listening on ")
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/state", headers={"X-Api-Key": api_key})
        assert [asset["ticker"] for asset in answer.json()["assets"]] == ["BTC"]
        assert process.stop() == 0
        said.append("".join(process.printed))
    assert "computing" not in said[-1]
    drop_schema(url, "signals_access")
    for command in (
        ("keys", "list"),
        ("prune",),
        ("migrate", "--from", url, "--to", "sqlite:///x"),
    ):
        run(*command, status=1)
        assert "(signals_access); restore a backup" in only_line(said[-1])
    assert "fix  store: there is no store at postgresql://" in run("doctor", status=1)
    assert HIDDEN not in "".join(said)
    assert {path.name for path in tmp_path.iterdir()} == {"bars", "signals-log-key.json"}


def test_a_migrated_database_is_used_once_its_audit_is_clean(tmp_path: Path, url: str):
    path = tmp_path / "signals.db"
    file, said = f"sqlite:///{path}", []

    def run(*arguments: str, status: int = 0, database: str = file) -> str:
        done = run_signals(tmp_path, *arguments, database_url=database)
        said.append(done.stdout + done.stderr)
        assert done.returncode == status, said[-1]
        return done.stdout.strip()

    bars = write_bars(tmp_path / "bars", count=210)
    run("replay", "--bars", str(bars))
    run("keys", "create", "--label", "me")
    kept = run_sql(path, "SELECT data FROM carries WHERE indicator = 0 AND timeframe = 0")[0]
    run_sql(path, "UPDATE carries SET data = x'00' WHERE data = ?", kept)
    assert "findings" in run("migrate", "--from", file, status=1, database=url).splitlines()[-1]
    run("replay", "--bars", str(bars), status=1, database=url)
    assert "run `signals migrate` again" in only_line(said[-1])
    run_sql(path, "UPDATE carries SET data = ? WHERE data = x'00'", kept)
    run("migrate", "--from", file, "--to", url, status=1)
    assert "name an empty database" in only_line(said[-1])
    for schema in ("signals_market", "signals_access"):
        drop_schema(url, schema)
    assert run("migrate", "--from", file, "--to", url).splitlines()[-1] == "clean"
    assert said[-1].splitlines()[-1].endswith(". Set SIGNALS_DATABASE_URL to it.")
    for command in (("keys", "list"), ("audit",)):
        assert run(*command, database=url) == run(*command)
    run("replay", "--bars", str(bars), database=url)
    run("migrate", "--from", file, "--to", url, status=1)
    assert "is in use" in only_line(said[-1])
    run("migrate", "--from", file, status=1)
    assert "name two" in only_line(said[-1])
    run("migrate", "--from", "mysql://there", "--to", url, status=1)
    assert "expected sqlite:///PATH or postgresql://" in only_line(said[-1])
    assert HIDDEN not in "".join(said)


@asynccontextmanager
async def served_twice(
    database: str, **settings: object
) -> AsyncIterator[tuple[RunningService, RunningService]]:
    """Serve one database by two apps with stores of their own."""
    async with (
        run_service(database, make_coverage(), **settings) as first,
        run_service(database, **settings) as second,
    ):
        yield first, second


async def test_two_serving_processes_share_quota_throttle_and_revocation_to_the_call(database: str):
    limits = {"daily_limit": 4, "attempt_limit": Limit(2, 600)}
    async with served_twice(database, **limits) as (first, second):
        headers = first.key_headers
        turns = [
            (await one.get_api("/state", **headers)).status_code for one in (first, second) * 3
        ]
        assert turns == [200, 200, 200, 200, 429, 429]
        email = {"contact_email": "agent@example.com"}
        responses = [
            await one.client.post("/api/v1/access-request", json=email)
            for one in (first, second, first, second)
        ]
        assert [answer.is_success for answer in responses] == [True, True, False, False]
        assert responses[-1].status_code == 429
        mine, _ = await second.keys.list()
        assert await second.keys.revoke(mine.id)
        answer = await first.get_api("/state", **headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "revoked_key")


async def test_a_commit_by_one_process_is_soon_served_by_another(database: str):
    async with served_twice(database) as (first, second):
        before = (await second.fetch_answer("mcp", STATE))["meta"]["as_of"]
        await first.market.commit(make_batch(NOON + HOUR_MS, []))
        async with asyncio.timeout(30):
            while (await second.fetch_answer("mcp", STATE))["meta"]["as_of"] == before:
                await asyncio.sleep(0.01)


async def test_maintenance_by_two_processes_at_once_deletes_every_row_once(database: str):
    rows = 40
    async with served_twice(database) as (first, second):
        for number in range(rows):
            await first.access.mark_event_handled(f"evt_{number}", 0)
            limits = [AttemptLimit(f"192.0.2.{number}", 20)]
            await first.access.record_attempt("checkout", limits, 0, 600)
        before = compute_cutoffs(first.clock())
        pruned = await asyncio.gather(*(one.access.prune(before) for one in (first, second)))
    assert sum(pruned) == 2 * rows


def computing(folder: Path, url: str, **settings: str) -> AbstractContextManager[RunningCommand]:
    universe = write_cut_universe(folder, {"BTC", "NVDA"})
    return start_signals(folder, "compute", database_url=url, universe=universe, **settings)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_another_process_takes_over_when_the_computing_one_is_gone(
    tmp_path: Path, url: str, number: signal.Signals
):
    with computing(tmp_path, url) as first:
        first.wait_for_line("Computing on postgresql://")
        with computing(tmp_path, url) as second:
            assert f"pid {first.process.pid} on " in second.wait_for_line("Standing by")
            first.process.send_signal(number)
            second.wait_for_event("computing")
            if number == signal.SIGSTOP:
                # No commit is due for up to an hour, and it stands by again all the same.
                first.process.send_signal(signal.SIGCONT)
                first.wait_for_event("standing_by")
                assert first.stop() == 0
            assert second.stop() == 0
    assert run_signals(tmp_path, "audit", database_url=url).stdout.splitlines()[-1] == "clean"


async def test_a_process_that_lost_its_session_logs_it_and_continues_if_no_other_took_over(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
):
    universe = write_cut_universe(tmp_path, {"BTC", "NVDA"})
    settings = Settings.read(
        {
            "SIGNALS_DATABASE_URL": database,
            "SIGNALS_UNIVERSE": universe,
            "SIGNALS_LOG_KEY_FILE": str(tmp_path / "signals-log-key.json"),
        }
    )
    clock = ManualClock()
    computing = asyncio.create_task(compute(settings, clock))
    output = ""

    async def says(text: str) -> None:
        nonlocal output
        while text not in output:
            await asyncio.sleep(0.01)
            output += "".join(capsys.readouterr())

    async with asyncio.timeout(60):
        await says("Computing on postgresql://")
        for hours in (1, 2):
            output = ""
            await cut_sessions(database)
            clock.now = NOON + hours * HOUR_MS
            await says("standing_by")
            await says(f"hour={format_instant(clock.now)[:14]}00:00.000Z")
            await says("rows=")  # of the prune that follows, so that hardly anything is amid
            assert output.count("standing_by") == 1
            assert "no longer computing on postgresql://" in output
            # A statement that was amid all the same may fail, and nothing else.
            failed = [line for line in output.splitlines() if "run_failed" in line]
            assert all("in the middle of operation" in line for line in failed)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await computing == 0
    done = await asyncio.to_thread(
        run_signals, tmp_path, "audit", database_url=database, universe=universe
    )
    assert done.stdout.splitlines()[-1] == "clean"


@pytest.fixture
def transport() -> Transport:
    """One transport is enough, because both share everything below."""
    return "mcp"


@pytest.fixture
async def served_alone(database: str) -> AsyncIterator[RunningService]:
    async with run_service(database, make_coverage()) as running:
        yield running


# A fixture of the bodies.
alerted = test_get_signals.alerted


BODIES = (
    test_get_signals.test_pages_are_the_whole_feed_and_polling_with_any_row_gives_the_newer_ones,
    test_get_confluence.test_a_result_has_exactly_the_fields_of_its_table,
    test_get_flips.test_groups_and_flips_have_exactly_the_fields_of_their_tables,
    test_get_signals.test_filters_narrow_both_tiers_alike,
    test_get_signals.test_rows_beyond_retention_are_never_returned,
    test_get_state.test_an_unfiltered_state_lists_every_asset_with_readings_by_ticker,
    test_get_stats.test_counts_come_in_the_order_of_the_vocabulary_and_add_up,
    test_get_stats.test_label_mode_and_quota_are_returned_and_the_call_itself_counts,
    test_past.test_a_past_board_that_waits_too_long_is_unavailable_and_delays_no_other_call,
    test_buy_pages.test_a_nul_names_no_checkout,
    test_past.test_dexter_has_its_reading_of_that_time,
    test_past.test_a_run_is_seen_from_its_nominal_minute_or_from_its_writing,
    test_reading_forward.test_filters_and_offset_work_in_both_orders,
    test_reading_forward.test_the_cursor_of_a_page_is_its_newest_row_in_both_orders,
    test_verifier.test_a_proof_of_the_service_is_verified_without_it,
)
globals().update({body.__name__: body for body in BODIES})


@asynccontextmanager
async def recorded_statements(engine: PostgresEngine) -> AsyncIterator[list[str]]:
    """Yield the list of statements that a pool's sessions run meanwhile."""
    said: list[str] = []
    async with AsyncExitStack() as held:
        for _ in range(POOL_SIZE):
            session = await held.enter_async_context(engine._pool.acquire())
            session.add_query_logger(lambda logged: said.append(logged.query))
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
