"""The checkout that a browser opened on the page to buy access, remembered in a cookie.

The cookie holds an Idempotency-Key. It finds the same checkout again, so a reload or a form that
is sent twice buys nothing twice, and nothing but that browser can claim the key.
"""

import secrets
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from access.purchases import OpenedCheckout
from schemas.purchase import IDEMPOTENCY_DURATION_S
from serving.http import read_cookie

FindOpened = Callable[[str], Awaitable[OpenedCheckout | None]]


class OwnPurchases:
    """Finds and remembers the checkouts of browsers; the cookie needs TLS if `base_url` does."""

    def __init__(self, find_opened: FindOpened, base_url: str) -> None:
        """`find_opened` returns the checkout that an Idempotency-Key opened."""
        self._find_opened = find_opened
        self._is_secure = base_url.startswith("https://")
        # Whoever could set the cookie of a buyer could claim the key too. No other host can set a
        # `__Host-` cookie for us.
        self._cookie_name = "__Host-signals_purchase" if self._is_secure else "signals_purchase"

    async def find(self, request: Request) -> OpenedCheckout | None:
        """Return the checkout that this browser opened, None if there is none any more."""
        idempotency_key = read_cookie(request.scope, self._cookie_name)
        return await self._find_opened(idempotency_key) if idempotency_key else None

    def get_key(self, request: Request) -> str:
        """Return the browser's Idempotency-Key, a new one if it has none."""
        return read_cookie(request.scope, self._cookie_name) or generate_idempotency_key()

    def remember(self, response: Response, idempotency_key: str) -> None:
        """Let the browser find its checkout again for as long as the key does."""
        # `lax`: the cookie is needed when the payment processor's page leads back here.
        response.set_cookie(
            self._cookie_name,
            idempotency_key,
            max_age=IDEMPOTENCY_DURATION_S,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    def forget(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(
            self._cookie_name, secure=self._is_secure, httponly=True, samesite="lax"
        )


def generate_idempotency_key() -> str:
    """Return a new Idempotency-Key of 256 random bits."""
    return secrets.token_urlsafe(32)
