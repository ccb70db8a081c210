"""The doctor reports what must be fixed, and changes nothing."""

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from schemas.vocabulary import DAY_MS
from serving.forwarded_for import NOTICE_NAME
from store.access_rows import Notice
from store.opening import open_sqlite_access
from store.sqlite import database_files
from store.sqlite.schema import CREATE_MIGRATIONS
from tests.doubles.smtp.server import PASSWORD, run_smtp_double
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.service.commands.test_access import with_store
from tests.service.commands.test_cli import write_bars
from tests.service.config.test_billing import STRIPE, selling
from tests.store.sql.test_purchase_store import CLAIM, MEMBER, NOW
from tests.support.example_market import make_coverage
from tests.support.row_builders import run_sql
from tests.support.running_service import ManualClock, run_service
from tests.support.signals_command import create_store, run_signals

pytestmark = pytest.mark.clause("operation")


class Told(NamedTuple):
    """The exit status, and the findings by subject, each as `GRADE TEXT`."""

    status: int
    findings: Mapping[str, list[str]]


def read_findings(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"(ok|warn|fix) +(\w+): (.*)", line)
        assert match, line
        found.setdefault(match[2], []).append(f"{match[1]} {match[3]}")
    return found


def check_findings(
    told: Told, expected: Mapping[str, Sequence[str]], status: int | None = None
) -> None:
    """Check the exit status, if one is given, and the findings of some subjects.

    … stands for any text, alone for any findings.
    """
    assert status in (None, told.status)
    for subject, lines in expected.items():
        pattern = "".join(
            "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"
            for line in lines
        )
        found = "".join(f"{line}\n" for line in told.findings.get(subject, []))
        assert re.fullmatch(pattern, found), (subject, found)


def examined(folder: Path, **settings: str) -> Told:
    done = run_signals(folder, "doctor", **settings)
    assert done.stderr == ""
    return Told(done.returncode, read_findings(done.stdout))


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
    told = examined(well, source=source)
    assert list(told.findings) == [
        *("settings", "store", "prices", "disk", "runs", "log", "source", "billing", "proxies"),
        *("backup", "mail"),
    ]
    assert {line.split()[0] for lines in told.findings.values() for line in lines} == {"ok"}
    check_findings(
        told,
        {
            "settings": ["ok …SIGNALS_SOURCE…; logs from level info"],
            "runs": ["ok …the recording is complete…"],
            "source": [f"ok {source}"],
            "billing": ["ok sandbox, test mode"],
            "prices": ["ok shown, because no venue has rights in them"],
            "mail": [f"ok written to {well}/signals.db-outbox, not sent"],
        },
        status=0,
    )


def test_a_simulated_source_leads_to_real_prices_and_names_no_epoch(tmp_path):
    create_store(tmp_path)
    run_sql(
        tmp_path / "signals.db",
        "INSERT INTO facts VALUES ('source', 'simulated:1764547200:1795392000')",
    )
    check_findings(examined(tmp_path), {"source": ["ok simulated. For real prices: make live"]})


@pytest.mark.clause("proof")
@pytest.mark.prove
def test_an_older_copy_of_a_signed_store_must_be_fixed(well, source):
    signed = examined(well, source=source)
    check_findings(signed, {"log": ["ok … rows of the feed are signed"]})
    key = json.loads((well / "signals.db-log-key.json").read_text())
    (well / "signals.db-log-key.json").write_text(json.dumps(key | {"size": key["size"] + 9}))
    run_signals(well, "replay", "--bars", source.removeprefix("files:"))
    text = (
        f"fix no new rows are signed: the store has fewer leaves than the {key['size'] + 9} that "
        "were signed: an older copy of it was restored; restore a newer copy of the database, "
        "or the key file; if there is none, stop the service and run `signals log restart`"
    )
    check_findings(examined(well, source=source), {"log": [text]}, status=1)
    restarted = run_signals(well, "log", "restart")
    assert restarted.returncode == 0
    assert restarted.stdout.startswith("127.0.0.1:8000/api/v1/log/2+")
    assert "The former key is in " in restarted.stderr
    told = examined(well, source=source)
    assert (told.status, told.findings["log"]) == (0, signed.findings["log"])


Harm = Callable[[Path], object]
COUNT = "SELECT count(*) FROM migrations"


def run_on(file: str, *statements: str) -> Harm:
    def harm(folder: Path) -> None:
        for statement in statements:
            run_sql(folder / file, statement)

    return harm


def unlink_keys(folder: Path) -> None:
    (folder / "signals.db-access").unlink()


def empty_keys(folder: Path) -> None:
    unlink_keys(folder)
    run_sql(folder / "signals.db-access", CREATE_MIGRATIONS)


