"""Daily maintenance and webhooks keep memberships as the processor reports them."""

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from access.billing.provider import (
    NoBilling,
    Provider,
    SandboxBilling,
    SubscriptionStatus,
)
from access.keys_and_quota import hash_key
from access.maintenance import SLEEP_STEP_S, MaintenanceJob, compute_cutoffs
from store.access_rows import MembershipRow, RetentionCutoffs
from store.sql.access_store import AccessStore
from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble
from tests.store.sql.test_purchase_store import CLAIM, MEMBER
from tests.support.example_market import HOUR_MS, NOON
from tests.support.running_service import ManualClock, RunningService, break_usage_counting
from tests.support.sandbox_shop import OpenedCheckout, Purchase, StripeShop
from tests.support.signals_command import drop_requests

pytestmark = pytest.mark.clause("sales")

DAY_MS = 24 * HOUR_MS
MIDNIGHT = NOON // DAY_MS * DAY_MS + DAY_MS


class OverError(Exception):
    """The end of a test's time; stops the maintenance job."""


async def run_maintenance(
    store: AccessStore,
    provider: Provider,
    clock: ManualClock,
    until: int,
    on_sleep: Callable[[], object] = lambda: None,
) -> list[tuple[int, str]]:
    """Run maintenance up to a time; return the times and names of its log events.

    No line has an e-mail address.
    """
    lines: list[tuple[int, str]] = []

    async def sleep(seconds: float) -> None:
        assert 0 < seconds <= 60
        lines.extend((clock.now, line["event"]) for line in logged)
        assert "@" not in str(logged)
        logged.clear()
        on_sleep()
        if clock.now >= until:
            raise OverError
        clock.now += int(seconds * 1000)

    with capture_logs(processors=[drop_requests]) as logged, pytest.raises(OverError):
        await MaintenanceJob(store, provider, clock, sleep).run()
    return lines


async def run_round(shop: StripeShop) -> list[str]:
    """Run the first round; return the names of its log events."""
    lines = await run_maintenance(shop.served.access, shop.billing, shop.clock, shop.clock.now)
    return [event for _, event in lines]


async def test_a_round_runs_at_once_and_then_after_each_midnight(served: RunningService) -> None:
    provider = SandboxBilling(served.access, served.clock, served.base_url)
    start = served.clock.now
    lines = await run_maintenance(
        served.access, provider, served.clock, MIDNIGHT + DAY_MS + HOUR_MS
    )
    assert [event for _, event in lines] == ["maintenance_done"] * 3
    first, second, third = (at for at, _ in lines)
    assert first == start
    assert 0 <= second - MIDNIGHT <= SLEEP_STEP_S * 1000
    assert 0 <= third - MIDNIGHT - DAY_MS <= SLEEP_STEP_S * 1000


@pytest.mark.clause("3.5.5", "5.27")
@pytest.mark.prove
async def test_a_missed_webhook_is_made_up_for(shop: StripeShop) -> None:
    kept, canceled, refunded = [await shop.buy() for _ in range(3)]
    shop.stripe.cancel_subscription(canceled.subscription)
    shop.stripe.refund(refunded.charge)
    assert await run_round(shop) == [
        "membership_ended",
        "membership_ended",
        "members_charged_without_access",
        "maintenance_done",
    ]
    keys = (kept.api_key, canceled.api_key, refunded.api_key)
    assert [await shop.status(key) for key in keys] == [200, 403, 403]
    count_before = len(shop.stripe.requests)
    await run_round(shop)
    # The subscription and the charges of the two others: one that has ended is not checked again.
    assert len(shop.stripe.requests) == count_before + 4


@pytest.mark.prove
async def test_a_failed_check_stops_no_other_and_is_repeated_in_an_hour(
    shop: StripeShop,
) -> None:
    first, second = await shop.buy(), await shop.buy()
    for bought in (first, second):
        shop.stripe.cancel_subscription(bought.subscription)
    shop.stripe.fail(500)
    start = shop.clock.now
    lines = await run_maintenance(shop.served.access, shop.billing, shop.clock, start + 2 * HOUR_MS)
    assert lines == [
        (start, "reconcile_failed"),
        (start, "membership_ended"),
        (start, "maintenance_done"),
        (start + HOUR_MS, "membership_ended"),
        (start + HOUR_MS, "maintenance_done"),
    ]
    assert await shop.status(first.api_key) == 403


