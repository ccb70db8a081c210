"""/healthz and /readyz of a service that is healthy, late, or whose stores fail.

A service whose stores fail refuses calls and sales, says so and logs the cause. Notices for the
operator are kept, counted, and never in the way of a call.
"""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import httpx
import pytest

from access.mail import MailError
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS
from service.config.stores import MAIL_NOTICE, WEBHOOK_NOTICE
from service.http.health import Readiness, build_readiness, build_waiting_app, is_ready
from service.http.metrics import Metrics
from service.http.resources import (
    PAUSE_MS,
    NoticeKeeper,
    WatchedMailer,
    watch_webhooks,
)
from serving.snapshot_cache import SnapshotCache
from store.access_rows import Notice
from store.market_rows import Batch, Progress, WatermarkRow
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from store.store_errors import StoreError
from tests.security.wire import exchange_bytes, parse_statuses
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.postgres.server import PostgresServer
from tests.support.running_service import (
    ManualClock,
    RunningService,
    open_stores,
    run_service,
    served as served,
)
from tests.support.signals_command import capture_log, parse_events, select_events
from tests.support.store_homes import StoreHome, open_access_as, open_and_close, open_home

pytestmark = pytest.mark.clause("monitoring")

WELL = {"market_store": "ok", "access_store": "ok", "state": "fresh"}


async def readyz(served: RunningService) -> tuple[int, dict[str, str]]:
    response = await served.client.get("/readyz")
    body = response.json()
    assert body["status"] == ("ready" if response.status_code == 200 else "not ready")
    return response.status_code, body["checks"]


async def test_a_probe_needs_no_key_and_is_neither_cached_nor_counted(
    served_alone: RunningService,
):
    served = served_alone
    for path in ("/healthz", "/readyz"):
        answer = await served.client.get(path, headers=served.key_headers)
        head = await served.client.head(path, headers=served.key_headers)
        assert (answer.status_code, head.status_code, head.content) == (200, 200, b"")
        assert answer.headers["cache-control"] == head.headers["cache-control"] == "no-store"
    assert (await served.client.get("/healthz")).json() == {"status": "ok"}
    (key,) = await served.keys.list()
    assert key.last_used_at is None


async def test_a_fresh_state_with_working_stores_is_ready(served: RunningService):
    assert await readyz(served) == (200, WELL)


async def test_a_state_that_missed_its_update_is_not_ready_until_it_is_computed(
    served_alone: RunningService,
):
    served_alone.clock.now = NOON + 2 * HOUR_MS
    assert await readyz(served_alone) == (503, {**WELL, "state": "stale"})
    assert (await served_alone.client.get("/healthz")).status_code == 200


async def test_nothing_computed_yet_is_not_ready(served_empty: RunningService):
    assert await readyz(served_empty) == (503, {**WELL, "state": "not computed yet"})


async def test_a_complete_recording_is_ready(tmp_path: Path):
    async with run_service(
        tmp_path, make_coverage("recorded", NOON), clock=ManualClock(NOON * 2)
    ) as served:
        assert await readyz(served) == (200, {**WELL, "state": "resting"})


@pytest.mark.clause("monitoring")
@pytest.mark.prove
async def test_a_first_start_is_ready_once_nine_tenths_of_its_assets_have_their_history(
    tmp_path: Path,
):
    btc = ASSETS[0]
    assets = tuple(btc.model_copy(update={"ticker": f"C{n}"}) for n in range(10))
    published = make_coverage("live").model_copy(update={"assets": assets})
    healthy = {**WELL, "assets": "10 of 10"}
    publish_from = {asset.ticker: NOON for asset in assets}

    def lacking(*tickers: str) -> Batch:
        rows = [WatermarkRow(t, -1, history="building") for t in tickers]
        return replace(make_batch(NOON, []), watermarks=rows, publish_from=publish_from)

    async with run_service(tmp_path) as served:
        await served.market.publish_coverage(published)
        await served.market.commit(
            replace(lacking("C0", "C1"), changes=[make_change(NOON, "C9", "reversals", "1h", 1)])
        )
        assert await readyz(served) == (503, {**healthy, "assets": "building: 8 of 10"})
        await served.market.commit(lacking("C0"))
        assert await readyz(served) == (200, {**healthy, "assets": "9 of 10"})
        await served.market.commit(lacking())
        assert await readyz(served) == (200, healthy)
        publish_from = {f"N{n}": NOON + 1 for n in range(5)}
        later = [btc.model_copy(update={"ticker": ticker}) for ticker in publish_from]
        more = published.model_copy(update={"assets": (*assets, *later)})
        await served.market.publish_coverage(more)
        await served.market.commit(lacking(*publish_from))
        assert await readyz(served) == (200, {**healthy, "assets": "10 of 15"})


class LostMarket(MarketStore):
    """A market store whose database is gone."""

    async def progress(self) -> Progress:
        raise StoreError("the database is gone")


class HangingAccess(AccessStore):
    """An access store that never answers and ignores cancellation."""

    released: asyncio.Event

    async def check_writes(self) -> None:
        self.released = asyncio.Event()
        while not self.released.is_set():
            with suppress(asyncio.CancelledError):
                await self.released.wait()


