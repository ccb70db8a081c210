"""The webhook route over HTTP: the messages it refuses, and the modes that serve it."""

import pytest

from tests.doubles.stripe.server import WEBHOOK_SECRET, sign_payload
from tests.support.running_service import RunningService
from tests.support.sandbox_shop import StripeShop

pytestmark = pytest.mark.clause("sales")

PATH = "/webhooks/stripe"


async def test_a_message_that_is_not_from_stripe_gets_the_error_body(shop: StripeShop) -> None:
    headers = (None, {b"Stripe-Signature": b"t=1,v1=00"}, {b"Stripe-Signature": b"t=1,v1=\xff"})
    for sent in headers:
        answer = await shop.served.client.post(PATH, content=b"{}", headers=sent)
        assert answer.status_code == 400
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.json().keys() == {"error", "message", "docs"}
        assert answer.json()["error"] == "invalid_parameter"


@pytest.mark.parametrize(("size", "status"), [(256 << 10, 400), ((256 << 10) + 1, 413)])
async def test_a_message_may_be_longer_than_other_bodies(
    shop: StripeShop, size: int, status: int
) -> None:
    body = b"{}".ljust(size)
    signed = sign_payload(body, shop.clock.now // 1000, WEBHOOK_SECRET)
    headers = {"Stripe-Signature": signed}
    answer = await shop.served.client.post(PATH, content=body, headers=headers)
    assert answer.status_code == status
    # The body that fits is read whole: its signature is right, and it is not an event.
    said = "256 KiB" if status == 413 else "not a Stripe event"
    assert said in answer.json()["message"]


async def test_only_post_is_served(shop: StripeShop) -> None:
    answer = await shop.served.client.get(PATH)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


async def test_no_public_document_lists_the_address(shop: StripeShop) -> None:
    reported = [await shop.served.client.get(f"/api/v1{path}") for path in ("", "/openapi.json")]
    reported.append(await shop.served.client.get("/nowhere"))
    assert [PATH in answer.text for answer in reported] == [False] * 3


async def test_the_address_exists_only_if_stripe_bills(
    served: RunningService,
) -> None:
    answer = await served.client.post(PATH, content=b"{}")
    assert answer.status_code == 404
    assert answer.json()["error"] == "invalid_parameter"
