"""Checkouts, payments, plans and the customer portal on a double of Stripe."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from access.billing.provider import (
    BillingError,
    BillingSetupError,
    NoBilling,
    Order,
    SandboxBilling,
    SettledPayment,
    SubscriptionStatus,
)
from access.billing.stripe import StripeBilling, judge_subscription
from access.billing.stripe_api import Charge, Subscription
from access.keys_and_quota import hash_key
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS, Billing
from store.access_rows import MembershipRow, SandboxSession
from tests.access.test_maintenance import run_round
from tests.doubles.stripe.records import Object, StripeRecords
from tests.doubles.stripe.server import (
    MONTHLY,
    DroppedResponse,
    StripeDouble,
    run_stripe_double,
)
from tests.store.sql.test_purchase_store import MEMBER
from tests.support.example_market import HOUR_MS, NOON
from tests.support.running_service import ManualClock, RunningService, open_loopback_socket
from tests.support.sandbox_shop import BUYER, OpenedCheckout, Purchase, StripeShop, create_billing

pytestmark = pytest.mark.clause("sales")


@pytest.fixture
async def stripe() -> AsyncIterator[StripeDouble]:
    async with run_stripe_double(ManualClock()) as double:
        yield double


async def get_price_error(stripe: StripeDouble, **changed: Any) -> str:
    billing = create_billing(stripe, ManualClock(), **changed)
    try:
        with pytest.raises(BillingSetupError) as refused:
            await billing.check_prices()
    finally:
        await billing.close()
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.clause("5.19")
@pytest.mark.parametrize(
    ("api_key", "mode"),
    [
        ("sk_test_51a", "test"),
        ("rk_test_51a", "test"),
        ("sk_live_51a", "live"),
        ("rk_live_51a", "live"),
    ],
)
async def test_the_mode_is_the_keys(stripe: StripeDouble, api_key: str, mode: str) -> None:
    billing = create_billing(stripe, ManualClock(), api_key=api_key)
    assert billing.mode == mode
    await billing.close()


@pytest.mark.clause("5.19")
async def test_a_live_key_sells_at_no_price_of_test_mode() -> None:
    async with run_stripe_double(ManualClock(), livemode=True) as live:
        live.objects["price_monthly"]["livemode"] = False
        text = await get_price_error(live)
    assert "price_monthly (monthly): livemode is False, expected True" in text
    assert "price_yearly" not in text


@pytest.mark.parametrize("api_key", ["pk_test_51a", "sk_51a", "", "sk_test_", " sk_test_51a\n"])
def test_a_malformed_key_is_refused_without_being_quoted(
    stripe: StripeDouble, api_key: str
) -> None:
    with pytest.raises(BillingSetupError, match="sk_test_, rk_test_, sk_live_ or rk_live_") as bad:
        create_billing(stripe, ManualClock(), api_key=api_key)
    assert "51a" not in str(bad.value)


@pytest.mark.clause("5.15", "5.20")
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"unit_amount": 99_00}, "unit_amount is 9900, expected 12900"),
        ({"currency": "eur"}, "currency is eur, expected usd"),
        ({"active": False}, "active is False, expected True"),
        ({"livemode": True}, "livemode is True, expected False"),
        ({"recurring": None, "type": "one_time"}, "it is not recurring"),
        ({"interval": "year"}, "interval is year, expected month"),
        ({"interval_count": 2}, "interval_count is 2, expected 1"),
        ({"usage_type": "metered"}, "usage_type is metered, expected licensed"),
        ({"object": "gone"}, "is unknown to Stripe"),
    ],
)
async def test_a_differing_price_is_named_with_the_expected_value(
    stripe: StripeDouble, changed: dict[str, Any], expected: str
) -> None:
    price = stripe.objects["price_monthly"]
    (price["recurring"] if changed.keys() & price["recurring"].keys() else price).update(changed)
    text = await get_price_error(stripe)
    assert f"price_monthly (monthly): {expected}" in text
    assert "price_yearly" not in text


async def test_a_key_that_stripe_rejects_is_not_quoted(stripe: StripeDouble) -> None:
    text = await get_price_error(stripe, api_key="sk_test_51OtherKey")
    assert "SIGNALS_STRIPE_API_KEY (HTTP 401)" in text
    assert "Other" not in text


async def test_a_failure_of_stripe_is_not_reported_as_a_wrong_setting(stripe: StripeDouble) -> None:
    billing = create_billing(stripe, ManualClock())
    stripe.fail(503)
    with pytest.raises(BillingError, match="APIError, HTTP 503, req_double"):
        await billing.check_prices()
    await billing.close()


async def test_nothing_is_sold_until_the_prices_were_checked(shop: StripeShop) -> None:
    price = shop.stripe.objects["price_monthly"]
    price["unit_amount"] = 1
    refused = await shop.post_checkout()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
    assert shop.stripe.sessions() == []
    price["unit_amount"] = 129_00
    assert (await shop.post_checkout()).status_code == 201


async def test_prices_are_checked_once_before_sales(shop: StripeShop) -> None:
    await shop.billing.check_prices()
    await shop.open_checkout()
    await shop.open_checkout()
    prices, sessions = ["prices/price_monthly", "prices/price_yearly"], ["checkout/sessions"] * 2
    assert [request.path for request in shop.stripe.requests] == prices + sessions


ORDER = Order("c1", BUYER, "monthly", "Scout")


@pytest.mark.clause("4.11.3", "5.10")
async def test_a_checkout_is_a_subscription_to_the_plan_at_stripe(shop: StripeShop) -> None:
    answer = (await shop.post_checkout(billing="yearly", agent_name="Scout")).json()
    session = shop.stripe.sessions()[0]
    assert answer["checkout_url"] == session["url"]
    assert (answer["mode"], answer["plan"]["amount_usd"]) == ("test", 1199)
    assert answer["next_step"]["expires_at"] == "2026-10-01T12:06:20.000Z"
    assert (session["mode"], session["amount_total"]) == ("subscription", 119_900)
    assert (session["customer_email"], session["adaptive_pricing"]) == (BUYER, {"enabled": False})
    assert session["metadata"] == {
        "claim_id": session["client_reference_id"],
        "price": "price_yearly",
        "agent_name": "Scout",
    }
    paid_url = "https://signals.example/checkout/paid?session_id={CHECKOUT_SESSION_ID}"
    assert session["success_url"] == paid_url
    assert session["cancel_url"] == "https://signals.example/checkout/cancelled"
    shop.stripe.pay(session["id"])
    subscription = shop.stripe.objects[shop.stripe.subscription_of(session["id"])]
    assert subscription["metadata"] == session["metadata"]
    assert subscription["items"]["data"][0]["price"]["id"] == "price_yearly"


async def test_the_same_order_opens_no_second_session(shop: StripeShop) -> None:
    first = await shop.billing.open_session(ORDER)
    assert await shop.billing.open_session(ORDER) == first
    assert [session["id"] for session in shop.stripe.sessions()] == [first[0]]


@pytest.mark.parametrize(
    "lose_answer",
    [
        lambda stripe: stripe.fail(500, is_executed=True),
        lambda stripe: stripe.respond(DroppedResponse, is_executed=True),
    ],
    ids=["failed", "dropped"],
)
async def test_a_retry_after_a_lost_answer_opens_no_second_session(
    shop: StripeShop, lose_answer: Callable[[StripeDouble], object]
) -> None:
    await shop.billing.check_prices()
    lose_answer(shop.stripe)
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


@pytest.mark.parametrize(
    ("email", "message"),
    [
        ("agent@refused.example.com", "contact_email: the payment processor"),
        # Special-use addresses are refused with real money.
        ("agent@service.test", "contact_email: is not a valid"),
    ],
)
async def test_an_address_that_stripe_would_not_mail_is_a_400(
    shop: StripeShop, email: str, message: str
) -> None:
    refused = await shop.post_checkout(contact_email=email)
    assert refused.status_code == 400
    assert refused.json()["message"].startswith(message)
    assert shop.stripe.sessions() == []


# Changes what Stripe knows of the session with an id.
Spoil = Callable[[StripeDouble, str], object]


@pytest.mark.clause("3.4.8")
async def test_a_membership_has_the_address_that_stripe_reports(
    shop: StripeShop, opened: OpenedCheckout
) -> None:
    shop.stripe.objects[opened.session]["customer_details"]["email"] = "payer@example.com"
    await shop.post_claim(opened.claim_token)
    member = (await shop.served.access.list_open_memberships("stripe"))[0]
    assert (member.mode, member.billing, member.subscription, member.contact_email) == (
        "test",
        "monthly",
        shop.stripe.subscription_of(opened.session),
        "payer@example.com",
    )


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


@pytest.mark.clause("3.4.3")
@pytest.mark.parametrize("is_delayed", [True, False])
async def test_a_delayed_payment_or_an_incomplete_subscription_is_pending(
    shop: StripeShop, is_delayed: bool
) -> None:
    opened = await shop.open_checkout()
    shop.stripe.pay(opened.session, is_delayed=is_delayed)
    subscription = shop.stripe.subscription_of(opened.session)
    if not is_delayed:
        shop.stripe.set_status(subscription, "incomplete")
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"
    if is_delayed:
        shop.stripe.settle(opened.session)
    shop.stripe.set_status(subscription, "active")
    shop.clock.now += 2_000
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


DIFFERS = "does not match the order"


@pytest.mark.clause("3.4.7", "5.20")
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda stripe, id_: stripe.objects.pop(id_), "is unknown to the payment processor"),
        *(
            (lambda stripe, id_, changed=changed: stripe.objects[id_].update(changed), why)
            for changed, why in (
                ({"status": "expired"}, "expired unpaid, so it gives no key: start again"),
                ({"amount_total": 100}, DIFFERS),
                ({"amount_total": 0, "payment_status": "no_payment_required"}, DIFFERS),
                ({"payment_status": "no_payment_required"}, DIFFERS),
                ({"currency": "jpy"}, DIFFERS),
                ({"livemode": True}, DIFFERS),
                ({"mode": "payment"}, DIFFERS),
                ({"client_reference_id": "another"}, DIFFERS),
            )
        ),
        (lambda stripe, id_: stripe.line_items[id_].clear(), DIFFERS),
        (lambda stripe, id_: stripe.line_items[id_].append({"price": "p"}), DIFFERS),
        (lambda stripe, id_: stripe.line_items[id_][0]["price"].update(id="other"), DIFFERS),
        (
            lambda stripe, id_: stripe.cancel_subscription(stripe.subscription_of(id_)),
            "is over, because the subscription is canceled",
        ),
    ],
)
async def test_a_checkout_that_is_over_or_differs_from_the_order_gives_no_key(
    shop: StripeShop, opened: OpenedCheckout, spoil: Spoil, why: str
) -> None:
    spoil(shop.stripe, opened.session)
    answer = await shop.post_claim(opened.claim_token)
    assert answer.status_code == 404, answer.text
    assert f"claim_token: this checkout {why}" in answer.json()["message"]
    assert (await shop.served.keys.list())[1:] == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        *(
            (
                lambda stripe, id_, status=status: stripe.set_status(
                    stripe.subscription_of(id_), status
                ),
                f"the subscription is {status.replace('_', ' ')}",
            )
            for status in ("past_due", "unpaid", "paused")
        ),
        (
            lambda stripe, id_: stripe.pause_collection(stripe.subscription_of(id_)),
            "the collection of payments is paused",
        ),
        (
            lambda stripe, id_: stripe.refund(stripe.charge_of(id_)),
            "the payment was refunded in full",
        ),
        (lambda stripe, id_: stripe.dispute(stripe.charge_of(id_)), "the payment was disputed"),
    ],
)
async def test_a_purchase_whose_subscription_must_be_settled_is_not_to_be_paid_again(
    shop: StripeShop, opened: OpenedCheckout, spoil: Spoil, why: str
) -> None:
    spoil(shop.stripe, opened.session)
    answer = await shop.post_claim(opened.claim_token)
    assert answer.status_code == 409, answer.text
    message = answer.json()["message"]
    assert f"because {why}. Do not pay again" in message
    assert "start again" not in message
    assert (await shop.served.keys.list())[1:] == []


async def test_a_checkout_paid_before_the_prices_changed_gives_its_key(
    shop: StripeShop,
) -> None:
    prices = shop.billing._prices
    shop.stripe.add_price("price_old", 129_00, "month")
    shop.billing._prices = {**prices, "monthly": "price_old"}
    opened = await shop.open_and_pay()
    shop.billing._prices = prices
    shop.clock.now += 24 * HOUR_MS
    answer = await shop.post_claim(opened.claim_token)
    assert answer.json()["status"] == "active", answer.text
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert (await shop.billing.fetch_status(held)).is_paid


@pytest.mark.clause("3.4.7")
async def test_the_payment_status_is_never_read_from_our_store(shop: StripeShop) -> None:
    opened = await shop.open_checkout()
    claim_id = shop.stripe.objects[opened.session]["client_reference_id"]
    await shop.served.access.create_sandbox_session(
        SandboxSession(opened.session, claim_id, BUYER, "monthly", 129, "paid", shop.clock.now + 1)
    )
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "pending"


async def test_a_claim_while_stripe_fails_is_503_and_loses_nothing(
    shop: StripeShop, opened: OpenedCheckout
) -> None:
    session = shop.stripe.objects[opened.session]
    subscription = session["subscription"]
    # The last failure is one in the middle of a claim.
    for status in (500, 429, 401, None):
        if status is None:
            session["subscription"] = None
        else:
            shop.stripe.fail(status)
        answer = await shop.post_claim(opened.claim_token)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    session["subscription"] = subscription
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


@pytest.mark.prove
async def test_charges_are_read_past_the_first_page(
    shop: StripeShop, opened: OpenedCheckout
) -> None:
    charge = shop.stripe.charge_of(opened.session)
    claim = await shop.served.access.find_claim(hash_key(opened.claim_token))
    customer = shop.stripe.objects[opened.session]["customer"]
    for _ in range(100):
        shop.stripe.add_charge(customer, 129_00, is_paid=False)
    assert isinstance(await shop.billing.fetch_payment(claim), SettledPayment)
    shop.stripe.refund(charge)
    assert not isinstance(await shop.billing.fetch_payment(claim), SettledPayment)


BACK = "https://signals.example/settings/api-access"


async def find_member(shop: StripeShop, bought: Purchase) -> MembershipRow:
    (member,) = await shop.served.access.list_open_memberships("stripe")
    assert member.subscription == bought.subscription
    return member


@pytest.mark.clause("dashboard")
@pytest.mark.parametrize(("billing", "days"), [("monthly", 30), ("yearly", 365)])
async def test_the_status_of_a_plan_is_what_stripe_reports(
    shop: StripeShop, billing: Billing, days: int
) -> None:
    bought = await shop.buy(billing)
    member = await find_member(shop, bought)
    end = shop.clock.now // 1000 * 1000 + days * DAY_MS
    assert await shop.billing.fetch_status(member) == SubscriptionStatus(renews_at=end)
    subscription = shop.stripe.objects[bought.subscription]
    for changed, status in (
        ({"cancel_at_period_end": True}, SubscriptionStatus(ends_at=end)),
        ({"cancel_at": 1_800_000_000}, SubscriptionStatus(ends_at=1_800_000_000_000)),
        ({"status": "unpaid"}, SubscriptionStatus(ended_reason="the subscription is unpaid")),
        (
            {"status": "canceled"},
            SubscriptionStatus(ended_reason="the subscription is canceled", is_final=True),
        ),
    ):
        subscription |= changed
        assert await shop.billing.fetch_status(member) == status
    subscription["status"] = "active"
    shop.stripe.refund(bought.charge)
    refunded = SubscriptionStatus(ended_reason="the payment was refunded in full")
    assert await shop.billing.fetch_status(member) == refunded
    del shop.stripe.objects[bought.subscription]
    assert await shop.billing.fetch_status(member) == SubscriptionStatus(is_known=False)


@pytest.mark.clause("dashboard")
async def test_the_portal_is_opened_for_the_right_customer(shop: StripeShop) -> None:
    member = await find_member(shop, await shop.buy())
    addresses = {await shop.billing.create_portal_url(member, BACK) for _ in range(2)}
    visits = shop.stripe.list_objects("billing_portal.session")
    assert (addresses, len(addresses)) == ({visit["url"] for visit in visits}, 2)
    assert {(visit["customer"], visit["return_url"]) for visit in visits} == {
        (member.customer, BACK)
    }


@pytest.mark.clause("dashboard")
async def test_an_unavailable_stripe_gives_no_status(shop: StripeShop) -> None:
    member = await find_member(shop, await shop.buy())
    for asking in (shop.billing.fetch_status(member), shop.billing.create_portal_url(member, BACK)):
        shop.stripe.fail(403)
        with pytest.raises(BillingError) as failed:
            await asking
        assert member.customer not in str(failed.value)


@pytest.mark.clause("dashboard")
async def test_the_portal_check_names_the_cause_of_a_failure(shop: StripeShop) -> None:
    await shop.billing.check_portal()
    (settings,) = shop.stripe.list_objects("billing_portal.configuration")
    del shop.stripe.objects[settings["id"]]
    with pytest.raises(BillingSetupError, match="portal is not set up"):
        await shop.billing.check_portal()
    for status, error, words in (
        (403, BillingSetupError, r"SIGNALS_STRIPE_API_KEY .* \(HTTP 403\)"),
        (404, BillingError, "HTTP 404"),
        (401, BillingSetupError, "HTTP 401"),
    ):
        shop.stripe.fail(status)
        with pytest.raises(error, match=words):
            await shop.billing.check_portal()


@pytest.mark.clause("dashboard")
async def test_without_stripe_there_is_no_portal_and_a_plan_stays_active(
    served: RunningService,
) -> None:
    sandbox = SandboxBilling(served.access, served.clock, served.base_url)
    assert await sandbox.fetch_status(MEMBER) == SubscriptionStatus()
    off = NoBilling()
    for provider in (sandbox, off):
        assert not provider.has_portal
        with pytest.raises(ApiError, match="nothing to manage"):
            await provider.create_portal_url(MEMBER, BACK)
    with pytest.raises(BillingError, match="billing is off"):
        await off.fetch_status(MEMBER)


# A paid month has 31 days at most.
WINDOW_DAYS = 31 + 30


def judge(
    days: float = 0, *, is_disputed: bool = False, price: str = MONTHLY, **changed: Any
) -> SubscriptionStatus:
    """Judge a monthly subscription so many days after its last payment."""
    books = StripeRecords(lambda: NOON, livemode=False)
    books.add_price(MONTHLY, 129_00, "month")
    books.add_price("price_yearly", 1_199_00, "year")
    books.add_price("price_cheap", 1_00, "month")
    books.add_price("price_other", 129_00, "month")["product"] = "prod_2"
    charge = books.add_charge("cus_1", 129_00) | {"refunded": changed.pop("refunded", False)}
    item: Object = {"id": "si_1", "current_period_end": NOON // 1000, "quantity": 1}
    item |= {"price": books.objects[price]} | changed.pop("item", {})
    found: Object = {
        "id": "sub_1",
        "object": "subscription",
        "status": "active",
        "cancel_at": None,
        "cancel_at_period_end": False,
        "items": {"object": "list", "data": [item] * changed.pop("items", 1)},
        "metadata": {"price": MONTHLY},
        "pause_collection": None,
    }
    is_paid = changed.pop("is_paid", True)
    return judge_subscription(
        Subscription.model_validate(found | changed),
        Charge.model_validate(charge) if is_paid else None,
        is_disputed=is_disputed,
        price_ids=(MONTHLY, "price_yearly"),
        now=NOON + round(days * DAY_MS),
        dunning_ms=30 * DAY_MS,
    )


PAUSED: Object = {"pause_collection": {"behavior": "void", "resumes_at": None}}


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({}, "paid"),
        ({"status": "trialing"}, "paid"),
        ({"status": "active", "days": 400}, "paid"),
        ({"is_paid": False}, "paid"),
        ({"status": "past_due"}, "due"),
        ({"status": "past_due", "days": WINDOW_DAYS - 0.01}, "due"),
        ({"status": "past_due", "days": WINDOW_DAYS}, "stopped"),
        ({"status": "past_due", "is_paid": False}, "stopped"),
        ({"status": "past_due", "price": "price_yearly", "days": 366 + 29}, "due"),
        ({"status": "past_due", "price": "price_yearly", "days": 366 + 30}, "stopped"),
        ({"status": "incomplete"}, "due"),
        (PAUSED, "due"),
        ({**PAUSED, "days": WINDOW_DAYS}, "stopped"),
        ({"status": "unpaid"}, "stopped"),
        ({"status": "paused"}, "stopped"),
        ({"refunded": True}, "stopped"),
        ({"is_disputed": True}, "stopped"),
        ({"status": "canceled"}, "closed"),
        ({"status": "incomplete_expired"}, "closed"),
        ({"status": "canceled", "refunded": True}, "closed"),
        ({"price": "price_yearly"}, "paid"),
        ({"price": "price_cheap"}, "stopped"),
        ({"price": "price_cheap", "metadata": {}}, "stopped"),
        ({"price": "price_cheap", "metadata": {"price": "price_cheap"}}, "stopped"),
        ({"price": "price_other"}, "stopped"),
        ({"price": "price_other", "metadata": {}}, "paid"),  # sold by an earlier version
        ({"price": "price_other", "metadata": {"price": "price_other"}}, "paid"),
        ({"item": {"quantity": 0}}, "stopped"),
        ({"items": 0}, "stopped"),
        ({"items": 2}, "stopped"),
    ],
)
def test_the_facts_of_a_subscription_decide_whether_it_gives_access(
    facts: dict[str, Any], verdict: str
) -> None:
    status = judge(**facts)
    found = "paid" if status.is_paid else "due" if status.due_reason else "stopped"
    assert ("closed" if status.is_final else found) == verdict
    assert (status.ended_reason is None) == (verdict in {"paid", "due"})
    if facts == {"status": "past_due"}:
        assert status.ends_at == NOON // 1000 * 1000 + WINDOW_DAYS * DAY_MS


Step = Callable[[StripeShop, Purchase], object]


def set_status(status: Any) -> Step:
    return lambda shop, bought: shop.stripe.set_status(bought.subscription, status)


def pay_month(shop: StripeShop, bought: Purchase) -> object:
    return shop.stripe.add_charge(shop.stripe.objects[bought.subscription]["customer"], 129_00)


def win_dispute(shop: StripeShop, bought: Purchase) -> object:
    (dispute,) = shop.stripe.list_objects("dispute")
    return shop.stripe.close_dispute(dispute["id"], "won")


def change_price(price: str) -> Step:
    def change(shop: StripeShop, bought: Purchase) -> object:
        if price not in shop.stripe.objects:
            shop.stripe.add_price(price, 1_00, "month")
        return shop.stripe.change_price(bought.subscription, price)

    return change


@pytest.mark.clause("3.5.5")
@pytest.mark.parametrize(
    ("stop", "settle"),
    [
        (set_status("unpaid"), set_status("active")),
        (set_status("paused"), set_status("active")),
        (lambda shop, bought: shop.stripe.dispute(bought.charge), win_dispute),
        (lambda shop, bought: shop.stripe.refund(bought.charge), pay_month),
        (change_price("price_cheap"), change_price(MONTHLY)),
    ],
    ids=["unpaid", "paused", "disputed", "refunded", "repriced"],
)
@pytest.mark.prove
async def test_a_settled_subscription_gives_access_again_and_an_open_one_is_reported(
    shop: StripeShop, bought: Purchase, stop: Step, settle: Step
) -> None:
    stop(shop, bought)
    assert await run_round(shop) == [
        "membership_ended",
        "members_charged_without_access",
        "maintenance_done",
    ]
    assert await run_round(shop) == ["members_charged_without_access", "maintenance_done"]
    settle(shop, bought)
    assert await run_round(shop) == ["membership_resumed", "maintenance_done"]
    assert await run_round(shop) == ["maintenance_done"]
    assert await shop.status(bought.api_key) == 403
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert (held.ended_at, held.ended_reason) == (None, None)
    set_status("canceled")(shop, bought)
    assert await run_round(shop) == ["membership_ended", "maintenance_done"]
    assert await shop.served.access.list_open_memberships("stripe") == []


async def test_a_key_ends_after_the_dunning_window(shop: StripeShop, bought: Purchase) -> None:
    shop.stripe.set_status(bought.subscription, "past_due")
    shop.clock.now += WINDOW_DAYS * DAY_MS - 60_000
    assert await run_round(shop) == ["maintenance_done"]
    assert await shop.status(bought.api_key) == 200
    shop.clock.now += 60_000
    assert (await run_round(shop))[0] == "membership_ended"
    assert await shop.status(bought.api_key) == 403


STEPS: dict[str, Step] = {
    **{name: set_status(name) for name in ("active", "past_due", "unpaid", "paused")},
    "pause": lambda shop, bought: shop.stripe.pause_collection(bought.subscription),
    "pay": pay_month,
    "refund": lambda shop, bought: shop.stripe.refund(shop.stripe.charge_of(bought.session)),
    "cheap": change_price("price_cheap"),
    "plan": change_price(MONTHLY),
    "wait": lambda shop, bought: setattr(shop.clock, "now", shop.clock.now + 40 * DAY_MS),
}


@pytest.mark.clause("3.5.5")
@pytest.mark.parametrize("seed", range(6))
async def test_after_any_history_a_member_has_access_or_the_operator_is_warned(
    shop: StripeShop, bought: Purchase, seed: int
) -> None:
    """Whatever happened before, the store agrees with a fresh verdict once a day has passed.

    A key that was once revoked stays so.
    """
    has_ended = False
    for name in Random(seed).choices(sorted(STEPS), k=8):
        event: Any = STEPS[name](shop, bought)
        if event is not None and event["object"] == "event":
            await shop.send_event(event)
        events = await run_round(shop)
        (held,) = await shop.served.access.list_open_memberships("stripe")
        status = await shop.billing.fetch_status(held)
        assert (held.ended_at is not None) == ("members_charged_without_access" in events)
        assert held.ended_at is None or not status.is_paid
        assert status.ended_reason in (None, held.ended_reason)
        has_ended = has_ended or held.ended_at is not None
        assert await shop.status(bought.api_key) == (403 if has_ended else 200)
