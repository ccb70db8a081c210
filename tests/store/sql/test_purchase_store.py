"""Stored claims and memberships: one key per claim, created and ended atomically."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from store.access_rows import (
    ClaimRow,
    KeyLimits,
    KeyRow,
    MembershipRow,
    SandboxSession,
    SignInRow,
    normalize_email,
)
from store.sql.access_store import AccessStore
from store.store_errors import StoreError
from tests.store.conftest import OpenAccess
from tests.support.row_builders import DAY_MS, NO_CUTOFFS, make_call_group
from tests.support.store_homes import StoreHome, call_elsewhere, run_sql

pytestmark = pytest.mark.clause("sales", "dashboard")

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
    claim = replace(CLAIM, id=f"claim{number}", token_hash=bytes([number] * 32))
    return claim, replace(MEMBER, subscription=f"sub_{number}"), bytes([100 + number] * 32)


@pytest.fixture
async def stored_claim(access: AccessStore) -> None:
    await access.create_claim(CLAIM)


async def bought(access: AccessStore, number: int) -> bytes:
    claim, member, key_hash = make_other_claim(number)
    await access.create_claim(claim)
    assert await access.redeem_claim(claim, member, key_hash, NOW + number)
    return key_hash


@pytest.mark.clause("3.4.2", "12.6")
@pytest.mark.parametrize(
    ("key_hash", "keys", "verdict"),
    [
        (KEY_HASH, [KeyRow(1, "Agent", NOW + 5, None, "live", 1)], "counted"),
        (None, [], "unknown"),
    ],
    ids=["a key", "no key"],
)
@pytest.mark.usefixtures("stored_claim")
async def test_a_claim_is_redeemed_once_for_a_membership_and_at_most_one_key(
    access: AccessStore, key_hash: bytes | None, keys: list[KeyRow], verdict: str
) -> None:
    assert await access.find_claim(CLAIM.token_hash) == CLAIM
    assert await access.find_claim(bytes(32)) is None
    assert await access.redeem_claim(CLAIM, MEMBER, key_hash, NOW + 5)
    assert not await access.redeem_claim(CLAIM, MEMBER, bytes(32), NOW + 6)
    assert await access.find_claim(CLAIM.token_hash) == replace(CLAIM, redeemed_at=NOW + 5)
    assert await access.list_keys() == keys
    assert await access.list_open_memberships("stripe") == [MEMBER]
    (counted,) = await access.count_calls([make_call_group(KEY_HASH, NOW)], "live", 10)
    assert counted.verdict == verdict
    assert (await access.find_redemption(CLAIM.id) is None) is (key_hash is None)


HASH_2 = bytes([2] * 32)


@pytest.mark.clause("3.4.2")
@pytest.mark.usefixtures("stored_claim")
async def test_only_one_of_two_concurrent_redemptions_creates_the_key(
    access: AccessStore, open_access: OpenAccess
) -> None:
    second = await open_access()
    made = await asyncio.gather(
        access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW),
        second.redeem_claim(CLAIM, MEMBER, HASH_2, NOW),
    )
    assert sorted(made) == [False, True]
    assert len(await access.list_keys()) == 1


@pytest.mark.usefixtures("stored_claim")
async def test_a_redemption_that_fails_leaves_claim_membership_and_key_untouched(
    access: AccessStore, home: StoreHome
) -> None:
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
    assert await access.find_redemption(claim.id) is None
    assert await access.list_open_memberships("stripe") == [make_other_claim(1)[1]]
    assert len(await access.list_keys()) == 1


async def test_what_became_of_a_redeemed_claim_is_found(access: AccessStore) -> None:
    async def find() -> tuple[str | None, int | None] | None:
        found = await access.find_redemption(CLAIM.id)
        return found and (found.ended_reason, found.closed_at)

    await access.create_claim(CLAIM)
    assert await find() is None
    assert await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW + 5)
    assert not await access.redeem_claim(CLAIM, MEMBER, HASH_2, NOW + 6)
    assert await find() == (None, None)
    await access.end_membership(MEMBER, NOW + 7, "unpaid", is_final=False)
    assert await find() == ("unpaid", None)
    await access.end_membership(MEMBER, NOW + 9, "canceled")
    assert await find() == ("canceled", NOW + 9)


@pytest.mark.usefixtures("stored_claim")
async def test_a_redemption_that_is_undone_leaves_a_claim_that_can_be_redeemed(
    access: AccessStore,
) -> None:
    for key_hash in (KEY_HASH, None, HASH_2):
        assert await access.redeem_claim(CLAIM, MEMBER, key_hash, NOW)
        await access.undo_redemption(CLAIM, MEMBER)
        assert await access.find_claim(CLAIM.token_hash) == CLAIM
        assert await access.list_keys() == []
        assert await access.list_open_memberships("stripe") == []
    assert await access.redeem_claim(CLAIM, MEMBER, KEY_HASH, NOW)


@pytest.mark.usefixtures("stored_claim")
async def test_a_redemption_is_not_undone_once_the_member_has_another_key(
    access: AccessStore,
) -> None:
    await access.redeem_claim(CLAIM, MEMBER, None, NOW)
    (held,) = await access.list_open_memberships("stripe")
    assert await access.create_member_key(held.id, HASH_2, "own", NOW, KeyLimits(3, 9, NOW))
    await access.undo_redemption(CLAIM, MEMBER)
    assert await access.list_open_memberships("stripe") == [held]
    assert len(await access.list_keys()) == 1


async def test_open_memberships_are_listed_by_provider_and_customer(
    access: AccessStore,
) -> None:
    for number, customer in ((1, "cus_1"), (2, "cus_2"), (3, "cus_1")):
        claim, member, key_hash = make_other_claim(number)
        await access.create_claim(claim)
        await access.redeem_claim(claim, replace(member, customer=customer), key_hash, NOW)
    found = await access.list_open_memberships("stripe", "cus_1")
    assert [member.subscription for member in found] == ["sub_1", "sub_3"]
    assert await access.list_open_memberships("sandbox") == []
    await access.end_membership(found[0], NOW, "deleted")
    left = [held.subscription for held in await access.list_open_memberships("stripe")]
    assert left == ["sub_2", "sub_3"]


async def test_the_end_of_a_membership_is_told_and_revokes_its_live_keys_and_no_others(
    access: AccessStore,
) -> None:
    hashes = [await bought(access, number) for number in (1, 2, 3)]
    await access.revoke_key(3, NOW + 7)
    members = [make_other_claim(number)[1] for number in (1, 3, 4)]
    ended = [await access.end_membership(member, NOW + 50, "deleted") for member in members]
    assert ended == [1, 0, 0]
    assert await access.end_membership(members[0], NOW + 60, "refunded") == 0
    calls = [make_call_group(key_hash, NOW + 50) for key_hash in hashes]
    verdicts = [call.verdict for call in await access.count_calls(calls, "live", 10)]
    assert verdicts == ["revoked", "counted", "revoked"]
    assert [key.revoked_at for key in await access.list_keys()] == [NOW + 50, None, NOW + 7]
    found = await access.list_memberships_by_email("a@example.com")
    told = [(held.ended_at, held.ended_reason) for held in found]
    assert told == [(NOW + 50, "deleted"), (None, None), (NOW + 50, "deleted")]


async def test_an_event_is_handled_once(access: AccessStore) -> None:
    assert not await access.is_event_handled("evt_1")
    for at in (NOW, NOW + 1):
        await access.mark_event_handled("evt_1", at)
    assert await access.is_event_handled("evt_1")
    assert not await access.is_event_handled("evt_2")


async def test_a_sandbox_checkout_is_settled_once(access: AccessStore) -> None:
    await access.create_sandbox_session(SESSION)
    for status in ("paid", "cancelled"):
        await access.settle_sandbox_session("sb_1", status)
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


MOST = KeyLimits(max_live=3, max_created=100, created_since=NOW - DAY_MS)
LINK = SignInRow(bytes([7] * 32), "a@example.com", NOW + 1000)
SESSION_HASH = bytes([8] * 32)
KELVIN = "\u212aay@example.com"  # the Kelvin sign: str.lower would return kay@example.com


def make_hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def add_membership(access: AccessStore, email: str = "a@example.com", number: int = 1) -> int:
    claim, member, key_hash = make_other_claim(number)
    await access.create_claim(claim)
    assert await access.redeem_claim(claim, replace(member, contact_email=email), key_hash, NOW)
    return (await access.list_memberships_by_email(email))[-1].id


@pytest.fixture
async def membership(access: AccessStore) -> int:
    return await add_membership(access)


@pytest.mark.parametrize("spelling", ["A@Example.com", "a@example.com", "a@EXAMPLE.COM"])
async def test_a_mailbox_is_found_regardless_of_ascii_case_and_keeps_its_spelling(
    access: AccessStore, spelling: str
) -> None:
    await add_membership(access, "a@Example.com")
    await access.create_claim(replace(make_other_claim(2)[0], contact_email="a@Example.com"))
    (held,) = await access.list_memberships_by_email(spelling)
    assert (held.contact_email, held.ended_at) == ("a@Example.com", None)
    (claim,) = await access.list_unredeemed_claims(spelling, "stripe", "live", 1)
    assert claim.contact_email == "a@Example.com"


@pytest.mark.parametrize(
    ("theirs", "spelling"),
    [(KELVIN, "kay@example.com"), ("kay@example.com", KELVIN), ("Ä@example.com", "ä@example.com")],
)
async def test_letters_that_only_unicode_folds_are_different_mailboxes(
    access: AccessStore, theirs: str, spelling: str
) -> None:
    await add_membership(access, theirs)
    await access.create_claim(replace(make_other_claim(2)[0], contact_email=theirs))
    assert await access.list_memberships_by_email(spelling) == []
    assert await access.list_unredeemed_claims(spelling, "stripe", "live", 5) == []
    assert len(await access.list_memberships_by_email(theirs)) == 1
    assert len(await access.list_unredeemed_claims(theirs, "stripe", "live", 5)) == 1
    assert normalize_email(theirs) != normalize_email(spelling)


async def test_a_members_key_has_its_membership_mode_and_usage_of_the_day(
    access: AccessStore,
    membership: int,
) -> None:
    assert await access.create_member_key(membership, KEY_HASH, "laptop", NOW + 5, MOST)
    for at in (NOW, NOW + 1, NOW + DAY_MS):
        await access.count_calls([make_call_group(KEY_HASH, at)], "live", 10)
    first, made = await access.list_member_keys(membership, NOW // DAY_MS)
    assert (first.label, first.used) == ("Agent", 0)
    assert (made.label, made.used, made.mode) == ("laptop", 2, "live")
    assert (made.created_at, made.last_used_at) == (NOW + 5, NOW + DAY_MS)
    assert [held.used for held in await access.list_member_keys(membership, NOW // DAY_MS + 1)] == [
        0,
        1,
    ]


async def test_live_keys_of_a_membership_are_limited_until_one_is_revoked(
    access: AccessStore,
    membership: int,
) -> None:
    assert [
        await access.create_member_key(membership, make_hash(number), "own", NOW, MOST)
        for number in range(4)
    ] == [True, True, False, False]
    first, *_ = await access.list_member_keys(membership, 0)
    assert await access.revoke_member_key(membership, first.id, NOW + 1)
    assert await access.create_member_key(membership, make_hash(9), "own", NOW, MOST)
    assert not await access.create_member_key(membership, make_hash(10), "own", NOW, MOST)


async def test_new_keys_of_a_membership_are_limited_even_if_some_are_revoked(
    access: AccessStore,
    membership: int,
) -> None:

    async def made(number: int, at: int) -> bool:
        most = KeyLimits(max_live=3, max_created=4, created_since=at - DAY_MS)
        is_made = await access.create_member_key(membership, make_hash(number), "own", at, most)
        for held in await access.list_member_keys(membership, 0):
            await access.revoke_member_key(membership, held.id, at)
        return is_made

    assert [await made(number, NOW + number) for number in range(5)] == [True] * 3 + [False] * 2
    assert not await made(5, NOW + DAY_MS - 1)
    assert await made(6, NOW + DAY_MS)


async def test_keys_of_others_and_of_the_operator_cannot_be_named_or_revoked(
    access: AccessStore,
) -> None:
    operators = await access.create_key(make_hash(1), "operator", NOW)
    mine, theirs = await add_membership(access), await add_membership(access, "b@example.com", 2)
    (other_key,) = await access.list_member_keys(theirs, 0)
    for key_id in (operators, other_key.id, 999):
        assert not await access.relabel_key(mine, key_id, "taken")
        assert not await access.revoke_member_key(mine, key_id, NOW)
    listed = await access.list_keys()
    assert [key.revoked_at for key in listed] == [None] * 3
    assert "taken" not in {key.label for key in listed}


async def test_a_revoked_key_keeps_its_label_and_the_time_when_it_was_revoked_first(
    access: AccessStore,
    membership: int,
) -> None:
    (held,) = await access.list_member_keys(membership, 0)
    assert await access.relabel_key(membership, held.id, "named")
    for at in (NOW + 1, NOW + 2):
        assert await access.revoke_member_key(membership, held.id, at)
    assert not await access.relabel_key(membership, held.id, "again")
    (held,) = await access.list_member_keys(membership, 0)
    assert (held.label, held.revoked_at) == ("named", NOW + 1)


async def test_an_ended_or_unknown_membership_gets_no_key(
    access: AccessStore, membership: int
) -> None:
    await access.end_membership(make_other_claim(1)[1], NOW, "refunded in full")
    for id_ in (membership, membership + 1):
        assert not await access.create_member_key(id_, make_hash(1), "late", NOW, MOST)
    assert [held.revoked_at for held in await access.list_member_keys(membership, 0)] == [NOW]


async def make_keys(store: AccessStore, membership: int, first: int) -> int:
    """Try to create ten keys of a membership; return how many were created."""
    tried = [
        store.create_member_key(membership, make_hash(first + number), "own", NOW, MOST)
        for number in range(10)
    ]
    return sum(await asyncio.gather(*tried))


@pytest.mark.parametrize("processes", [0, pytest.param(4, marks=pytest.mark.prove)])
async def test_concurrent_key_creation_respects_the_limit(
    access: AccessStore, membership: int, open_access: OpenAccess, home: StoreHome, processes: int
) -> None:
    if processes:
        making = [call_elsewhere(home, make_keys, membership, 100 * n) for n in range(processes)]
    else:
        stores = [access, await open_access()]
        making = [make_keys(store, membership, 100 * n) for n, store in enumerate(stores)]
    assert sum(await asyncio.gather(*making)) == MOST.max_live - 1
    live = "SELECT count(*) FROM keys WHERE revoked_at IS NULL"
    assert await run_sql(home, live) == [(MOST.max_live,)]


async def test_a_key_that_is_made_while_its_membership_ends_does_not_outlive_it(
    access: AccessStore, open_access: OpenAccess, home: StoreHome
) -> None:
    other_store = await open_access()
    for number in range(1, 9):
        membership = await add_membership(access, f"m{number}@example.com", number)
        await asyncio.gather(
            other_store.create_member_key(membership, make_hash(number), "own", NOW, MOST),
            access.end_membership(make_other_claim(number)[1], NOW, "canceled"),
        )
    assert await run_sql(home, "SELECT count(*) FROM keys WHERE revoked_at IS NULL") == [(0,)]


async def test_claims_of_a_mailbox_are_those_not_redeemed_newest_first(
    access: AccessStore,
) -> None:
    await bought(access, 1)
    for number in range(2, 6):
        await access.create_claim(replace(make_other_claim(number)[0], created_at=NOW + number))
    changes = ({"provider": "sandbox"}, {"mode": "test"}, {"contact_email": "b@example.com"})
    for number, changed in enumerate(changes, start=6):
        await access.create_claim(replace(make_other_claim(number)[0], **changed))
    found = await access.list_unredeemed_claims("A@EXAMPLE.com", "stripe", "live", 3)
    assert [claim.id for claim in found] == ["claim5", "claim4", "claim3"]
    assert found[0] == replace(make_other_claim(5)[0], created_at=NOW + 5)


@pytest.mark.clause("13.2")
@pytest.mark.parametrize(("email", "is_owner"), [("a@example.com", False), ("owner", True)])
async def test_a_link_makes_one_session_of_its_mailbox_or_of_the_owner(
    access: AccessStore, email: str, is_owner: bool
) -> None:
    await access.create_sign_in_link(replace(LINK, contact_email=email, is_owner=is_owner))
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 5) == email
    assert await access.sign_in(LINK.token_hash, bytes(32), NOW, NOW + 5) is None
    session = SignInRow(SESSION_HASH, email, NOW + 5, is_owner)
    assert await access.find_session(SESSION_HASH, NOW) == session
    assert await access.find_session(bytes(32), NOW) is None


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.create_key(b"ek_clear", "agent", NOW),
        lambda store: store.create_claim(replace(CLAIM, token_hash=b"ct_clear")),
        lambda store: store.create_sign_in_link(replace(LINK, token_hash=b"clear")),
        lambda store: store.sign_in(LINK.token_hash, b"clear", NOW, NOW + 5),
    ],
    ids=["key", "claim", "link", "session"],
)
async def test_a_clear_secret_cannot_be_stored_by_mistake(
    access: AccessStore, write: Callable[[AccessStore], Awaitable[object]]
) -> None:
    await access.create_sign_in_link(LINK)
    with pytest.raises(StoreError):
        await write(access)
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 5) == "a@example.com"


async def test_only_one_of_many_concurrent_uses_of_a_link_succeeds(
    access: AccessStore, open_access: OpenAccess, home: StoreHome
) -> None:
    await access.create_sign_in_link(LINK)
    stores = [access, await open_access()] * 5
    let_in = await asyncio.gather(
        *(
            store.sign_in(LINK.token_hash, make_hash(number), NOW, NOW + 5)
            for number, store in enumerate(stores)
        )
    )
    assert sorted(let_in, key=str) == [None] * 9 + ["a@example.com"]
    assert await run_sql(home, "SELECT count(*) FROM sessions") == [(1,)]


@pytest.mark.parametrize(("late_ms", "is_let_in"), [(-1, True), (0, False), (1, False)])
async def test_a_link_and_a_session_last_to_the_millisecond(
    access: AccessStore, late_ms: int, is_let_in: bool
) -> None:
    await access.create_sign_in_link(LINK)
    at = LINK.expires_at + late_ms
    email = await access.sign_in(LINK.token_hash, SESSION_HASH, at, at + 500)
    assert email == ("a@example.com" if is_let_in else None)
    found = [await access.find_session(SESSION_HASH, at + later) for later in (499, 500)]
    assert [session is not None for session in found] == [is_let_in, False]


async def test_sessions_of_a_mailbox_end_together_and_no_other(access: AccessStore) -> None:
    emails = ("a@example.com", "A@Example.com", "b@example.com")
    sessions = [bytes([number] * 32) for number in range(100, 103)]
    for email, session in zip(emails, sessions, strict=True):
        link = replace(LINK, token_hash=session[::-1], contact_email=email)
        await access.create_sign_in_link(link)
        await access.sign_in(link.token_hash, session, NOW, NOW + 500)
    for _ in range(2):
        await access.end_sessions(sessions[0])
        found = [await access.find_session(session, NOW) for session in sessions]
        assert [one and one.contact_email for one in found] == [None, None, "b@example.com"]


async def test_pruning_deletes_expired_links_and_sessions(
    access: AccessStore, home: StoreHome
) -> None:
    for number in range(3):
        link = SignInRow(make_hash(number), "a@example.com", NOW + number)
        await access.create_sign_in_link(link)
        await access.sign_in(link.token_hash, make_hash(10 + number), NOW - 1, NOW + number)
    assert await access.prune(replace(NO_CUTOFFS, sign_ins=NOW + 1)) == 2
    for table in ("sign_in_links", "sessions"):
        left = await run_sql(home, f"SELECT expires_at FROM {table} ORDER BY expires_at")
        assert left == [(NOW + 1,), (NOW + 2,)]
