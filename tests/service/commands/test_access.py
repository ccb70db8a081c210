"""`signals import` reports what it read, and writes only what is free of doubt."""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from access.mail import build_mail
from schemas.version import describe_install
from store.access_rows import AccessRequestRow, AttemptLimit, LoggedCall
from store.opening import open_sqlite_access
from store.sql.access_store import AccessStore
from tests.service.commands.test_cli import only_line, refused, write_bars
from tests.store.sql.test_purchase_store import CLAIM, KEY_HASH, MEMBER, NOW
from tests.support.row_builders import make_call_group, run_sql
from tests.support.signals_command import create_store, list_rows, run_signals

pytestmark = pytest.mark.clause("operation", "sources")

NASTY = "\x1b[2Jtwo\nlines\ttabs\x7f\x9b\u202e\\ ünïcode 漢"


@pytest.fixture
def store(tmp_path: Path) -> None:
    """A complete store in the folder of the test."""
    create_store(tmp_path)


def with_store(folder: Path, work: Callable[[AccessStore], Awaitable[object]]) -> None:
    """Call a function with the access store of a folder, which then has a complete store."""
    create_store(folder)

    async def run() -> None:
        store = await open_sqlite_access(folder / "signals.db-access")
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_bought_key_is_listed_with_member_mode_and_last_use(tmp_path):
    async def buy(store: AccessStore) -> None:
        await store.create_claim(CLAIM)
        await store.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW)
        await store.count_calls([make_call_group(KEY_HASH, NOW + 3_600_000)], "live", 10)

    with_store(tmp_path, buy)
    assert list_rows(tmp_path, "keys", "list") == [
        {
            **{"id": 1, "label": "Agent", "status": "active", "owner": "member 1", "mode": "live"},
            **{"last_used_at": "2026-05-28T21:26:40.000Z"},
            **{"created_at": "2026-05-28T20:26:40.000Z"},
        }
    ]


def test_a_buyers_name_can_neither_steer_the_terminal_nor_fake_a_line(tmp_path):
    async def buy(store: AccessStore) -> None:
        claim = replace(CLAIM, agent_name=NASTY)
        await store.create_claim(claim)
        await store.redeem_claim(claim, MEMBER, KEY_HASH, NOW)

    with_store(tmp_path, buy)
    _, line = run_signals(tmp_path, "keys", "list").stdout.splitlines()
    assert r"\u001b[2Jtwo\nlines\ttabs\u007f\u009b\u202e\ ünïcode 漢" in line
    assert line.isprintable()
    printed = only_line(run_signals(tmp_path, "keys", "list", "--json").stdout)
    assert (printed.isascii() and printed.isprintable(), json.loads(printed)["label"]) == (
        True,
        NASTY,
    )


@pytest.mark.clause("4.13.1")
def test_access_requests_are_listed_as_one_line_of_ascii_json_each(tmp_path):
    rows = [
        AccessRequestRow("b@example.com", NASTY, None, "resale\r", None, NOW + 5, NOW + 9),
        AccessRequestRow("a@example.com", None, "Op", None, "9 calls", NOW, NOW),
    ]

    async def ask(store: AccessStore) -> None:
        for row in rows:
            await store.put_access_request(row, 9)

    create_store(tmp_path)
    assert run_signals(tmp_path, "access-requests").stdout == ""
    with_store(tmp_path, ask)
    first, second = run_signals(tmp_path, "access-requests").stdout.splitlines()
    assert re.fullmatch(r"[ -~]+", first + second)
    assert json.loads(first) == {
        "contact_email": "a@example.com",
        "agent_name": None,
        "operator": "Op",
        "use_case": None,
        "expected_volume": "9 calls",
        "created_at": "2026-05-28T20:26:40.000Z",
        "updated_at": "2026-05-28T20:26:40.000Z",
    }
    changed = {"agent_name": NASTY, "updated_at": "2026-05-28T20:26:40.009Z"}
    assert json.loads(second).items() >= changed.items()


def test_prune_deletes_expired_rows_and_prints_how_many(tmp_path):
    async def attempt(store: AccessStore) -> None:
        await store.record_attempt("checkout", [AttemptLimit("192.0.2.1", 20)], 0, 600)
        await store.mark_event_handled("evt_1", 0)

    run_signals(tmp_path, "replay", "--bars", str(write_bars(tmp_path / "bars")))
    assert run_signals(tmp_path, "prune").stdout == "pruned 0 rows\n"
    pruned = "SELECT count(*) FROM facts WHERE key = 'pruned_before'"
    assert run_sql(tmp_path / "signals.db", pruned) == [(1,)]
    with_store(tmp_path, attempt)
    assert run_signals(tmp_path, "prune").stdout == "pruned 2 rows\n"


