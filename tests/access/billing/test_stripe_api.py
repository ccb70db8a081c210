"""What Stripe sends is verified, and its faults are reported without quoting it."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from access.billing.provider import BillingError, Order
from access.billing.stripe_api import (
    MAX_CONNECTIONS,
    MAX_RESPONSE_BYTES,
    parse_event,
)
from access.purchases import Claims
from schemas.errors import ApiError
from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import sign_payload
from tests.store.sql.test_purchase_store import CLAIM as LIVE_CLAIM
from tests.support.sandbox_shop import BUYER, OpenedCheckout, Purchase, StripeShop, open_shop

pytestmark = pytest.mark.clause("sales")


SECRET = "whsec_double"
NOW_S = 1_790_769_980
EVENT = {
    "id": "evt_1",
    "type": "charge.refunded",
    "livemode": False,
    "data": {"object": {"object": "charge", "customer": "cus_1"}},
}
BODY = json.dumps(EVENT).encode()
CLAIM = replace(LIVE_CLAIM, mode="test", session="cs_test_1", billing="monthly")


def get_refusal(payload: bytes, header: str | None) -> str:
    with pytest.raises(ApiError) as refused:
        parse_event(payload, header, SECRET, NOW_S)
    assert (refused.value.code, refused.value.status) == ("invalid_parameter", 400)
    assert SECRET not in refused.value.message
    return refused.value.message


def test_the_signature_is_hmac_sha256_over_time_and_body() -> None:
    # printf '1790769980.{}' | openssl dgst -sha256 -hmac whsec_double
    digest = "46311abd63ff9466d561e15cdefc29f3278329ebe631a3206fc5126ced1ca411"
    assert sign_payload(b"{}", NOW_S, SECRET).startswith(f"t={NOW_S},v1={digest},")
    # The error is about the body, so the time and the signature were accepted.
    assert "The body is not a Stripe event" in get_refusal(b"{}", f"t={NOW_S},v1={digest}")


def test_a_signed_event_is_read() -> None:
    event, subject = parse_event(BODY, sign_payload(BODY, NOW_S, SECRET), SECRET, NOW_S)
    assert (subject.customer, subject.charge) == ("cus_1", None)
    assert (event.id, event.type, event.livemode) == ("evt_1", "charge.refunded", False)


OTHER_BODY = "does not sign this body: SIGNALS_STRIPE_WEBHOOK_SECRET"


@pytest.mark.parametrize(
    ("body", "header", "message"),
    [
        *((BODY, header, "Stripe-Signature is missing") for header in (None, "")),
        *(
            (BODY, header, OTHER_BODY)
            for header in (
                "nonsense",
                "t=,v1=",
                "v1=00",
                "t=soon,v1=00",
                f"t={NOW_S}",
                f"t={NOW_S},v1=" + "0" * 64,
                f"t={NOW_S},v1=\xff\xfe",
                sign_payload(BODY, NOW_S, SECRET).replace(f"t={NOW_S}", f"t={NOW_S - 1}"),
                sign_payload(BODY, NOW_S, "whsec_other"),
                sign_payload(BODY, NOW_S, SECRET).replace("v1=", "v0="),
            )
        ),
        *(
            (body, sign_payload(BODY, NOW_S, SECRET), OTHER_BODY)
            for body in (BODY + b"\n", BODY.replace(b"cus_1", b"cus_2"), b"", b"\xff")
        ),
        *(
            (body, sign_payload(body, NOW_S, SECRET), "The body is not a Stripe event")
            for body in (b"", b"x", b"[]", b"null", b'"event"', b'{"id":"evt_1","type":"x"}')
        ),
        *(
            (
                BODY,
                sign_payload(BODY, NOW_S - age_s, SECRET),
                f"signed {abs(age_s)} seconds {way}; at most 300 are accepted: check the clock",
            )
            for age_s, way in (
                *((-86_400, "in the future"), (-301, "in the future")),
                *((301, "ago"), (86_400, "ago")),
            )
        ),
    ],
)
def test_a_message_that_stripe_did_not_sign_now_is_refused(
    body: bytes, header: str | None, message: str
) -> None:
    assert message in get_refusal(body, header)


@pytest.mark.parametrize("age_s", [-300, 300])
def test_a_message_signed_within_five_minutes_is_accepted(age_s: int) -> None:
    signed = sign_payload(BODY, NOW_S - age_s, SECRET)
    assert parse_event(BODY, signed, SECRET, NOW_S)[0].id == "evt_1"


NOT_FOUND = {"type": "invalid_request_error", "code": "resource_missing", "message": "No such it"}


async def get_payment_error(shop: StripeShop) -> str:
    with pytest.raises(BillingError) as failed:
        await shop.billing.fetch_payment(CLAIM)
    assert len(str(failed.value)) < 500
    assert str(failed.value).isprintable()
    return str(failed.value)


async def flood(size: int) -> AsyncIterator[bytes]:
    """Yield at each turn of the event loop, so no read of it ever times out."""
    while True:
        yield bytes(size)
        await asyncio.sleep(0)


async def test_a_response_that_drips_ends_at_the_deadline(tmp_path: Path) -> None:
    async with open_shop(tmp_path, deadline_s=0.2) as shop:
        shop.stripe.respond(lambda: StreamingResponse(flood(1), 200))
        assert await get_payment_error(shop) == "Stripe: not done within 0.2 seconds"


async def test_every_method_that_queries_stripe_ends_at_the_deadline(tmp_path: Path) -> None:
    async with open_shop(tmp_path, deadline_s=0.5) as shop:
        bought = await shop.buy()
        member = (await shop.served.access.list_open_memberships("stripe"))[0]
        signed = shop.stripe.sign(shop.stripe.dispute(bought.charge))
        billing = shop.billing
        shop.stripe.hold()
        errors = await asyncio.gather(
            billing.check_prices(),
            billing.check_portal(),
            billing.open_session(Order("c1", BUYER, "monthly", None)),
            billing.fetch_payment(CLAIM),
            billing.fetch_status(member),
            billing.create_portal_url(member, "https://signals.example"),
            billing.verify_event(*signed),
            return_exceptions=True,
        )
    assert [str(error) for error in errors] == ["Stripe: not done within 0.5 seconds"] * 7


@pytest.mark.prove
async def test_abandoned_claims_block_no_checkout(shop: StripeShop) -> None:
    await shop.billing.check_prices()
    claims = Claims(shop.served.access, shop.billing, shop.clock)
    before = len(shop.stripe.requests)
    shop.stripe.hold()
    callers = [
        asyncio.create_task(claims.fetch_payment(replace(CLAIM, id=f"c{n}")))
        for n in range(MAX_CONNECTIONS + 30)
    ]
    while len(shop.stripe.requests) < before + MAX_CONNECTIONS // 2:
        await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    shop.stripe.recover()
    await asyncio.gather(*callers, return_exceptions=True)
    assert (await shop.post_checkout()).status_code == 201
    # None of them ended before the checkout, so it found a free connection.
    held = [call for call in shop.stripe.requests if call.path == "checkout/sessions/cs_test_1"]
    assert len(held) == MAX_CONNECTIONS // 2


@pytest.mark.prove
async def test_claims_work_again_once_the_hanging_ones_reach_their_deadline(tmp_path: Path) -> None:
    async with open_shop(tmp_path, deadline_s=1.0) as shop:
        opened = await shop.open_and_pay()
        shop.stripe.hold()
        hanging = [shop.billing.fetch_payment(replace(CLAIM, id=f"c{n}")) for n in range(130)]
        ends = await asyncio.gather(*hanging, return_exceptions=True)
        assert {str(end) for end in ends} == {"Stripe: not done within 1 seconds"}
        shop.stripe.recover()
        assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (
            lambda: StreamingResponse(flood(65_536), 200),
            f"Stripe: the response exceeds {MAX_RESPONSE_BYTES} bytes",
        ),
        # 50 MB, which take less than the bound.
        (
            lambda: Response(
                gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"}
            ),
            "the response is compressed",
        ),
        (lambda: RedirectResponse("/v1/elsewhere", 302), "Stripe: "),
        (
            lambda: JSONResponse(
                {"error": NOT_FOUND | {"code": "x\n" * 100_000}}, 400, {"Request-Id": "r" * 4000}
            ),
            "InvalidRequestError, HTTP 400",
        ),
    ],
    ids=["endless", "compressed", "redirect", "long"],
)
async def test_a_response_is_neither_followed_nor_read_without_bounds(
    shop: StripeShop, respond: Callable[[], Response], expected: str
) -> None:
    shop.stripe.respond(respond)
    assert expected in await get_payment_error(shop)
    assert [request.path for request in shop.stripe.requests] == ["checkout/sessions/cs_test_1"]


FOREIGN_RESPONSES: dict[str, Callable[[], Response]] = {
    "list": lambda: JSONResponse([]),
    "list of objects": lambda: JSONResponse([{"id": "cs_test_1"}]),
    "text": lambda: JSONResponse("ok"),
    "number": lambda: JSONResponse(7),
    "null": lambda: JSONResponse(None),
    "empty object": lambda: JSONResponse({}),
    "error as text": lambda: JSONResponse({"error": "x"}, 404),
    "error in 200": lambda: JSONResponse({"error": NOT_FOUND}),
    "nothing": lambda: Response(b""),
    "web page": lambda: HTMLResponse("<h1>Welcome</h1>"),
    "web page 404": lambda: HTMLResponse("<h1>Not found</h1>", 404),
    "404 of a proxy": lambda: JSONResponse({"error": {"message": "no route"}}, 404),
    "404 with a code": lambda: JSONResponse({"error": {"code": "resource_missing"}}, 404),
    "404 with a foreign type": lambda: JSONResponse({"error": NOT_FOUND | {"type": "proxy"}}, 404),
    "404 of a list": lambda: JSONResponse([NOT_FOUND], 404),
    "404 with a list of errors": lambda: JSONResponse({"error": [NOT_FOUND]}, 404),
    "400 of an unknown object": lambda: JSONResponse({"error": NOT_FOUND}, 400),
    "deep JSON": lambda: Response(b'{"a":' * 900 + b"1" + b"}" * 900),
    "deeper JSON": lambda: Response(b"[" * 500_000),
    "number out of range": lambda: Response(b'{"expires_at": 1e999}'),
    "number too long": lambda: Response(b"9" * 5000),
    "not UTF-8": lambda: Response(b'{"id": "\xff"}'),
}


# Fields of a session with an unknown value, without one if it is "gone", and pages of charges.
SESSIONS: tuple[Object, ...] = (
    {"id": "cs_test_another"},
    {"object": "customer"},
    {"status": "archived"},
    {"status": None},
    {"payment_status": "half_paid"},
    {"payment_status": ["paid"]},
    {"mode": "gift"},
    {"livemode": "no"},
    {"amount_total": "12900"},
    {"currency": 7},
    {"customer": {"id": 7}},
    {"customer_details": {"email": {}}},
    {"client_reference_id": 7},
    {"line_items": None},
    {"line_items": {"object": "list", "data": "price_monthly"}},
    {"subscription": "sub_1"},
    {"subscription": {"id": "sub_1", "object": "subscription", "status": "dormant"}},
    *({field: "gone"} for field in ("id", "object", "status", "payment_status", "line_items")),
)
CHARGES: tuple[Object, ...] = (
    {"object": "list", "data": [], "has_more": True},
    {"object": "list", "data": {}, "has_more": False},
    {"object": "list", "data": [{"id": "ch_1", "object": "charge"}], "has_more": False},
    {"object": "search_result", "data": [], "has_more": False},
    {"object": "list", "data": ["of another customer"], "has_more": False},
)


@pytest.mark.parametrize("foreign", [*FOREIGN_RESPONSES, *SESSIONS, *CHARGES])
@pytest.mark.sampled(8)
async def test_a_foreign_response_fails_no_claim(
    shop: StripeShop, opened: OpenedCheckout, foreign: str | Object
) -> None:
    if isinstance(foreign, str):
        shop.stripe.respond(FOREIGN_RESPONSES[foreign])
    else:
        # As Stripe answers the service.
        session = shop.stripe.objects[opened.session]
        found = shop.stripe._expand(session, ["line_items", "subscription"])
        if "data" in foreign:
            refunded = shop.stripe.add_charge("cus_other", 129_00) | {"refunded": True}
            data = [refunded] if "of another customer" in foreign["data"] else foreign["data"]
            shop.stripe.respond(lambda: JSONResponse(found))
            shop.stripe.respond(lambda: JSONResponse(foreign | {"data": data}))
        else:
            changed = {name: value for name, value in (found | foreign).items() if value != "gone"}
            shop.stripe.respond(lambda: JSONResponse(changed))
    answer = await shop.post_claim(opened.claim_token)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30"), answer.text
    assert (await shop.post_claim(opened.claim_token)).json()["status"] == "active"


@pytest.mark.parametrize(
    "changed",
    [{"status": "dormant"}, {"id": "sub_other"}, {"object": "plan"}, {"items": None}, None],
)
@pytest.mark.sampled(3)
async def test_an_unknown_subscription_or_dispute_ends_no_membership(
    shop: StripeShop, bought: Purchase, changed: Object | None
) -> None:
    member = (await shop.served.access.list_open_memberships("stripe"))[0]
    if changed is None:
        dispute = shop.stripe.dispute(bought.charge, "weighed")["data"]["object"]["id"]
    else:
        found = shop.stripe.objects[bought.subscription] | changed
        shop.stripe.respond(lambda: JSONResponse(found))
    with pytest.raises(BillingError):
        await shop.billing.fetch_status(member)
    if changed is None:
        # A payment method that is not expanded decides nothing either.
        shop.stripe.objects[dispute] |= {"status": "prevented", "payment_method_details": "pm_1"}
        with pytest.raises(BillingError):
            await shop.billing.fetch_status(member)
        shop.stripe.objects[dispute] |= {"status": "won", "payment_method_details": None}
    assert (await shop.billing.fetch_status(member)).ended_reason is None


@pytest.mark.parametrize(
    "changed",
    [{"url": "javascript:alert(1)"}, {"url": None}, {"expires_at": 10**40}, {"expires_at": "soon"}],
)
async def test_an_opened_session_that_is_foreign_is_503(
    shop: StripeShop, changed: dict[str, Any]
) -> None:
    await shop.open_checkout()
    found = shop.stripe.sessions()[0]
    shop.stripe.respond(lambda: JSONResponse(found | changed))
    assert (await shop.post_checkout()).status_code == 503
    shop.stripe.respond(lambda: JSONResponse(found))  # of another checkout
    assert (await shop.post_checkout()).status_code == 503
