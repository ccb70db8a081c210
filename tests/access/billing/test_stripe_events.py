"""Verifying that a webhook is Stripe's and recent, by its signature and timestamp."""

import json

import pytest

from access.billing.stripe_api import parse_event
from schemas.errors import ApiError
from tests.doubles.stripe.server import sign_payload

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
    event = parse_event(BODY, sign_payload(BODY, NOW_S, SECRET), SECRET, NOW_S)
    about = {"object": "charge", "customer": "cus_1"}
    assert (event.id, event.type, event.livemode) == ("evt_1", "charge.refunded", False)
    assert event.data.object == about


@pytest.mark.parametrize("header", [None, ""])
def test_a_message_without_signature_is_refused(header: str | None) -> None:
    assert "Stripe-Signature is missing" in get_refusal(BODY, header)


@pytest.mark.parametrize(
    "header",
    [
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
    ],
)
def test_a_signature_of_another_body_or_time_is_refused(header: str) -> None:
    message = get_refusal(BODY, header)
    assert "does not sign this body" in message
    assert "SIGNALS_STRIPE_WEBHOOK_SECRET" in message


@pytest.mark.parametrize("body", [BODY + b"\n", BODY.replace(b"cus_1", b"cus_2"), b"", b"\xff"])
def test_a_body_that_was_changed_is_refused(body: bytes) -> None:
    assert "does not sign this body" in get_refusal(body, sign_payload(BODY, NOW_S, SECRET))


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b"null", b'"event"', b'{"id":"evt_1","type":"x"}']
)
def test_a_signed_body_that_is_not_an_event_is_refused(body: bytes) -> None:
    assert "The body is not a Stripe event" in get_refusal(body, sign_payload(body, NOW_S, SECRET))


@pytest.mark.parametrize("age_s", [-86_400, -301, 301, 86_400])
def test_a_message_signed_long_ago_or_in_the_future_is_refused(age_s: int) -> None:
    message = get_refusal(BODY, sign_payload(BODY, NOW_S - age_s, SECRET))
    assert f"signed {abs(age_s)} seconds {'ago' if age_s > 0 else 'in the future'}" in message
    assert "check the clock" in message


@pytest.mark.parametrize("age_s", [-300, 300])
def test_a_message_signed_within_five_minutes_is_accepted(age_s: int) -> None:
    signed = sign_payload(BODY, NOW_S - age_s, SECRET)
    assert parse_event(BODY, signed, SECRET, NOW_S).id == "evt_1"