@pytest.mark.parametrize("command", [["keys", "list"], ["access-requests"]])
@pytest.mark.usefixtures("store")
def test_a_listing_of_a_damaged_file_is_one_line(tmp_path, command):
    (tmp_path / "signals.db-access").write_bytes(b"not a database" * 100)
    assert "signals.db-access" in refused(tmp_path, *command)


@pytest.mark.clause("3.5.3")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2999-01-31", "expires 2999-01-31T00:00:00.000Z"),
        ("2999-01-31T02:00:00+01:00", "expires 2999-01-31T01:00:00.000Z"),
        ("2999-01-31T02:00:00", "expires 2999-01-31T02:00:00.000Z"),
        ("90", "expires 20"),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_key_is_created_with_an_expiry_that_the_list_shows(tmp_path, value, expected):
    run_signals(tmp_path, "keys", "create", "--label", "own", "--expires", value)
    (key,) = list_rows(tmp_path, "keys", "list")
    assert key["status"].startswith(expected)


@pytest.mark.parametrize(
    ("command", "accepted"),
    [
        *(
            (f"keys create --label own --expires {value}", "number of days from 1 to 3650")
            for value in ("0", "3651", "tomorrow", "2999-01-31T25:00", "2999-02-31")
        ),
        *(
            (f"serve --workers={value}", f"1 or more, not {value!r}")
            for value in ("0", "-1", "two")
        ),
        ("completion tcsh", "choose from"),
    ],
)
def test_a_value_that_is_not_accepted_is_refused_with_the_accepted_forms(
    tmp_path, command, accepted
):
    done = run_signals(tmp_path, *command.split())
    assert (done.returncode, done.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    assert accepted in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("store")
def test_a_rotated_key_expires_and_its_successor_is_printed(tmp_path):
    run_signals(tmp_path, "keys", "create", "--label", "own")
    done = run_signals(tmp_path, "keys", "rotate", "1", "--overlap", "0")
    assert re.fullmatch(r"ek_[A-Za-z0-9_-]{43}", only_line(done.stdout))
    old, new = list_rows(tmp_path, "keys", "list")
    assert old["status"].startswith("expired ")
    assert (new["status"], new["label"]) == ("active", "own")
    for key_id in ("1", "9"):
        assert f"no key {key_id} that works" in refused(tmp_path, "keys", "rotate", key_id)
    assert run_signals(tmp_path, "keys", "rotate", "2", "--overlap", "721").returncode == 2


def test_the_operator_sees_the_calls_of_a_key(tmp_path):
    async def call(store: AccessStore) -> None:
        await store.create_key(KEY_HASH, "own", NOW)
        await store.add_calls(
            {1: [LoggedCall(NOW, "id-1", "signals_get_state", "mcp", "ok", 200)]}, 9
        )

    with_store(tmp_path, call)
    values = ["2026-05-28T20:26:40.000Z", "id-1", "signals_get_state", "mcp", "ok", 200]
    assert [[*row.values()] for row in list_rows(tmp_path, "keys", "requests", "1")] == [values]
    header, row = run_signals(tmp_path, "keys", "requests", "1").stdout.splitlines()
    assert (header.split()[0], row.split()) == ("AT", [*map(str, values)])
    assert "there is no key 2" in refused(tmp_path, "keys", "requests", "2")


@pytest.mark.clause("13.1")
@pytest.mark.usefixtures("store")
def test_a_sign_in_link_is_printed_alone_and_leads_to_the_services_address(tmp_path):
    done = run_signals(tmp_path, "sign-in", base_url="https://signals.example", billing="off")
    assert re.fullmatch(r"https://signals\.example/sign-in/sl_[\w-]{43}\n", done.stdout)
    assert "within 15 minutes" in done.stderr
    local = run_signals(tmp_path, "sign-in", host="0.0.0.0", port="8123", billing="off").stdout
    assert local.startswith("http://127.0.0.1:8123/sign-in/sl_")


def test_no_sign_in_link_is_made_without_a_store_of_this_version(tmp_path):
    assert "there is no store at" in refused(tmp_path, "sign-in")
    assert list(tmp_path.iterdir()) == []
    create_store(tmp_path)
    run_sql(tmp_path / "signals.db-access", "INSERT INTO migrations VALUES ('access_9999')")
    assert "another version" in refused(tmp_path, "sign-in")


@pytest.mark.clause("13.12")
@pytest.mark.usefixtures("store")
def test_a_persons_data_and_mails_are_printed_or_erased(tmp_path):
    run_sql(
        tmp_path / "signals.db-access",
        "INSERT INTO access_requests (contact_email, use_case, created_at, updated_at) "
        "VALUES ('me@example.com', 'mine', 0, 0), ('other@example.com', 'theirs', 0, 0)",
    )
    outbox = tmp_path / "signals.db-outbox"
    outbox.mkdir()
    for number, to in enumerate(("Me@example.com", "other@example.com")):
        (outbox / f"{number}.eml").write_bytes(build_mail(to, "s", "text", 0).as_bytes())
    found = json.loads(run_signals(tmp_path, "person", "ME@example.com", "--export").stdout)
    (request,) = found["access_requests"]
    assert (request["use_case"], request["created_at"]) == ("mine", "1970-01-01T00:00:00.000Z")
    assert [Path(mail).name for mail in found["mails"]] == ["0.eml"]
    erased = run_signals(tmp_path, "person", "me@example.com", "--erase")
    told = "Erased: 1 rows and 1 mails. Older backups still have them.\n"
    assert (erased.returncode, erased.stdout, erased.stderr) == (0, "", told)
    again = refused(tmp_path, "person", "me@example.com", "--export")
    assert again == "signals: nothing is stored about this address"
    assert [path.name for path in outbox.iterdir()] == ["1.eml"]
    assert "theirs" in run_signals(tmp_path, "access-requests").stdout


START = 1_717_372_800
HEADER = "time,open,high,low,close,volume\n"
ROWS = "".join(f"{START + 3600 * n},{n + 100},{n + 102},{n + 99},{n + 101},5\n" for n in range(9))


def test_a_file_is_reported_and_written_and_a_dry_run_writes_nothing(tmp_path: Path):
    (tmp_path / "BTCUSDT-1h.csv").write_text(HEADER + ROWS)
    given = "import", str(tmp_path / "BTCUSDT-1h.csv"), "--to", str(tmp_path / "bars")
    dry = run_signals(tmp_path, *given, "--dry-run")
    assert (dry.returncode, (tmp_path / "bars").exists()) == (0, False)
    done = run_signals(tmp_path, *given)
    assert done.stdout == dry.stdout
    assert done.stdout.splitlines() == [
        "BTCUSDT-1h.csv: BTC 1h, 9 rows 3600 s apart, 2024-06-03T00:00Z to 2024-06-03T08:00Z, "
        "times in UTC",
        "BTC_1h.csv: 9 bars, 2024-06-03T00:00Z to 2024-06-03T08:00Z, 0 missing",
    ]
    assert (tmp_path / "bars" / "BTC_1h.csv").read_text().splitlines()[:2] == [
        "ts,open,high,low,close,volume",
        f"{START},100.0,102.0,99.0,101.0,5.0",
    ]
    assert [path.name for path in (tmp_path / "bars").iterdir()] == ["BTC_1h.csv"]


def test_one_doubtful_file_of_a_folder_keeps_all_from_being_written(tmp_path: Path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "BTC.csv").write_text(HEADER + ROWS)
    (files / "ETH.csv").write_text(HEADER + ROWS + ROWS.replace(",101,", ",100.5,", 1))
    ran = run_signals(tmp_path, "import", "files", "--to", "bars")
    assert (ran.returncode, (tmp_path / "bars").exists()) == (1, False)
    assert "doubtful: " in ran.stdout
    assert ran.stderr == "Nothing is written: 1 doubtful.\n"
    ran = run_signals(tmp_path, "import", "files", "--to", "bars", "--repeated", "first")
    assert (ran.returncode, len([*(tmp_path / "bars").iterdir()])) == (0, 2)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["--zone", "Mars/Base"], "'Mars/Base' is no time zone"),
        (["--columns", "time"], "'time' is not of the form time=Date"),
        (["--columns", "shut=Close"], "--columns has no 'shut'; it names time,"),
        (["--split", "2024-06-10"], "'2024-06-10' is not of the form 2024-06-10:10"),
        (["--split", "10-06-2024:10"], "'10-06-2024' is not a day"),
        (["--split", "2024-06-10:0"], "'0' is not a number of new shares"),
        (["--accept-jump", "June"], "'June' is not a day"),
    ],
)
def test_an_option_that_means_nothing_is_named(tmp_path: Path, given: list[str], fault: str):
    assert fault in refused(tmp_path, "import", "BTC.csv", "--to", "bars", *given)


def test_a_missing_extra_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("compute.sources.bar_formats", "compute.sources.bar_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "polars", None)
    line = refused(tmp_path, "import", "BTC.csv", "--to", "bars")
    assert f"(polars is missing): {describe_install('import')}" in line
