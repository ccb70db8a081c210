"""The doctor reports what must be fixed, and changes nothing."""

import asyncio
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.vocabulary import DAY_MS
from serving.forwarded_for import NOTICE_NAME
from store.access_rows import Notice
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.schema import CREATE_MIGRATIONS
from tests.doubles.smtp.server import PASSWORD, run_smtp_double
from tests.doubles.stripe.server import run_stripe_double
from tests.service.commands.test_access import with_store
from tests.service.commands.test_cli import write_bars
from tests.service.config.test_billing import STRIPE, selling
from tests.store.sql.test_access_store_purchases import CLAIM, MEMBER, NOW
from tests.support.example_market import make_coverage
from tests.support.row_builders import run_sql
from tests.support.running_service import ManualClock, run_service
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("operation")

Told = dict[str, list[tuple[str, str]]]


def examined(folder: Path, **settings: str) -> tuple[int, Told]:
    """Return the exit status, and the (grade, text) findings by subject."""
    done = run_signals(folder, "doctor", **settings)
    assert done.stderr == ""
    checks: Told = {}
    for line in done.stdout.splitlines():
        grade, _, rest = line.partition(" ")
        about, _, text = rest.strip().partition(": ")
        checks.setdefault(about, []).append((grade, text))
    return done.returncode, checks


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    """A folder with bars, a store of them, and a key."""
    folder = tmp_path_factory.mktemp("well")
    run_signals(folder, "replay", "--bars", str(write_bars(folder / "bars", count=30)))
    run_signals(folder, "keys", "create", "--label", "me")
    return folder


@pytest.fixture
def well(once, tmp_path) -> Path:
    """A copy of that folder; its store still names the original path of the bars."""
    return Path(shutil.copytree(once, tmp_path / "well"))


@pytest.fixture
def source(once) -> str:
    return f"files:{once / 'bars'}"


def test_a_healthy_store_has_only_ok_findings(well, source):
    status, checks = examined(well, source=source)
    assert status == 0
    assert {grade for findings in checks.values() for grade, _ in findings} == {"ok"}
    assert list(checks) == [
        *("settings", "store", "disk", "runs", "log", "source", "billing", "proxies", "mail"),
    ]
    assert "SIGNALS_SOURCE" in checks["settings"][0][1]
    assert checks["settings"][0][1].endswith("; logs from level info")
    assert "the recording is complete" in checks["runs"][0][1]
    assert checks["source"] == [("ok", source)]
    assert checks["billing"] == [("ok", "sandbox, test mode")]
    assert checks["mail"] == [("ok", f"written to {well}/signals.db-outbox, not sent")]


@pytest.mark.clause("proof")
def test_an_older_copy_of_a_signed_store_must_be_fixed(well, source):
    (signed,) = examined(well, source=source)[1]["log"]
    assert signed[0] == "ok"
    assert signed[1].endswith(" rows of the feed are signed")
    key = json.loads((well / "signals.db-log-key.json").read_text())
    (well / "signals.db-log-key.json").write_text(json.dumps(key | {"size": key["size"] + 9}))
    run_signals(well, "replay", "--bars", source.removeprefix("files:"))
    status, checks = examined(well, source=source)
    assert status == 1
    assert checks["log"] == [
        (
            "fix",
            f"no new rows are signed: the store has fewer rows than the {key['size'] + 9} that "
            "were signed: an older copy of it was restored; restore a newer copy of the database, "
            "or the key file; if there is none, stop the service and run `signals log restart`",
        )
    ]
    restarted = run_signals(well, "log", "restart")
    assert restarted.returncode == 0
    assert restarted.stdout.startswith("127.0.0.1:8000/api/v1/log/2+")
    assert "The former key is in " in restarted.stderr
    status, checks = examined(well, source=source)
    assert (status, checks["log"]) == (0, [signed])


@pytest.mark.clause("proof")
def test_cosignatures_are_counted_if_there_are_witnesses(well, source):
    settings = {"source": source, "witness_policy": str(well / "policy")}
    ((grade, text),) = examined(well, **settings)[1]["log"]
    assert (grade, text) == ("warn", "0 rows of the feed are signed, and cosigned by 0 witnesses")
    run_sql(well / "signals.db", "UPDATE log_checkpoint SET note = note || '— w.example AAAA\n'")
    ((grade, text),) = examined(well, **settings)[1]["log"]
    assert (grade, text) == ("ok", "0 rows of the feed are signed, and cosigned by 1 witnesses")


@pytest.mark.clause("proof")
def test_a_store_whose_feed_is_not_signed_yet_is_noticed(well, source):
    run_sql(well / "signals.db", "DROP TRIGGER log_checkpoint_delete")
    run_sql(well / "signals.db", "DELETE FROM log_checkpoint")
    _, checks = examined(well, source=source)
    assert checks["log"][0][0] == "warn"


