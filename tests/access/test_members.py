"""Members manage the keys of their plans, see what these cost, and watch assets."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from access.billing.provider import BillingError, SettledPayment, SubscriptionStatus
from access.keys_and_quota import generate_key, hash_key
from access.members import (
    MAX_NEW_KEYS_PER_DAY,
    MAX_WATCHED,
    MemberKeys,
    MemberPlan,
    watch,
)
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS
from store.access_rows import normalize_email
from store.sql.access_store import AccessStore
from tests.support.example_market import NOON
from tests.support.row_builders import make_call_group
from tests.support.sandbox_shop import HeldProvider, SandboxShop, read_files

pytestmark = pytest.mark.clause("dashboard")

MINE, THEIRS = "a@example.com", "b@example.com"
API_KEY = "ek_" + "A" * 43


@dataclass
class Counter:
    """A shop, its provider and its MemberKeys."""

    shop: SandboxShop
    billing: HeldProvider
    path: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = self.open_members()

    def open_members(self, timeout_s: float = 10) -> MemberKeys:
        shop = self.shop
        return MemberKeys(shop.store, self.billing, shop.claims, shop.clock, timeout_s)

    async def buy(self, email: str = MINE) -> str:
        return (await self.shop.claim(self.tokens[await self.pay(email)])).api_key

    async def pay(self, email: str = MINE) -> str:
        """Pay a checkout without claiming it; return its session."""
        checkout = await self.shop.open_checkout(contact_email=email)
        session = checkout.checkout_url.rpartition("/")[2]
        self.tokens[session] = checkout.claim_token
        self.billing.payments[session] = SettledPayment(f"sub_{session}", f"cus_{session}", email)
        return session

    async def get_plan(self, email: str = MINE) -> MemberPlan:
        (plan,) = await self.members.list_plans(email)
        return plan

    async def get_verdict(self, api_key: str) -> str:
        (counted,) = await self.shop.store.count_calls(
            [make_call_group(hash_key(api_key), self.shop.clock())], "live", 10
        )
        return counted.verdict


@pytest.fixture
def counter(held_shop: SandboxShop, billing: HeldProvider, tmp_path: Path) -> Counter:
    return Counter(held_shop, billing, tmp_path)


async def assert_refused(doing: object, status: int, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refusal:
        await doing
    assert refusal.value.status == status


@pytest.mark.clause("5.28")
async def test_a_member_creates_working_keys_without_a_second_purchase(
    counter: Counter,
) -> None:
    await counter.buy()
    membership = (await counter.get_plan()).membership.id
    api_key = await counter.members.create(MINE, membership, "  laptop ")
    assert await counter.get_verdict(api_key) == "counted"
    plan = await counter.get_plan()
    assert [(held.label, held.mode, held.used) for held in plan.keys] == [
        (None, "live", 0),
        ("laptop", "live", 1),
    ]
    assert (plan.is_live, len(plan.live_keys)) == (True, 2)
    stored = read_files(counter.path)
    assert (hash_key(api_key) in stored, api_key[3:].encode() in stored) == (True, False)
    counter.shop.clock.now += DAY_MS
    assert [held.used for held in (await counter.get_plan()).keys] == [0, 0]


async def test_an_ended_membership_is_shown_with_its_reason_and_makes_no_key(
    counter: Counter,
) -> None:
    key = await counter.buy()
    (member,) = await counter.shop.store.list_open_memberships("held")
    await counter.shop.store.end_membership(member, NOON + 5, "the payment was disputed")
    plan = await counter.get_plan()
    assert (plan.is_live, plan.live_keys) == (False, [])
    assert plan.membership.ended_reason == "the payment was disputed"
    assert not await counter.members.is_member(MINE)
    assert await counter.get_verdict(key) == "revoked"
    await assert_refused(
        counter.members.create(MINE, plan.membership.id, "late"), 409, "membership has ended"
    )


async def test_another_modes_membership_is_listed_but_not_live_another_providers_is_hidden(
    counter: Counter,
) -> None:
    await counter.buy()
    assert await counter.members.is_member(MINE)
    counter.billing.mode = "test"
    plan = await counter.get_plan()
    assert not plan.is_live
    assert not await counter.members.is_member(MINE)
    await assert_refused(counter.members.create(MINE, plan.membership.id, "x"), 409, "billing mode")
    counter.billing.name = "other"
    assert await counter.members.list_plans(MINE) == []


@pytest.mark.clause("12.6")
@pytest.mark.parametrize("api_key", [API_KEY, None])
async def test_a_buyer_without_the_token_gets_the_one_key_or_connects_and_the_token_gets_none(
    counter: Counter, api_key: str | None
) -> None:
    session = await counter.pay("A@Example.com")
    (claim,) = await counter.members.list_unclaimed(MINE)
    await assert_refused(counter.members.redeem(THEIRS, claim.id, api_key), 404, "no such payment")
    await counter.members.redeem(MINE, claim.id, api_key)
    plan = await counter.get_plan()
    assert (plan.membership.contact_email, plan.is_live) == ("A@Example.com", True)
    assert len(plan.keys) == len(await counter.shop.store.list_keys()) == (api_key is not None)
    if api_key is not None:
        assert await counter.get_verdict(api_key) == "counted"
    assert await counter.members.list_unclaimed(MINE) == []
    refusal = await counter.shop.claim_refused(counter.tokens[session])
    assert (refusal.status, "already redeemed" in refusal.message) == (409, True)
    assert "To get another one" in refusal.message
    await assert_refused(counter.members.redeem(MINE, claim.id, api_key), 404, "no such payment")


@pytest.mark.parametrize("api_key", [API_KEY, None])
async def test_a_payment_that_is_reversed_during_a_claim_gives_no_working_key_nor_plan(
    counter: Counter, api_key: str | None
) -> None:
    session = await counter.pay()
    (claim,) = await counter.members.list_unclaimed(MINE)
    counter.billing.statuses[f"sub_{session}"] = SubscriptionStatus(ended_reason="refunded")
    redeeming = counter.members.redeem(MINE, claim.id, api_key)
    await assert_refused(redeeming, 409, "or the payment was reversed")
    plan = await counter.get_plan()
    assert (plan.live_keys, plan.is_live) == ([], False)


async def test_only_one_of_member_and_agent_claiming_at_once_gets_the_key(counter: Counter) -> None:
    session = await counter.pay()
    (claim,) = await counter.members.list_unclaimed(MINE)
    came = await asyncio.gather(
        *(counter.members.redeem(MINE, claim.id, generate_key()) for _ in range(2)),
        counter.shop.claim(counter.tokens[session]),
        return_exceptions=True,
    )
    refusals = [one.status for one in came if isinstance(one, ApiError)]
    assert len(refusals) == 2
    assert set(refusals) <= {404, 409}
    assert len(await counter.shop.store.list_keys()) == 1


async def test_a_payment_belongs_to_its_payer_not_to_the_opener_of_the_checkout(
    counter: Counter,
) -> None:
    session = await counter.pay()
    counter.billing.payments[session] = SettledPayment("sub", "cus", "payer@example.com")
    assert await counter.members.list_unclaimed(MINE) == []
    (claim,) = await counter.shop.store.list_unredeemed_claims(MINE, "held", "live", 5)
    for email in (MINE, THEIRS):
        redeeming = counter.members.redeem(email, claim.id, API_KEY)
        await assert_refused(redeeming, 404, "no such payment")


async def test_unpaid_claims_and_those_of_another_mode_are_not_listed(counter: Counter) -> None:
    session = await counter.pay()
    await counter.pay()
    del counter.billing.payments[session]
    listed = []
    for counter.billing.mode in ("live", "test", None):
        listed.append(len(await counter.members.list_unclaimed(MINE) or ()))
    assert listed == [1, 0, 0]


async def test_nothing_is_lost_while_the_processor_is_unavailable(counter: Counter) -> None:
    session = await counter.pay()
    (claim,) = await counter.members.list_unclaimed(MINE)
    paid = counter.billing.payments[session]
    counter.billing.payments[session] = BillingError("down")
    assert await counter.members.list_unclaimed(MINE) is None
    redeeming = counter.members.redeem(MINE, claim.id, API_KEY)
    await assert_refused(redeeming, 503, "nothing is lost. Retry after 30 seconds")
    counter.billing.payments[session] = paid
    await counter.members.redeem(MINE, claim.id, API_KEY)
    assert await counter.get_verdict(API_KEY) == "counted"


async def test_only_the_newest_five_checkouts_are_checked(counter: Counter) -> None:
    for _ in range(7):
        await counter.pay()
        counter.shop.clock.now += 1
    counter.billing.checks.clear()
    assert len(await counter.members.list_unclaimed(MINE)) == 5
    assert sorted(counter.billing.checks) == ["cs_3", "cs_4", "cs_5", "cs_6", "cs_7"]


async def test_creating_and_revoking_keys_in_turn_is_limited(
    counter: Counter,
) -> None:
    await counter.buy()
    membership = (await counter.get_plan()).membership.id
    for number in range(1, MAX_NEW_KEYS_PER_DAY):
        counter.shop.clock.now += 1
        await counter.members.create(MINE, membership, f"key {number}")
        await counter.members.revoke(MINE, membership, (await counter.get_plan()).live_keys[-1].id)
    await assert_refused(counter.members.create(MINE, membership, "one more"), 409, "10 new ones")
    labels = [held.label for held in (await counter.get_plan()).ended_keys]
    assert labels == ["key 9", "key 8", "key 7", "key 6", "key 5"]
    counter.shop.clock.now = NOON + DAY_MS
    assert await counter.members.create(MINE, membership, "the day after")


async def test_a_slow_status_is_not_waited_for_and_shown_once_it_arrives(counter: Counter) -> None:
    await counter.buy()
    membership, provider = (await counter.get_plan()).membership, counter.billing
    members = counter.open_members(0.01)
    in_force = provider.statuses["sub_cs_1"] = SubscriptionStatus(renews_at=NOON + 1)
    provider.status_checks = 0  # The claim has checked the membership too.
    provider.status_released.clear()
    assert [await members.fetch_status(membership) for _ in range(2)] == [None] * 2
    provider.status_released.set()
    assert await members.fetch_status(membership) == in_force
    assert provider.status_checks == 1


async def test_slow_payments_are_not_waited_for(counter: Counter) -> None:
    session = await counter.pay()
    counter.billing.released.clear()
    for within_s, sessions in ((0.01, None), (10, [session])):
        found = await counter.open_members(within_s).list_unclaimed(MINE)
        assert (found and [claim.session for claim in found]) == sessions
        counter.billing.released.set()


NOW = 1_790_000_000_000
ANN, BOB = "Ann@Example.com", "bob@example.com"


@pytest.mark.clause("16.6")
async def test_each_mailbox_and_the_owner_have_a_list_of_their_own(store: AccessStore) -> None:
    for email, ticker in ((ANN, "ETH"), (ANN, "BTC"), (ANN, "ETH"), (BOB, "XAU"), ("owner", "SOL")):
        await watch(store, email, ticker, NOW)
    ann = normalize_email(ANN)
    assert await store.list_watched(ann) == ("BTC", "ETH")
    assert await store.list_watched("owner") == ("SOL",)
    for ticker in ("ETH", "ETH", "XAU"):
        await store.unwatch(ann, ticker)
    assert [await store.list_watched(email) for email in (ann, BOB)] == [("BTC",), ("XAU",)]


@pytest.mark.clause("16.6")
async def test_a_list_is_bounded_even_if_assets_are_added_at_once(store: AccessStore) -> None:
    tickers = [f"T{number}" for number in range(MAX_WATCHED + 3)]
    added = await asyncio.gather(
        *(watch(store, ANN, ticker, NOW) for ticker in tickers), return_exceptions=True
    )
    assert [type(result) for result in added if result is not None] == [ApiError] * 3
    held = await store.list_watched(normalize_email(ANN))
    assert len(held) == MAX_WATCHED
    await watch(store, ANN, held[0], NOW)  # It is there, so it needs no room.
    await watch(store, BOB, "BTC", NOW)
    await assert_refused(watch(store, ANN, "NEW", NOW), 409, "Your watchlist is full")
