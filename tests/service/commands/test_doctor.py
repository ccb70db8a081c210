"""The doctor names what must be mended, and changes nothing."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from schemas.vocabulary import DAY_MS
from serving.forwarded_for import NOTICE_NAME
from store.access_rows import Notice
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from tests.doubles.smtp.server import PASSWORD, run_smtp_double
from tests.doubles.stripe.server import run_stripe_double
from tests.service.commands.test_access import with_store
from tests.service.commands.test_cli import write_bars
from tests.service.config.test_billing import STRIPE, selling
from tests.support.row_builders import run_sql
from tests.support.running_service import ManualClock, run_service
from tests.support.signals_command import run_signals
from tools.example_market import make_coverage

pytestmark = pytest.mark.clause("operation")

Told = dict[str, list[tuple[str, str]]]


def examined(folder: Path, **settings: str) -> tuple[int, Told]:
    """Return the exit status, and by subject the grade and text of each finding."""
    done = run_signals(folder, "doctor", **settings)
    assert done.stderr == ""
    told: Told = {}
    for line in done.stdout.splitlines():
        grade, _, rest = line.partition(" ")
        about, _, text = rest.strip().partition(": ")
        told.setdefault(about, []).append((grade, text))
    return done.returncode, told


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    """A folder with bars, a store of them, and a key."""
    folder = tmp_path_factory.mktemp("well")
    run_signals(folder, "replay", "--bars", str(write_bars(folder / "bars", count=30)))
    run_signals(folder, "keys", "create", "--label", "me")
    return folder


@pytest.fixture
def well(once, tmp_path) -> Path:
    """Such a folder of the test's own; its store remembers the bars where they first were."""
    return Path(shutil.copytree(once, tmp_path / "well"))


@pytest.fixture
def source(once) -> str:
    return f"files:{once / 'bars'}"


def test_a_store_that_is_well_is_all_ok(well, source):
    status, told = examined(well, source=source)
    assert status == 0
    assert {grade for findings in told.values() for grade, _ in findings} == {"ok"}
    assert list(told) == [
        *("settings", "store", "disk", "runs", "source", "billing", "proxies", "mail"),
    ]
    assert "SIGNALS_SOURCE" in told["settings"][0][1]
    assert "the recording is complete" in told["runs"][0][1]
    assert told["source"] == [("ok", source)]
    assert told["billing"] == [("ok", "sandbox, test mode")]
    assert told["mail"] == [("ok", f"written to {well}/signals.db-outbox, and sent to nobody")]


def test_where_there_is_no_store_it_says_how_to_make_one_and_makes_none(tmp_path):
    status, told = examined(tmp_path)
    assert status == 1
    (market, access) = told["store"]
    assert market == (
        "fix",
        f"there is no store at {tmp_path}/signals.db: `signals serve` creates one",
    )
    assert access[0] == "warn"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    status, told = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/missing/signals.db")
    assert (status, told["disk"]) == (1, [("fix", f"there is no folder {tmp_path}/missing")])


def test_a_damaged_store_is_to_be_fixed(well, source):
    with (well / "signals.db").open("r+b") as file:
        file.seek(100)
        file.write(bytes(4096))
    status, told = examined(well, source=source)
    assert (status, told["store"][0][0]) == (1, "fix")
    assert "signals restore" in told["store"][0][1]
    assert "runs" not in told


def test_a_store_of_a_newer_version_is_to_be_fixed(well, source):
    run_sql(well / "signals.db-access", "INSERT INTO migrations VALUES ('access_9999')")
    status, told = examined(well, source=source)
    assert (status, told["store"][1][0]) == (1, "fix")
    assert "newer version" in told["store"][1][1]


def test_an_older_store_is_told_and_not_migrated(well, source):
    (well / "signals.db-access").unlink()
    migrate(well / "signals.db-access", ACCESS_MIGRATIONS[:1])
    status, told = examined(well, source=source)
    assert (status, told["store"][1][0]) == (0, "warn")
    assert run_sql(well / "signals.db-access", "SELECT count(*) FROM migrations") == [(1,)]


@pytest.mark.parametrize("other", ["simulated", "files:missing"])
def test_another_source_than_the_stores_is_to_be_fixed(well, other):
    status, told = examined(well, source=other)
    assert (status, told["source"][0][0]) == (1, "fix")


def test_a_store_in_which_nothing_ran_for_long_is_warned_of(tmp_path):
    asyncio.run(seeded(tmp_path))
    _, told = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/market.db")
    ((grade, text),) = told["runs"]
    assert grade == "warn"
    assert "2026-09-30T12:03:00.000Z" in text


async def seeded(folder: Path) -> None:
    async with run_service(folder, make_coverage()):
        pass