def replace_by_folder(folder: Path) -> None:
    (folder / "signals.db").unlink()
    (folder / "signals.db").mkdir()


def damage(folder: Path) -> None:
    with (folder / "signals.db").open("r+b") as file:
        file.seek(100)
        file.write(bytes(4096))


OTHER_FILE = "set SIGNALS_DATABASE_URL to another file"
WITNESSED = {"witness_policy": "policy"}
OPEN, HTTPS = {"host": "0.0.0.0"}, {"base_url": "https://signals.example"}
HTTP, OFF = {"base_url": "http://signals.example:8000"}, {"billing": "off"}
SIGNED = "rows of the feed are signed, and cosigned by"
UNSENT = "warn …SIGNALS_SMTP_URL and SIGNALS_MAIL_FROM…"
ADDRESS = "ok …; served at http://127.0.0.1:8000;…"


@pytest.mark.parametrize(
    ("harm", "given", "status", "expected"),
    [
        pytest.param(
            None,
            WITNESSED,
            0,
            {"log": [f"warn 0 {SIGNED} 0 witnesses"]},
            marks=pytest.mark.clause("proof"),
            id="no witness has cosigned",
        ),
        pytest.param(
            run_on("signals.db", "UPDATE log_checkpoint SET note = note || '— w.example AAAA\n'"),
            WITNESSED,
            0,
            {"log": [f"ok 0 {SIGNED} 1 witnesses"]},
            marks=pytest.mark.clause("proof"),
            id="a witness has cosigned",
        ),
        pytest.param(
            run_on(
                "signals.db",
                "DROP TRIGGER log_checkpoint_delete",
                "DELETE FROM log_checkpoint",
            ),
            {},
            0,
            {"log": ["warn …"]},
            marks=pytest.mark.clause("proof"),
            id="the feed is not signed yet",
        ),
        pytest.param(
            unlink_keys,
            {},
            1,
            {"store": ["ok …", "fix there is no store at …/signals.db-access: restore a backup …"]},
            id="the keys are lost",
        ),
        pytest.param(
            damage,
            {},
            1,
            {"store": ["fix …signals restore…", "…"], "runs": []},
            id="the store is damaged",
        ),
        *(
            pytest.param(
                harm,
                {},
                1,
                {
                    "store": [
                        f"fix …/signals.db {text}: {OTHER_FILE}",
                        "…",
                    ]
                },
                id=text,
            )
            for harm, text in (
                (
                    lambda folder: (folder / "signals.db").write_text("settings, not data\n"),
                    "is not a SQLite database",
                ),
                (replace_by_folder, "is a folder"),
            )
        ),
        pytest.param(
            lambda folder: (folder / "signals.db-log-key.json").unlink(),
            {},
            1,
            {
                "log": [
                    "ok …",
                    "fix the next run would sign no rows: the key file of the log is missing (…)",
                ]
            },
            marks=pytest.mark.clause("proof"),
            id="the key of the log is lost",
        ),
        pytest.param(
            None,
            STRIPE | {"stripe_price_yearly": ""},
            1,
            {"billing": ["fix SIGNALS_BILLING=stripe needs SIGNALS_STRIPE_PRICE_YEARLY…"]},
            id="a setting of Stripe is missing",
        ),
        pytest.param(
            run_on("signals.db-access", "INSERT INTO migrations VALUES ('access_9999')"),
            {},
            1,
            {"store": ["ok …", "fix …another version…"]},
            id="the schema is newer",
        ),
        pytest.param(empty_keys, {}, 0, {"store": ["ok …", "warn …"]}, id="the schema is older"),
        *(
            pytest.param(None, {"source": other}, 1, {"source": ["fix …"]}, id=f"source {other}")
            for other in ("simulated", "files:missing")
        ),
        pytest.param(
            None,
            OPEN | OFF,
            0,
            {"settings": [ADDRESS, "warn …SIGNALS_BASE_URL=http://signals.example:8000…"]},
            id="all addresses without a public one",
        ),
        pytest.param(
            None,
            OPEN | OFF | HTTPS,
            0,
            {"settings": ["ok …"], "oauth": []},
            marks=pytest.mark.clause("10.11"),
            id="all addresses with a public one",
        ),
        pytest.param(
            None,
            OFF,
            0,
            {"oauth": [], "operator": [], "mail": ["ok …"]},
            marks=pytest.mark.clause("10.11"),
            id="a service of this machine",
        ),
        pytest.param(
            None,
            OFF | HTTP,
            0,
            {"oauth": ["warn …"]},
            marks=pytest.mark.clause("10.11"),
            id="OAuth without https",
        ),
        pytest.param(
            None,
            OPEN,
            0,
            {"billing": ["ok …", "warn …"], "mail": ["ok …", UNSENT]},
            marks=pytest.mark.clause("dashboard"),
            id="a sandbox on all addresses",
        ),
        pytest.param(
            None,
            HTTPS,
            0,
            {"mail": ["ok …", UNSENT], "operator": []},
            marks=pytest.mark.clause("dashboard"),
            id="a public service that sends no mail",
        ),
        pytest.param(
            None,
            HTTPS | OFF,
            0,
            {"mail": ["ok …"]},
            marks=pytest.mark.clause("dashboard"),
            id="a public service without members",
        ),
    ],
)
def test_each_fault_of_a_store_or_a_setting_is_graded(well, source, harm, given, status, expected):
    if harm is not None:
        harm(well)
    before = run_sql(well / "signals.db-access", COUNT) if harm is empty_keys else None
    told = examined(well, **{"source": source} | given)
    assert "hidden" not in str(told)
    check_findings(told, expected, status)
    # Nothing is created, and nothing is migrated.
    if harm is unlink_keys:
        assert not (well / "signals.db-access").exists()
    if before is not None:
        assert run_sql(well / "signals.db-access", COUNT) == before == [(0,)]


