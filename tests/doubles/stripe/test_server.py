"""The Stripe double answers as Stripe's public API reference says."""

from collections.abc import AsyncIterator

import httpx
import pytest
import stripe

from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble, parse_form, run_stripe_double
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


@pytest.mark.parametrize(
    ("form", "meant"),
    [
        ("", {}),
        ("a=1&b=x+y%26", {"a": "1", "b": "x y&"}),
        ("a[b][c]=1&a[d]=", {"a": {"b": {"c": "1"}, "d": ""}}),
        ("a[0][p]=x&a[0][q]=y&a[1][p]=z", {"a": [{"p": "x", "q": "y"}, {"p": "z"}]}),
        ("expand[]=x&expand[]=y", {"expand": ["x", "y"]}),
        ("expand%5B0%5D=x", {"expand": ["x"]}),
    ],
)
def test_brackets_nest_hashes_and_lists(form: str, meant: Object) -> None:
    assert parse_form(form) == meant


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
    expanded = {"expand[]": "price"}
    refusal(await curl.get("/v1/prices/price_monthly", params=expanded), 400)


async def test_its_pay_page_pays(double: StripeDouble, curl: httpx.AsyncClient) -> None:
    session = (await curl.post("/v1/checkout/sessions", data=SESSION)).json()
    assert (await curl.get(session["url"])).status_code == 200
    paid = await curl.post(session["url"])
    assert (paid.status_code, paid.headers["Location"]) == (303, SESSION["success_url"])
    found = (await curl.get(f"/v1/checkout/sessions/{session['id']}")).json()
    assert (found["status"], found["payment_status"]) == ("complete", "paid")
    types = [event["type"] for event in double.events]
    assert types == [
        "checkout.session.completed",
        "charge.succeeded",
        "customer.subscription.created",
    ]


async def test_lists_come_in_pages_newest_first(
    double: StripeDouble, curl: httpx.AsyncClient
) -> None:
    made = [double.books.add_charge("cus_1", 1)["id"] for _ in range(3)]
    double.books.add_charge("cus_2", 1)
    parameters = {"customer": "cus_1", "limit": "2"}
    page = (await curl.get("/v1/charges", params=parameters)).json()
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (made[:0:-1], True)
    rest = await curl.get("/v1/charges", params=parameters | {"starting_after": made[1]})
    assert [row["id"] for row in rest.json()["data"]] == made[:1]


async def test_requests_over_http_are_executed(
    double: StripeDouble, curl: httpx.AsyncClient
) -> None:
    session = (await curl.post("/v1/checkout/sessions", data=SESSION)).json()["id"]
    items = (await curl.get(f"/v1/checkout/sessions/{session}/line_items")).json()
    assert [item["price"]["id"] for item in items["data"]] == ["price_monthly"]
    double.pay(session)
    refused = await curl.post(f"/v1/checkout/sessions/{session}/expire")
    assert refusal(refused, 400)["type"] == "invalid_request_error"
    part = {"charge": double.charge_of(session), "amount": "100"}
    assert (await curl.post("/v1/refunds", data=part)).json()["amount"] == 100
    assert double.books.objects[part["charge"]]["refunded"] is False
    gone = await curl.delete(f"/v1/subscriptions/{double.subscription_of(session)}")
    assert gone.json()["status"] == "canceled"
    event = (await curl.get(f"/v1/events/{double.events[0]['id']}")).json()
    assert event["type"] == "customer.subscription.deleted"
    unpaid = (await curl.post("/v1/checkout/sessions", data=SESSION)).json()["id"]
    assert (await curl.post(f"/v1/checkout/sessions/{unpaid}/expire")).json()["status"] == "expired"


async def test_its_customer_portal_is_opened_for_an_existing_customer(
    double: StripeDouble, curl: httpx.AsyncClient
) -> None:
    listed = (await curl.get("/v1/billing_portal/configurations", params={"active": "true"})).json()
    assert [row["is_default"] for row in listed["data"]] == [True]
    session = (await curl.post("/v1/checkout/sessions", data=SESSION)).json()["id"]
    double.pay(session)
    customer = double.books.objects[session]["customer"]
    parameters = {"customer": customer, "return_url": "http://127.0.0.1/back"}
    visit = (await curl.post("/v1/billing_portal/sessions", data=parameters)).json()
    assert (visit["customer"], visit["return_url"]) == (customer, parameters["return_url"])
    assert visit["url"].startswith(double.base_url)
    unknown = await curl.post("/v1/billing_portal/sessions", data={"customer": "cus_none"})
    assert refusal(unknown, 400)["code"] == "resource_missing"


async def test_stripes_own_library_accepts_its_signatures(double: StripeDouble) -> None:
    payload, signed = double.sign(double.books.add_event("price.updated", {"object": "price"}))
    event = stripe.Webhook.construct_event(payload, signed, double.webhook_secret, tolerance=0)
    assert event.type == "price.updated"
