"""Webhooks: a signed, recent message triggers a query of Stripe, whose response decides."""

import json
import logging
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble
from tests.support.log_lines import drop_requests
from tests.support.stripe_shop import Purchase, StripeShop

pytestmark = pytest.mark.clause("sales")

Happening = Callable[[StripeDouble, Purchase], Object]


def deleted(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.cancel_subscription(bought.subscription)


def unpaid(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.set_status(bought.subscription, "unpaid")


def paused(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.set_status(bought.subscription, "paused")


def past_due(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.set_status(bought.subscription, "past_due")


def refunded(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.refund(bought.charge)


def partly_refunded(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.refund(bought.charge, 128_99)


def refunded_in_parts(stripe: StripeDouble, bought: Purchase) -> Object:
    stripe.refund(bought.charge, 100_00)
    return stripe.refund(bought.charge, 29_00)


def disputed(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge)


def lost(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge, "lost")


def inquired(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge, "warning_needs_response", "inquiry")


def won(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge, "won")


def blocked(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge, "prevented", "block")


def resolved(stripe: StripeDouble, bought: Purchase) -> Object:
    return stripe.dispute(bought.charge, "prevented", "resolution")


@pytest.mark.clause("3.5.5", "5.27")
@pytest.mark.parametrize(
    ("happen", "why"),
    [
        (deleted, "the subscription is canceled"),
        (unpaid, "the subscription is unpaid"),
        (paused, "the subscription is paused"),
        (refunded, "the payment was refunded in full"),
        (refunded_in_parts, "the payment was refunded in full"),
        (disputed, "the payment was disputed"),
        (lost, "the payment was disputed"),
        (resolved, "the payment was disputed"),
    ],
)
async def test_an_event_that_ends_a_purchase_revokes_its_key_at_once(
    shop: StripeShop, happen: Happening, why: str
) -> None:
    bought = await shop.buy()
    other = await shop.buy()
    with capture_logs(processors=[drop_requests]) as lines:
        answer = await shop.send_event(happen(shop.stripe, bought))
    assert (answer.status_code, answer.json()) == (200, {"received": True})
    assert lines == [
        {
            "event": "membership_ended",
            "log_level": "info",
            "subscription": bought.subscription,
            "why": why,
            "keys": 1,
        }
    ]
    assert await shop.status(bought.api_key) == 403
    assert await shop.status(other.api_key) == 200


@pytest.mark.clause("3.5.5")
@pytest.mark.parametrize("happen", [past_due, partly_refunded, inquired, won, blocked])
async def test_an_event_that_ends_no_purchase_revokes_no_key(
    shop: StripeShop, happen: Happening
) -> None:
    bought = await shop.buy()
    assert (await shop.send_event(happen(shop.stripe, bought))).status_code == 200
    assert await shop.status(bought.api_key) == 200


async def test_an_event_that_contradicts_stripe_changes_nothing(shop: StripeShop) -> None:
    bought = await shop.buy()
    subscription = shop.stripe.books.objects[bought.subscription]
    lie = shop.stripe.books.add_event(
        "customer.subscription.deleted", subscription | {"status": "canceled"}
    )
    assert (await shop.send_event(lie)).status_code == 200
    assert await shop.status(bought.api_key) == 200


async def test_events_out_of_order_end_the_same(shop: StripeShop) -> None:
    bought = await shop.buy()
    earlier = shop.stripe.set_status(bought.subscription, "active")
    later = shop.stripe.cancel_subscription(bought.subscription)
    created = next(e for e in shop.stripe.events if e["type"] == "customer.subscription.created")
    for event in (later, earlier, created):
        assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 403


@pytest.mark.clause("3.5.5")
async def test_a_revoked_key_stays_revoked_if_stripe_reverts_the_end(shop: StripeShop) -> None:
    bought = await shop.buy()
    await shop.send_event(shop.stripe.set_status(bought.subscription, "unpaid"))
    await shop.send_event(shop.stripe.set_status(bought.subscription, "active"))
    assert await shop.status(bought.api_key) == 403
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert held.ended_at is None


@pytest.mark.clause("3.5.5", "5.27")
async def test_a_refund_whose_event_arrives_during_the_claim_leaves_no_working_key(
    shop: StripeShop,
) -> None:
    """Refund after Stripe has answered the check of the payment, before the key is committed."""
    opened = await shop.open_and_pay()
    statuses = []

    async def refund() -> None:
        event = shop.stripe.refund(shop.stripe.charge_of(opened.session))
        statuses.append((await shop.send_event(event)).status_code)

    shop.stripe.delay_answer("charges", refund)
    answer = await shop.post_claim(opened.claim_token)
    assert (statuses, answer.status_code) == ([200], 409)
    assert "because the payment was refunded in full" in answer.json()["message"]
    key = (await shop.served.keys.list())[-1]
    assert (key.membership_id, key.revoked_at) == (1, shop.clock.now)
    (held,) = await shop.served.access.list_open_memberships("stripe")
    assert held.ended_reason == "the payment was refunded in full"


async def test_a_cancellation_during_a_claim_while_stripe_fails_gives_no_key(
    shop: StripeShop,
) -> None:
    opened = await shop.open_and_pay()

    async def cancel() -> None:
        shop.stripe.fail(500)
        event = shop.stripe.cancel_subscription(shop.stripe.subscription_of(opened.session))
        assert (await shop.send_event(event)).status_code == 200

    shop.stripe.delay_answer("charges", cancel)
    answer = await shop.post_claim(opened.claim_token)
    assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    assert (await shop.served.keys.list())[1:] == []
    answer = await shop.post_claim(opened.claim_token)
    assert (answer.status_code, "is over" in answer.json()["message"]) == (404, True)


async def test_an_event_sent_twice_is_handled_once(shop: StripeShop) -> None:
    bought = await shop.buy()
    event = shop.stripe.set_status(bought.subscription, "past_due")
    await shop.send_event(event)
    count_before = len(shop.stripe.requests)
    assert (await shop.send_event(event)).status_code == 200
    assert len(shop.stripe.requests) == count_before
    await shop.send_event(shop.stripe.set_status(bought.subscription, "past_due"))
    assert len(shop.stripe.requests) > count_before


async def test_an_event_is_not_handled_while_stripe_is_unavailable(shop: StripeShop) -> None:
    bought = await shop.buy()
    event = shop.stripe.cancel_subscription(bought.subscription)
    shop.stripe.fail(500)
    answer = await shop.send_event(event)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert await shop.status(bought.api_key) == 200
    assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 403


async def test_a_dispute_is_sent_again_if_its_charge_cannot_be_read(shop: StripeShop) -> None:
    bought = await shop.buy()
    event = shop.stripe.dispute(bought.charge)
    shop.stripe.fail(503)
    assert (await shop.send_event(event)).status_code == 503
    assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 403


async def test_a_subscription_that_stripe_does_not_know_keeps_its_key(shop: StripeShop) -> None:
    bought = await shop.buy()
    event = shop.stripe.cancel_subscription(bought.subscription)
    del shop.stripe.books.objects[bought.subscription]
    with capture_logs(processors=[drop_requests]) as lines:
        assert (await shop.send_event(event)).status_code == 200
    assert [line["event"] for line in lines] == ["subscription_unknown"]
    assert await shop.status(bought.api_key) == 200


@pytest.mark.parametrize(
    "changed", [{"type": "invoice.paid"}, {"livemode": True}, {"type": "v2.unheard.of"}]
)
async def test_events_of_other_types_and_modes_are_accepted_and_ignored(
    shop: StripeShop, changed: Object
) -> None:
    bought = await shop.buy()
    event = shop.stripe.cancel_subscription(bought.subscription) | changed
    count_before = len(shop.stripe.requests)
    assert (await shop.send_event(event)).status_code == 200
    assert len(shop.stripe.requests) == count_before
    assert await shop.status(bought.api_key) == 200


@pytest.mark.parametrize("age_s", [-301, 301])
async def test_a_message_from_another_time_changes_nothing(shop: StripeShop, age_s: int) -> None:
    bought = await shop.buy()
    event = shop.stripe.cancel_subscription(bought.subscription)
    answer = await shop.send_event(event, at=shop.clock.now // 1000 - age_s)
    assert answer.status_code == 400
    assert await shop.status(bought.api_key) == 200


async def test_no_secret_is_logged_or_answered(
    shop: StripeShop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs(processors=[drop_requests]) as lines:
        opened = await shop.open_and_pay()
        shop.stripe.fail(500)
        shop.stripe.fail(401)
        answers = [await shop.post_claim(opened.claim_token) for _ in range(2)]
        active = await shop.post_claim(opened.claim_token)
        subscription = shop.stripe.subscription_of(opened.session)
        event = shop.stripe.cancel_subscription(subscription)
        answers.append(await shop.send_event(event, at=1))
        answers.append(await shop.send_event(event))
    output = json.dumps(lines) + caplog.text + "".join(answer.text for answer in answers)
    assert "billing_unavailable" in output
    assert "membership_ended" in output
    assert "Request to Stripe api" in output
    secrets = [
        shop.stripe.api_key,
        shop.stripe.webhook_secret,
        opened.claim_token,
        active.json()["api_key"],
    ]
    assert [secret for secret in secrets if secret in output] == []
