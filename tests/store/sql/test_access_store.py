"""Stored keys (hashes only, revoked for good), attempts, requests, notices and pruning.

The data of a person are exported whole, and erased without touching those of others.
"""

import re
from dataclasses import replace
from importlib.resources import files

import pytest

from access.keys_and_quota import hash_key
from access.members import build_limits
from store.access_rows import (
    AccessRequestRow,
    AttemptLimit,
    ClaimRow,
    KeyRow,
    LoggedCall,
    Notice,
    RefusedAttempt,
    SandboxSession,
    SignInRow,
    ToolUsage,
)
from store.sql.access_store import AccessStore
from store.sql.person_data import ERASURES, EXPORTS
from tests.store.sql.test_purchase_store import NOW
from tests.support.access_store_calls import HASH, REQUEST
from tests.support.example_market import NOON
from tests.support.oauth_client import buy_plan
from tests.support.row_builders import DAY_MS, NO_CUTOFFS, make_call_group
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("access", "dashboard")


async def test_a_key_is_revoked_once_and_for_good(access: AccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", 5)
    assert await access.revoke_key(key_id, 7)
    assert await access.revoke_key(key_id, 9)
    assert await access.list_keys() == [KeyRow(key_id, "agent", 5, 7)]
    assert not await access.revoke_key(key_id + 1, 7)


async def test_a_key_knows_when_it_was_last_used(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    for at in (2 * DAY_MS + 7, DAY_MS, 2 * DAY_MS + 3):
        await access.count_calls([make_call_group(HASH, at)], None, 10)
    (key,) = await access.list_keys()
    assert key.last_used_at == 2 * DAY_MS + 7


async def test_a_known_request_is_updated_and_a_new_one_needs_room(access: AccessStore) -> None:
    first, other = (
        AccessRequestRow(f"{name}@example.com", None, None, None, None, at, at)
        for name, at in (("a", NOW), ("b", NOW - 5))
    )
    assert await access.put_access_request(first, 1) == "received"
    assert await access.put_access_request(other, 1) == "full"
    changed = AccessRequestRow("a@example.com", None, "Op", None, "9", NOW + 1, NOW + 1)
    assert await access.put_access_request(changed, 1) == "updated"
    assert await access.put_access_request(other, 2) == "received"
    assert await access.list_access_requests() == [other, replace(changed, created_at=NOW)]


async def test_an_attempt_counts_for_every_limit_or_for_none(
    access: AccessStore, home: StoreHome
) -> None:
    async def attempt(at: int, *limits: tuple[str, int]) -> RefusedAttempt | None:
        return await access.record_attempt(
            "checkout", [AttemptLimit(*limit) for limit in limits], at, 100
        )

    narrow, other, wide = ("192.0.2.1", 2), ("192.0.2.2", 2), ("192.0.2.0/24", 3)
    assert [await attempt(at, narrow, wide) for at in (0, 10)] == [None, None]
    assert await attempt(20, narrow, wide) == RefusedAttempt(AttemptLimit(*narrow), 100)
    assert await attempt(30, other, wide) is None
    assert await attempt(40, other, wide) == RefusedAttempt(AttemptLimit(*wide), 100)
    both = await attempt(41, ("192.0.2.1", 1), wide)
    assert both == RefusedAttempt(AttemptLimit("192.0.2.1", 1), 110)
    assert await attempt(100, other, wide) is None
    assert await run_sql(
        home, "SELECT address, count(*) FROM attempts GROUP BY address ORDER BY address"
    ) == [("192.0.2.0/24", 4), ("192.0.2.1", 2), ("192.0.2.2", 2)]


async def test_attempts_of_a_clock_that_was_far_ahead_lock_no_one_out(access: AccessStore) -> None:
    limits = [AttemptLimit("192.0.2.1", 1)]
    assert await access.record_attempt("checkout", limits, NOW + 90 * DAY_MS, 100) is None
    assert await access.record_attempt("checkout", limits, NOW, 100) is None
    refused = await access.record_attempt("checkout", limits, NOW, 100)
    assert refused == RefusedAttempt(limits[0], NOW + 100)


async def test_a_notice_replaces_the_last_of_its_name(access: AccessStore) -> None:
    for notice in (Notice("b", "1", 1), Notice("a", "2", 2), Notice("b", "3", 3)):
        await access.put_notice(notice)
    assert await access.list_notices() == [Notice("a", "2", 2), Notice("b", "3", 3)]


async def test_pruning_keeps_each_keys_last_day_of_use_and_recent_rows(
    access: AccessStore, home: StoreHome
) -> None:
    rare, busy = bytes(32), HASH
    for key_hash, days in ((rare, (1, 2)), (busy, (2, 9))):
        await access.create_key(key_hash, "agent", 5)
        for day in days:
            await access.count_calls([make_call_group(key_hash, day * DAY_MS)], None, 10)
    for at in (10, 20):
        await access.mark_event_handled(f"evt_{at}", at)
        await access.record_attempt("checkout", [AttemptLimit("192.0.2.1", 5)], at, 100)
        row = replace(REQUEST, contact_email=f"{at}@example.com", created_at=5, updated_at=at)
        await access.put_access_request(row, 9)
    cutoffs = replace(NO_CUTOFFS, usage=8 * DAY_MS, events=20, attempts=20, access_requests=20)
    assert await access.prune(cutoffs) == 5
    async with home.open_plain() as run:
        assert await run("SELECT key_id, day FROM usage ORDER BY key_id") == [(1, 2), (2, 9)]
        assert await run("SELECT id FROM events") == [("evt_20",)]
        assert await run("SELECT at FROM attempts") == [(20,)]
        assert await run("SELECT updated_at FROM access_requests") == [(20,)]


MINE, OTHER = "Member@example.com", "other@example.com"


async def fill(store: AccessStore, email: str) -> bytes:
    """Store one row of each kind about a person; return the hash of their key."""
    plan = await buy_plan(store, ManualClock(NOON), email)
    key_hash, name = hash_key(email), email.lower()
    limits = build_limits(NOON)
    assert await store.create_member_key(plan.membership.id, key_hash, "my bot", NOON, limits)
    key_id = await store.find_key_id(key_hash)
    await store.count_calls([make_call_group(key_hash, NOON)], "test", 10)
    await store.add_calls({key_id: [LoggedCall(NOON, "r1", "t", "mcp", "ok", 200)]}, 10)
    await store.add_tool_usage([ToolUsage(key_id, 1, "t", 1)])
    await store.create_sandbox_session(
        SandboxSession(f"sb_{name}", name, email, "monthly", 129, "open", NOON)
    )
    await store.put_access_request(AccessRequestRow(name, None, None, "text", None, NOON, NOON), 10)
    await store.create_sign_in_link(SignInRow(hash_key(f"l{email}"), email, NOON + 9))
    await store.sign_in(hash_key(f"l{email}"), hash_key(f"s{email}"), NOON, NOON + 9)
    await store.watch(name, "BTC", NOON, 10)
    for address in (name, f"{name} 192.0.2.1"):
        await store.record_attempt("sign-in-mail", (AttemptLimit(address, 9),), NOON, 1000)
    return key_hash


@pytest.mark.clause("13.12")
async def test_a_person_is_exported_whole_and_erased_alone(access: AccessStore) -> None:
    mine, theirs = [await fill(access, email) for email in (MINE, OTHER)]
    kept = await access.people.export(OTHER)
    found = await access.people.export(MINE.upper())
    assert {kind for kind, rows in found.items() if not rows} == {"connections"}
    assert {row["contact_email"] for row in found["plans"]} == {MINE}
    assert "my bot" in {row["label"] for row in found["keys"]}
    assert not [
        value
        for rows in found.values()
        for row in rows
        for value in row.values()
        if isinstance(value, bytes)
    ]
    assert await access.people.erase(MINE, NOON + 1) > len(found)
    assert not any((await access.people.export(MINE)).values())
    assert await access.people.export(OTHER) == kept
    groups = [make_call_group(key, NOON + 2) for key in (mine, theirs)]
    counted = await access.count_calls(groups, "test", 10)
    assert [each.verdict for each in counted] == ["revoked", "counted"]
    (open_plan,) = await access.list_open_memberships("sandbox")
    assert open_plan.contact_email == OTHER
    assert await access.people.erase(MINE, NOON + 1) == 0


@pytest.mark.clause("13.12")
async def test_what_another_paid_under_the_address_of_a_person_can_still_be_claimed(
    access: AccessStore,
) -> None:
    token = hash_key("token")
    names = ("c1", token, "stripe", "live", "cs_1", MINE, "monthly", "bot")
    await access.create_claim(ClaimRow(*names, NOON, NOON + 9))
    assert await access.people.erase(MINE, NOON + 1) == 1
    claim = await access.find_claim(token)
    assert (claim.session, claim.contact_email, claim.agent_name) == ("cs_1", "", None)


def test_every_table_with_an_address_of_a_person_is_exported_and_erased() -> None:
    schema = files("store.sqlite").joinpath("migrations", "access_0001.sql").read_text()
    tables = {
        table
        for table, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema, re.DOTALL)
        if re.search(r"\b(contact_email|holder|membership_id|key_id)\b", columns)
    }
    for statements in (EXPORTS.values(), ERASURES):
        text = " ".join(statements)
        missing = {table for table in tables if not re.search(rf"\b{table}\b", text)}
        assert missing <= {"oauth_requests", "oauth_grants", "oauth_access_tokens"}
    assert not missing
