"""The purchase routes: strict bodies, and documented responses over real sockets."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from starlette.types import Message

from access.billing.provider import BillingError
from access.contact import normalize_email
from rest_shim.purchase_routes import parse_body
from schemas.errors import ApiError
from schemas.purchase import AccessRequestBody, CheckoutBody, ClaimBody
from tests.doubles.stripe.server import WEBHOOK_SECRET, sign_payload
from tests.support.example_market import make_coverage
from tests.support.openapi_document import OpenApiDocument, document as document, fetch_document
from tests.support.running_service import ManualClock, RunningService, fetch, run_service
from tests.support.sandbox_shop import HeldProvider, StripeShop, shop as shop

pytestmark = pytest.mark.clause("sales")


CHECKOUT, CLAIM, REQUEST = (
    "/api/v1/access/checkout",
    "/api/v1/access/claim",
    "/api/v1/access-request",
)
ROUTES = (CHECKOUT, CLAIM, REQUEST)
EMAIL = {"contact_email": "agent@example.com"}
UNKNOWN = "ct_" + "A" * 43
CHECK_EMAIL = partial(normalize_email, accepts_special_use=True)
MODELS: dict[str, type[BaseModel]] = {
    CHECKOUT: CheckoutBody,
    CLAIM: ClaimBody,
    REQUEST: AccessRequestBody,
}
GOOD: dict[str, dict[str, str]] = {CHECKOUT: EMAIL, CLAIM: {"claim_token": UNKNOWN}, REQUEST: EMAIL}


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[RunningService, HeldProvider]]:
    """The service with a provider that can delay its checks."""
    billing = HeldProvider(ManualClock())
    async with run_service(tmp_path, make_coverage(), provider=billing) as served:
        yield served, billing


def refused(path: str, content: bytes) -> str:
    with pytest.raises(ApiError) as refusal:
        parse_body(content, MODELS[path], CHECK_EMAIL)
    error = refusal.value
    assert (error.code, error.status) == ("invalid_parameter", 400)
    assert error.message.isprintable()
    return error.message


async def post(
    served: RunningService, document: OpenApiDocument, path: str, status: int, **sent: Any
) -> httpx.Response:
    """Return the response to a body, whose status and shape are as documented."""
    response = await fetch(served.client, "POST", path, status, **sent)
    document.check_response("POST", path, response)
    return response


async def begun(served: RunningService) -> Any:
    return (await fetch(served.client, "POST", CHECKOUT, 201, json=EMAIL)).json()


async def claimed(served: RunningService, checkout: dict[str, Any]) -> httpx.Response:
    return await served.client.post(CLAIM, json={"claim_token": checkout["claim_token"]})


@pytest.mark.clause(
    "0.3",
    "1.36",
    "1.37",
    "2.9.1",
    "2.9.3",
    "2.9.4",
    "2.10.1",
    "2.10.8",
    "3.4.1",
    "3.4.3",
    "3.4.8",
    "3.4.9",
    "4.11.7",
    "4.11.11",
    "4.12.1",
    "4.12.2",
    "4.12.5",
    "4.13.1",
    "5.3",
    "5.9",
    "5.10",
    "5.16",
    "5.17",
    "7.9",
    "7.21",
)
async def test_a_key_is_bought_and_every_answer_is_as_documented(
    served: RunningService, document: OpenApiDocument
) -> None:
    body = {**EMAIL, "agent_name": "Trader \U0001f916"}
    checkout = (await post(served, document, CHECKOUT, 201, json=body)).json()
    pending = await claimed(served, checkout)
    paid = await fetch(served.client, "POST", checkout["checkout_url"], 200, data={"action": "pay"})
    active = await claimed(served, checkout)
    redeemed = await claimed(served, checkout)
    key = {"Authorization": f"Bearer {active.json()['api_key']}"}
    usage = (await served.client.get("/api/v1/usage", headers=key)).json()
    for response, status in ((pending, 200), (active, 200), (redeemed, 409)):
        assert (response.status_code, response.headers["cache-control"]) == (status, "no-store")
        document.check_response("POST", CLAIM, response)
    assert (pending.json()["status"], active.json()["status"]) == ("pending", "active")
    for response in (paid, pending, active, redeemed):
        assert checkout["claim_token"] not in response.text + str(response.headers)
    assert usage["key"] == {"label": "Trader \U0001f916"}
    assert (usage["mode"], usage["quota"]["used_today"]) == ("test", 1)


@pytest.mark.clause("2.10.3", "2.10.4", "2.10.5", "2.10.6", "2.10.7", "3.4.9")
async def test_the_instructions_returned_with_a_new_key_work(served: RunningService) -> None:
    checkout = await begun(served)
    await served.client.post(checkout["checkout_url"], data={"action": "pay"})
    active = (await claimed(served, checkout)).json()
    usage = active["usage"]
    assert (usage["daily_limit"], usage["quota_resets"]) == (10_000, "00:00 UTC")
    name, _, value = usage["header"].partition(": ")
    key = {name: value.replace("<API_KEY>", active["api_key"])}
    (start,) = re.findall(r"GET (\S+)", usage["start_here"])
    first = await served.client.get(start, headers=key)
    assert (first.status_code, first.headers["x-ratelimit-remaining"]) == (200, "9999")
    for address in (active["docs"], active["catalog"]):
        assert (await served.client.get(address)).status_code == 200
        assert address.startswith(served.base_url)
    assert "cannot be recovered" in active["store_this"]
    assert (await claimed(served, checkout)).status_code == 409
    assert (await served.client.get(start, headers=key)).status_code == 200


@pytest.mark.clause("4.13.7", "4.13.8", "4.13.11")
async def test_a_request_for_terms_is_201_and_its_update_200(
    served: RunningService, document: OpenApiDocument
) -> None:
    names = ("agent_name", "operator", "use_case", "expected_volume")
    sent = {**EMAIL, **{name: f"repeat this {name}" for name in names}}
    for status, said in ((201, "received"), (200, "updated")):
        response = await post(served, document, REQUEST, status, json=sent)
        assert (set(response.json()), response.json()["status"]) == ({"status", "message"}, said)
        assert "replies by e-mail" in response.json()["message"]
        assert not [text for text in sent.values() if text in response.text]


@pytest.mark.clause("4.0.1", "7.13")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("reason", "contents"),
    [
        (
            "The body is not valid JSON in UTF-8. Send an object such as {",
            [
                b"{",
                b"\xff\xfe{}",
                b'{"contact_email": "\xe9@example.com"}',
                b"nonsense",
                b"{'contact_email': 'a@example.com'}",
                b"9" * 5000,
                b"contact_email=a%40example.com",
            ],
        ),
        ("The body is empty. Send", [b"", b" \n "]),
        ("The body must be one JSON object such as {", [b"[]", b"null", b'"text"', b"1", b"NaN"]),
    ],
    ids=["not json", "empty", "not an object"],
)
def test_a_body_that_is_no_json_object_is_refused_with_an_example(
    path: str, reason: str, contents: list[bytes]
) -> None:
    for content in contents:
        message = refused(path, content)
        assert message.startswith(reason)
        assert all(name in message for name in GOOD[path])


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_that_is_named_twice_is_refused(path: str) -> None:
    ((name, value),) = GOOD[path].items()
    message = refused(path, f'{{"{name}": "{value}", "{name}": "{value}"}}'.encode())
    assert message == f'The body has the same field more than once: "{name}"; send each field once.'
    other, another = ("x" * 60 + end for end in "ab")
    message = refused(path, f'{{"{name}": "{value}", "{other}": 1, "{another}": 2}}'.encode())
    assert "more than once" not in message


@pytest.mark.clause("4.11.1", "4.11.5", "4.11.8", "7.13")
@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            CHECKOUT,
            {},
            "contact_email: missing; accepted: e-mail address that receives the receipt and "
            "billing notices.",
        ),
        (
            CHECKOUT,
            {"contact_email": None},
            "contact_email: null is not accepted, give a value; accepted: e-mail address that "
            "receives the receipt and billing notices.",
        ),
        (
            CHECKOUT,
            {**EMAIL, "billing": "year"},
            'billing: "year" is not accepted (did you mean yearly?); accepted: monthly, yearly.',
        ),
        (
            CHECKOUT,
            {**EMAIL, "billing": ["yearly"]},
            'billing: ["yearly"] is not accepted; accepted: monthly, yearly.',
        ),
        (
            CHECKOUT,
            {**EMAIL, "agent_name": "x" * 121},
            "agent_name: too long (121 characters); accepted: name of the agent: one line, at most "
            "120 characters.",
        ),
        (
            CHECKOUT,
            {**EMAIL, "agent_nam": "x"},
            'unknown field "agent_nam" (did you mean agent_name?); accepted: contact_email, '
            "billing, agent_name.",
        ),
        (
            CHECKOUT,
            {"agent_name": 5, "billing": "daily", "x": 1},
            "contact_email: missing; accepted: e-mail address that receives the receipt and "
            'billing notices. billing: "daily" is not accepted; accepted: monthly, yearly. '
            "agent_name: not a string; accepted: name of the agent: one line, at most 120 "
            'characters. unknown field "x"; accepted: contact_email, billing, agent_name.',
        ),
        (
            CHECKOUT,
            {"contact_email": "a@localhost", "billing": True},
            "contact_email: is not a valid e-mail address (The part after the @-sign is not valid. "
            "It should have a period); accepted: one address such as agent@example.com. "
            "billing: true is not accepted; accepted: monthly, yearly.",
        ),
        (
            REQUEST,
            {**EMAIL, "use_case": "x" * 1001},
            "use_case: too long (1001 characters); accepted: how the readings will be used: at "
            "most 1000 characters.",
        ),
    ],
)
def test_each_bad_field_is_named_with_its_fault_and_the_accepted_values(
    path: str, body: Any, message: str
) -> None:
    assert refused(path, json.dumps(body).encode()) == message


@pytest.mark.clause(
    "4.11.6", "4.13.3", "4.13.4", "4.13.5", "4.13.6", "8.33", "8.34", "8.35", "8.36", "8.37"
)
@pytest.mark.parametrize(
    ("path", "name", "most"),
    [
        (CHECKOUT, "agent_name", 120),
        (REQUEST, "agent_name", 120),
        (REQUEST, "operator", 120),
        (REQUEST, "use_case", 1000),
        (REQUEST, "expected_volume", 120),
    ],
)
def test_a_text_may_have_its_maximum_length_and_no_more(path: str, name: str, most: int) -> None:
    longest = {**EMAIL, name: "\U0001f916" * most}
    assert (
        getattr(parse_body(json.dumps(longest).encode(), MODELS[path], CHECK_EMAIL), name)
        == longest[name]
    )
    message = refused(path, json.dumps({**EMAIL, name: longest[name] + "x"}).encode())
    assert message.startswith(f"{name}: too long ({most + 1} characters); accepted: ")


@pytest.mark.clause("7.21", "7.22")
async def test_a_token_whose_key_was_used_gives_it_no_more_and_says_that_it_is_not_recoverable(
    served: RunningService,
) -> None:
    checkout = await begun(served)
    await served.client.post(checkout["checkout_url"], data={"action": "pay"})
    api_key = (await claimed(served, checkout)).json()["api_key"]
    assert (await served.get_api("/usage", x_api_key=api_key)).status_code == 200
    for _ in range(2):
        again = await claimed(served, checkout)
        assert (again.status_code, again.json()["error"]) == (409, "invalid_parameter")
        assert "is not recoverable" in again.json()["message"]
        assert api_key not in again.text
    assert len(await served.access.list_keys()) == 2  # Including the key of the test.


NAMES = [(CHECKOUT, "agent_name")]
NAMES += [(REQUEST, name) for name in ("agent_name", "operator", "expected_volume")]
UNPRINTABLE = ["\x00", "a\x1b[2Jb", "\x7f", "\x85", "\ud800", "x\udfffy"]
LINES = ["one\ntwo", "one\rtwo", "one\ttwo", "one\u2028two"]


@pytest.mark.clause("4.11.6", "4.13.3", "4.13.4", "4.13.5", "4.13.6")
@pytest.mark.parametrize(
    ("path", "name", "bad"),
    [
        *((*field, bad) for field, bad in product(NAMES, UNPRINTABLE + LINES)),
        *((REQUEST, "use_case", bad) for bad in UNPRINTABLE),
    ],
)
def test_control_characters_are_refused_in_every_text_and_several_lines_in_a_name(
    path: str, name: str, bad: str
) -> None:
    message = refused(path, json.dumps({**EMAIL, name: bad}).encode())
    assert message.startswith(f"{name}: not of the accepted form; accepted: ")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", ["\ud800", "\x00", "contact_email\n", ""])
def test_the_name_of_an_unknown_field_is_printed_safely(path: str, name: str) -> None:
    assert "unknown field" in refused(path, json.dumps({**GOOD[path], name: 1}).encode())


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        *(
            (name, text, kept)
            for name in ("agent_name", "operator", "use_case", "expected_volume")
            for text, kept in (("", None), ("  ", None), (" a b ", "a b"))
        ),
        *(("use_case", text, text) for text in LINES),
    ],
)
def test_a_blank_text_counts_as_omitted_and_a_use_case_may_have_several_lines(
    name: str, text: str, kept: str | None
) -> None:
    body = parse_body(json.dumps({**EMAIL, name: text}).encode(), AccessRequestBody, CHECK_EMAIL)
    assert getattr(body, name) == kept


@pytest.mark.clause("4.11.1", "4.13.2")
@pytest.mark.parametrize("email", ["a" * 250 + "@x.org", 5, ["a@example.com"], "\ud800@x.org"])
def test_an_e_mail_address_is_text_of_at_most_254_characters(email: Any) -> None:
    for path in (CHECKOUT, REQUEST):
        content = json.dumps({"contact_email": email}).encode()
        assert refused(path, content).startswith("contact_email: ")


@pytest.mark.clause(
    "4.11.1",
    "4.11.2",
    "4.11.8",
    "4.12.1",
    "4.12.3",
    "4.13.2",
    "4.13.9",
    "7.13",
    "7.14",
    "7.15",
    "7.16",
    "7.20",
    "7.33",
)
async def test_a_refused_body_is_documented_and_counts_as_no_attempt(
    served: RunningService, document: OpenApiDocument
) -> None:
    for path in ROUTES:
        for content in (b"", b"{", b"{}", b'{"contact_email": "nobody"}', b'{"claim_token": ""}'):
            # More in all than the limit of 30 attempts.
            for _ in range(7):
                response = await post(served, document, path, 400, content=content)
                assert set(response.json()) == {"error", "message", "docs"}
        await fetch(served.client, "POST", path, 404 if path == CLAIM else 201, json=GOOD[path])


@pytest.mark.clause("4.12.3", "7.16")
@pytest.mark.parametrize(
    "token",
    [
        "",
        "A" * 1001,
        5,
        None,
        True,
        ["ct_" + "A" * 43],
        {"ct_" + "A" * 43: 1},
    ],
)
def test_a_malformed_claim_token_is_400_and_never_repeated(token: Any) -> None:
    message = refused(CLAIM, json.dumps({"claim_token": token}).encode())
    assert message.startswith("claim_token: ")
    assert message.endswith("ct_ and 43 letters, digits, - or _.")
    assert "AAAA" not in message


@pytest.mark.clause("7.20")
@pytest.mark.parametrize(
    "token",
    [
        "x",
        "A" * 1000,
        "ek_" + "A" * 43,
        UNKNOWN,
        f"{UNKNOWN}\n",
        f" {UNKNOWN}",
        "ct_\u0410",
        "\x00",
    ],
)
async def test_any_other_claim_token_is_unknown_and_never_repeated(
    served: RunningService, document: OpenApiDocument, token: str
) -> None:
    response = await post(served, document, CLAIM, 404, json={"claim_token": token})
    assert "AAAA" not in response.text


@pytest.mark.parametrize("name", ["billing", "agent_name"])
async def test_null_for_an_optional_field_counts_as_omitted(
    served: RunningService, name: str
) -> None:
    response = await served.client.post(CHECKOUT, json={**EMAIL, name: None})
    assert (response.status_code, response.json()["plan"]["billing"]) == (201, "monthly")


async def test_a_secret_in_the_wrong_field_is_not_repeated(served: RunningService) -> None:
    bodies = (
        {UNKNOWN: 1},
        {"token": UNKNOWN, UNKNOWN: UNKNOWN},
        {**EMAIL, "billing": UNKNOWN},
        {**EMAIL, "billing": [UNKNOWN]},
        {"contact_email": UNKNOWN},
        {"contact_email": f"{UNKNOWN}@"},
        UNKNOWN,
    )
    for path, body in product(ROUTES, bodies):
        assert "AAAAAAAAAA" not in (await fetch(served.client, "POST", path, 400, json=body)).text


@pytest.mark.clause("7.20")
async def test_the_largest_body_is_accepted_and_a_longer_one_is_refused(
    served: RunningService, document: OpenApiDocument
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * (1 << 12)

    for path in ROUTES:
        fitting = json.dumps(GOOD[path]).encode().ljust(64 << 10)
        assert (await served.client.post(path, content=fitting)).status_code in (201, 404)
        for content in (fitting + b" ", chunks()):
            await post(served, document, path, 400, content=content)


@pytest.mark.clause("4.0.1")
async def test_the_body_is_json_under_any_content_type(served: RunningService) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in ({}, form, {"accept": "text/html"}):
        content = json.dumps(EMAIL).encode()
        await fetch(served.client, "POST", CHECKOUT, 201, content=content, headers=headers)


@pytest.mark.clause("4.11.9", "4.13.10", "7.25", "7.26", "8.50")
@pytest.mark.parametrize("path", [CHECKOUT, REQUEST])
async def test_the_31st_attempt_in_ten_minutes_is_429_only_on_that_route(
    served: RunningService, document: OpenApiDocument, path: str
) -> None:
    for number in range(30):
        email = {"contact_email": f"agent{number}@example.com"}
        assert (await served.client.post(path, json=email)).status_code == 201
    response = await post(served, document, path, 429, json=EMAIL)
    assert (response.json()["error"], response.headers["retry-after"]) == ("rate_limited", "600")
    (other,) = {CHECKOUT, REQUEST} - {path}
    assert (await served.client.post(other, json=EMAIL)).status_code == 201


@pytest.mark.clause("4.11.10", "7.30", "7.31")
async def test_a_failing_processor_is_503_with_a_retry_time(
    held: tuple[RunningService, HeldProvider],
) -> None:
    served, billing = held
    document = await fetch_document(served)
    checkout = await begun(served)
    billing.open_error = billing.payments["cs_1"] = BillingError("no route to the processor")
    for path, body in ((CHECKOUT, EMAIL), (CLAIM, {"claim_token": checkout["claim_token"]})):
        response = await post(served, document, path, 503, json=body)
        assert response.headers["retry-after"] == "30"
        assert "no route" not in response.text


async def test_a_client_that_gives_up_takes_no_key_from_its_second_attempt(
    held: tuple[RunningService, HeldProvider],
) -> None:
    served, billing = held
    checkout = await begun(served)
    billing.set_paid("cs_1")
    billing.released.clear()
    leaving = asyncio.create_task(claimed(served, checkout))
    async with asyncio.timeout(10):
        while not billing.checks:
            await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    second = asyncio.create_task(claimed(served, checkout))
    assert (
        await served.client.get("/api/v1/access")
    ).status_code == 404  # The event loop has run once.
    billing.released.set()
    assert (await second).json()["status"] == "active"
    assert len(await served.access.list_keys()) == 2  # Including the key of the test.


async def test_a_client_that_leaves_before_its_body_is_sent_is_no_failure(
    served: RunningService,
) -> None:
    arriving: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": CHECKOUT,
        "raw_path": CHECKOUT.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("192.0.2.7", 4711),
    }
    await served.app(scope, receive, send)
    assert sent[0]["status"] == 499  # The client has left.


PATH = "/webhooks/stripe"


async def test_a_message_that_is_not_from_stripe_gets_the_error_body(shop: StripeShop) -> None:
    for sent in (None, {b"Stripe-Signature": b"t=1,v1=00"}, {b"Stripe-Signature": b"t=1,v1=\xff"}):
        answer = await fetch(shop.served.client, "POST", PATH, 400, content=b"{}", headers=sent)
        assert (answer.headers["Cache-Control"], answer.json().keys(), answer.json()["error"]) == (
            "no-store",
            {"error", "message", "docs"},
            "invalid_parameter",
        )


@pytest.mark.parametrize(("size", "status"), [(256 << 10, 400), ((256 << 10) + 1, 413)])
async def test_a_message_may_be_longer_than_other_bodies(
    shop: StripeShop, size: int, status: int
) -> None:
    body = b"{}".ljust(size)
    headers = {"Stripe-Signature": sign_payload(body, shop.clock.now // 1000, WEBHOOK_SECRET)}
    answer = await fetch(shop.served.client, "POST", PATH, status, content=body, headers=headers)
    # The body that fits is read whole: its signature is right, and it is not an event.
    assert ("256 KiB" if status == 413 else "not a Stripe event") in answer.json()["message"]


async def test_only_post_is_served(shop: StripeShop) -> None:
    assert (await fetch(shop.served.client, "GET", PATH, 405)).headers["Allow"] == "POST"


async def test_no_public_document_lists_the_address(shop: StripeShop) -> None:
    reported = [await shop.served.client.get(f"/api/v1{path}") for path in ("", "/openapi.json")]
    reported.append(await shop.served.client.get("/nowhere"))
    assert [PATH in answer.text for answer in reported] == [False] * 3


async def test_the_address_exists_only_if_stripe_bills(
    served: RunningService,
) -> None:
    answer = await fetch(served.client, "POST", PATH, 404, content=b"{}")
    assert answer.json()["error"] == "invalid_parameter"