async def test_a_subscription_unknown_to_stripe_is_checked_once_a_day(
    shop: StripeShop, bought: Purchase
) -> None:
    del shop.stripe.objects[bought.subscription]
    start = shop.clock.now
    lines = await run_maintenance(shop.served.access, shop.billing, shop.clock, start + 2 * HOUR_MS)
    assert lines == [(start, "subscription_unknown"), (start, "maintenance_done")]
    assert await shop.status(bought.api_key) == 200


async def test_memberships_of_other_modes_and_providers_are_not_checked(
    shop: StripeShop, bought: Purchase
) -> None:
    access = shop.served.access
    for changed in (
        {"subscription": "live", "mode": "live"},
        {"subscription": "sandbox", "mode": "test", "provider": "sandbox"},
    ):
        claim = replace(CLAIM, id=changed["subscription"], token_hash=hash_key(str(changed)))
        await access.create_claim(claim)
        assert await access.redeem_claim(claim, replace(MEMBER, **changed), claim.token_hash, 1)
    count_before = len(shop.stripe.requests)
    assert await run_round(shop) == ["maintenance_done"]
    assert [request.path for request in shop.stripe.requests[count_before:]] == [
        f"subscriptions/{bought.subscription}",
        "charges",
    ]


class Breaking(NoBilling):
    """A Provider with a bug."""

    name = "stripe"
    mode = "test"

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        raise RuntimeError(member.contact_email)


async def test_a_bug_in_a_provider_stops_no_round_and_logs_no_address(shop: StripeShop) -> None:
    await shop.buy()
    lines = await run_maintenance(shop.served.access, Breaking(), shop.clock, shop.clock.now)
    assert [event for _, event in lines] == ["reconcile_failed", "maintenance_done"]


async def test_a_failed_round_is_repeated_in_an_hour(shop: StripeShop) -> None:
    start, access = shop.clock.now, shop.served.access
    with ExitStack() as broken:
        broken.enter_context(break_usage_counting(access))
        lines = await run_maintenance(
            access, shop.billing, shop.clock, start + 2 * HOUR_MS, on_sleep=broken.close
        )
    assert lines == [(start, "maintenance_failed"), (start + HOUR_MS, "maintenance_done")]


async def test_a_clock_set_back_stops_no_round(served: RunningService) -> None:
    provider = SandboxBilling(served.access, served.clock, served.base_url)
    rounds: list[list[str]] = []

    async def sleep(seconds: float) -> None:
        rounds.append([line["event"] for line in logged])
        logged.clear()
        broken.close()
        served.clock.now -= 40 * DAY_MS
        if len(rounds) == 3:
            raise OverError

    with ExitStack() as broken, capture_logs(processors=[drop_requests]) as logged:
        broken.enter_context(break_usage_counting(served.access))
        with pytest.raises(OverError):
            await MaintenanceJob(served.access, provider, served.clock, sleep).run()
    assert rounds == [["maintenance_failed"], ["maintenance_done"], ["maintenance_done"]]


@pytest.mark.clause("4.13.12", "8.51")
def test_rows_are_kept_as_long_as_they_are_needed() -> None:
    day_500 = 500 * DAY_MS
    assert compute_cutoffs(day_500) == RetentionCutoffs(
        usage=100 * DAY_MS,
        unredeemed_claims=410 * DAY_MS,
        events=470 * DAY_MS,
        attempts=499 * DAY_MS,
        sign_ins=500 * DAY_MS,
        access_requests=320 * DAY_MS,
        calls=470 * DAY_MS,
        oauth_clients=410 * DAY_MS,
    )


@pytest.mark.clause("8.51")
@pytest.mark.prove
async def test_only_checkouts_that_the_processor_calls_unpaid_are_deleted(
    shop: StripeShop,
) -> None:
    # The clock is 92 days ahead, so every checkout looks lapsed though it was opened just now.
    store, stripe = shop.served.access, shop.stripe
    paid, is_open, expired, unknown, ended = [await shop.open_checkout() for _ in range(5)]
    for opened in (paid, ended):
        stripe.pay(opened.session)
    stripe.expire(expired.session)
    del stripe.objects[unknown.session]
    stripe.cancel_subscription(stripe.subscription_of(ended.session))
    shop.clock.now += 92 * DAY_MS
    await run_round(shop)
    assert [
        await store.find_claim(hash_key(each.claim_token)) is not None
        for each in (paid, is_open, expired, unknown, ended)
    ] == [True, True, False, True, True]
    shop.clock.now -= 92 * DAY_MS
    assert (await shop.post_claim(paid.claim_token)).json()["status"] == "active"