@asynccontextmanager
async def hanging_access(folder: Path) -> AsyncIterator[HangingAccess]:
    store = await open_access_as(HangingAccess, folder / "hanging.db-access")
    try:
        yield store
    finally:
        await store.close()


async def test_a_lost_store_is_not_reachable_and_the_state_unknown(tmp_path: Path):
    async with run_service(tmp_path, make_coverage(), store_class=LostMarket) as served:
        expected = {"market_store": "not reachable", "access_store": "ok", "state": "unknown"}
        assert await readyz(served) == (503, expected)
        assert (await served.client.get("/healthz")).status_code == 200


async def test_a_store_that_ignores_cancellation_delays_no_probe(tmp_path: Path):
    async with open_stores(tmp_path) as (market, _), hanging_access(tmp_path) as access:
        checks = await asyncio.wait_for(
            Readiness(SnapshotCache(market), access, ManualClock(), timeout_s=0.01).run_checks(), 10
        )
        access.released.set()
    assert checks["access_store"] == "no answer"


@pytest.mark.clause("postgres")
@pytest.mark.prove
async def test_a_frozen_database_is_reported_in_time_and_recovers(
    private_postgres: PostgresServer,
):
    async with open_stores(private_postgres.url()) as (market, access):
        readiness = Readiness(SnapshotCache(market), access, ManualClock(), timeout_s=0.1)
        with private_postgres.freeze():
            frozen = await asyncio.wait_for(readiness.run_checks(), 10)
        patient = Readiness(SnapshotCache(market), access, ManualClock(), timeout_s=10)
        thawed = await asyncio.wait_for(patient.run_checks(), 30)
    assert set(frozen.values()) == {"no answer", "unknown"}
    assert thawed == {**WELL, "state": "not computed yet"}


async def test_a_process_that_only_computes_checks_no_access_store(served: RunningService):
    checks = await Readiness(SnapshotCache(served.market), None, served.clock).run_checks()
    assert checks == {"market_store": "ok", "state": "fresh"}


async def test_a_probe_may_use_any_host_or_none(served: RunningService):
    for path in ("/healthz", "/readyz"):
        assert (await served.client.get(path, headers={"Host": "10.0.0.7:8000"})).status_code == 200
        sent = b"GET %s HTTP/1.0\r\n\r\n" % path.encode()
        assert parse_statuses(await exchange_bytes(served.base_url, sent)) == [200]


async def test_a_probe_accepts_only_get(served: RunningService):
    answers: list[httpx.Response] = [
        await served.client.post(path) for path in ("/healthz", "/readyz")
    ]
    assert [answer.status_code for answer in answers] == [405, 405]


async def test_a_service_whose_runs_fail_is_not_ready_until_one_succeeds(served: RunningService):
    metrics = Metrics(())
    readiness = build_readiness(served.market, served.access, served.clock, metrics)
    before = await readiness.run_checks()
    metrics.on_failing(True)
    checks = await readiness.run_checks()
    assert (checks, is_ready(checks)) == ({"runs": "failing"} | before, False)
    metrics.on_failing(False)
    assert await readiness.run_checks() == before