@pytest.mark.parametrize("there", [(), ("signals.db", "signals.db-access")])
def test_a_new_machine_is_told_what_to_start_and_nothing_is_created(tmp_path, there):
    for name in there:
        (tmp_path / name).touch()
    told = examined(tmp_path)
    lines = [
        f"warn not started yet: `signals serve` creates {tmp_path}/{name}"
        for name in ("signals.db", "signals.db-access")
    ]
    check_findings(told, {"store": lines, "runs": [], "log": []}, status=0)
    assert "restore" not in str(told)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(there)


def test_a_backup_that_failed_or_is_old_is_reported_until_the_next_one(well, source, tmp_path):
    check_findings(examined(well, source=source), {"backup": ["ok there is none yet…"]})
    assert run_signals(well, "backup", str(tmp_path / "first")).returncode == 0
    assert run_signals(well, "backup", str(well / "bars")).returncode == 2
    check_findings(examined(well, source=source), {"backup": ["ok the last one is of …"]})
    assert run_signals(well, "backup", str(well / "missing" / "copy")).returncode == 1
    failed = ["fix the last one failed at …: cannot back up into …"]
    check_findings(examined(well, source=source), {"backup": failed}, status=1)
    old = Notice("backup", "there", (time.time_ns() // 1_000_000) - 3 * DAY_MS)
    for notice in (old, Notice("backup failed", "why", old.at - 1)):
        with_store(well, lambda store, notice=notice: store.put_notice(notice))
    check_findings(examined(well, source=source), {"backup": ["warn …, 3 days ago"]})


def test_unknown_proxies_refused_webhooks_and_failed_mail_are_reported_for_a_day(well, source):
    now = time.time_ns() // 1_000_000
    for ago_ms, expected in (
        (
            DAY_MS // 2,
            {
                "proxies": ["warn bad sends X-Forwarded-For but …SIGNALS_TRUSTED_PROXIES…"],
                "webhook": ["warn webhook refused at … (bad): if it came from Stripe, correct …"],
                "mail": ["warn mail failed at … (bad): check SIGNALS_SMTP_URL…", "ok …"],
            },
        ),
        (2 * DAY_MS, {"proxies": ["ok …"], "webhook": [], "mail": ["ok …"]}),
    ):
        for name in (NOTICE_NAME, "webhook refused", "mail failed"):
            notice = Notice(name, "bad", now - ago_ms)
            with_store(well, lambda store, notice=notice: store.put_notice(notice))
        check_findings(examined(well, source=source), expected)


async def test_a_certificate_that_clients_refuse_must_be_fixed(well, source):
    async with run_smtp_double(speaks_tls=True) as server:
        base_url = f"https://127.0.0.1:{server.port}"
        told = await asyncio.to_thread(
            examined, well, source=source, base_url=base_url, billing="off"
        )
    check_findings(
        told,
        {
            "certificate": [f"fix that of {base_url} is refused by clients: …"],
            "proxies": ["ok …", "warn …SIGNALS_TRUSTED_PROXIES names none…"],
        },
        status=1,
    )


def test_a_database_on_a_file_system_of_another_machine_must_be_moved(well, source, monkeypatch):
    monkeypatch.setattr(database_files, "MOUNTS", well / "mounts")
    (well / "mounts").write_text(
        f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n35 22 0:40 / {well} rw - 9p drvfs rw,aname=C:\n"
    )
    moved = ["fix …/well is on a file system …(9p)…", "…"]
    check_findings(examined(well, source=source), {"disk": moved}, status=1)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("x" * 300 + ".db", {"store": ["fix …cannot open…", "…"]}),
        ("missing/signals.db", {"disk": ["fix there is no folder …/missing"]}),
    ],
    ids=["too long", "in a missing folder"],
)
def test_an_impossible_path_is_named(tmp_path, path, expected):
    told = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/{path}")
    check_findings(told, expected, status=1)


