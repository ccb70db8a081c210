"""A running service whose stores fail: it refuses calls and sales, says so and logs the cause."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.http.health import Readiness
from serving.snapshot_cache import SnapshotCache
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, run_service
from tests.support.signals_command import capture_log, parse_events
from tests.support.store_homes import StoreHome, open_and_close, open_home

pytestmark = pytest.mark.clause("monitoring")

CHECKOUT = {"contact_email": "buyer@example.com", "billing": "monthly"}


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def read_checks(served: RunningService) -> tuple[int, dict[str, str]]:
    response = await served.client.get("/readyz")
    return response.status_code, response.json()["checks"]


async def call(served: RunningService) -> int:
    return (await served.get_api("/usage")).status_code


async def buy(served: RunningService) -> int:
    return (await served.client.post("/api/v1/access/checkout", json=CHECKOUT)).status_code


async def claim(served: RunningService, token: str) -> int:
    response = await served.client.post("/api/v1/access/claim", json={"claim_token": token})
    return response.status_code


def select(lines: Any, name: str) -> list[dict[str, Any]]:
    return [
        event for event in parse_events(lines.getvalue().splitlines()) if event["event"] == name
    ]


async def test_a_full_disk_is_not_ready_before_any_call_and_after_it(served_alone: RunningService):
    assert (await read_checks(served_alone))[0] == 200
    with full_disk(), capture_log("info") as lines:
        for _ in range(2):
            assert await call(served_alone) == 503
            status, checks = await read_checks(served_alone)
            assert (status, checks["access_store"]) == (503, "not writable")
    (failed,) = select(lines, "store_failed")
    assert str(served_alone.access._engine.name) in failed["cause"]
    assert "where" not in failed
    (not_ready,) = select(lines, "not_ready")
    assert failed["cause"] == not_ready["cause"]
    # Each kind of write is known to work again by the next one.
    assert (await call(served_alone), await buy(served_alone)) == (200, 201)
    assert await read_checks(served_alone) == (200, {**checks, "access_store": "ok"})


async def test_an_idle_service_on_a_full_disk_finds_out_by_a_test_write(tmp_path: Path):
    async with run_service(tmp_path, make_coverage()) as served:
        # Captured, because the log of the tests is a file as well.
        with full_disk(), capture_log("info"):
            status, checks = await read_checks(served)
    assert (status, checks["access_store"], checks["market_store"]) == (503, "not writable", "ok")


@pytest.mark.prove
async def test_failing_calls_log_one_line_of_each_kind(served_alone: RunningService):
    with full_disk(), capture_log("info") as lines:
        for _ in range(300):
            assert await call(served_alone) == 503
    assert len(lines.getvalue()) < 2000
    names = [event["event"] for event in parse_events(lines.getvalue().splitlines())]
    assert names == ["store_failed", "refused"]


@pytest.mark.clause("postgres")
async def test_a_service_that_cannot_count_is_not_ready(home: StoreHome):
    async with (
        open_and_close(home.open_market()) as market,
        open_and_close(home.open_access()) as access,
    ):
        readiness = Readiness(SnapshotCache(market), access, lambda: 0)
        assert (await readiness.run_checks())["access_store"] == "ok"
        async with home.open_plain() as run:
            schema = "access." if not home.address.startswith("postgres") else ""
            await run(f"ALTER TABLE {schema}usage RENAME TO mislaid")
        with pytest.raises(Exception, match="usage"):
            await access.test_counts()
        assert (await readiness.run_checks())["access_store"] == "not writable"


async def test_a_store_of_keys_with_another_id_is_lost(home: StoreHome):
    async with (
        open_and_close(home.open_market()) as market,
        open_and_close(home.open_access()) as access,
    ):
        readiness = Readiness(SnapshotCache(market), access, lambda: 0)
        assert (await readiness.run_checks())["access_store"] == "ok"
        async with home.open_plain() as run:
            await run("UPDATE store_id SET value = 'that of another store'")
        assert (await readiness.run_checks())["access_store"] == "lost"


async def test_test_writes_leave_no_trace_and_no_gap(home: StoreHome):
    async with (
        open_and_close(home.open_market()) as market,
        open_and_close(home.open_access()) as access,
    ):
        assert await access.create_key(bytes(32), "first", 1) == 1
        await market.lock()
        version = market.version()
        for _ in range(2):
            await access.check_writes()
            await market._test_write()
        assert market.version() == version or not home.address.startswith("postgres")
        assert await access.create_key(bytes(31) + b"1", "second", 1) == 2
    async with home.open_plain() as run:
        assert [await run(f"SELECT * FROM {table}") for table in ("claims", "events", "usage")] == [
            [],
            [],
            [],
        ]
        assert await run("SELECT key FROM facts") == []


async def test_a_compute_process_that_cannot_commit_is_not_ready(home: StoreHome):
    async with open_and_close(home.open_market()) as market:
        readiness = Readiness(SnapshotCache(market), None, lambda: 0)
        await market.lock()
        assert (await readiness.run_checks())["market_store"] == "ok"
        async with home.open_plain() as run:
            await run("ALTER TABLE facts RENAME TO mislaid")
        with pytest.raises(Exception, match="facts"):
            await market.record_access_id("x")
        assert await readiness.run_checks() == {"market_store": "not writable", "state": "unknown"}


def unlink(path: Path) -> None:
    path.unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    migrate(path.with_name("new"), ACCESS_MIGRATIONS)
    os.replace(path.with_name("new"), path)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def truncate_partly(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def unlink_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


@pytest.mark.clause("sales", "access")
@pytest.mark.parametrize("name", ["market.db-access", "market.db"])
@pytest.mark.parametrize(
    "harm", [unlink, move_away, replace, truncate, truncate_partly, unlink_log]
)
@pytest.mark.sampled(3)
async def test_a_lost_file_stops_calls_and_sales_until_it_is_back(
    tmp_path: Path, harm: Callable[[Path], None], name: str
):
    async with run_service(tmp_path, make_coverage()) as served:
        token = (await served.client.post("/api/v1/access/checkout", json=CHECKOUT)).json()[
            "claim_token"
        ]
        assert (await call(served), (await read_checks(served))[0]) == (200, 200)
        harm(tmp_path / name)
        with capture_log("info") as lines:
            status, checks = await read_checks(served)
            store = "access_store" if name.endswith("-access") else "market_store"
            assert (status, checks[store]) == (503, "lost")
            if store == "access_store":
                assert await call(served) == 503
                assert (await buy(served), await claim(served, token)) == (503, 503)
            else:
                assert (await served.get_api("/state?ticker=BTC")).status_code == 503
        (not_ready,) = select(lines, "not_ready")
        assert "stop the service" in not_ready["cause"]
        if harm is move_away:
            (tmp_path / "elsewhere").rename(tmp_path / name)
            assert (await read_checks(served))[0] == 200
            assert await call(served) == 200


@pytest.mark.clause("sales")
async def test_nothing_is_sold_into_a_deleted_file_even_without_a_probe(tmp_path: Path):
    async with run_service(tmp_path, make_coverage()) as served:
        assert await buy(served) == 201
        (tmp_path / "market.db-access").unlink()
        assert (await buy(served), await call(served)) == (503, 503)


async def test_a_vacuum_by_the_operator_is_not_a_truncation(tmp_path: Path):
    home = open_home(str(tmp_path))
    async with open_and_close(home.open_access()) as access:
        for number in range(300):
            await access.create_key(number.to_bytes(32, "big"), "x" * 500, 1)
        async with home.open_plain() as run:
            await run("PRAGMA access.wal_checkpoint(TRUNCATE)")
            await access.check_writes()
            size = (tmp_path / "access.db").stat().st_size
            await run("DELETE FROM access.keys")
            await run("VACUUM access")
            await run("PRAGMA access.wal_checkpoint(TRUNCATE)")
        assert (tmp_path / "access.db").stat().st_size < size
        await access.check_writes()
