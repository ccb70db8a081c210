"""Stored claims and memberships: one key per claim, created and ended atomically."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from store.access_rows import (
    ClaimRow,
    KeyLimits,
    KeyRow,
    MembershipRow,
    Redemption,
    SandboxSession,
)
from store.errors import StoreError
from store.sql.access_store import AccessStore
from tests.store.conftest import OpenAccess
from tests.support.row_builders import NO_CUTOFFS, make_call_group
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("sales")

NOW = 1_780_000_000_000
KEY_HASH = bytes(range(32))
CLAIM = ClaimRow(
    id="claim1",
    token_hash=bytes([1] * 32),
    provider="stripe",
    mode="live",
    session="cs_1",
    contact_email="a@example.com",
    billing="yearly",
    agent_name="Agent",
    created_at=NOW,
    expires_at=NOW + 1000,
)
MEMBER = MembershipRow("stripe", "live", "sub_1", "cus_1", "a@example.com", "yearly", NOW)
SESSION = SandboxSession("sb_1", "claim1", "a@example.com", "monthly", 129, "open", NOW + 1000)


def make_other_claim(number: int) -> tuple[ClaimRow, MembershipRow, bytes]:
    """Return a second claim with its membership and key hash."""
    claim = replace(CLAIM, id=f"claim{number}", token_hash=bytes([number] * 32))
    return claim, replace(MEMBER, subscription=f"sub_{number}"), bytes([100 + number] * 32)


async def bought(access: AccessStore, number: int) -> bytes:
    claim, member, key_hash = make_other_claim(number)
    await access.create_claim(claim)
    assert await access.redeem_claim(claim, member, key_hash, NOW + number)
    return key_hash


async def test_a_claim_is_found_only_by_the_hash_of_its_token(access: AccessStore) -> None:
    await access.create_claim(CLAIM)
    assert await access.find_claim(CLAIM.token_hash) == CLAIM
    assert await access.find_claim(bytes(32)) is None


async def test_a_clear_token_cannot_be_stored_by_mistake(access: AccessStore) -> None:
    with pytest.raises(StoreError):
        await access.create_claim(replace(CLAIM, token_hash=b"ct_clear"))


@pytest.mark.clause("3.4.2")
async def test_a_claim_is_redeemed_for_one_key_that_knows_its_membership(
    access: AccessStore,
) -> None:
    await access.create_claim(CLAIM)
    assert await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW + 5)
    assert not await access.redeem_claim(CLAIM, MEMBER, bytes(32), NOW + 6)
    assert await access.find_claim(CLAIM.token_hash) == replace(CLAIM, redeemed_at=NOW + 5)
    assert await access.list_keys() == [KeyRow(1, "Agent", NOW + 5, None, "live", 1)]
    assert [held.row for held in await access.list_open_memberships("stripe")] == [MEMBER]
    counted = await access.count_calls([make_call_group(KEY_HASH, NOW)], "live", 10)
    assert [call.verdict for call in counted] == ["counted"]


@pytest.mark.clause("12.6")
async def test_a_claim_can_be_redeemed_for_a_membership_without_a_key(access: AccessStore) -> None:
    await access.create_claim(CLAIM)
    assert await access.redeem_claim(CLAIM, MEMBER, None, NOW + 5)
    assert not await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW + 6)
    assert await access.list_keys() == []
    assert [held.row for held in await access.list_open_memberships("stripe")] == [MEMBER]
    assert await access.find_redemption(CLAIM.id) is None


HASH_2 = bytes([2] * 32)


@pytest.mark.clause("3.4.2")
async def test_only_one_of_two_concurrent_redemptions_creates_the_key(
    access: AccessStore, open_access: OpenAccess
) -> None:
    await access.create_claim(CLAIM)
    second = await open_access()
    made = await asyncio.gather(
        access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW),
        second.redeem_claim(CLAIM, MEMBER, HASH_2, NOW),
    )
    assert sorted(made) == [False, True]
    assert len(await access.list_keys()) == 1


async def test_a_redemption_that_fails_leaves_claim_membership_and_key_untouched(
    access: AccessStore, home: StoreHome
) -> None:
    await access.create_claim(CLAIM)
    await access.create_key(KEY_HASH, "taken", NOW)
    with pytest.raises(StoreError):
        await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW + 5)
    assert await access.find_claim(CLAIM.token_hash) == CLAIM
    assert await access.list_open_memberships("stripe") == []
    assert [key.label for key in await access.list_keys()] == ["taken"]
    assert await access.redeem_claim(CLAIM, MEMBER, bytes(32), NOW + 6)
    _, made = await access.list_keys()
    assert await run_sql(home, "SELECT redeemed_at, key_id FROM claims") == [(NOW + 6, made.id)]


async def test_one_subscription_makes_no_second_key_and_its_second_claim_is_used_up(
    access: AccessStore,
) -> None:
    await bought(access, 1)
    claim, _, key_hash = make_other_claim(2)
    await access.create_claim(claim)
    assert not await access.redeem_claim(
        claim, replace(MEMBER, subscription="sub_1"), key_hash, NOW + 9
    )
    assert await access.find_claim(claim.token_hash) == replace(claim, redeemed_at=NOW + 9)
    assert [held.row for held in await access.list_open_memberships("stripe")] == [
        make_other_claim(1)[1]
    ]
    assert len(await access.list_keys()) == 1


async def test_what_became_of_a_redeemed_claim_is_found(access: AccessStore) -> None:
    await access.create_claim(CLAIM)
    assert await access.find_redemption(CLAIM.id) is None
    assert await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW + 5)
    assert not await access.redeem_claim(CLAIM, MEMBER, HASH_2, NOW + 6)
    assert await access.find_redemption(CLAIM.id) == Redemption(None, None)
    await access.end_membership(MEMBER, NOW + 7, "unpaid", is_final=False)
    assert await access.find_redemption(CLAIM.id) == Redemption("unpaid", None)
    await access.end_membership(MEMBER, NOW + 9, "canceled")
    assert await access.find_redemption(CLAIM.id) == Redemption("canceled", NOW + 9)


async def test_a_redemption_that_is_undone_leaves_a_claim_that_can_be_redeemed(
    access: AccessStore,
) -> None:
    await access.create_claim(CLAIM)
    for key_hash in (KEY_HASH, None, HASH_2):
        assert await access.redeem_claim(CLAIM, MEMBER, key_hash, NOW)
        await access.undo_redemption(CLAIM, MEMBER)
        assert await access.find_claim(CLAIM.token_hash) == CLAIM
        assert await access.list_keys() == []
        assert await access.list_open_memberships("stripe") == []
    assert await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW)


async def test_a_redemption_is_not_undone_once_the_member_has_another_key(
    access: AccessStore,
) -> None:
    await access.create_claim(CLAIM)
    await access.redeem_claim(CLAIM, MEMBER, None, NOW)
    (held,) = await access.list_open_memberships("stripe")
    assert await access.create_member_key(held.id, HASH_2, "own", NOW, KeyLimits(3, 9, NOW))
    await access.undo_redemption(CLAIM, MEMBER)
    assert await access.list_open_memberships("stripe") == [held]
    assert len(await access.list_keys()) == 1


async def test_a_claim_on_a_subscription_that_has_a_key_is_redeemed_without_one(
    access: AccessStore,
) -> None:
    await bought(access, 1)
    claim, _, key_hash = make_other_claim(2)
    member = replace(MEMBER, subscription="sub_1")
    await access.create_claim(claim)
    assert not await access.redeem_claim(claim, member, key_hash, NOW)
    assert await access.find_redemption(claim.id) is None


async def test_open_memberships_are_listed_by_provider_and_customer(
    access: AccessStore,
) -> None:
    theirs = {1: "cus_1", 2: "cus_2", 3: "cus_1"}
    for number, customer in theirs.items():
        claim, member, key_hash = make_other_claim(number)
        await access.create_claim(claim)
        await access.redeem_claim(claim, replace(member, customer=customer), key_hash, NOW)
    found = [held.row for held in await access.list_open_memberships("stripe", "cus_1")]
    assert [member.subscription for member in found] == ["sub_1", "sub_3"]
    assert await access.list_open_memberships("sandbox") == []
    await access.end_membership(found[0], NOW, "deleted")
    left = [held.row.subscription for held in await access.list_open_memberships("stripe")]
    assert left == ["sub_2", "sub_3"]


async def test_the_end_of_a_membership_revokes_its_keys_and_no_others(
    access: AccessStore, home: StoreHome
) -> None:
    hashes = [await bought(access, number) for number in (1, 2)]
    _, member, _ = make_other_claim(1)
    assert await access.end_membership(member, NOW + 50, "deleted") == 1
    assert await access.end_membership(member, NOW + 60, "refunded") == 0
    calls = [make_call_group(key_hash, NOW + 50) for key_hash in hashes]
    verdicts = [call.verdict for call in await access.count_calls(calls, "live", 10)]
    assert verdicts == ["revoked", "counted"]
    assert [key.revoked_at for key in await access.list_keys()] == [NOW + 50, None]
    found = await run_sql(home, "SELECT ended_at, ended_why FROM memberships ORDER BY id")
    assert found == [(NOW + 50, "deleted"), (None, None)]


async def test_a_key_that_was_revoked_before_keeps_its_time(access: AccessStore) -> None:
    await bought(access, 1)
    await access.revoke_key(1, NOW + 7)
    assert await access.end_membership(make_other_claim(1)[1], NOW + 50, "deleted") == 0
    assert [key.revoked_at for key in await access.list_keys()] == [NOW + 7]


async def test_ending_an_unknown_membership_revokes_no_key(access: AccessStore) -> None:
    assert await access.end_membership(MEMBER, NOW, "deleted") == 0


async def test_an_event_is_handled_once(access: AccessStore) -> None:
    assert not await access.is_event_handled("evt_1")
    for at in (NOW, NOW + 1):
        await access.mark_event_handled("evt_1", at)
    assert await access.is_event_handled("evt_1")
    assert not await access.is_event_handled("evt_2")


async def test_a_sandbox_checkout_is_settled_once(access: AccessStore) -> None:
    await access.create_sandbox_session(SESSION)
    assert await access.find_sandbox_session("sb_2") is None
    assert await access.find_sandbox_session("sb_1") == SESSION
    for status in ("paid", "cancelled"):
        await access.settle_sandbox_session("sb_1", status)  # type: ignore[arg-type]
        assert await access.find_sandbox_session("sb_1") == replace(SESSION, status="paid")


@pytest.mark.clause("8.51")
async def test_only_lapsed_unredeemed_checkouts_are_listed_and_can_be_deleted(
    access: AccessStore, home: StoreHome
) -> None:
    await bought(access, 1)
    redeemed, _, _ = make_other_claim(1)
    for number, expires_at in ((2, NOW + 1000), (3, NOW + 2000), (4, NOW + 1000)):
        claim, _, _ = make_other_claim(number)
        await access.create_claim(replace(claim, expires_at=expires_at))
    before = NOW + 1001
    lapsed = await access.list_lapsed_claims("stripe", "live", before, 9)
    assert sorted(claim.id for claim in lapsed) == ["claim2", "claim4"]
    assert len(await access.list_lapsed_claims("stripe", "live", before, 1)) == 1
    assert await access.list_lapsed_claims("stripe", "test", before, 9) == []
    assert await access.list_lapsed_claims("sandbox", "live", before, 9) == []
    assert await access.delete_claim(lapsed[0])
    assert not await access.delete_claim(lapsed[0])
    assert not await access.delete_claim(redeemed)
    found = await run_sql(home, "SELECT id FROM claims ORDER BY id")
    assert found == sorted([("claim1",), ("claim3",), (lapsed[1].id,)])


@pytest.mark.clause("8.51")
async def test_a_sandbox_session_is_kept_until_its_claim_is_redeemed_or_deleted(
    access: AccessStore,
) -> None:
    claim = replace(CLAIM, id=SESSION.claim_id)
    await access.create_claim(claim)
    await access.create_sandbox_session(SESSION)
    over = replace(NO_CUTOFFS, unredeemed_claims=SESSION.expires_at + 1)
    assert await access.prune(over) == 0
    assert await access.find_sandbox_session(SESSION.id) == SESSION
    assert await access.delete_claim(claim)
    assert await access.prune(over) == 1
    assert await access.find_sandbox_session(SESSION.id) is None


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("INSERT INTO usage VALUES (9, 1, 1, 1)", ()),
        ("INSERT INTO keys (key_hash, created_at, membership_id) VALUES (?, 1, 9)", (KEY_HASH,)),
        ("UPDATE claims SET key_id = 9", ()),
        ("DELETE FROM keys", ()),
        ("DELETE FROM memberships", ()),
    ],
)
async def test_the_database_refuses_rows_that_point_nowhere(
    access: AccessStore, sql: str, values: tuple[Any, ...]
) -> None:
    await bought(access, 1)
    await access.count_calls([make_call_group(make_other_claim(1)[2], NOW)], "live", 10)
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        async with access._engine.begin_write() as db:
            await db.execute(sql, *values)
