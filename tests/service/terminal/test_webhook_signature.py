"""The signatures are those of Standard Webhooks, as its own library computes them."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook

from service.terminal.deliveries import SecretError, parse_webhook_secret, sign

pytestmark = pytest.mark.clause("22.4")

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def test_a_signature_is_the_one_of_the_reference_library():
    body = '{"ticker":"BRK.B","price":1.5,"name":"Ω"}'
    headers = sign(parse_webhook_secret(SECRET), "universe:BTC", 1_790_769_600, body.encode())
    at = datetime.fromtimestamp(1_790_769_600, UTC)
    assert headers == {
        "webhook-id": "universe:BTC",
        "webhook-timestamp": "1790769600",
        "webhook-signature": Webhook(SECRET).sign("universe:BTC", at, body),
    }


@pytest.mark.parametrize(
    "secret",
    [
        "",
        SECRET.removeprefix("whsec_"),
        "whsec_",
        "whsec_not base64",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_an_invalid_secret_is_refused_without_repeating_it(secret):
    with pytest.raises(SecretError, match="whsec_ followed by 24 to 64 bytes") as refused:
        parse_webhook_secret(secret)
    assert secret.removeprefix("whsec_") == "" or secret not in str(refused.value)


@pytest.mark.parametrize("size", [24, 64])
def test_the_shortest_and_the_longest_secret_are_accepted(size):
    key = bytes(range(size))
    assert parse_webhook_secret(f" whsec_{base64.b64encode(key).decode()}\n") == key
