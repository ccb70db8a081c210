"""Sells keys: a checkout returns a one-time claim token, exchanged for one key when paid."""

import secrets
from hashlib import sha256

from access.billing.provider import FailedPayment, Order, Provider, SettledPayment
from access.claims import Claims
from access.email_address import parse_contact_email
from access.plan import PRICES_USD
from access.single_flight_cache import call_provider
from access.throttle import Throttle
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.purchase import (
    CLAIM_POLL_DURATION_S,
    CLAIM_POLL_INTERVAL_S,
    ActiveClaim,
    CheckoutBody,
    CheckoutResponse,
    ClaimBody,
    KeyUsage,
    NextStep,
    PendingClaim,
    Plan,
)
from schemas.vocabulary import format_instant
from store.access_rows import ClaimRow
from store.sql.access_store import AccessStore

ClaimResult = ActiveClaim | PendingClaim


class Purchases:
    """Opens checkouts with one provider and redeems claim tokens; `clock` returns epoch ms."""

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
        self._api_url = f"{base_url}/api/v1"
        self._dashboard_url = f"{base_url}/settings/api-access"
        self._daily_limit = daily_limit

    async def create_checkout(self, body: CheckoutBody, address: str) -> CheckoutResponse:
        """Open a checkout and return its URL and claim token, which is stored only as a hash.

        `address` is the client's IP address. Raise ApiError 400 for a bad e-mail address, 429 if
        the client opened too many checkouts, 503 if the processor is unavailable.
        """
        email = parse_contact_email(
            body.contact_email, accepts_special_use=self._provider.accepts_special_use_email
        )
        await self._throttle.take_attempt(address)
        order = Order(secrets.token_hex(16), email, body.billing, body.agent_name)
        session = await call_provider(self._provider.open_session(order))
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
            plan=Plan(tier="premium", billing=order.billing, amount_usd=PRICES_USD[order.billing]),
            next_step=NextStep(
                call=f"POST {self._api_url}/access/claim",
                body_field="claim_token",
                every_seconds=CLAIM_POLL_INTERVAL_S,
                for_seconds=CLAIM_POLL_DURATION_S,
                expires_at=format_instant(session.expires_at),
            ),
        )

    async def claim(self, body: ClaimBody, address: str) -> ClaimResult:
        """Redeem a claim token for its key, or return that the payment is pending.

        Raise ApiError 404 if the token is unknown or its checkout failed, 409 if it was already
        redeemed.
        """
        claim = await self._store.find_claim(_hash_token(body.claim_token))
        if claim is None:
            raise self._no_key_error(
                "no checkout has this token. Check that it was copied whole, or"
            )
        if claim.redeemed_at is not None:
            raise self._already_redeemed_error()
        # A client that disconnects cancels only its own claim, not the shared check. The first one
        # that is still connected redeems, so a timeout and a retry lose no paid key.
        payment = await self._claims.fetch_payment(claim)
        if isinstance(payment, SettledPayment):
            return await self._redeem(claim, payment)
        if isinstance(payment, FailedPayment):
            raise self._no_key_error(f"this checkout {payment.reason}, so it gives no key:")
        return self._build_pending()

    async def _redeem(self, claim: ClaimRow, payment: SettledPayment) -> ActiveClaim:
        api_key = await self._claims.redeem(claim, payment)
        if api_key is None:
            raise self._already_redeemed_error()
        return ActiveClaim(
            status="active",
            mode=claim.mode,
            api_key=api_key,
            usage=KeyUsage(
                header="Authorization: Bearer <API_KEY>",
                daily_limit=self._daily_limit,
                quota_resets="00:00 UTC",
                start_here=f"Register the MCP server {self._api_url}/mcp and call "
                f"signals_get_state with a ticker, or GET {self._api_url}/state?ticker=BTC",
            ),
            store_this="Store api_key now: it is shown only once and cannot be recovered. The "
            f"buyer can create more keys at {self._dashboard_url}.",
            docs=self._api_url,
            catalog=f"{self._api_url}/catalog",
        )

    def _build_pending(self) -> PendingClaim:
        return PendingClaim(
            status="pending",
            mode=self._provider.mode,
            message="The payment has not settled. Pay at checkout_url, then claim again: every "
            f"{CLAIM_POLL_INTERVAL_S} seconds, for up to {CLAIM_POLL_DURATION_S // 60} minutes.",
            retry_after_seconds=CLAIM_POLL_INTERVAL_S,
        )

    def _no_key_error(self, reason: str) -> ApiError:
        # With billing off, no checkout can be started.
        sells_keys = self._provider.mode is not None
        checkout = f"start again with POST {self._api_url}/access/checkout."
        message = f"claim_token: {reason} {checkout if sells_keys else 'contact the operator.'}"
        return ApiError("invalid_parameter", message, 404)

    def _already_redeemed_error(self) -> ApiError:
        return ApiError(
            "invalid_parameter",
            "claim_token: was already redeemed; its key was shown once and is not recoverable. "
            f"The buyer can create another key at {self._dashboard_url} without paying again.",
            409,
        )


def _hash_token(claim_token: str) -> bytes:
    return sha256(claim_token.encode()).digest()