def test_a_store_without_recent_runs_is_a_warning(tmp_path):
    asyncio.run(seeded(tmp_path))
    told = examined(tmp_path, database_url=f"sqlite:///{tmp_path}/market.db")
    check_findings(told, {"runs": ["warn …2026-09-30T12:03:00.000Z…"]})


async def seeded(folder: Path) -> None:
    async with run_service(folder, make_coverage()):
        pass


def remove_portal(stripe: StripeDouble) -> None:
    stripe.objects.pop(stripe.list_objects("billing_portal.configuration")[0]["id"])


POLICIES = {
    "operator_contact": "support@acme.example",
    "privacy_url": "https://acme.example/privacy",
}
NAMED = {"operator_name": "Acme", "terms_url": "https://acme.example/terms"}
PORTAL, WEBHOOK = "ok …customer portal", "ok SIGNALS_STRIPE_WEBHOOK_SECRET is set"
NOT_PUBLIC = "warn SIGNALS_BASE_URL is not a public https:// address…"


@pytest.mark.parametrize(
    ("harm", "changed", "status", "expected"),
    [
        (None, HTTPS, 0, {"billing": ["ok …", PORTAL, WEBHOOK]}),
        (None, {}, 0, {"billing": ["ok …", PORTAL, WEBHOOK, NOT_PUBLIC]}),
        (
            None,
            {"stripe_price_monthly": "price_unknown"},
            1,
            {"billing": ["fix …", WEBHOOK, NOT_PUBLIC]},
        ),
        (
            None,
            {"stripe_api_key": "rk_test_other"},
            1,
            {"billing": ["fix …", WEBHOOK, NOT_PUBLIC]},
        ),
        (
            lambda stripe: stripe.fail(503),
            {},
            0,
            {"billing": ["warn …is not responding…", "…"]},
        ),
        (
            remove_portal,
            {},
            0,
            {
                "billing": [
                    "ok …",
                    "warn members cannot change or cancel their plan themselves…",
                    "…",
                ]
            },
        ),
        (
            None,
            NAMED,
            0,
            {
                "operator": [
                    "warn buyers do not see whom they pay and on what terms: set "
                    "SIGNALS_OPERATOR_CONTACT, SIGNALS_PRIVACY_URL"
                ]
            },
        ),
        (None, NAMED | POLICIES, 0, {"operator": ["ok Acme, support@acme.example"]}),
    ],
    ids=[
        *("public", "not public", "unknown price", "wrong key", "Stripe is down", "no portal"),
        *("no contact", "a named operator"),
    ],
)
async def test_each_fault_of_selling_is_graded(well, source, harm, changed, status, expected):
    async with run_stripe_double(ManualClock()) as stripe:
        given = selling(stripe, **changed)
        if harm is not None:
            harm(stripe)
        told = await asyncio.to_thread(examined, well, source=source, **given)
    assert told.status == status
    check_findings(told, expected)
    assert given["stripe_api_key"] not in str(told)


async def test_a_member_whom_stripe_may_charge_without_access_is_a_warning(well, source):
    access = await open_sqlite_access(well / "signals.db-access")
    await access.create_claim(CLAIM)
    member = replace(MEMBER, mode="test")
    await access.redeem_claim(CLAIM, member, bytes(32), NOW)
    await access.end_membership(member, NOW, "the subscription is unpaid", is_final=False)
    await access.close()
    async with run_stripe_double(ManualClock()) as stripe:
        told = await asyncio.to_thread(examined, well, source=source, **selling(stripe))
    text = f"warn 1 members have no access, but Stripe may still charge them…{member.subscription}…"
    check_findings(told, {"billing": ["…", text]})


@pytest.mark.clause("dashboard")
@pytest.mark.prove
async def test_the_mail_server_check_logs_in_and_sends_nothing(well, source):
    async with run_smtp_double() as server:
        mail = {"smtp_url": server.url(), "mail_from": "keys@mail.example"}
        for given, status, text in (
            ({}, 0, f"ok sent by 127.0.0.1:{server.port}, from keys@mail.example"),
            (
                {"smtp_url": server.url(login="me:wrong@")},
                1,
                "fix …rejects the user or password in SIGNALS_SMTP_URL…",
            ),
            ({"mail_from": ""}, 1, "fix SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too…"),
        ):
            told = await asyncio.to_thread(examined, well, source=source, **mail | given)
            assert (told.status, PASSWORD in str(told)) == (status, False)
            check_findings(told, {"mail": [text]})
    assert server.received == []
