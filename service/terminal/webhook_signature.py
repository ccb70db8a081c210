"""Signs requests as Standard Webhooks does: HMAC-SHA256 over id, timestamp and body."""

import base64
import binascii
import hmac

from schemas.operator_error import OperatorError

SECRET_PREFIX = "whsec_"
# The bounds that the specification sets for the secret.
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
SECRET_HINT = (
    "SIGNALS_WEBHOOK_SECRET must be whsec_ followed by 24 to 64 bytes in base64; create one with "
    '`echo "whsec_$(openssl rand -base64 32)"`, and give it to the receiver too'
)


class SecretError(OperatorError):
    """A missing or invalid webhook secret. The message never repeats it."""


def parse_webhook_secret(text: str) -> bytes:
    """Return the signing key of a secret `whsec_...`; raise SecretError if it is not one."""
    encoded = text.strip()
    if not encoded.startswith(SECRET_PREFIX):
        raise SecretError(SECRET_HINT)
    try:
        key = base64.b64decode(encoded.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise SecretError(SECRET_HINT) from None
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise SecretError(SECRET_HINT)
    return key


def sign(key: bytes, message_id: str, sent_at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed request; `sent_at_s` is in epoch seconds."""
    signed = f"{message_id}.{sent_at_s}.".encode() + body
    digest = hmac.digest(key, signed, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
