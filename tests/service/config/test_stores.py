"""A start knows the store of keys that belongs to its market data, and refuses any other."""

import asyncio
import os
import signal
import socket
import sqlite3
import stat
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from service.commands.cli import wall_clock
from service.commands.doctor import Case, check_market
from service.config.settings import Settings
from service.config.sources import build_log_signer
from service.config.stores import adopt_access, has_store, open_both, retry_until_reached
from service.processes.lifecycle import listen_for_shutdown
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from store.store_errors import StoreError
from tests.support.postgres.server import PostgresServer
from tests.support.signals_command import find_free_port, run_signals, start_signals

pytestmark = pytest.mark.clause("operation", "sales")

LOST = r"signals_access|signals\.db-access.*restore a backup, or run `signals keys adopt`"

LOST_MARKET = r"signals\.db\), but .*restore a backup .*`signals log restart`"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=SecretStr(f"sqlite:///{tmp_path}/signals.db"))


async def start(settings: Settings) -> None:
    async with open_both(settings):
        pass


async def assert_stores_belong_together(settings: Settings) -> None:
    async with open_both(settings) as (market, access):
        assert await market.find_access_id() == await access.get_id()


def replace(path: Path) -> None:
    path.unlink()
    migrate(path, ACCESS_MIGRATIONS)


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(b""), replace], ids=["lost", "empty", "new"]
)
@pytest.mark.prove
async def test_a_start_without_its_keys_is_refused_until_the_operator_accepts_it(
    tmp_path: Path, harm: Callable[[Path], None], settings: Settings
):
    await start(settings)
    await start(settings)
    harm(settings.access_path)
    before = await has_store(settings, "access")
    report = (await asyncio.to_thread(run_signals, tmp_path, "doctor")).stdout
    assert "restore a backup" in report
    assert "signals keys adopt" in report
    for _ in range(2):
        with pytest.raises(StoreError, match=LOST):
            await start(settings)
    assert await has_store(settings, "access") is before
    await adopt_access(settings)
    await start(settings)


@pytest.mark.clause("postgres")
@pytest.mark.parametrize(
    "harm",
    [
        "DROP SCHEMA signals_access CASCADE",
        "UPDATE signals_access.store_id SET value = 'that of another database'",
        "DELETE FROM signals_access.store_id",
    ],
)
@pytest.mark.prove
async def test_a_start_without_its_keys_is_refused_on_postgres(database: str, harm: str):
    settings = Settings(database_url=SecretStr(database))
    await start(settings)
    session = await asyncpg.connect(database)
    await session.execute(harm)
    await session.close()
    with pytest.raises(StoreError, match=r"signals_access|restore a backup"):
        await start(settings)
    if "DELETE" not in harm:
        await adopt_access(settings)
        await start(settings)


async def test_a_start_that_was_killed_between_the_two_stores_continues(settings: Settings):
    migrate(settings.access_path, ACCESS_MIGRATIONS)
    await start(settings)
    await assert_stores_belong_together(settings)


@pytest.mark.parametrize("trace", ["key of the log", "lock", "keys", "both"])
async def test_a_start_without_its_market_data_is_refused_until_the_operator_begins_anew(
    tmp_path: Path, trace: str, settings: Settings
):
    async with open_both(settings) as (market, access):
        await build_log_signer(settings, market, lambda: 0).sign()
        if trace == "lock":
            await market.lock()
        if trace in ("keys", "both"):
            await access.create_key(bytes(32), "me", 1)
    if trace in ("lock", "keys"):
        settings.log_key_path.unlink()
    if trace == "lock":
        settings.access_path.unlink()
    settings.market_path.unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match=LOST_MARKET):
            await start(settings)
    assert not settings.market_path.exists()
    done = await asyncio.to_thread(run_signals, tmp_path, "log", "restart")
    assert (done.returncode, "A new history begins" in done.stderr) == (0, True)
    async with open_both(settings) as (market, access):
        assert len(await access.list_keys()) == (trace in ("keys", "both"))
        assert (await market.feed_log.checkpoint()).refusal is None


async def test_new_market_data_belong_to_the_keys_that_are_there(settings: Settings):
    await start(settings)
    settings.market_path.unlink()
    await start(settings)
    await assert_stores_belong_together(settings)


@pytest.mark.parametrize("sources", [("simulated", "live"), ("live", "simulated")])
async def test_simulated_and_live_data_share_their_keys_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: tuple[str, str]
):
    monkeypatch.chdir(tmp_path)
    first, second = (Settings(source=source) for source in sources)
    await start(first)
    made = await asyncio.to_thread(
        *(run_signals, tmp_path, "keys", "create", "--label", "a"),
        database_url="",
        source=second.source,
    )
    assert (made.returncode, made.stderr) == (0, "")
    async with AsyncExitStack() as stack:
        found = [one async for one in check_market(Case(second, wall_clock, stack))]
    assert found == [
        ("warn", f"not started yet: the next start creates {tmp_path}/{second.market_path}")
    ]
    for settings in (second, first):
        async with open_both(settings) as (market, access):
            assert await market.find_access_id() == await access.get_id()
            assert len(await access.list_keys()) == 1


async def test_a_market_store_without_the_id_of_its_keys_gets_it_at_the_next_start(
    settings: Settings,
):
    await start(settings)
    settings.access_path.unlink()
    migrate(settings.access_path, ACCESS_MIGRATIONS)
    with closing(sqlite3.connect(settings.market_path, isolation_level=None)) as db:
        db.execute("DELETE FROM facts")
    await start(settings)
    await start(settings)
    replace(settings.access_path)
    with pytest.raises(StoreError, match=LOST):
        await start(settings)


