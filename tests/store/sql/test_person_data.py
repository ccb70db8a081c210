"""The data of a person are exported whole, and erased without touching those of others."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest

from access.keys import hash_key
from access.members import build_limits
from store.access_rows import (
    AccessRequestRow,
    AttemptLimit,
    ClaimRow,
    LoggedCall,
    SandboxSession,
    SignInRow,
    ToolUsage,
)
from store.sql.access_store import AccessStore
from store.sql.person_data import ERASURES, EXPORTS
from tests.support.example_market import NOON
from tests.support.oauth_client import buy_plan
from tests.support.row_builders import make_call_group
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome, open_and_close

pytestmark = pytest.mark.clause("dashboard")

MINE, OTHER = "Member@example.com", "other@example.com"
STAYS = {"plans", "keys", "checkouts", "sandbox_checkouts"}


@pytest.fixture
async def store(home: StoreHome) -> AsyncIterator[AccessStore]:
    async with open_and_close(home.open_access()) as opened:
        yield opened


async def fill(store: AccessStore, email: str) -> bytes:
    """Store one row of each kind about a person; return the hash of their key."""
    plan = await buy_plan(store, ManualClock(NOON), email)
    key_hash, name = hash_key(email), email.lower()
    limits = build_limits(NOON)
    assert await store.create_member_key(plan.membership.id, key_hash, "my bot", NOON, limits)
    key_id = await store.find_key_id(key_hash)
    assert key_id is not None
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
async def test_a_person_is_exported_whole_and_erased_alone(store: AccessStore) -> None:
    mine, theirs = [await fill(store, email) for email in (MINE, OTHER)]
    kept = await store.people.export(OTHER)
    found = await store.people.export(MINE.upper())
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
    assert await store.people.erase(MINE, NOON + 1) > len(found)
    assert not any((await store.people.export(MINE)).values())
    assert await store.people.export(OTHER) == kept
    groups = [make_call_group(key, NOON + 2) for key in (mine, theirs)]
    counted = await store.count_calls(groups, "test", 10)
    assert [each.verdict for each in counted] == ["revoked", "counted"]
    (open_plan,) = await store.list_open_memberships("sandbox")
    assert open_plan.row.contact_email == OTHER
    assert await store.people.erase(MINE, NOON + 1) == 0


@pytest.mark.clause("13.12")
async def test_what_another_paid_under_the_address_of_a_person_can_still_be_claimed(
    store: AccessStore,
) -> None:
    token = hash_key("token")
    names = ("c1", token, "stripe", "live", "cs_1", MINE, "monthly", "bot")
    await store.create_claim(ClaimRow(*names, NOON, NOON + 9))
    assert await store.people.erase(MINE, NOON + 1) == 1
    claim = await store.find_claim(token)
    assert claim is not None
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
