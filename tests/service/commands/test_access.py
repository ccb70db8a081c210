import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service.commands.access import escape_for_terminal
from store.access_rows import AccessRequestRow, AttemptLimit
from store.sql.access_store import AccessStore
from store.sqlite.access_store import open_sqlite_access
from tests.service.commands.test_cli import only_line, write_bars
from tests.store.sql.test_access_store_purchases import CLAIM, KEY_HASH, MEMBER, NOW
from tests.support.row_builders import make_call_group
from tests.support.signals_command import create_store, run_signals

pytestmark = pytest.mark.clause("operation")

NASTY = "\x1b[2Jtwo\nlines\ttabs\x7f\x9b\u202e\\ ünïcode 漢"


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
    assert only_line(run_signals(tmp_path, "keys", "list").stdout).split("\t") == [
        "1",
        "2026-05-28T20:26:40.000Z",
        "active",
        "member 1",
        "live",
        "used 2026-05-28T21:26:40.000Z",
        "Agent",
    ]


def test_a_buyers_name_can_neither_steer_the_terminal_nor_fake_a_line(tmp_path):
    async def buy(store: AccessStore) -> None:
        claim = replace(CLAIM, agent_name=NASTY)
        await store.create_claim(claim)
        await store.redeem_claim(claim, MEMBER, KEY_HASH, NOW)

    with_store(tmp_path, buy)
    line = only_line(run_signals(tmp_path, "keys", "list").stdout)
    *_, label = line.split("\t")
    assert label == r"\x1b[2Jtwo\nlines\ttabs\x7f\x9b\u202e\\ ünïcode 漢"
    assert line.replace("\t", "").isprintable()


def test_different_labels_stay_different_when_escaped():
    assert escape_for_terminal("\n") != escape_for_terminal(r"\n")


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
    printed = run_signals(tmp_path, "access-requests").stdout
    first, second = printed.splitlines()
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
    assert json.loads(second)["agent_name"] == NASTY
    assert json.loads(second)["updated_at"] == "2026-05-28T20:26:40.009Z"


def test_prune_deletes_expired_rows_of_the_access_store(tmp_path):
    async def attempt(store: AccessStore) -> None:
        await store.record_attempt("checkout", [AttemptLimit("192.0.2.1", 20)], 0, 600)
        await store.mark_event_handled("evt_1", 0)

    run_signals(tmp_path, "replay", "--bars", str(write_bars(tmp_path / "bars")))
    assert run_signals(tmp_path, "prune").stdout == "pruned 0 rows\n"
    with_store(tmp_path, attempt)
    assert run_signals(tmp_path, "prune").stdout == "pruned 2 rows\n"


@pytest.mark.parametrize("command", [["keys", "list"], ["access-requests"]])
def test_a_listing_of_a_damaged_file_is_one_line(tmp_path, command):
    create_store(tmp_path)
    (tmp_path / "signals.db-access").write_bytes(b"not a database" * 100)
    done = run_signals(tmp_path, *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "signals.db-access" in only_line(done.stderr)