def list_modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize("umask", [0o000, 0o022])
async def test_only_the_owner_may_use_any_file_of_the_stores(
    tmp_path: Path, umask: int, settings: Settings
):
    before = os.umask(umask)
    try:
        async with open_both(settings) as (_, access):
            await access.create_key(bytes(32), "me", 1)
            names = {f"signals.db{kind}{log}" for kind in ("", "-access") for log in ("", "-wal")}
            assert names <= list_modes(tmp_path).keys()
            assert set(list_modes(tmp_path).values()) == {0o600}
        await asyncio.to_thread(run_signals, tmp_path, "backup", str(tmp_path / "copy"))
        moved = f"sqlite:///{tmp_path}/moved.db"
        done = await asyncio.to_thread(
            run_signals,
            tmp_path,
            "migrate",
            "--from",
            f"sqlite:///{tmp_path}/signals.db",
            "--to",
            moved,
        )
        assert done.returncode == 0, done.stderr
    finally:
        os.umask(before)
    modes = list_modes(tmp_path)
    assert {"copy/signals.db-access", "moved.db-access"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    await start(Settings(database_url=SecretStr(moved)))


async def test_files_that_others_could_read_are_taken_from_them_and_that_is_logged(
    tmp_path: Path, settings: Settings
):
    await start(settings)
    settings.access_path.chmod(0o664)
    with capture_logs() as lines:
        async with open_both(settings):
            assert set(list_modes(tmp_path).values()) == {0o600}
    assert [(line["event"], line["file"], line["mode"]) for line in lines] == [
        ("file_made_private", str(settings.access_path), "0664")
    ]
    settings.access_path.chmod(0o400)
    with capture_logs() as lines:
        await start(settings)
    assert (lines, list_modes(tmp_path)["signals.db-access"]) == ([], 0o400)


async def test_a_file_of_another_program_is_left_as_it_is(tmp_path: Path, settings: Settings):
    with closing(sqlite3.connect(settings.access_path)) as db:
        db.execute("CREATE TABLE other (id)")
    settings.access_path.chmod(0o644)
    with pytest.raises(StoreError, match="is not a signals database"):
        await start(settings)
    assert list_modes(tmp_path) == {"signals.db-access": 0o644}


@pytest.mark.clause("postgres")
@pytest.mark.prove
def test_a_start_waits_for_a_database_that_cannot_be_reached_and_answers_503_meanwhile(
    tmp_path: Path, private_postgres: PostgresServer
):
    private_postgres.stop()
    port, operations = find_free_port(), find_free_port()
    address = f"http://127.0.0.1:{port}"
    url = private_postgres.url()
    with start_signals(
        tmp_path,
        *("serve", "--no-compute"),
        port=port,
        metrics_port=operations,
        database_url=url,
        billing="off",
    ) as process:
        assert "127.0.0.1" in process.wait_for_event("database_unreachable")["reason"]
        state = httpx.get(f"{address}/api/v1/state")
        assert (state.status_code, state.json()["error"]) == (503, "unavailable")
        assert state.headers["retry-after"] == "5"
        health, ready = httpx.get(f"{address}/healthz"), httpx.get(f"{address}/readyz")
        assert (health.status_code, ready.status_code) == (200, 503)
        assert ready.json()["checks"] == {"database": "not reachable"}
        probe = f"http://127.0.0.1:{operations}/readyz"
        assert httpx.get(probe).status_code == 503
        private_postgres.start()
        process.wait_for_line("Listening on ")
        assert httpx.get(f"{address}/api/v1").status_code == 200
        assert httpx.get(probe).json()["checks"]["access_store"] == "ok"
        private_postgres.stop()
        assert process.stop() == 0
    with start_signals(tmp_path, "serve", "--no-compute", port=port, database_url=url) as process:
        process.wait_for_event("database_unreachable")
        assert process.stop() == 0
    assert run_signals(tmp_path, "keys", "list", database_url=url).returncode == 1


@pytest.mark.clause("postgres")
async def test_a_signal_ends_the_attempt_to_reach_a_server_that_never_answers():
    loop = asyncio.get_running_loop()

    def request_stop() -> None:
        loop.remove_reader(bound)
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        socket.create_server(("127.0.0.1", 0)) as bound,
        listen_for_shutdown() as cancel_on_request,
        capture_logs() as logs,
    ):
        url = SecretStr(f"postgresql://me@127.0.0.1:{bound.getsockname()[1]}/signals")
        loop.add_reader(bound, request_stop)
        await retry_until_reached(partial(start, Settings(database_url=url)), cancel_on_request)
    assert logs == []


@pytest.mark.clause("postgres")
@pytest.mark.prove
async def test_a_start_waits_if_sessions_run_out_between_its_check_and_its_opening(
    tmp_path: Path, private_postgres: PostgresServer
):
    url, sessions = private_postgres.url(), list[asyncpg.Connection]()
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            sessions.append(await asyncpg.connect(url))
    # Enough for the check, too few to open both stores.
    for _ in range(2):
        await sessions.pop().close()
    with start_signals(
        tmp_path, "serve", "--no-compute", port=find_free_port(), database_url=url, billing="off"
    ) as process:
        event = await asyncio.to_thread(process.wait_for_event, "database_unreachable")
        assert "too many clients" in event["reason"]
        for session in sessions:
            await session.close()
        await asyncio.to_thread(process.wait_for_line, "Listening on ")
        assert await asyncio.to_thread(process.stop) == 0