def test_a_missing_store_is_reported_and_not_created(tmp_path):
    status, checks = examined(tmp_path)
    assert status == 1
    (market, access) = checks["store"]
    assert market == (
        "fix",
        f"there is no store at {tmp_path}/signals.db: `signals serve` creates one",
    )
    assert access[0] == "warn"
    assert list(tmp_path.iterdir()) == []


def test_lost_keys_must_be_fixed(well, source):
    (well / "signals.db-access").unlink()
    status, checks = examined(well, source=source)
    (_, (grade, text)) = checks["store"]
    assert (status, grade) == (1, "fix")
    assert text.startswith(f"there is no store at {well}/signals.db-access: restore a backup ")
    assert not (well / "signals.db-access").exists()


def test_empty_files_are_not_a_store_and_an_impossible_path_is_named(tmp_path):
    for name in ("signals.db", "signals.db-access"):
        (tmp_path / name).touch()
    _, checks = examined(tmp_path)
    assert [grade for grade, _ in checks["store"]] == ["fix", "warn"]
    assert all("there is no store at " in text for _, text in checks["store"])
    status, checks = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/{'x' * 300}.db")
    assert (status, checks["store"][0][0]) == (1, "fix")
    assert "cannot open" in checks["store"][0][1]


def test_a_missing_folder_is_named(tmp_path):
    status, checks = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/missing/signals.db")
    assert (status, checks["disk"]) == (1, [("fix", f"there is no folder {tmp_path}/missing")])


def test_a_damaged_store_must_be_fixed(well, source):
    with (well / "signals.db").open("r+b") as file:
        file.seek(100)
        file.write(bytes(4096))
    status, checks = examined(well, source=source)
    assert (status, checks["store"][0][0]) == (1, "fix")
    assert "signals restore" in checks["store"][0][1]
    assert "runs" not in checks


def test_a_store_with_a_newer_schema_must_be_fixed(well, source):
    run_sql(well / "signals.db-access", "INSERT INTO migrations VALUES ('access_9999')")
    status, checks = examined(well, source=source)
    assert (status, checks["store"][1][0]) == (1, "fix")
    assert "another version" in checks["store"][1][1]


def test_a_store_with_an_older_schema_is_reported_and_not_migrated(well, source):
    (well / "signals.db-access").unlink()
    run_sql(well / "signals.db-access", CREATE_MIGRATIONS)
    status, checks = examined(well, source=source)
    assert (status, checks["store"][1][0]) == (0, "warn")
    assert run_sql(well / "signals.db-access", "SELECT count(*) FROM migrations") == [(0,)]


@pytest.mark.parametrize("other", ["simulated", "files:missing"])
def test_another_source_than_the_stores_must_be_fixed(well, other):
    status, checks = examined(well, source=other)
    assert (status, checks["source"][0][0]) == (1, "fix")


def test_a_store_without_recent_runs_is_a_warning(tmp_path):
    asyncio.run(seeded(tmp_path))
    _, checks = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/market.db")
    ((grade, text),) = checks["runs"]
    assert grade == "warn"
    assert "2026-09-30T12:03:00.000Z" in text


async def seeded(folder: Path) -> None:
    async with run_service(folder, make_coverage()):
        pass


def test_an_untrusted_proxy_is_a_warning_for_a_day(well, source):
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


def test_a_service_on_all_addresses_needs_its_public_address(well, source):
    status, checks = examined(well, source=source, host="0.0.0.0", billing="off")
    ((first, address), (second, hint)) = checks["settings"]
    assert (status, first, second) == (0, "ok", "warn")
    assert "; served at http://127.0.0.1:8000;" in address
    assert "SIGNALS_BASE_URL=http://signals.example:8000" in hint
    _, checks = examined(
        well, source=source, host="0.0.0.0", billing="off", base_url="https://us.example"
    )
    assert len(checks["settings"]) == 1


@pytest.mark.clause("10.11")
def test_oauth_needs_https_or_this_machine(well, source):
    for base_url, grades in (
        (None, []),
        ("https://signals.example", []),
        ("http://signals.example:8000", ["warn"]),
    ):
        given = {} if base_url is None else {"base_url": base_url}
        _, checks = examined(well, source=source, billing="off", **given)
        assert [grade for grade, _ in checks.get("oauth", [])] == grades


def test_a_public_sandbox_is_a_warning(well, source):
    status, checks = examined(well, source=source, host="0.0.0.0")
    assert (status, [grade for grade, _ in checks["billing"]]) == (0, ["ok", "warn"])


