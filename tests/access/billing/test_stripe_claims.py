"""Claims in Stripe mode: only Stripe's status of the same session makes them active."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from access.billing.provider import SettledPayment
from store.access_rows import ClaimRow, SandboxSession
from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble
from tests.support.example_market import HOUR_MS
from tests.support.stripe_shop import BUYER, OpenedCheckout, Purchase, StripeShop

pytestmark = pytest.mark.clause("sales")

Spoil = Callable[[StripeDouble, Object], object]


async def assert_claim_fails(shop: StripeShop, opened: OpenedCheckout, why: str) -> None:
    answer = await shop.post_claim(opened.claim_token)
    assert answer.status_code == 404, answer.text
    assert f"claim_token: this checkout {why}" in answer.json()["message"]
    assert (await shop.served.keys.list())[1:] == []


@pytest.mark.clause("3.4.8")
async def test_a_paid_checkout_gives_one_working_key(shop: StripeShop) -> None:
    bought = await shop.buy()
    assert await shop.status(bought.api_key) == 200
    member = (await shop.served.access.list_open_memberships("stripe"))[0].row
    assert (member.mode, member.billing) == ("test", "monthly")
    assert (member.subscription, member.contact_email) == (bought.subscription, BUYER)


async def test_the_address_is_the_one_that_stripe_reports(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    details = shop.stripe.books.objects[opened.session]["customer_details"]
    details["email"] = "payer@example.com"
    await shop.post_claim(opened.claim_token)
    member = (await shop.served.access.list_open_memberships("stripe"))[0].row
    assert member.contact_email == "payer@example.com"


@pytest.mark.clause("5.17")
async def test_an_unpaid_checkout_is_pending_and_cached_for_two_seconds(
    shop: StripeShop,
) -> None:
    opened = await shop.open_checkout()
    count_before = len(shop.stripe.requests)
    for _ in range(3):
        answer = await shop.post_claim(opened.claim_token)
        assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    assert len(shop.stripe.requests) == count_before + 1
    shop.stripe.pay(opened.session)
    shop.clock.now += 1_999
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"
    shop.clock.now += 1
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


async def test_an_unknown_token_sends_stripe_no_request(shop: StripeShop) -> None:
    assert (await shop.post_claim("ct_" + "A" * 43)).status_code == 404
    assert shop.stripe.requests == []


@pytest.mark.clause("3.4.3")
async def test_a_delayed_payment_is_pending_until_the_money_comes(shop: StripeShop) -> None:
    opened = await shop.open_checkout()
    shop.stripe.pay(opened.session, is_delayed=True)
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"
    shop.stripe.settle(opened.session)
    shop.clock.now += 2_000
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


async def test_a_subscription_that_is_not_complete_yet_is_pending(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    subscription = shop.stripe.subscription_of(opened.session)
    shop.stripe.set_status(subscription, "incomplete")
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"
    shop.stripe.set_status(subscription, "active")
    shop.clock.now += 2_000
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


async def test_an_expired_checkout_says_so(shop: StripeShop) -> None:
    opened = await shop.open_checkout()
    shop.stripe.expire(opened.session)
    await assert_claim_fails(shop, opened, "expired unpaid, so it gives no key: start again")


async def test_a_checkout_that_stripe_does_not_know_gives_no_key(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    del shop.stripe.books.objects[opened.session]
    await assert_claim_fails(shop, opened, "is unknown to the payment processor")


@pytest.mark.clause("3.4.7", "5.20")
@pytest.mark.parametrize(
    "changed",
    [
        {"amount_total": 100},
        {"amount_total": 0, "payment_status": "no_payment_required"},
        {"payment_status": "no_payment_required"},
        {"currency": "jpy"},
        {"livemode": True},
        {"mode": "payment"},
        {"client_reference_id": "another"},
    ],
)
async def test_a_session_that_differs_from_the_order_gives_no_key(
    shop: StripeShop, changed: dict[str, Any]
) -> None:
    opened = await shop.open_and_pay()
    shop.stripe.books.objects[opened.session] |= changed
    await assert_claim_fails(shop, opened, "does not match the order")


@pytest.mark.parametrize("count", [0, 2])
async def test_a_session_of_other_items_gives_no_key(shop: StripeShop, count: int) -> None:
    opened = await shop.open_and_pay()
    shop.stripe.books.line_items[opened.session] *= count
    await assert_claim_fails(shop, opened, "does not match the order")


async def test_a_session_of_another_price_gives_no_key(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    shop.stripe.books.line_items[opened.session][0]["price"]["id"] = "price_other"
    await assert_claim_fails(shop, opened, "does not match the order")


def canceled(stripe: StripeDouble, session: Object) -> object:
    return stripe.cancel_subscription(session["subscription"])


def past_due(stripe: StripeDouble, session: Object) -> object:
    return stripe.set_status(session["subscription"], "past_due")


def unpaid(stripe: StripeDouble, session: Object) -> object:
    return stripe.set_status(session["subscription"], "unpaid")


def paused(stripe: StripeDouble, session: Object) -> object:
    return stripe.set_status(session["subscription"], "paused")


def uncollected(stripe: StripeDouble, session: Object) -> object:
    subscription = stripe.books.objects[session["subscription"]]
    return stripe.books.pause_collection(subscription, is_paused=True)


def refunded(stripe: StripeDouble, session: Object) -> object:
    return stripe.refund(stripe.charge_of(session["id"]))


def disputed(stripe: StripeDouble, session: Object) -> object:
    return stripe.dispute(stripe.charge_of(session["id"]))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (past_due, "the subscription is past due"),
        (unpaid, "the subscription is unpaid"),
        (paused, "the subscription is paused"),
        (uncollected, "the collection of payments is paused"),
        (refunded, "the payment was refunded in full"),
        (disputed, "the payment was disputed"),
    ],
)
async def test_a_purchase_whose_subscription_must_be_settled_is_not_to_be_paid_again(
    shop: StripeShop, spoil: Spoil, why: str
) -> None:
    opened = await shop.open_and_pay()
    spoil(shop.stripe, shop.stripe.books.objects[opened.session])
    answer = await shop.post_claim(opened.claim_token)
    assert answer.status_code == 409, answer.text
    message = answer.json()["message"]
    assert f"because {why}. Do not pay again" in message
    assert "start again" not in message
    assert (await shop.served.keys.list())[1:] == []


async def test_a_purchase_canceled_before_the_claim_gives_no_key(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    canceled(shop.stripe, shop.stripe.books.objects[opened.session])
    await assert_claim_fails(shop, opened, "is over, because the subscription is canceled")


async def test_a_checkout_paid_before_the_prices_changed_gives_its_key(
    shop: StripeShop,
) -> None:
    prices = shop.billing._prices
    shop.stripe.books.add_price("price_old", 129_00, "month")
    shop.billing._prices = {**prices, "monthly": "price_old"}
    opened = await shop.open_and_pay()
    shop.billing._prices = prices
    shop.clock.now += 24 * HOUR_MS
    answer = await shop.post_claim(opened.claim_token)
    assert answer.json()["status"] == "active", answer.text
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert (await shop.billing.fetch_status(held.row)).is_paid


@pytest.mark.clause("3.4.7")
async def test_the_payment_status_is_never_read_from_our_store(shop: StripeShop) -> None:
    opened = await shop.open_checkout()
    claim_id = shop.stripe.books.objects[opened.session]["client_reference_id"]
    paid = SandboxSession(
        opened.session, claim_id, BUYER, "monthly", 129, "paid", shop.clock.now + 1
    )
    await shop.served.access.create_sandbox_session(paid)
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"


async def test_a_claim_while_stripe_fails_is_503_and_loses_nothing(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    for status in (500, 429, 401):
        shop.stripe.fail(status)
        answer: httpx.Response = await shop.post_claim(opened.claim_token)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


async def test_a_failure_in_the_middle_of_a_claim_gives_no_key_yet(shop: StripeShop) -> None:
    opened = await shop.open_and_pay()
    shop.stripe.books.objects[opened.session]["subscription"] = None
    assert (await shop.post_claim(opened.claim_token)).status_code == 503


def claim_of(bought: Purchase, claim_id: str) -> ClaimRow:
    return ClaimRow(
        id=claim_id,
        token_hash=bytes(32),
        provider="stripe",
        mode="test",
        session=bought.session,
        contact_email=BUYER,
        billing="monthly",
        agent_name=None,
        created_at=0,
        expires_at=0,
    )


async def test_charges_are_read_past_the_first_page(shop: StripeShop) -> None:
    bought = await shop.buy()
    session = shop.stripe.books.objects[bought.session]
    claim = claim_of(bought, session["client_reference_id"])
    for _ in range(100):
        shop.stripe.books.add_charge(session["customer"], 129_00, is_paid=False)
    assert isinstance(await shop.billing.fetch_payment(claim), SettledPayment)
    shop.stripe.refund(bought.charge)
    assert not isinstance(await shop.billing.fetch_payment(claim), SettledPayment)
