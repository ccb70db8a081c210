"""The Stripe double answers as Stripe's public API reference says."""

from collections.abc import AsyncIterator

import httpx
import pytest
import stripe

from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("tests")

ITEMS = {"line_items[0][price]": "price_monthly", "line_items[0][quantity]": "1"}
SESSION = {"mode": "subscription", "success_url": "http://127.0.0.1/paid"} | ITEMS


@pytest.fixture
async def double() -> AsyncIterator[StripeDouble]:
    async with run_stripe_double(ManualClock()) as running:
        yield running


@pytest.fixture
async def curl(double: StripeDouble) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client with the account's key."""
    headers = {"Authorization": f"Bearer {double.api_key}"}
    async with httpx.AsyncClient(base_url=double.base_url, headers=headers) as client:
        yield client


def refusal(answer: httpx.Response, status: int) -> Object:
    assert answer.status_code == status
    error: Object = answer.json()["error"]
    return error


async def test_a_key_used_twice_answers_the_same_or_refuses_other_parameters(
    double: StripeDouble, curl: httpx.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await curl.post("/v1/checkout/sessions", data=SESSION, headers=headers)
    again = await curl.post("/v1/checkout/sessions", data=SESSION, headers=headers)
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other = SESSION | {"client_reference_id": "other"}
    error = refusal(await curl.post("/v1/checkout/sessions", data=other, headers=headers), 400)
    assert error["type"] == "idempotency_error"
    assert len(double.sessions()) == 1


async def test_refusals_have_stripes_error_bodies(
    double: StripeDouble, curl: httpx.AsyncClient
) -> None:
    unknown = refusal(await curl.get("/v1/checkout/sessions/cs_none"), 404)
    assert (unknown["code"], unknown["param"]) == ("resource_missing", "session")
    strange = refusal(await curl.post("/v1/checkout/sessions", data={"what": "1"}), 400)
    assert (strange["code"], strange["param"]) == ("parameter_unknown", "what")
    other = {"Authorization": "Bearer sk_test_51OtherKey"}
    denied = refusal(await curl.get("/v1/prices/price_monthly", headers=other), 401)
    assert denied["message"] == "Invalid API Key provided: sk_test_********rKey"
    refusal(await curl.get("/v1/nowhere"), 404)
    as_json = await curl.post("/v1/checkout/sessions", json=SESSION)
    assert refusal(as_json, 400)["type"] == "invalid_request_error"
    refusal(await curl.get("/v1/prices/price_monthly", params={"expand[]": "price"}), 400)


async def test_stripes_own_library_accepts_its_signatures(double: StripeDouble) -> None:
    payload, signed = double.sign(double.books.add_event("price.updated", {"object": "price"}))
    event = stripe.Webhook.construct_event(payload, signed, double.webhook_secret, tolerance=0)
    assert event.type == "price.updated"