def test_an_untrusted_proxy_is_warned_of_for_a_day(well, source):
    now = time.time_ns() // 1_000_000

    def seen(ago_ms: int) -> list[tuple[str, str]]:
        notice = Notice(NOTICE_NAME, "192.0.2.9", now - ago_ms)
        with_store(well, lambda store: store.put_notice(notice))
        return examined(well, source=source)[1]["proxies"]

    ((grade, text),) = seen(DAY_MS // 2)
    assert grade == "warn"
    assert "192.0.2.9" in text
    assert "SIGNALS_TRUSTED_PROXIES" in text
    assert seen(2 * DAY_MS)[0][0] == "ok"


def test_a_sandbox_in_public_is_to_be_fixed_or_warned_of_where_it_is_meant(well, source):
    status, told = examined(well, source=source, host="0.0.0.0")
    assert (status, told["billing"][0][0]) == (1, "fix")
    status, told = examined(well, source=source, host="0.0.0.0", sandbox_public="1")
    assert (status, [grade for grade, _ in told["billing"]]) == (0, ["ok", "warn"])


def test_missing_stripe_settings_are_to_be_fixed_and_no_secret_shows(well, source):
    given = STRIPE | {"stripe_price_yearly": ""}
    done = run_signals(well, "doctor", source=source, **given)
    assert done.returncode == 1
    assert "fix  billing: SIGNALS_BILLING=stripe needs SIGNALS_STRIPE_PRICE_YEARLY" in done.stdout
    assert "hidden" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "status", "grades"),
    [
        ({"base_url": "https://signals.example"}, 0, ["ok", "ok", "ok"]),
        ({}, 0, ["ok", "ok", "ok", "warn"]),
        ({"stripe_price_monthly": "price_unknown"}, 1, ["fix", "ok", "warn"]),
        ({"stripe_api_key": "rk_test_other"}, 1, ["fix", "ok", "warn"]),
    ],
)
async def test_stripe_is_asked_about_prices_and_key(well, source, changed, status, grades):
    async with run_stripe_double(ManualClock()) as stripe:
        given = selling(stripe, **changed)
        found, told = await asyncio.to_thread(examined, well, source=source, **given)
    assert (found, [grade for grade, _ in told["billing"]]) == (status, grades)
    assert given["stripe_api_key"] not in str(told)


async def test_a_portal_that_keeps_members_out_is_warned_of(well, source):
    async with run_stripe_double(ManualClock()) as stripe:
        stripe.books.objects.pop(stripe.books.list_objects("billing_portal.configuration")[0]["id"])
        found, told = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    grade, text = told["billing"][1]
    assert (found, grade) == (0, "warn")
    assert text.startswith("members cannot change or cancel their plan themselves")


@pytest.mark.clause("dashboard")
@pytest.mark.parametrize(
    ("given", "grades"),
    [
        ({}, ["ok"]),
        ({"base_url": "https://signals.example", "sandbox_public": "1"}, ["ok", "warn"]),
        ({"host": "0.0.0.0", "sandbox_public": "1"}, ["ok", "warn"]),
        ({"base_url": "https://signals.example", "billing": "off"}, ["ok"]),
    ],
)
def test_mail_that_reaches_nobody_is_warned_of_where_others_buy(well, source, given, grades):
    _, told = examined(well, source=source, **given)
    assert [grade for grade, _ in told["mail"]] == grades
    if "warn" in grades:
        assert "SIGNALS_SMTP_URL and SIGNALS_MAIL_FROM" in told["mail"][1][1]


@pytest.mark.clause("dashboard")
async def test_the_mail_server_is_logged_in_to_and_sent_nothing(well, source):
    async with run_smtp_double() as server:
        mail = {"smtp_url": server.url(), "mail_from": "keys@mail.example"}

        async def told_of(**given: str) -> tuple[int, list[tuple[str, str]]]:
            status, told = await asyncio.to_thread(examined, well, source=source, **mail | given)
            assert PASSWORD not in str(told)
            return status, told["mail"]

        said = f"sent by 127.0.0.1:{server.port}, from keys@mail.example"
        assert await told_of() == (0, [("ok", said)])
        status, ((grade, said),) = await told_of(smtp_url=server.url(login="me:wrong@"))
        assert (status, grade) == (1, "fix")
        assert "refuses the user or password of SIGNALS_SMTP_URL" in said
        status, ((grade, said),) = await told_of(mail_from="")
        assert (status, grade) == (1, "fix")
        assert said.startswith("SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too")
    assert server.received == []


async def test_a_stripe_that_cannot_be_asked_is_warned_of(well, source):
    async with run_stripe_double(ManualClock()) as stripe:
        stripe.fail(503)
        found, told = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    assert (found, told["billing"][0][0]) == (0, "warn")
    assert "is not responding" in told["billing"][0][1]