@pytest.mark.clause("8.51")
async def test_no_checkout_is_deleted_while_the_processor_does_not_answer(
    shop: StripeShop,
) -> None:
    opened = [await shop.open_checkout() for _ in range(3)]
    for each in opened:
        shop.stripe.expire(each.session)
    shop.clock.now += 92 * DAY_MS
    shop.stripe.fail(500, times=9)
    count_before = len(shop.stripe.requests)
    assert await run_round(shop) == ["claims_not_checked", "maintenance_done"]
    # The other claims are not tried in vain.
    assert len({request.path for request in shop.stripe.requests[count_before:]}) == 1
    find = shop.served.access.find_claim
    assert None not in [await find(hash_key(each.claim_token)) for each in opened]


async def test_a_round_checks_a_limited_number_of_checkouts_and_leaves_the_rest_to_the_next_hour(
    shop: StripeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.maintenance.MAX_CLAIMS_CHECKED", 2)
    for _ in range(5):
        shop.stripe.expire((await shop.open_checkout()).session)
    # It is paid and stays, which is no reason for another round.
    await shop.open_and_pay()
    start = shop.clock.now = shop.clock.now + 92 * DAY_MS
    access, until = shop.served.access, start + 9 * HOUR_MS
    lines = await run_maintenance(access, shop.billing, shop.clock, until)
    hours = [(at - start) // HOUR_MS for at, _ in lines]
    assert hours == [*range(len(hours))]
    assert 3 <= len(hours) < 9
    assert len(await access.list_lapsed_claims("stripe", "test", shop.clock.now, 9)) == 1


@pytest.mark.clause("8.51")
async def test_a_paid_checkout_of_the_sandbox_outlives_a_wrong_clock(
    served: RunningService,
) -> None:
    provider = SandboxBilling(served.access, served.clock, served.base_url)
    tokens = []
    for name in ("paid", "open"):
        sent = {"contact_email": f"{name}@example.com"}
        answer = (await served.client.post("/api/v1/access/checkout", json=sent)).json()
        tokens.append(answer["claim_token"])
        if name == "paid":
            await served.client.post(answer["checkout_url"], data={"action": "pay"})
    served.clock.now += 92 * DAY_MS
    await run_maintenance(served.access, provider, served.clock, served.clock.now)
    served.clock.now -= 92 * DAY_MS
    claims = [
        await served.client.post("/api/v1/access/claim", json={"claim_token": token})
        for token in tokens
    ]
    assert (claims[0].json()["status"], claims[1].status_code) == ("active", 404)


@pytest.mark.parametrize("is_billed", [True, False])
async def test_old_rows_are_deleted_and_young_ones_kept_whether_billing_is_on_or_off(
    served: RunningService, is_billed: bool
) -> None:
    access, now = served.access, served.clock.now
    for name, age_ms in (("evt_old", 30 * DAY_MS + 1), ("evt_young", 30 * DAY_MS)):
        await access.mark_event_handled(name, now - age_ms)
    sandbox = SandboxBilling(access, served.clock, served.base_url)
    await run_maintenance(access, sandbox if is_billed else NoBilling(), served.clock, now)
    handled = [await access.is_event_handled(name) for name in ("evt_old", "evt_young")]
    assert handled == [False, True]


def refund_earlier_month(stripe: StripeDouble, bought: Purchase) -> Object:
    stripe.add_charge(stripe.objects[bought.subscription]["customer"], 129_00)
    return stripe.refund(bought.charge)


# What happens to a purchase at Stripe, by name; each returns the event that tells of it.
HAPPENINGS: dict[str, Callable[[StripeDouble, Purchase], Object]] = {
    **{
        status: lambda stripe, bought, status=status: stripe.set_status(bought.subscription, status)
        for status in ("canceled", "unpaid", "paused", "past_due")
    },
    "refunded": lambda stripe, bought: stripe.refund(bought.charge),
    "partly refunded": lambda stripe, bought: stripe.refund(bought.charge, 128_99),
    "refunded in parts": lambda stripe, bought: [
        stripe.refund(bought.charge, cents) for cents in (100_00, 29_00)
    ][-1],
    **{
        status: lambda stripe, bought, status=status: stripe.dispute(bought.charge, *status.split())
        for status in (
            *("needs_response", "lost", "warning_needs_response inquiry", "won"),
            *("prevented block", "prevented resolution"),
        )
    },
    "earlier month refunded": refund_earlier_month,
    "unknown": lambda stripe, bought: [
        stripe.cancel_subscription(bought.subscription),
        stripe.objects.pop(bought.subscription),
    ][0],
}


@pytest.mark.clause("3.5.5", "5.27")
@pytest.mark.parametrize(
    ("happen", "why"),
    [
        ("canceled", "the subscription is canceled"),
        ("unpaid", "the subscription is unpaid"),
        ("paused", "the subscription is paused"),
        ("refunded", "the payment was refunded in full"),
        ("refunded in parts", "the payment was refunded in full"),
        ("needs_response", "the payment was disputed"),
        ("lost", "the payment was disputed"),
        ("prevented resolution", "the payment was disputed"),
    ],
)
async def test_an_event_that_ends_a_purchase_revokes_its_key_at_once(
    shop: StripeShop, bought: Purchase, happen: str, why: str
) -> None:
    other = await shop.buy()
    with capture_logs(processors=[drop_requests]) as lines:
        answer = await shop.send_event(HAPPENINGS[happen](shop.stripe, bought))
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
@pytest.mark.parametrize(
    "happen",
    [
        *("past_due", "partly refunded", "won", "prevented block", "a lie"),
        *("warning_needs_response inquiry", "earlier month refunded", "unknown"),
    ],
)
async def test_an_event_that_ends_no_purchase_or_contradicts_stripe_revokes_no_key(
    shop: StripeShop, bought: Purchase, happen: str
) -> None:
    if happen == "a lie":
        told = shop.stripe.objects[bought.subscription] | {"status": "canceled"}
        event = shop.stripe.add_event("customer.subscription.deleted", told)
    else:
        event = HAPPENINGS[happen](shop.stripe, bought)
    assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 200


async def test_events_out_of_order_end_the_same(shop: StripeShop, bought: Purchase) -> None:
    earlier = shop.stripe.set_status(bought.subscription, "active")
    later = shop.stripe.cancel_subscription(bought.subscription)
    created = next(e for e in shop.stripe.events if e["type"] == "customer.subscription.created")
    for event in (later, earlier, created):
        assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 403


@pytest.mark.clause("3.5.5", "5.27")
async def test_a_refund_whose_event_arrives_during_the_claim_leaves_no_working_key(
    shop: StripeShop,
    opened: OpenedCheckout,
) -> None:
    """Refund after Stripe has answered the check of the payment, before the key is committed."""
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


async def test_an_event_sent_twice_is_handled_once(shop: StripeShop, bought: Purchase) -> None:
    event = shop.stripe.set_status(bought.subscription, "past_due")
    await shop.send_event(event)
    count_before = len(shop.stripe.requests)
    assert (await shop.send_event(event)).status_code == 200
    assert len(shop.stripe.requests) == count_before
    await shop.send_event(shop.stripe.set_status(bought.subscription, "past_due"))
    assert len(shop.stripe.requests) > count_before


@pytest.mark.parametrize(("happen", "status"), [("canceled", 500), ("needs_response", 503)])
async def test_an_event_is_sent_again_if_stripe_is_unavailable(
    shop: StripeShop, bought: Purchase, happen: str, status: int
) -> None:
    event = HAPPENINGS[happen](shop.stripe, bought)
    shop.stripe.fail(status)
    answer = await shop.send_event(event)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert await shop.status(bought.api_key) == 200
    assert (await shop.send_event(event)).status_code == 200
    assert await shop.status(bought.api_key) == 403


@pytest.mark.parametrize(
    ("changed", "age_s", "status"),
    [
        ({"type": "invoice.paid"}, 0, 200),
        ({"livemode": True}, 0, 200),
        ({"type": "v2.unheard.of"}, 0, 200),
        ({}, -301, 400),
        ({}, 301, 400),
    ],
)
async def test_events_of_other_types_modes_and_times_change_nothing(
    shop: StripeShop, bought: Purchase, changed: Object, age_s: int, status: int
) -> None:
    event = shop.stripe.cancel_subscription(bought.subscription) | changed
    count_before = len(shop.stripe.requests)
    answer = await shop.send_event(event, at=shop.clock.now // 1000 - age_s)
    assert (answer.status_code, len(shop.stripe.requests)) == (status, count_before)
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
        event = shop.stripe.cancel_subscription(shop.stripe.subscription_of(opened.session))
        answers.append(await shop.send_event(event, at=1))
        answers.append(await shop.send_event(event))
    output = json.dumps(lines) + caplog.text + "".join(answer.text for answer in answers)
    assert "billing_unavailable" in output
    assert "membership_ended" in output
    assert "Request to Stripe api" in output
    secrets = [shop.stripe.api_key, shop.stripe.webhook_secret]
    secrets += [opened.claim_token, active.json()["api_key"]]
    assert [secret for secret in secrets if secret in output] == []