def test_missing_stripe_settings_must_be_fixed_and_no_secret_is_printed(well, source):
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
async def test_stripe_prices_and_key_are_checked(well, source, changed, status, grades):
    async with run_stripe_double(ManualClock()) as stripe:
        given = selling(stripe, **changed)
        found, checks = await asyncio.to_thread(examined, well, source=source, **given)
    assert (found, [grade for grade, _ in checks["billing"]]) == (status, grades)
    assert given["stripe_api_key"] not in str(checks)


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        (
            {"operator_name": "Acme", "terms_url": "https://acme.example/terms"},
            (
                "warn",
                "buyers do not see whom they pay and on what terms: set "
                "SIGNALS_OPERATOR_CONTACT, SIGNALS_PRIVACY_URL",
            ),
        ),
        (
            {
                "operator_name": "Acme",
                "operator_contact": "support@acme.example",
                "terms_url": "https://acme.example/terms",
                "privacy_url": "https://acme.example/privacy",
            },
            ("ok", "Acme, support@acme.example"),
        ),
    ],
)
async def test_a_seller_without_contact_or_policies_is_a_warning(well, source, given, finding):
    async with run_stripe_double(ManualClock()) as stripe:
        settings = selling(stripe, **given)
        status, checks = await asyncio.to_thread(examined, well, source=source, **settings)
    assert (status, checks["operator"]) == (0, [finding])


async def test_a_member_whom_stripe_may_charge_without_access_is_a_warning(well, source):
    access = await open_sqlite_access(well / "signals.db-access")
    await access.create_claim(CLAIM)
    member = replace(MEMBER, mode="test")
    await access.redeem_claim(CLAIM, member, bytes(32), NOW)
    await access.end_membership(member, NOW, "the subscription is unpaid", is_final=False)
    await access.close()
    async with run_stripe_double(ManualClock()) as stripe:
        _, checks = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    (warning,) = [text for _, text in checks["billing"] if "may still charge" in text]
    assert warning.startswith("1 members have no access")
    assert member.subscription in warning


def test_a_service_that_sells_nothing_needs_no_operator(well, source):
    _, checks = examined(well, source=source)
    assert "operator" not in checks


async def test_an_unusable_customer_portal_is_a_warning(well, source):
    async with run_stripe_double(ManualClock()) as stripe:
        stripe.books.objects.pop(stripe.books.list_objects("billing_portal.configuration")[0]["id"])
        found, checks = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    grade, text = checks["billing"][1]
    assert (found, grade) == (0, "warn")
    assert text.startswith("members cannot change or cancel their plan themselves")


@pytest.mark.clause("dashboard")
@pytest.mark.parametrize(
    ("given", "grades"),
    [
        ({}, ["ok"]),
        ({"base_url": "https://signals.example"}, ["ok", "warn"]),
        ({"host": "0.0.0.0"}, ["ok", "warn"]),
        ({"base_url": "https://signals.example", "billing": "off"}, ["ok"]),
    ],
)
def test_unsent_mail_is_a_warning_on_a_public_service(well, source, given, grades):
    _, checks = examined(well, source=source, **given)
    assert [grade for grade, _ in checks["mail"]] == grades
    if "warn" in grades:
        assert "SIGNALS_SMTP_URL and SIGNALS_MAIL_FROM" in checks["mail"][1][1]


@pytest.mark.clause("dashboard")
async def test_the_mail_server_check_logs_in_and_sends_nothing(well, source):
    async with run_smtp_double() as server:
        mail = {"smtp_url": server.url(), "mail_from": "keys@mail.example"}

        async def check_mail(**given: str) -> tuple[int, list[tuple[str, str]]]:
            status, checks = await asyncio.to_thread(examined, well, source=source, **mail | given)
            assert PASSWORD not in str(checks)
            return status, checks["mail"]

        said = f"sent by 127.0.0.1:{server.port}, from keys@mail.example"
        assert await check_mail() == (0, [("ok", said)])
        status, ((grade, said),) = await check_mail(smtp_url=server.url(login="me:wrong@"))
        assert (status, grade) == (1, "fix")
        assert "rejects the user or password in SIGNALS_SMTP_URL" in said
        status, ((grade, said),) = await check_mail(mail_from="")
        assert (status, grade) == (1, "fix")
        assert said.startswith("SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too")
    assert server.received == []


async def test_an_unreachable_stripe_is_a_warning(well, source):
    async with run_stripe_double(ManualClock()) as stripe:
        stripe.fail(503)
        found, checks = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    assert (found, checks["billing"][0][0]) == (0, "warn")
    assert "is not responding" in checks["billing"][0][1]
