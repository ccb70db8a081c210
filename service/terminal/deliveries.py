"""Hands a row of the feed to the user's own program, or to their address as a signed request.

Requests are signed as Standard Webhooks does: HMAC-SHA256 over id, timestamp and body.
"""

import asyncio
import base64
import binascii
import hmac
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from schemas.errors import OperatorError
from schemas.version import VERSION
from schemas.vocabulary import Clock
from verifier.client import Json, TransientError, fetch, open_transport, parse_retry_after

USER_AGENT = f"signals/{VERSION}"
SECRET_PREFIX = "whsec_"
# The bounds that the specification sets for the secret.
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
SECRET_HINT = (
    "SIGNALS_WEBHOOK_SECRET must be whsec_ followed by 24 to 64 bytes in base64; create one with "
    '`echo "whsec_$(openssl rand -base64 32)"`, and give it to the receiver too'
)

# The shell's statuses for a program that it cannot run, or cannot find.
UNUSABLE_STATUSES = (126, 127)
GONE = 410
POST_TIMEOUT_S = 20.0

# Called with a row and the `meta` of its page. A TransientError is retried; any other ends it.
Deliver = Callable[[Json, Json], Awaitable[None]]


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


class DeliveryError(OperatorError):
    """A delivery that would fail again."""


def build_event(row: Json, meta: Json) -> Json:
    """Return the row, and `meta` with the origin of its data."""
    # Receivers see nothing else, and simulated data must not pass for live data.
    # Absent means false.
    flags = {key: bool(meta.get(key)) for key in ("simulated", "stale")}
    return {**row, "meta": {"source": meta["source"], **flags}}


def encode_json(value: Any) -> bytes:
    """Return a value as compact JSON in ASCII, which cannot control a terminal."""
    return json.dumps(value, separators=(",", ":")).encode()


class ProgramRunner:
    """Runs a shell command for each row, with the row as one line of JSON on standard input."""

    def __init__(self, command: str) -> None:
        self._command = command

    async def __call__(self, row: Json, meta: Json) -> None:
        """Run it once; TransientError if it fails, DeliveryError if it cannot be run."""
        process = await asyncio.create_subprocess_shell(
            self._command, stdin=asyncio.subprocess.PIPE
        )
        try:
            await process.communicate(encode_json(build_event(row, meta)) + b"\n")
        finally:
            # It still runs only if this command is being stopped.
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
        if process.returncode in UNUSABLE_STATUSES:
            raise DeliveryError(
                f"the shell cannot run the program of --exec (status {process.returncode}): check "
                "its path and that it is executable"
            )
        if process.returncode:
            raise TransientError(f"the program failed with status {process.returncode}")


class WebhookSender:
    """Posts each row to an address, signed as Standard Webhooks specifies."""

    def __init__(
        self, url: str, key: bytes, wall_clock: Clock, proxy: tuple[str, str] | None = None
    ) -> None:
        """`proxy` is the variable that names a proxy, and its address."""
        self._url = url
        self._proxy = proxy
        self._host = urlsplit(url).netloc
        self._key = key
        self._wall_clock = wall_clock

    async def __call__(self, row: Json, meta: Json) -> None:
        """Post it once; TransientError unless the answer is 2xx, DeliveryError if it is 410."""
        event = {
            "type": f"signal.{row['tier']}",
            "timestamp": row["created_at"],
            "data": build_event(row, meta),
        }
        if not (row["id"].isascii() and row["id"].isprintable()):
            raise ValueError("the id of a row cannot be sent as a header")
        body = encode_json(event)
        # The id is the same for each attempt, and has no dots, because it is signed with dots
        # around it. Each attempt has a signature of its own: receivers refuse old timestamps.
        signed = sign(self._key, row["id"].replace(".", ":"), self._wall_clock() // 1000, body)
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, **signed}
        transport = open_transport(self._url, self._proxy)
        try:
            async with httpx2.AsyncClient(timeout=POST_TIMEOUT_S, transport=transport) as http:
                response = await fetch(
                    http, "POST", self._url, POST_TIMEOUT_S, content=body, headers=headers
                )
        except httpx2.HTTPError as error:
            # The address may hold a secret in its path, so only its host is named.
            via = "" if self._proxy is None else f", through the proxy that {self._proxy[0]} names"
            reason = f"{type(error).__name__}{via}"
            raise TransientError(f"{self._host} did not answer ({reason})") from None
        if response.status_code == GONE:
            raise DeliveryError(f"{self._host} answered 410: it wants no more rows")
        if not response.is_success:
            raise TransientError(
                f"{self._host} answered {response.status_code}", parse_retry_after(response)
            )


def parse_post_url(text: str) -> str:
    """Return the address of --post; DeliveryError, which does not repeat it, if it is invalid."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeliveryError("--post must be an http:// or https:// address")
    if parts.username or parts.password:
        raise DeliveryError("--post must be an address without user name and password")
    return text
