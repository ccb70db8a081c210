"""The status of a plan at Stripe, and links to its customer portal."""

import pytest

from access.billing.provider import BillingError, BillingSetupError, SubscriptionStatus
from access.billing.sandbox import NoBilling, SandboxBilling
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS
from store.access_rows import MembershipRow
from tests.doubles.stripe.records import Status
from tests.store.sql.test_access_store_purchases import MEMBER
from tests.support.running_service import RunningService
from tests.support.stripe_shop import Purchase, StripeShop, create_billing

pytestmark = pytest.mark.clause("dashboard")

BACK = "https://signals.example/settings/api-access"


async def find_member(shop: StripeShop, bought: Purchase) -> MembershipRow:
    (member,) = [held.row for held in await shop.served.access.list_open_memberships("stripe")]
    assert member.subscription == bought.subscription
    return member


@pytest.mark.parametrize(("billing", "days"), [("monthly", 30), ("yearly", 365)])
async def test_an_active_plan_reports_its_next_renewal(shop: StripeShop, billing, days) -> None:
    bought = await shop.buy(billing)
    standing = await shop.billing.fetch_status(await find_member(shop, bought))
    at = shop.clock.now // 1000 * 1000 + days * DAY_MS
    assert standing == SubscriptionStatus(renews_at=at)


async def test_a_cancelled_plan_lasts_to_the_end_of_the_paid_period(shop: StripeShop) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    end = (await shop.billing.fetch_status(member)).renews_at
    subscription = shop.stripe.books.objects[bought.subscription]
    subscription["cancel_at_period_end"] = True
    assert await shop.billing.fetch_status(member) == SubscriptionStatus(ends_at=end)
    subscription |= {"cancel_at_period_end": False, "cancel_at": 1_800_000_000}
    assert await shop.billing.fetch_status(member) == SubscriptionStatus(ends_at=1_800_000_000_000)


@pytest.mark.parametrize("status", ["canceled", "unpaid", "paused"])
async def test_an_ended_plan_reports_the_reason(shop: StripeShop, status: Status) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    shop.stripe.set_status(bought.subscription, status)
    over = SubscriptionStatus(
        ended_reason=f"the subscription is {status}", is_final=status == "canceled"
    )
    assert await shop.billing.fetch_status(member) == over


async def test_a_refunded_or_disputed_plan_reports_that(shop: StripeShop) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    shop.stripe.refund(bought.charge)
    assert (
        await shop.billing.fetch_status(member)
    ).ended_reason == "the payment was refunded in full"


async def test_a_plan_unknown_to_stripe_stays_active_without_a_time(
    shop: StripeShop,
) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    del shop.stripe.books.objects[bought.subscription]
    assert await shop.billing.fetch_status(member) == SubscriptionStatus(is_known=False)


async def test_the_portal_is_opened_for_the_right_customer(shop: StripeShop) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    addresses = {await shop.billing.create_portal_url(member, BACK) for _ in range(2)}
    visits = shop.stripe.books.list_objects("billing_portal.session")
    assert addresses == {visit["url"] for visit in visits}
    assert len(addresses) == 2
    assert {(visit["customer"], visit["return_url"]) for visit in visits} == {
        (member.customer, BACK)
    }


async def test_an_unavailable_stripe_gives_no_status(shop: StripeShop) -> None:
    bought = await shop.buy()
    member = await find_member(shop, bought)
    for asking in (shop.billing.fetch_status(member), shop.billing.create_portal_url(member, BACK)):
        shop.stripe.fail(403)
        with pytest.raises(BillingError) as failed:
            await asking
        assert member.customer not in str(failed.value)


async def test_the_portal_check_names_the_cause_of_a_failure(shop: StripeShop) -> None:
    await shop.billing.check_portal()
    (settings,) = shop.stripe.books.list_objects("billing_portal.configuration")
    del shop.stripe.books.objects[settings["id"]]
    with pytest.raises(BillingSetupError, match="portal is not set up"):
        await shop.billing.check_portal()
    shop.stripe.fail(403)
    with pytest.raises(BillingSetupError, match=r"SIGNALS_STRIPE_API_KEY .* \(HTTP 403\)"):
        await shop.billing.check_portal()
    shop.stripe.fail(404)
    with pytest.raises(BillingError):
        await shop.billing.check_portal()
    stranger = create_billing(shop.stripe, shop.clock, api_key="rk_test_other")
    try:
        with pytest.raises(BillingSetupError, match="HTTP 401"):
            await stranger.check_portal()
    finally:
        await stranger.close()


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
