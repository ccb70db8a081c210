"""Buying a key: a checkout gives a one-time token, and a settled payment turns it into one key."""

import secrets
from hashlib import sha256

from access.billing.provider import Ended, Order, Paid, Provider
from access.claims import Claims
from access.email_address import checked_email
from access.plan import PRICE_USD
from access.single_flight_cache import word_of
from access.throttle import Throttle
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.purchase import (
    CLAIM_EVERY_S,
    CLAIM_FOR_S,
    ActiveClaim,
    CheckoutBody,
    CheckoutResponse,
    ClaimBody,
    KeyUsage,
    NextStep,
    PendingClaim,
    Plan,
)
from schemas.vocabulary import instant
from store.access_protocol import AccessStore
from store.access_rows import ClaimRow

Claimed = ActiveClaim | PendingClaim


class Purchases:
    """Sells the plan on one access store through one provider; `clock` tells epoch ms."""

    def __init__(
        self,
        store: AccessStore,
        provider: Provider,
        claims: Claims,
        throttle: Throttle,
        clock: Clock,
        *,
        base_url: str,
        daily_limit: int,
    ) -> None:
        self._store = store
        self._provider = provider
        self._claims = claims
        self._throttle = throttle
        self._clock = clock
        self._api = f"{base_url}/api/v1"
        self._dashboard = f"{base_url}/settings/api-access"
        self._daily_limit = daily_limit

    async def checkout(self, body: CheckoutBody, address: str) -> CheckoutResponse:
        """Open a checkout for a client address; its token is stored as a hash alone."""
        email = checked_email(
            body.contact_email, takes_special_use=self._provider.takes_special_use_email
        )
        await self._throttle.attempt(address)
        order = Order(secrets.token_hex(16), email, body.billing, body.agent_name)
        session = await word_of(self._provider.open_session(order))
        mode = self._provider.mode
        assert mode is not None, "a provider that opens sessions has a mode"
        claim_token = f"ct_{secrets.token_urlsafe(32)}"
        await self._store.create_claim(
            ClaimRow(
                id=order.claim_id,
                token_hash=_hash_token(claim_token),
                provider=self._provider.name,
                mode=mode,
                session=session.id,
                contact_email=email,
                billing=order.billing,
                agent_name=order.agent_name,
                created_at=self._clock(),
                expires_at=session.expires_at,
            )
        )
        return CheckoutResponse(
            status="checkout_created",
            mode=mode,
            checkout_url=session.url,
            claim_token=claim_token,
            plan=Plan(tier="premium", billing=order.billing, amount_usd=PRICE_USD[order.billing]),
            next_step=NextStep(
                call=f"POST {self._api}/access/claim",
                body_field="claim_token",
                every_seconds=CLAIM_EVERY_S,
                for_seconds=CLAIM_FOR_S,
                expires_at=instant(session.expires_at),
            ),
        )

    async def claim(self, body: ClaimBody, address: str) -> Claimed:
        """Turn a paid token into its one key; ApiError 404 or 409 where none comes of it.

        Of those who wait for the processor's word, the first that is still there gets the key.
        """
        claim = await self._store.find_claim(_hash_token(body.claim_token))
        if claim is None:
            raise self._no_key("no checkout has this token. Check that it was copied whole, or")
        if claim.redeemed_at is not None:
            raise self._redeemed()
        payment = await self._claims.word(claim)
        if isinstance(payment, Paid):
            return await self._redeem(claim, payment)
        if isinstance(payment, Ended):
            raise self._no_key(f"this checkout {payment.why}, so no key comes of it:")
        return self._pending()

    async def _redeem(self, claim: ClaimRow, paid: Paid) -> ActiveClaim:
        api_key = await self._claims.redeem(claim, paid)
        if api_key is None:
            raise self._redeemed()
        return ActiveClaim(
            status="active",
            mode=claim.mode,
            api_key=api_key,
            usage=KeyUsage(
                header="Authorization: Bearer <API_KEY>",
                daily_limit=self._daily_limit,
                quota_resets="00:00 UTC",
                start_here=f"Register the MCP server {self._api}/mcp and call signals_get_state "
                f"with a ticker, or GET {self._api}/state?ticker=BTC",
            ),
            store_this="Store api_key now: it is shown this once and cannot be recovered. Whoever "
            f"paid makes others at {self._dashboard}.",
            docs=self._api,
            catalog=f"{self._api}/catalog",
        )

    def _pending(self) -> PendingClaim:
        return PendingClaim(
            status="pending",
            mode=self._provider.mode,
            message="The payment has not settled. Pay at checkout_url, then claim again: every "
            f"{CLAIM_EVERY_S} seconds, for up to {CLAIM_FOR_S // 60} minutes.",
            retry_after_seconds=CLAIM_EVERY_S,
        )

    def _no_key(self, why: str) -> ApiError:
        message = f"claim_token: {why} start anew with POST {self._api}/access/checkout."
        return ApiError("invalid_parameter", message, 404)

    def _redeemed(self) -> ApiError:
        return ApiError(
            "invalid_parameter",
            "claim_token: was already redeemed; its key was shown once and is not recoverable. "
            f"Whoever paid makes another at {self._dashboard}, without a second purchase.",
            409,
        )


def _hash_token(claim_token: str) -> bytes:
    return sha256(claim_token.encode()).digest()
