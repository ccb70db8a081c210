"""The checkout that a browser opened on the page to buy access, remembered in a cookie.

The cookie holds the claim token, from before the checkout is opened. It finds the same checkout
again, so a reload or a form that is sent twice buys nothing twice, and nothing but that browser can
claim the key.
"""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from access.billing.provider import Payment
from access.purchases import OpenedCheckout, generate_claim_token
from schemas.vocabulary import DAY_MS
from serving.http import read_cookie
from store.access_rows import ClaimRow

CLAIM_TOKEN_PATTERN = re.compile(r"ct_[A-Za-z0-9_-]{43}")


class Checkouts(NamedTuple):
    """Finds the checkout of a claim token, and fetches a checkout's payment."""

    find_opened: Callable[[str], Awaitable[OpenedCheckout | None]]
    fetch_payment: Callable[[ClaimRow], Awaitable[Payment]]


class OwnPurchases:
    """Finds and remembers the checkouts of browsers; the cookie needs TLS if `base_url` does."""

    def __init__(self, checkouts: Checkouts, base_url: str) -> None:
        self._checkouts = checkouts
        self.fetch_payment = checkouts.fetch_payment
        self._is_secure = base_url.startswith("https://")
        # Whoever could set the cookie of a buyer could claim the key too. No other host can set a
        # `__Host-` cookie for us.
        self._cookie_name = "__Host-signals_purchase" if self._is_secure else "signals_purchase"

    async def find(self, request: Request) -> OpenedCheckout | None:
        """Return the checkout that this browser opened, None if there is none any more."""
        claim_token = self._read_token(request)
        return await self._checkouts.find_opened(claim_token) if claim_token else None

    def get_token(self, request: Request) -> str:
        """Return the claim token of this browser's checkout, a new one if it has none."""
        return self._read_token(request) or generate_claim_token()

    def _read_token(self, request: Request) -> str | None:
        # Another form could be guessed, or is that of an earlier version.
        claim_token = read_cookie(request.scope, self._cookie_name)
        return claim_token if CLAIM_TOKEN_PATTERN.fullmatch(claim_token) else None

    def remember(self, response: Response, claim_token: str) -> None:
        """Let the browser find its checkout again for a day, as long as it can be paid."""
        # `lax`: the cookie is needed when the payment processor's page leads back here.
        response.set_cookie(
            self._cookie_name,
            claim_token,
            max_age=DAY_MS // 1000,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    def forget(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(
            self._cookie_name, secure=self._is_secure, httponly=True, samesite="lax"
        )