async def test_a_start_that_waits_for_its_database_is_alive_and_answers_503():
    transport = httpx.ASGITransport(app=build_waiting_app("http://localhost:8000"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        ready = await client.get("/readyz")
        call = await client.post("/api/v1/mcp", json={})
    assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
    assert (call.status_code, call.json()["error"]) == (503, "unavailable")
    assert call.headers["retry-after"] == "5"


class FullMailbox:
    """A mailer whose server delays the first mail, refuses one mailbox, and then all mail."""

    def __init__(self) -> None:
        self.failures = [
            MailError("the server answered 451", is_temporary=True),
            MailError("the server answered 550", is_mailbox=True),
        ]

    async def send(self, mail: EmailMessage) -> None:
        raise self.failures.pop(0) if self.failures else MailError("the server answered 552")

    async def check(self) -> str:
        return "ok"


async def test_a_failed_mail_is_counted_kept_and_still_fails(home: StoreHome) -> None:
    async with open_and_close(home.open_access()) as access:
        clock, outcomes = ManualClock(), list[str]()
        mailer = WatchedMailer(FullMailbox(), NoticeKeeper(access, clock), outcomes.append)
        for _ in range(2):
            with pytest.raises(MailError):
                await mailer.send(EmailMessage())
        assert (outcomes, await access.list_notices()) == (["delayed", "refused"], [])
        for _ in range(2):
            with pytest.raises(MailError):
                await mailer.send(EmailMessage())
        assert outcomes == ["delayed", "refused", "failed", "failed"]
        assert await access.list_notices() == [
            Notice(MAIL_NOTICE, "the server answered 552", clock())
        ]


async def test_a_refused_webhook_is_kept_once_a_minute_and_an_outage_is_only_counted(
    home: StoreHome,
) -> None:
    answers: list[ApiError | None] = [
        ApiError("invalid_parameter", "the signature is invalid", 400),
        ApiError("invalid_parameter", "another reason", 400),
        ApiError("unavailable", "the processor is away", 503),
        None,
    ]

    async def handle(payload: bytes, signature: str | None) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    async with open_and_close(home.open_access()) as access:
        clock, outcomes = ManualClock(), list[str]()
        watched = watch_webhooks(handle, NoticeKeeper(access, clock), outcomes.append)
        first_at = clock()
        for _ in range(3):
            with pytest.raises(ApiError):
                await watched(b"{}", None)
        await watched(b"{}", "v1")
        assert outcomes == ["invalid_parameter", "invalid_parameter", "unavailable", "ok"]
        assert await access.list_notices() == [
            Notice(WEBHOOK_NOTICE, "the signature is invalid", first_at)
        ]
        # Later, and after the clock was set back.
        for moved, detail in ((PAUSE_MS, "later"), (-DAY_MS, "set back")):
            clock.now += moved
            answers.append(ApiError("invalid_parameter", detail, 400))
            with pytest.raises(ApiError):
                await watched(b"{}", None)
            assert [notice.detail for notice in await access.list_notices()] == [detail]


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


async def call(served: RunningService) -> int:
    return (await served.get_api("/usage")).status_code


async def buy(served: RunningService) -> int:
    return (await served.client.post("/api/v1/access/checkout", json=CHECKOUT)).status_code


async def claim(served: RunningService, token: str) -> int:
    response = await served.client.post("/api/v1/access/claim", json={"claim_token": token})
    return response.status_code


async def test_a_full_disk_is_not_ready_before_any_call_and_after_it(served_alone: RunningService):
    assert (await readyz(served_alone))[0] == 200
    with full_disk(), capture_log("info") as lines:
        for _ in range(2):
            assert await call(served_alone) == 503
            status, checks = await readyz(served_alone)
            assert (status, checks["access_store"]) == (503, "not writable")
    (failed,) = select_events(lines.getvalue().splitlines(), "store_failed")
    assert str(served_alone.access._engine.name) in failed["cause"]
    assert "where" not in failed
    (not_ready,) = select_events(lines.getvalue().splitlines(), "not_ready")
    assert failed["cause"] == not_ready["cause"]
    # Each kind of write is known to work again by the next one.
    assert (await call(served_alone), await buy(served_alone)) == (200, 201)
    assert await readyz(served_alone) == (200, {**checks, "access_store": "ok"})


async def test_an_idle_service_on_a_full_disk_finds_out_by_a_test_write(tmp_path: Path):
    async with run_service(tmp_path, make_coverage()) as served:
        # Captured, because the log of the tests is a file as well.
        with full_disk(), capture_log("info"):
            status, checks = await readyz(served)
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
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("harm", "state"),
    [
        ("ALTER TABLE {schema}usage RENAME TO mislaid", "not writable"),
        ("UPDATE store_id SET value = 'that of another store'", "lost"),
    ],
)
async def test_a_service_that_cannot_count_or_has_lost_its_keys_is_not_ready(
    home: StoreHome, harm: str, state: str
):
    async with (
        open_and_close(home.open_market()) as market,
        open_and_close(home.open_access()) as access,
    ):
        readiness = Readiness(SnapshotCache(market), access, lambda: 0)
        assert (await readiness.run_checks())["access_store"] == "ok"
        async with home.open_plain() as run:
            schema = "access." if not home.address.startswith("postgres") else ""
            await run(harm.format(schema=schema))
        if "usage" in harm:
            with pytest.raises(Exception, match="usage"):
                await access.test_counts()
        assert (await readiness.run_checks())["access_store"] == state


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


def replace_file(path: Path) -> None:
    migrate(path.with_name("new"), ACCESS_MIGRATIONS)
    os.replace(path.with_name("new"), path)


HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved away": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": replace_file,
    "emptied": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "without its log": lambda path: path.with_name(f"{path.name}-wal").unlink(),
}


@pytest.mark.clause("sales", "access")
@pytest.mark.parametrize("name", ["market.db-access", "market.db"])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.sampled(3)
async def test_a_lost_file_stops_calls_and_sales_until_it_is_back(
    tmp_path: Path, harm: str, name: str
):
    async with run_service(tmp_path, make_coverage()) as served:
        token = (await served.client.post("/api/v1/access/checkout", json=CHECKOUT)).json()[
            "claim_token"
        ]
        assert (await call(served), (await readyz(served))[0]) == (200, 200)
        HARMS[harm](tmp_path / name)
        with capture_log("info") as lines:
            status, checks = await readyz(served)
            store = "access_store" if name.endswith("-access") else "market_store"
            assert (status, checks[store]) == (503, "lost")
            if store == "access_store":
                assert await call(served) == 503
                assert (await buy(served), await claim(served, token)) == (503, 503)
            else:
                assert (await served.get_api("/state?ticker=BTC")).status_code == 503
        (not_ready,) = select_events(lines.getvalue().splitlines(), "not_ready")
        assert "stop the service" in not_ready["cause"]
        if harm == "moved away":
            (tmp_path / "elsewhere").rename(tmp_path / name)
            assert ((await readyz(served))[0], await call(served)) == (200, 200)


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
