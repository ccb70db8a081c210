"""Which memberships give access: the table of Stripe's facts, and histories of subscriptions."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from access.billing.provider import SubscriptionStatus
from access.billing.stripe import judge_subscription
from access.billing.stripe_api import Charge, Subscription
from access.maintenance import MaintenanceJob
from schemas.vocabulary import DAY_MS
from tests.doubles.stripe.records import Object, StripeRecords
from tests.doubles.stripe.server import MONTHLY
from tests.support.example_market import NOON
from tests.support.sandbox_shop import Purchase, StripeShop
from tests.support.signals_command import drop_requests

pytestmark = pytest.mark.clause("sales")

PRICE_IDS = (MONTHLY, "price_yearly")
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
        "items": {"data": [item] * changed.pop("items", 1)},
        "metadata": {"price": MONTHLY},
        "pause_collection": None,
    }
    is_paid = changed.pop("is_paid", True)
    return judge_subscription(
        Subscription.model_validate(found | changed),
        Charge.model_validate(charge) if is_paid else None,
        is_disputed=is_disputed,
        price_ids=PRICE_IDS,
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


def test_an_unpaid_subscription_ends_at_the_end_of_its_window() -> None:
    ends_at = NOON // 1000 * 1000 + WINDOW_DAYS * DAY_MS
    assert judge(status="past_due").ends_at == ends_at


Step = Callable[[StripeShop, Purchase], object]


def set_status(status: Any) -> Step:
    return lambda shop, bought: shop.stripe.set_status(bought.subscription, status)


def pay_month(shop: StripeShop, bought: Purchase) -> object:
    customer = shop.stripe.books.objects[bought.subscription]["customer"]
    return shop.stripe.books.add_charge(customer, 129_00)


def win_dispute(shop: StripeShop, bought: Purchase) -> object:
    (dispute,) = shop.stripe.books.list_objects("dispute")
    return shop.stripe.books.close_dispute(dispute, "won")


def change_price(price: str) -> Step:
    def change(shop: StripeShop, bought: Purchase) -> object:
        books = shop.stripe.books
        if price not in books.objects:
            books.add_price(price, 1_00, "month")
        return books.change_price(books.objects[bought.subscription], price)

    return change


async def run_day(shop: StripeShop) -> list[str]:
    """Run the daily round; return the names of its log events."""

    async def stop(seconds: float) -> None:
        raise InterruptedError

    with capture_logs(processors=[drop_requests]) as lines, pytest.raises(InterruptedError):
        await MaintenanceJob(shop.served.access, shop.billing, shop.clock, stop).run()
    return [line["event"] for line in lines]


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
async def test_a_settled_subscription_gives_access_again_and_an_open_one_is_reported(
    shop: StripeShop, stop: Step, settle: Step
) -> None:
    bought = await shop.buy()
    stop(shop, bought)
    assert await run_day(shop) == [
        "membership_ended",
        "members_charged_without_access",
        "maintenance_done",
    ]
    assert await run_day(shop) == ["members_charged_without_access", "maintenance_done"]
    settle(shop, bought)
    assert await run_day(shop) == ["membership_resumed", "maintenance_done"]
    assert await run_day(shop) == ["maintenance_done"]
    assert await shop.status(bought.api_key) == 403
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert (held.ended_at, held.ended_reason) == (None, None)
    set_status("canceled")(shop, bought)
    assert await run_day(shop) == ["membership_ended", "maintenance_done"]
    assert await shop.served.access.list_open_memberships("stripe") == []


async def test_a_refund_of_an_earlier_month_ends_nothing(shop: StripeShop) -> None:
    bought = await shop.buy()
    pay_month(shop, bought)
    shop.stripe.refund(bought.charge)
    assert await run_day(shop) == ["maintenance_done"]
    assert await shop.status(bought.api_key) == 200


@pytest.mark.parametrize("is_paused", [True, False])
async def test_a_key_ends_after_the_dunning_window(shop: StripeShop, is_paused: bool) -> None:
    bought = await shop.buy()
    subscription = shop.stripe.books.objects[bought.subscription]
    if is_paused:
        shop.stripe.books.pause_collection(subscription, is_paused=True)
    else:
        set_status("past_due")(shop, bought)
    shop.clock.now += WINDOW_DAYS * DAY_MS - 60_000
    assert await run_day(shop) == ["maintenance_done"]
    assert await shop.status(bought.api_key) == 200
    shop.clock.now += 60_000
    assert (await run_day(shop))[0] == "membership_ended"
    assert await shop.status(bought.api_key) == 403


STEPS: dict[str, Step] = {
    **{name: set_status(name) for name in ("active", "past_due", "unpaid", "paused")},
    "pay": pay_month,
    "refund": lambda shop, bought: shop.stripe.refund(shop.stripe.charge_of(bought.session)),
    "cheap": change_price("price_cheap"),
    "plan": change_price(MONTHLY),
    "wait": lambda shop, bought: setattr(shop.clock, "now", shop.clock.now + 40 * DAY_MS),
}


@pytest.mark.parametrize("seed", range(6))
async def test_after_any_history_a_member_has_access_or_the_operator_is_warned(
    shop: StripeShop, seed: int
) -> None:
    """Whatever happened before, the store agrees with a fresh verdict once a day has passed."""
    bought = await shop.buy()
    for name in Random(seed).choices(sorted(STEPS), k=8):
        STEPS[name](shop, bought)
        events = await run_day(shop)
        (held,) = await shop.served.access.list_open_memberships("stripe")
        status = await shop.billing.fetch_status(held.row)
        assert (held.ended_at is not None) == ("members_charged_without_access" in events)
        assert held.ended_at is None or not status.is_paid
        assert status.ended_reason in (None, held.ended_reason)
