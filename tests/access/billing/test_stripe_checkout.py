"""Opening a checkout at Stripe: its parameters, and the response if Stripe fails."""

import asyncio

import pytest

from access.billing.provider import BillingError, Order
from access.billing.stripe import StripeBilling
from tests.support.running_service import open_loopback_socket
from tests.support.stripe_shop import BUYER, StripeShop, create_billing

pytestmark = pytest.mark.clause("sales")

ORDER = Order("c1", BUYER, "monthly", "Scout")


@pytest.mark.clause("4.11.3", "5.10")
async def test_a_checkout_is_a_subscription_to_the_plan_at_stripe(shop: StripeShop) -> None:
    answer = (await shop.post_checkout(billing="yearly", agent_name="Scout")).json()
    session = shop.stripe.sessions()[0]
    assert answer["checkout_url"] == session["url"]
    assert (answer["mode"], answer["plan"]["amount_usd"]) == ("test", 1199)
    assert answer["next_step"]["expires_at"] == "2026-10-01T12:06:20.000Z"
    assert (session["mode"], session["amount_total"]) == ("subscription", 119_900)
    assert session["customer_email"] == BUYER
    assert session["adaptive_pricing"] == {"enabled": False}
    claim_id = session["client_reference_id"]
    assert session["metadata"] == {
        "claim_id": claim_id,
        "price": "price_yearly",
        "agent_name": "Scout",
    }
    paid_url = "https://signals.example/checkout/paid?session_id={CHECKOUT_SESSION_ID}"
    assert session["success_url"] == paid_url
    assert session["cancel_url"] == "https://signals.example/checkout/cancelled"
    shop.stripe.pay(session["id"])
    subscription = shop.stripe.books.objects[shop.stripe.subscription_of(session["id"])]
    assert subscription["metadata"] == session["metadata"]
    assert subscription["items"]["data"][0]["price"]["id"] == "price_yearly"


async def test_the_same_order_opens_no_second_session(shop: StripeShop) -> None:
    first = await shop.billing.open_session(ORDER)
    assert await shop.billing.open_session(ORDER) == first
    assert [session["id"] for session in shop.stripe.sessions()] == [first.id]


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_retry_after_a_lost_answer_opens_no_second_session(
    shop: StripeShop, is_dropped: bool
) -> None:
    await shop.billing.check_prices()
    if is_dropped:
        shop.stripe.drop(is_executed=True)
    else:
        shop.stripe.fail(500, is_executed=True)
    opened = await shop.open_checkout()
    creations = [request for request in shop.stripe.requests if request.path == "checkout/sessions"]
    assert len(creations) == 2
    assert creations[0] == creations[1]
    assert [session["id"] for session in shop.stripe.sessions()] == [opened.session]


@pytest.mark.clause("4.11.10")
@pytest.mark.parametrize("status", [400, 402, 429, 500, 503])
async def test_a_failure_of_stripe_is_503_and_a_later_checkout_works(
    shop: StripeShop, status: int
) -> None:
    await shop.billing.check_prices()
    shop.stripe.fail(status)
    refused = await shop.post_checkout()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
    assert refused.json()["error"] == "unavailable"
    assert shop.stripe.sessions() == []
    assert (await shop.post_checkout()).status_code == 201


async def get_session_error(billing: StripeBilling) -> str:
    try:
        with pytest.raises(BillingError) as failed:
            await billing.open_session(ORDER)
    finally:
        await billing.close()
    return str(failed.value)


async def test_an_unreachable_or_silent_stripe_is_unavailable(
    shop: StripeShop,
) -> None:
    shop.stripe.hold()
    slow = create_billing(shop.stripe, shop.clock, timeout_s=0.05)
    with open_loopback_socket() as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        unreached = create_billing(shop.stripe, shop.clock, api_base=nobody)
        errors = await asyncio.gather(get_session_error(unreached), get_session_error(slow))
    assert errors == [
        "Stripe: APIConnectionError, ConnectError",
        "Stripe: APIConnectionError, ReadTimeout",
    ]


async def test_a_response_that_is_not_stripes_is_unavailable(shop: StripeShop) -> None:
    elsewhere = f"{shop.served.base_url}/api/v1"
    errors = await get_session_error(create_billing(shop.stripe, shop.clock, api_base=elsewhere))
    assert errors == "Stripe: unreadable response, AttributeError"


async def test_an_address_that_stripe_rejects_is_a_400(shop: StripeShop) -> None:
    refused = await shop.post_checkout(contact_email="agent@refused.example.com")
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("contact_email: the payment processor")


async def test_special_use_addresses_are_refused_with_real_money(shop: StripeShop) -> None:
    refused = await shop.post_checkout(contact_email="agent@service.test")
    assert refused.status_code == 400
    assert shop.stripe.requests == []
