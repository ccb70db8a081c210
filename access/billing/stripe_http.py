"""The HTTP client of Stripe's library: bounds connections, the length of responses and redirects.

Its base class is the one that the library documents for other HTTP clients.
"""

import ssl
from collections.abc import Awaitable, Mapping
from typing import Any

import anyio
import httpx2
import stripe

from access.billing.provider import BillingError

MAX_CONNECTIONS = 100
# The longest response is a page of 100 charges, about 400 KB.
MAX_RESPONSE_BYTES = 1_000_000


class BoundedHttpClient(stripe.HTTPClient):
    """Sends requests without following redirects; `timeout_s` bounds each wait for the network.

    A slow response can take any number of such waits, so callers need a deadline of their own.
    """

    name = "httpx2"

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._client = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=stripe.ca_bundle_path),
            timeout=timeout_s,
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20),
            follow_redirects=False,
        )

    def sleep_async(self, secs: float) -> Awaitable[None]:
        """Wait before a retry."""
        return anyio.sleep(secs)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Return body, status and headers; raise BillingError if the body exceeds its bound."""
        # A few compressed bytes can expand to any length, so compression is declined.
        sent = {**headers, "Accept-Encoding": "identity"}
        try:
            async with self._client.stream(
                method, url, headers=sent, content=post_data or b""
            ) as response:
                body = await _read_body(response)
        except httpx2.HTTPError as error:
            failure = stripe.APIConnectionError("", should_retry=True)  # type: ignore[no-untyped-call]
            raise failure from error
        return body, response.status_code, response.headers

    async def close_async(self) -> None:
        """Close all connections; idempotent."""
        await self._client.aclose()


async def _read_body(response: httpx2.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise BillingError("Stripe: the response is compressed, which the request declined")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise BillingError(f"Stripe: the response exceeds {MAX_RESPONSE_BYTES} bytes")
    return bytes(body)
