"""Checkout and claim on a real store: one key per settled payment, however often claimed."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from access.billing.provider import (
    BillingError,
    FailedPayment,
    NoBilling,
    Order,
    SandboxBilling,
    SubscriptionStatus,
    describe_purchase,
)
from access.keys_and_quota import QuotaGuard, hash_key
from access.purchases import generate_claim_token
from access.throttle import Limit
from schemas.errors import ApiError
from schemas.purchase import PendingClaim
from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import SandboxSession
from tests.support.row_builders import make_call_group
from tests.support.sandbox_shop import (
    BASE_URL,
    HeldProvider,
    SandboxShop,
    parse_sandbox_id,
    read_files,
    settle_checkout,
)

pytestmark = pytest.mark.clause("sales")

UNKNOWN = "ct_" + "A" * 43


@pytest.fixture
def sandbox(held_shop: SandboxShop) -> SandboxShop:
    """A shop on the sandbox."""
    held_shop.restart_with(SandboxBilling(held_shop.store, held_shop.clock, BASE_URL))
    return held_shop


async def get_verdict(shop: SandboxShop, api_key: str) -> str:
    group = make_call_group(hash_key(api_key), shop.clock())
    (counted,) = await shop.store.count_calls([group], "live", 10)
    return counted.verdict


async def collect_outcomes(claiming: list["asyncio.Task[Any]"]) -> list[str | int]:
    """Return the status of each response; for an ApiError, its HTTP status."""
    return [answer.status for answer in await asyncio.gather(*claiming, return_exceptions=True)]


@pytest.mark.clause(
    "2.9.1",
    "2.9.2",
    "2.9.3",
    "2.9.5",
    "2.9.6",
    "2.13.13",
    "3.4.5",
    "3.4.6",
    "4.11.5",
    "5.9",
    "5.12",
    "5.14",
    "5.15",
    "5.18",
    "8.47",
    "8.48",
)
@pytest.mark.parametrize(
    ("ordered", "billing", "amount"),
    [("monthly", "monthly", 129), ("yearly", "yearly", 1199), (None, "monthly", 129)],
)
async def test_a_checkout_names_the_plan_and_the_next_step_in_full(
    sandbox: SandboxShop, ordered: str | None, billing: str, amount: int
) -> None:
    checkout = await sandbox.open_checkout(**({"billing": ordered} if ordered else {}))
    assert checkout.claim_token not in checkout.checkout_url
    session = parse_sandbox_id(checkout)
    assert checkout.model_dump() == {
        "status": "checkout_created",
        "mode": "test",
        "checkout_url": f"http://127.0.0.1:8000/sandbox/checkout/{session}",
        "claim_token": checkout.claim_token,
        "plan": {"tier": "premium", "billing": billing, "amount_usd": amount},
        "next_step": {
            "call": "POST http://127.0.0.1:8000/api/v1/access/claim",
            "body_field": "claim_token",
            "every_seconds": 10,
            "for_seconds": 300,
            "expires_at": "2026-10-01T12:03:00.000Z",
        },
    }


@pytest.mark.clause(
    "2.9.4",
    "2.10.1",
    "2.10.2",
    "2.10.4",
    "2.10.5",
    "2.10.7",
    "2.10.8",
    "2.10.9",
    "2.10.10",
    "3.4.1",
    "3.4.4",
    "3.4.5",
    "3.4.6",
    "3.4.7",
    "3.4.8",
    "3.4.10",
    "4.12.5",
    "5.11",
    "5.12",
    "5.16",
    "5.17",
    "5.18",
    "8.47",
)
async def test_a_paid_checkout_gives_one_working_key(sandbox: SandboxShop) -> None:
    checkout = await sandbox.open_checkout(agent_name="Trader")
    pending = await sandbox.claim(checkout.claim_token)
    assert (pending.status, pending.mode, pending.retry_after_seconds) == ("pending", "test", 10)
    assert "claim again: every 10 seconds, for up to 5 minutes" in pending.message
    # The sandbox is read at each claim.
    await settle_checkout(sandbox, checkout, "paid")
    active = await sandbox.claim(checkout.claim_token)
    assert active.model_dump(exclude={"api_key", "usage", "store_this"}) == {
        "status": "active",
        "mode": "test",
        "docs": "http://127.0.0.1:8000/api/v1",
        "catalog": "http://127.0.0.1:8000/api/v1/catalog",
    }
    quota_guard = QuotaGuard(sandbox.store, sandbox.clock, mode="test", daily_limit=10_000)
    admitted = await quota_guard.authorize(hash_key(active.api_key))
    assert (admitted.label, admitted.quota.used_today) == ("Trader", 1)
    (key,) = await sandbox.store.list_keys()
    (member,) = await sandbox.store.list_open_memberships("sandbox")
    assert (key.mode, key.label, member.contact_email) == ("test", "Trader", "agent@example.com")


@pytest.mark.clause("2.9.2", "2.10.1", "2.10.8", "5.18")
@pytest.mark.parametrize("mode", ["test", "live"])
async def test_checkout_and_both_claims_name_the_mode_of_billing(
    held_shop: SandboxShop, billing: HeldProvider, mode: Mode
) -> None:
    billing.mode = mode
    checkout = await held_shop.open_checkout()
    pending = await held_shop.claim(checkout.claim_token)
    billing.set_paid("cs_1")
    held_shop.clock.now += 2000  # A pending status is cached for that long.
    active = await held_shop.claim(checkout.claim_token)
    assert (pending.status, active.status) == ("pending", "active")
    assert [answer.mode for answer in (checkout, pending, active)] == [mode] * 3


@pytest.mark.clause("3.4.10", "4.11.11")
async def test_tokens_and_keys_are_random_and_stored_only_as_hashes(
    sandbox: SandboxShop, tmp_path: Path
) -> None:
    secrets = []
    for _ in range(5):
        checkout = await sandbox.open_checkout()
        await settle_checkout(sandbox, checkout, "paid")
        active = await sandbox.claim(checkout.claim_token)
        secrets += [checkout.claim_token, active.api_key]
    on_disk = read_files(tmp_path)
    assert len(set(secrets)) == 10
    for secret in secrets:
        assert len(secret) == 46
        assert secret.encode() not in on_disk
        assert hashlib.sha256(secret.encode()).digest() in on_disk


@pytest.mark.clause("4.11.6", "4.11.11")
async def test_the_processor_gets_the_whole_order_under_an_id_that_is_not_secret(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    checkout = await held_shop.open_checkout(
        contact_email="Agent@EXAMPLE.com", billing="yearly", agent_name=" Trader "
    )
    (order,) = billing.orders
    assert order == Order(order.claim_id, "Agent@example.com", "yearly", "Trader")
    assert order.claim_id not in checkout.claim_token


@pytest.mark.clause("2.10.2", "5.11")
@pytest.mark.parametrize("is_paid", [True, False])
async def test_forty_claims_at_one_instant_cause_one_check_and_give_at_most_one_key(
    held_shop: SandboxShop, billing: HeldProvider, is_paid: bool
) -> None:
    checkout = await held_shop.open_checkout()
    if is_paid:
        billing.set_paid("cs_1")
    billing.released.clear()
    claiming = [held_shop.start_claim(checkout.claim_token) for _ in range(40)]
    await held_shop.wait_for_lookups(40)
    assert billing.checks == ["cs_1"]
    billing.released.set()
    outcomes = await collect_outcomes(claiming)
    assert billing.checks == ["cs_1"]
    assert Counter(outcomes) == ({"active": 1, 409: 39} if is_paid else {"pending": 40})
    assert len(await held_shop.store.list_keys()) == is_paid


@pytest.mark.clause("2.10.2", "3.4.2", "3.4.9", "3.4.10", "4.12.4", "4.12.5", "7.21", "7.22")
async def test_a_redeemed_or_unknown_token_is_refused_at_once_and_always_without_a_check(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    token = await held_shop.open_paid_checkout(billing)
    first = await held_shop.claim(token)
    for passed_ms in (0, 1, 600_000, 400 * DAY_MS):
        held_shop.clock.now += passed_ms
        held_shop.restart_with(billing)
        refusal = await held_shop.claim_refused(token)
        assert (refusal.status, refusal.code) == (409, "invalid_parameter")
        assert "the key is not recoverable. To get another one, the payer signs" in refusal.message
        assert f"{BASE_URL}/settings/api-access with the e-mail" in refusal.message
        assert first.api_key not in refusal.message
    assert await get_verdict(held_shop, first.api_key) == "counted"
    await held_shop.store.revoke_key(1, held_shop.clock())
    assert (await held_shop.claim_refused(token)).status == 409
    unknown = await held_shop.claim_refused(UNKNOWN)
    assert (unknown.status, unknown.code) == (404, "invalid_parameter")
    assert "POST http://127.0.0.1:8000/api/v1/access/checkout" in unknown.message
    assert billing.checks == ["cs_1"]


@pytest.mark.clause("3.4.9", "3.4.2")
async def test_a_client_that_left_after_the_commit_is_409_and_its_payment_is_still_checked(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    token = await held_shop.open_paid_checkout(billing)
    billing.statuses["sub_cs_1"] = SubscriptionStatus(
        ended_reason="the payment was refunded", is_final=True
    )
    billing.status_released.clear()
    leaving = held_shop.start_claim(token)
    await asyncio.wait_for(billing.status_requested.wait(), 10)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert (await held_shop.claim_refused(token)).status == 409
    billing.status_released.set()
    async with asyncio.timeout(10):
        while await held_shop.store.list_open_memberships("held"):
            await asyncio.sleep(0)
    (key,) = await held_shop.store.list_keys()
    assert key.revoked_at == held_shop.clock.now


@pytest.mark.clause("3.4.9", "3.5.5", "7.21")
async def test_a_repeated_claim_of_a_refunded_payment_says_so(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    token = await held_shop.open_paid_checkout(billing)
    await held_shop.claim(token)
    (member,) = await held_shop.store.list_open_memberships("held")
    await held_shop.store.end_membership(
        member, held_shop.clock(), "the payment was refunded in full"
    )
    refusal = await held_shop.claim_refused(token)
    assert refusal.status == 409
    assert "The membership has ended, because the payment was refunded in full" in refusal.message
    assert f"start again with POST {BASE_URL}/api/v1/access/checkout." in refusal.message
    held_shop.restart_with(NoBilling())
    assert "contact the operator" in (await held_shop.claim_refused(token)).message


@pytest.mark.parametrize("failure", [BillingError("timed out"), RuntimeError("a bug")])
async def test_a_claim_that_cannot_be_checked_after_the_commit_is_as_before(
    held_shop: SandboxShop, billing: HeldProvider, failure: Exception
) -> None:
    token = await held_shop.open_paid_checkout(billing)
    billing.statuses["sub_cs_1"] = failure
    with capture_logs() as lines:
        if isinstance(failure, BillingError):
            assert isinstance(await held_shop.claim(token), PendingClaim)
        else:
            with pytest.raises(RuntimeError):
                await held_shop.claim(token)
    assert [line["event"] for line in lines] == ["membership_not_checked"]
    assert await held_shop.store.list_keys() == []
    assert await held_shop.store.list_open_memberships("held") == []
    del billing.statuses["sub_cs_1"]
    active = await held_shop.claim(token)
    assert await get_verdict(held_shop, active.api_key) == "counted"


async def test_two_checkouts_are_checked_concurrently(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    tokens = [(await held_shop.open_checkout()).claim_token for _ in range(2)]
    billing.set_paid("cs_2")
    billing.released.clear()
    claiming = [held_shop.start_claim(token) for token in tokens]
    await held_shop.wait_for_lookups(2)
    assert billing.running == {"cs_1": 1, "cs_2": 1}
    billing.released.set()
    assert await collect_outcomes(claiming) == ["pending", "active"]


async def test_a_failed_check_is_503_for_all_waiting_claims_and_the_next_one_retries(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    token = (await held_shop.open_checkout()).claim_token
    billing.payments["cs_1"] = BillingError("timed out")
    billing.released.clear()
    claiming = [held_shop.start_claim(token) for _ in range(5)]
    await held_shop.wait_for_lookups(5)
    billing.released.set()
    for refusal in await asyncio.gather(*claiming, return_exceptions=True):
        assert isinstance(refusal, ApiError)
        assert (refusal.code, refusal.status, refusal.retry_after_s) == ("unavailable", 503, 30)
        assert "timed out" not in refusal.message
    billing.set_paid("cs_1")
    assert (await held_shop.claim(token)).status == "active"
    assert billing.checks == ["cs_1"] * 2


@pytest.mark.parametrize(
    "other",
    [{"amount_usd": 1}, {"billing": "monthly"}, {"claim_id": "another"}],
)
async def test_the_sandbox_gives_no_key_for_another_order(
    sandbox: SandboxShop, other: dict[str, Any]
) -> None:
    checkout = await sandbox.open_checkout(billing="yearly")
    claim = await sandbox.purchases.find_claim(checkout.claim_token)
    session = SandboxSession(
        "sb_other", claim.id, claim.contact_email, "yearly", 1199, "paid", claim.expires_at
    )
    await sandbox.store.create_sandbox_session(replace(session, **other))
    for id_, expected in (
        ("sb_other", FailedPayment("was paid for something else", may_be_paid=True)),
        ("sb_gone", FailedPayment("is unknown to the sandbox")),
    ):
        payment = await sandbox.billing.fetch_payment(replace(claim, session=id_))
        assert payment == expected


@pytest.mark.parametrize(("name", "mode"), [("held", "live"), ("sandbox", "live")])
async def test_a_token_of_another_provider_or_mode_never_becomes_active(
    sandbox: SandboxShop, name: str, mode: Any
) -> None:
    checkout = await sandbox.open_checkout()
    await settle_checkout(sandbox, checkout, "paid")
    began_with = sandbox.billing
    other = HeldProvider(sandbox.clock, name, mode)
    other.set_paid(parse_sandbox_id(checkout))
    sandbox.restart_with(other)
    refusal = await sandbox.claim_refused(checkout.claim_token)
    assert refusal.status == 404
    assert "was started in test mode with another payment processor" in refusal.message
    assert other.checks == []
    sandbox.restart_with(began_with)
    assert (await sandbox.claim(checkout.claim_token)).status == "active"


async def test_with_billing_off_nothing_is_sold_and_no_paid_claim_is_lost(
    sandbox: SandboxShop,
) -> None:
    checkout = await sandbox.open_checkout()
    await settle_checkout(sandbox, checkout, "paid")
    on = sandbox.billing
    sandbox.restart_with(NoBilling())
    with pytest.raises(ApiError) as refused:
        await sandbox.open_checkout()
    for error in (refused.value, await sandbox.claim_refused(checkout.claim_token)):
        assert (error.code, error.status, error.retry_after_s) == ("unavailable", 503, 3600)
    assert (await sandbox.claim_refused(UNKNOWN)).status == 404
    sandbox.restart_with(on)
    assert (await sandbox.claim(checkout.claim_token)).status == "active"


async def test_a_second_claim_on_one_subscription_is_refused_as_redeemed(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    first, second = [(await held_shop.open_checkout()).claim_token for _ in range(2)]
    billing.set_paid("cs_1")
    await held_shop.claim(first)
    billing.payments["cs_2"] = billing.payments["cs_1"]
    for _ in range(2):
        refusal = await held_shop.claim_refused(second)
        assert refusal.status == 409
        assert "already redeemed" in refusal.message
    assert (
        len(await held_shop.store.list_keys())
        == len(await held_shop.store.list_open_memberships("held"))
        == 1
    )


async def test_concurrent_checkouts_with_one_claim_token_open_one_session(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    token = generate_claim_token()
    made = await asyncio.gather(*(held_shop.open_checkout(claim_token=token) for _ in range(10)))
    assert len(billing.orders) == len({checkout.model_dump_json() for checkout in made}) == 1
    claim = await held_shop.purchases.find_claim(token)
    assert (claim.session, claim.checkout_url) == ("cs_1", "https://pay.test/cs_1")
    billing.set_paid("cs_1")
    assert (await held_shop.claim(made[0].claim_token)).status == "active"


@pytest.mark.clause("7.14")
async def test_only_valid_bodies_count_as_attempts(
    held_shop: SandboxShop,
    billing: HeldProvider,
) -> None:
    held_shop.checkout_limit = Limit(1, 600)
    held_shop.restart_with(billing)
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            await held_shop.open_checkout(contact_email="nobody")
        assert refused.value.status == 400
    await held_shop.open_checkout()
    with pytest.raises(ApiError) as refused:
        await held_shop.open_checkout()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 600)
    assert len(billing.orders) == 1


@pytest.mark.clause("4.11.4", "5.12", "5.14", "5.15", "7.6", "7.7", "8.47", "8.48")
def test_the_purchase_flow_names_absolute_addresses_and_prices() -> None:
    flow = describe_purchase("https://signals.example/")
    assert (flow.plan, flow.price_usd) == ("premium", {"monthly": 129, "yearly": 1199})
    checkout, pay, claim = flow.steps
    assert checkout.startswith("POST https://signals.example/api/v1/access/checkout")
    assert '{"contact_email": "<EMAIL>"}' in checkout
    assert "checkout_url" in pay
    assert claim.startswith("POST https://signals.example/api/v1/access/claim")
    assert "every 10 seconds for up to 5 minutes" in claim
