"""Stored keys, links and sessions of members: hashes only, single use, limits."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from store.access_rows import KeyLimits, SignInRow, normalize_email
from store.errors import StoreError
from store.sql.access_store import AccessStore
from tests.store.conftest import OpenAccess
from tests.store.sql.test_access_store_purchases import (
    CLAIM,
    KEY_HASH,
    MEMBER,
    NOW,
    bought,
    make_other_claim,
)
from tests.support.row_builders import DAY_MS, NO_CUTOFFS, make_call_group
from tests.support.store_homes import StoreHome, open_home, run_sql

pytestmark = pytest.mark.clause("dashboard")

ROOT = Path(__file__).parents[3]
MOST = KeyLimits(max_live=3, max_created=100, created_since=NOW - DAY_MS)
LINK = SignInRow(bytes([7] * 32), "a@example.com", NOW + 1000)
SESSION_HASH = bytes([8] * 32)
KELVIN = "\u212aay@example.com"  # the Kelvin sign: str.lower would return kay@example.com


def make_hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def add_membership(access: AccessStore, email: str = "a@example.com", number: int = 1) -> int:
    """Create a membership for a mailbox and return its id."""
    claim, member, key_hash = make_other_claim(number)
    await access.create_claim(claim)
    assert await access.redeem_claim(claim, replace(member, contact_email=email), key_hash, NOW)
    return (await access.list_memberships_by_email(email))[-1].id


@pytest.mark.parametrize("spelling", ["A@Example.com", "a@example.com", "a@EXAMPLE.COM"])
async def test_a_mailbox_is_found_regardless_of_ascii_case(
    access: AccessStore, spelling: str
) -> None:
    await add_membership(access, "a@Example.com")
    (held,) = await access.list_memberships_by_email(spelling)
    assert held.row.contact_email == "a@Example.com"
    assert (held.ended_at, held.ended_reason) == (None, None)


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


async def test_an_ended_membership_says_when_and_why(access: AccessStore) -> None:
    await add_membership(access)
    await access.end_membership(make_other_claim(1)[1], NOW + 5, "the subscription is canceled")
    (held,) = await access.list_memberships_by_email("a@example.com")
    assert (held.ended_at, held.ended_reason) == (NOW + 5, "the subscription is canceled")


async def test_a_members_key_has_its_membership_mode_and_usage_of_the_day(
    access: AccessStore,
) -> None:
    membership = await add_membership(access)
    assert await access.create_member_key(membership, KEY_HASH, "laptop", NOW + 5, MOST)
    for at in (NOW, NOW + 1, NOW + DAY_MS):
        await access.count_calls([make_call_group(KEY_HASH, at)], "live", 10)
    first, made = await access.list_member_keys(membership, NOW // DAY_MS)
    assert (first.key.label, first.used) == ("Agent", 0)
    assert (made.key.label, made.used, made.key.mode) == ("laptop", 2, "live")
    assert (made.key.created_at, made.key.last_used_at) == (NOW + 5, NOW + DAY_MS)
    assert [held.used for held in await access.list_member_keys(membership, NOW // DAY_MS + 1)] == [
        0,
        1,
    ]


async def test_live_keys_of_a_membership_are_limited_until_one_is_revoked(
    access: AccessStore,
) -> None:
    membership = await add_membership(access)
    made = [
        await access.create_member_key(membership, make_hash(number), "own", NOW, MOST)
        for number in range(4)
    ]
    assert made == [True, True, False, False]
    first, *_ = await access.list_member_keys(membership, 0)
    assert await access.revoke_member_key(membership, first.key.id, NOW + 1)
    assert await access.create_member_key(membership, make_hash(9), "own", NOW, MOST)
    assert not await access.create_member_key(membership, make_hash(10), "own", NOW, MOST)


async def test_new_keys_of_a_membership_are_limited_even_if_some_are_revoked(
    access: AccessStore,
) -> None:
    membership = await add_membership(access)

    async def made(number: int, at: int) -> bool:
        most = KeyLimits(max_live=3, max_created=4, created_since=at - DAY_MS)
        is_made = await access.create_member_key(membership, make_hash(number), "own", at, most)
        for held in await access.list_member_keys(membership, 0):
            await access.revoke_member_key(membership, held.key.id, at)
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
    for key_id in (operators, other_key.key.id, 999):
        assert not await access.relabel_key(mine, key_id, "taken")
        assert not await access.revoke_member_key(mine, key_id, NOW)
    listed = await access.list_keys()
    assert [key.revoked_at for key in listed] == [None] * 3
    assert "taken" not in {key.label for key in listed}


async def test_a_revoked_key_keeps_its_label_and_the_time_when_it_was_revoked_first(
    access: AccessStore,
) -> None:
    membership = await add_membership(access)
    (held,) = await access.list_member_keys(membership, 0)
    assert await access.relabel_key(membership, held.key.id, "named")
    for at in (NOW + 1, NOW + 2):
        assert await access.revoke_member_key(membership, held.key.id, at)
    assert not await access.relabel_key(membership, held.key.id, "again")
    (held,) = await access.list_member_keys(membership, 0)
    assert (held.key.label, held.key.revoked_at) == ("named", NOW + 1)


async def test_an_ended_or_unknown_membership_gets_no_key(access: AccessStore) -> None:
    membership = await add_membership(access)
    await access.end_membership(make_other_claim(1)[1], NOW, "refunded in full")
    for id_ in (membership, membership + 1):
        assert not await access.create_member_key(id_, make_hash(1), "late", NOW, MOST)
    assert [held.key.revoked_at for held in await access.list_member_keys(membership, 0)] == [NOW]


async def make_keys(store: AccessStore, membership: int, first: int) -> int:
    """Try to create ten keys of a membership; return how many were created."""
    tried = [
        store.create_member_key(membership, make_hash(first + number), "own", NOW, MOST)
        for number in range(10)
    ]
    return sum(await asyncio.gather(*tried))


async def make_keys_elsewhere(home: StoreHome, membership: int, first: int) -> int:
    """Run `make_keys` in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, home.address, str(membership), str(first)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return int(output)


