"""Sells keys: a checkout returns a claim token, which is exchanged for one key when paid."""

import json
import secrets
from dataclasses import dataclass, replace
from hashlib import sha256

from access.billing.provider import (
    BillingError,
    FailedPayment,
    HeldPayment,
    Order,
    Provider,
    SettledPayment,
)
from access.claims import Claims, derive_key, derive_secret, explain_lost_key
from access.email_address import parse_contact_email
from access.plan import CONTACT_OPERATOR, PRICES_USD
from access.single_flight_cache import call_provider
from access.throttle import Throttle
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.purchase import (
    CLAIM_POLL_DURATION_S,
    CLAIM_POLL_INTERVAL_S,
    CLAIM_REPEAT_DURATION_S,
    IDEMPOTENCY_DURATION_S,
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
from store.access_rows import ClaimRow, IdempotencyRow, Redemption
from store.sql.access_store import AccessStore

ClaimResult = ActiveClaim | PendingClaim


@dataclass(frozen=True, slots=True)
class OpenedCheckout:
    """A checkout that an Idempotency-Key opened: its claim, the claim's token and its URL."""

    claim: ClaimRow
    claim_token: str
    url: str


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

    async def create_checkout(
        self, body: CheckoutBody, address: str, idempotency_key: str | None = None
    ) -> CheckoutResponse:
        """Open a checkout and return its URL and claim token, which is stored only as a hash.

        `address` is the client's IP address. The same body with the same `idempotency_key` returns
        the same checkout for IDEMPOTENCY_DURATION_S. Raise ApiError 400 for a bad e-mail address,
        409 if the key came with another body, 429 if the client opened too many checkouts, 503 if
        the processor is unavailable.
        """
        email = parse_contact_email(
            body.contact_email, accepts_special_use=self._provider.accepts_special_use_email
        )
        order = Order(secrets.token_hex(16), email, body.billing, body.agent_name)
        if idempotency_key is not None:
            checkout = await self._find_checkout(order, idempotency_key)
            if checkout is not None:
                # It opens nothing, so it is no attempt.
                return checkout
        await self._throttle.take_attempt(address)
        if idempotency_key is not None:
            return await self._open_once(order, idempotency_key)
        claim_token = f"ct_{secrets.token_urlsafe(32)}"
        return await self._open_checkout(order, claim_token, None)

    async def find_opened(self, idempotency_key: str) -> OpenedCheckout | None:
        """Return the checkout that an Idempotency-Key opened, None if there is none any more."""
        row = await self._store.find_idempotency_key(
            self._hash_key(idempotency_key), self._get_expired_at()
        )
        if row is None or row.checkout_url is None:
            return None
        claim_token = _derive_claim_token(idempotency_key, row.claim_id)
        claim = await self._store.find_claim(_hash_token(claim_token))
        assert claim is not None, "a claim outlives its idempotency key"
        return OpenedCheckout(claim, claim_token, row.checkout_url)

    async def _find_checkout(self, order: Order, idempotency_key: str) -> CheckoutResponse | None:
        """Return the checkout that the same order opened with an Idempotency-Key, or None."""
        opened = await self.find_opened(idempotency_key)
        if opened is None or _hash_order(opened.claim) != _hash_order(order):
            return None
        return self._build_checkout(opened.claim, opened.url, opened.claim_token)

    async def _open_once(self, order: Order, idempotency_key: str) -> CheckoutResponse:
        """Open a checkout that can be repeated; raise ApiError 409 if the key had another order."""
        new_row, expired_at = self._build_row(order, idempotency_key)
        row = await self._store.reserve_idempotency_key(new_row, expired_at)
        if row.order_hash != new_row.order_hash:
            raise _idempotency_conflict_error()
        # Concurrent requests, and one after a crash, open the same order with the same token. The
        # processor opens it once, so all of them return the same response.
        same_order = replace(order, claim_id=row.claim_id)
        claim_token = _derive_claim_token(idempotency_key, row.claim_id)
        try:
            return await self._open_checkout(same_order, claim_token, row)
        except ApiError:
            # The processor may repeat its failure for this order, so a retry begins another one.
            await self._store.release_idempotency_key(row)
            raise

    def _build_row(self, order: Order, idempotency_key: str) -> tuple[IdempotencyRow, int]:
        """Return a new row for an order, and the time until which stored rows have expired."""
        row = IdempotencyRow(
            key_hash=self._hash_key(idempotency_key),
            order_hash=_hash_order(order),
            claim_id=order.claim_id,
            created_at=self._clock(),
        )
        return row, self._get_expired_at()

    def _hash_key(self, idempotency_key: str) -> bytes:
        return _hash_json(self._provider.name, self._provider.mode, idempotency_key)

    def _get_expired_at(self) -> int:
        return self._clock() - IDEMPOTENCY_DURATION_S * 1000

    async def _open_checkout(
        self, order: Order, claim_token: str, row: IdempotencyRow | None
    ) -> CheckoutResponse:
        session = await call_provider(self._provider.open_session(order))
        mode = self._provider.mode
        assert mode is not None, "a provider that opens sessions has a mode"
        claim = ClaimRow(
            id=order.claim_id,
            token_hash=_hash_token(claim_token),
            provider=self._provider.name,
            mode=mode,
            session=session.id,
            contact_email=order.contact_email,
            billing=order.billing,
            agent_name=order.agent_name,
            created_at=self._clock(),
            expires_at=session.expires_at,
        )
        await self._store.create_claim(claim, row and replace(row, checkout_url=session.url))
        return self._build_checkout(claim, session.url, claim_token)

    def _build_checkout(
        self, claim: ClaimRow, checkout_url: str, claim_token: str
    ) -> CheckoutResponse:
        return CheckoutResponse(
            status="checkout_created",
            mode=claim.mode,
            checkout_url=checkout_url,
            claim_token=claim_token,
            plan=Plan(tier="premium", billing=claim.billing, amount_usd=PRICES_USD[claim.billing]),
            next_step=NextStep(
                call=f"POST {self._api_url}/access/claim",
                body_field="claim_token",
                every_seconds=CLAIM_POLL_INTERVAL_S,
                for_seconds=CLAIM_POLL_DURATION_S,
                expires_at=format_instant(claim.expires_at),
            ),
        )

    async def claim(self, body: ClaimBody, address: str) -> ClaimResult:
        """Redeem a claim token for its key, or return that the payment is pending.

        A repeated claim returns the same key again until its first use, for at most
        CLAIM_REPEAT_DURATION_S. Raise ApiError 404 if the token is unknown or its checkout failed,
        409 if its key can no longer be returned, or if its subscription must be paid first.
        """
        claim = await self._store.find_claim(_hash_token(body.claim_token))
        if claim is None:
            raise self._no_key_error(
                "no checkout has this token. Check that it was copied whole, or"
            )
        if claim.redeemed_at is None:
            # A client that disconnects cancels only its own claim, not the shared check.
            payment = await self._claims.fetch_payment(claim)
            if isinstance(payment, FailedPayment):
                raise self._no_key_error(f"this checkout {payment.reason}, so it gives no key:")
            if isinstance(payment, HeldPayment):
                raise self._held_error(payment)
            if not isinstance(payment, SettledPayment):
                return self._build_pending()
            try:
                await self._claims.redeem(claim, payment, body.claim_token)
            except BillingError:
                return self._build_pending()
        return await self._build_active(claim, body.claim_token)

    async def _build_active(self, claim: ClaimRow, claim_token: str) -> ActiveClaim:
        """Return the response to a redeemed claim, the same one to the first claim and to others.

        The payment is not checked: if it is reversed, the key is revoked, which is read here.
        """
        redemption = await self._store.find_redemption(claim.id)
        assert redemption is not None, "a redeemed claim stays redeemed"
        if reason := explain_lost_key(redemption, self._clock()):
            raise self._already_redeemed_error(reason, redemption)
        assert redemption.key_salt is not None, "explain_lost_key refuses a claim without a salt"
        return ActiveClaim(
            status="active",
            mode=claim.mode,
            api_key=derive_key(claim_token, redemption.key_salt),
            usage=KeyUsage(
                header="Authorization: Bearer <API_KEY>",
                daily_limit=self._daily_limit,
                quota_resets="00:00 UTC",
                start_here=f"Register the MCP server {self._api_url}/mcp and call "
                f"signals_get_state with a ticker, or GET {self._api_url}/state?ticker=BTC",
            ),
            store_this="Store api_key now. Repeating this claim returns it again for "
            f"{CLAIM_REPEAT_DURATION_S // 60} minutes and until its first use; afterwards it "
            f"cannot be recovered. The buyer can create more keys at {self._dashboard_url}.",
            docs=self._api_url,
            catalog=f"{self._api_url}/catalog",
        )

    def _build_pending(self) -> PendingClaim:
        return PendingClaim(
            status="pending",
            mode=self._provider.mode,
            message="The payment is not confirmed. Pay at checkout_url, then claim again: every "
            f"{CLAIM_POLL_INTERVAL_S} seconds, for up to {CLAIM_POLL_DURATION_S // 60} minutes.",
            retry_after_seconds=CLAIM_POLL_INTERVAL_S,
        )

    def _no_key_error(self, reason: str) -> ApiError:
        message = f"claim_token: {reason} {self._describe_new_purchase()}"
        return ApiError("invalid_parameter", message, 404, names_operator=True)

    def _held_error(self, payment: HeldPayment) -> ApiError:
        return ApiError(
            "invalid_parameter",
            f"claim_token: this checkout gives no key now, because {payment.reason}. Do not pay "
            "again: its subscription continues. Settle it with the payment processor, then repeat "
            f"this claim, or {CONTACT_OPERATOR}.",
            status=409,
            names_operator=True,
        )

    def _describe_new_purchase(self) -> str:
        # With billing off, no checkout can be started.
        if self._provider.mode is None:
            return f"{CONTACT_OPERATOR}."
        return f"start again with POST {self._api_url}/access/checkout."

    def _already_redeemed_error(self, reason: str, redemption: Redemption) -> ApiError:
        if redemption.ended_reason is None:
            action = (
                f"The buyer can create another key at {self._dashboard_url} without paying again."
            )
        elif redemption.closed_at is None:
            action = (
                f"The membership has no access, because {redemption.ended_reason}. Do not pay "
                f"again: its subscription continues. Settle it at {self._dashboard_url}."
            )
        else:
            action = (
                f"The membership has ended, because {redemption.ended_reason}: "
                f"{self._describe_new_purchase()}"
            )
        return ApiError(
            "invalid_parameter",
            f"claim_token: was already redeemed, and {reason}; the key is not recoverable. "
            f"{action}",
            409,
        )


def _idempotency_conflict_error() -> ApiError:
    return ApiError(
        "invalid_parameter",
        "Idempotency-Key: was used with another body in the last "
        f"{IDEMPOTENCY_DURATION_S // 3600} hours. Repeat that body, or send another key.",
        409,
    )


def _derive_claim_token(idempotency_key: str, claim_id: str) -> str:
    # The key is not stored, so the stored row does not give the token. Whoever knows key and body
    # does get it, which is why a key must be long and the documents advise a random one.
    return derive_secret("ct_", idempotency_key, claim_id.encode())


def _hash_order(order: Order | ClaimRow) -> bytes:
    return _hash_json(order.contact_email, order.billing, order.agent_name)


def _hash_json(*parts: str | None) -> bytes:
    return sha256(json.dumps(parts).encode()).digest()


def _hash_token(claim_token: str) -> bytes:
    return sha256(claim_token.encode()).digest()