@pytest.mark.parametrize("processes", [0, pytest.param(4, marks=pytest.mark.prove)])
async def test_concurrent_key_creation_respects_the_limit(
    access: AccessStore, open_access: OpenAccess, home: StoreHome, processes: int
) -> None:
    membership = await add_membership(access)
    if processes:
        making = [make_keys_elsewhere(home, membership, 100 * n) for n in range(processes)]
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
        await access.create_claim(replace(make_other_claim(number)[0], **changed))  # type: ignore[arg-type]
    found = await access.list_unredeemed_claims("A@EXAMPLE.com", "stripe", "live", 3)
    assert [claim.id for claim in found] == ["claim5", "claim4", "claim3"]
    assert found[0] == replace(make_other_claim(5)[0], created_at=NOW + 5)


async def test_a_link_makes_one_session_of_its_mailbox(access: AccessStore) -> None:
    await access.create_sign_in_link(LINK)
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 5) == "a@example.com"
    assert await access.sign_in(LINK.token_hash, bytes(32), NOW, NOW + 5) is None
    assert await access.find_session(SESSION_HASH, NOW) == SignInRow(
        SESSION_HASH, "a@example.com", NOW + 5
    )
    assert await access.find_session(bytes(32), NOW) is None


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


@pytest.mark.parametrize(("late_ms", "let_in"), [(-1, "a@example.com"), (0, None), (1, None)])
async def test_a_link_lasts_to_the_millisecond(
    access: AccessStore, late_ms: int, let_in: str | None
) -> None:
    await access.create_sign_in_link(LINK)
    at = LINK.expires_at + late_ms
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, at, at + 1) == let_in


async def test_a_session_lasts_to_the_millisecond(access: AccessStore) -> None:
    await access.create_sign_in_link(LINK)
    await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 500)
    assert await access.find_session(SESSION_HASH, NOW + 499) is not None
    assert await access.find_session(SESSION_HASH, NOW + 500) is None


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


@pytest.mark.clause("13.2")
async def test_an_owners_link_makes_an_owners_session(access: AccessStore) -> None:
    await access.create_sign_in_link(replace(LINK, contact_email="owner", is_owner=True))
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 5) == "owner"
    assert await access.find_session(SESSION_HASH, NOW) == SignInRow(
        SESSION_HASH, "owner", NOW + 5, is_owner=True
    )


async def test_neither_a_clear_link_nor_a_clear_session_can_be_stored_by_mistake(
    access: AccessStore,
) -> None:
    with pytest.raises(StoreError):
        await access.create_sign_in_link(replace(LINK, token_hash=b"clear"))
    await access.create_sign_in_link(LINK)
    with pytest.raises(StoreError):
        await access.sign_in(LINK.token_hash, b"clear", NOW, NOW + 5)
    assert await access.sign_in(LINK.token_hash, SESSION_HASH, NOW, NOW + 5) == "a@example.com"


async def test_pruning_deletes_expired_links_and_sessions(
    access: AccessStore, home: StoreHome
) -> None:
    for number in range(3):
        link = SignInRow(make_hash(number), "a@example.com", NOW + number)
        await access.create_sign_in_link(link)
        await access.sign_in(link.token_hash, make_hash(10 + number), NOW - 1, NOW + number)
    over = replace(NO_CUTOFFS, sign_ins=NOW + 1)
    assert await access.prune(over) == 2
    for table in ("sign_in_links", "sessions"):
        left = await run_sql(home, f"SELECT expires_at FROM {table} ORDER BY expires_at")
        assert left == [(NOW + 1,), (NOW + 2,)]


async def test_claim_and_membership_keep_the_address_as_it_was_written(access: AccessStore) -> None:
    await access.create_claim(replace(CLAIM, contact_email="A@Example.com"))
    (claim,) = await access.list_unredeemed_claims("a@example.com", "stripe", "live", 1)
    assert claim.contact_email == "A@Example.com"
    await access.redeem_claim(claim, replace(MEMBER, contact_email="A@Example.com"), KEY_HASH, NOW)
    assert (await access.list_open_memberships("stripe"))[0].row.contact_email == "A@Example.com"


async def _main(address: str, membership: int, first: int) -> None:
    store = await open_home(address).open_access()
    try:
        print(await make_keys(store, membership, first))
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
