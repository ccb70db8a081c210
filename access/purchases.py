"""Sells keys: a checkout returns a claim token, which is exchanged for one key when paid."""

import asyncio
import secrets
from hashlib import sha256

import structlog

from access.billing.provider import (
    CONTACT_OPERATOR,
    PRICES_USD,
    BillingError,
    FailedPayment,
    HeldPayment,
    Order,
    Payment,
    Provider,
    SettledPayment,
)
from access.contact import parse_contact_email
from access.keys_and_quota import generate_key, hash_key
from access.maintenance import update_membership
from access.single_flight_cache import SingleFlightCache, call_provider, retrieve_failure
from access.throttle import Throttle
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
from schemas.vocabulary import Clock, format_instant
from store.access_rows import ClaimRow, MembershipRow, normalize_email
from store.sql.access_store import AccessStore

log = structlog.get_logger("billing")

# Checkouts checked per mailbox, newest first; each costs several requests to the processor.
MAX_CLAIMS_CHECKED = 5


class Claims:
    """Checks and redeems the claims of one provider; `clock` returns epoch ms.

    Create one per process, because concurrent checks of the same checkout are shared. Any status
    other than paid is cached for the provider's `pending_ttl_ms`.
    """

    def __init__(self, store: AccessStore, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock
        # A paid claim is redeemed at once, so a refund that comes next must be seen.
        self._payments = SingleFlightCache[Payment](
            clock,
            lambda one: 0 if isinstance(one, SettledPayment) else provider.pending_ttl_ms,
        )
        self._redemptions = set[asyncio.Task[bool]]()

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the payment of a claim; raise ApiError 503 if the processor is unavailable."""
        return await self._payments.get(claim.id, lambda: self._query_provider(claim))

    async def list_unredeemed(self, email: str) -> list[tuple[ClaimRow, SettledPayment]]:
        """Return the paid, unredeemed claims of a mailbox with their payments, newest first.

        The processor's e-mail decides ownership, not the one typed at checkout. Raise ApiError 503
        if the processor is unavailable.
        """
        mode = self._provider.mode
        if mode is None:
            return []
        claims = await self._store.list_unredeemed_claims(
            email, self._provider.name, mode, MAX_CLAIMS_CHECKED
        )
        payments = await asyncio.gather(*(self.fetch_payment(claim) for claim in claims))
        return [
            (claim, payment)
            for claim, payment in zip(claims, payments, strict=True)
            if isinstance(payment, SettledPayment)
            and normalize_email(payment.contact_email) == normalize_email(email)
        ]

    async def redeem(self, claim: ClaimRow, payment: SettledPayment, api_key: str | None) -> bool:
        """Create the membership of a paid claim, and its one key if one is given.

        Return False if the claim was already redeemed, or if the payment has just been reversed.
        Raise BillingError, and create nothing, if the payment could not be checked again.
        """
        # A client that disconnects after the commit must not cancel the check that follows it.
        redemption = asyncio.create_task(self._store_redemption(claim, payment, api_key))
        self._redemptions.add(redemption)
        redemption.add_done_callback(self._redemptions.discard)
        redemption.add_done_callback(retrieve_failure)
        return await asyncio.shield(redemption)

    async def _store_redemption(
        self, claim: ClaimRow, payment: SettledPayment, api_key: str | None
    ) -> bool:
        """Store membership and key, if there is one; return whether both are new and work."""
        now = self._clock()
        member = MembershipRow(
            provider=claim.provider,
            mode=claim.mode,
            subscription=payment.subscription,
            customer=payment.customer,
            contact_email=payment.contact_email,
            billing=claim.billing,
            created_at=now,
        )
        key_hash = None if api_key is None else hash_key(api_key)
        if not await self._store.redeem_claim(claim, member, key_hash, now):
            return False
        # A webhook that arrived between the check of the payment and the commit found no membership
        # to end, so the status is checked again.
        try:
            status = await update_membership(self._store, self._provider, member, now)
        except Exception as error:
            # Nobody has the key yet, so the claim is as it was before, and can be repeated.
            await self._store.undo_redemption(claim, member)
            why = str(error) if isinstance(error, BillingError) else type(error).__name__
            log.warning("membership_not_checked", why=why)
            raise
        return status.ended_reason is None

    async def _query_provider(self, claim: ClaimRow) -> Payment:
        # The operator may have changed the processor or mode since. The claim then fails instead of
        # being looked up under a foreign id.
        provider = self._provider
        origin = (claim.provider, claim.mode)
        if provider.mode is not None and origin != (provider.name, provider.mode):
            return FailedPayment(f"was started in {claim.mode} mode with another payment processor")
        return await call_provider(provider.fetch_payment(claim))


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

    async def create_checkout(
        self, body: CheckoutBody, address: str, claim_token: str | None = None
    ) -> CheckoutResponse:
        """Open a checkout and return its URL and claim token, which is stored only as a hash.

        `address` is the client's IP address. With a given `claim_token`, the same body opens the
        same checkout. Raise ApiError 400 for a bad e-mail address, 429 if the client opened too
        many checkouts, 503 if the processor is unavailable.
        """
        email = parse_contact_email(
            body.contact_email, accepts_special_use=self._provider.accepts_special_use_email
        )
        await self._throttle.take_attempt(address)
        claim_token = claim_token or generate_claim_token()
        token_hash = _hash_token(claim_token)
        order = Order(token_hash.hex()[:32], email, body.billing, body.agent_name)
        session, url, expires_at = await call_provider(self._provider.open_session(order))
        mode = self._provider.mode
        assert mode is not None, "a provider that opens sessions has a mode"
        claim = ClaimRow(
            id=order.claim_id,
            token_hash=token_hash,
            provider=self._provider.name,
            mode=mode,
            session=session,
            contact_email=order.contact_email,
            billing=order.billing,
            agent_name=order.agent_name,
            created_at=self._clock(),
            expires_at=expires_at,
            checkout_url=url,
        )
        await self._store.create_claim(claim)
        return CheckoutResponse(
            status="checkout_created",
            mode=claim.mode,
            checkout_url=url,
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

    async def find_claim(self, claim_token: str) -> ClaimRow | None:
        """Return the claim of a token, None if there is none."""
        return await self._store.find_claim(_hash_token(claim_token))

    async def claim(self, body: ClaimBody, address: str) -> ClaimResult:
        """Redeem a claim token for its one key, or return that the payment is pending.

        Raise ApiError 404 if the token is unknown or its checkout failed, 409 if it was redeemed
        before or if its subscription must be paid first, 503 if the processor is unavailable.
        """
        claim = await self.find_claim(body.claim_token)
        if claim is None:
            raise self._no_key_error(
                "no checkout has this token. Check that it was copied whole, or"
            )
        if claim.redeemed_at is not None:
            raise await self._already_redeemed_error(claim)
        # A client that disconnects cancels only its own claim, not the shared check.
        payment = await self._claims.fetch_payment(claim)
        if isinstance(payment, FailedPayment):
            reason = f"this checkout {payment.reason}, so it gives no key"
            if payment.may_be_paid:
                raise self._no_key_error(f"{reason}. Do not pay again:", f"{CONTACT_OPERATOR}.")
            raise self._no_key_error(f"{reason}:")
        if isinstance(payment, HeldPayment):
            raise ApiError(
                "invalid_parameter",
                f"claim_token: this checkout gives no key now, because {payment.reason}. Do not "
                "pay again: its subscription continues. Settle it with the payment processor, then "
                f"repeat this claim, or {CONTACT_OPERATOR}.",
                status=409,
                names_operator=True,
            )
        if not isinstance(payment, SettledPayment):
            return self._build_pending()
        api_key = generate_key()
        try:
            is_redeemed = await self._claims.redeem(claim, payment, api_key)
        except BillingError:
            return self._build_pending()
        if not is_redeemed:
            raise await self._already_redeemed_error(claim)
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
            store_this="Store api_key now: it cannot be recovered. The buyer can create more keys "
            f"at {self._dashboard_url}.",
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

    def _no_key_error(self, reason: str, remedy: str = "") -> ApiError:
        message = f"claim_token: {reason} {remedy or self._describe_new_purchase()}"
        return ApiError("invalid_parameter", message, 404, names_operator=True)

    def _describe_new_purchase(self) -> str:
        # With billing off, no checkout can be started.
        if self._provider.mode is None:
            return f"{CONTACT_OPERATOR}."
        return f"start again with POST {self._api_url}/access/checkout."

    async def _already_redeemed_error(self, claim: ClaimRow) -> ApiError:
        redemption = await self._store.find_redemption(claim.id)
        if redemption is None or redemption.ended_reason is None:
            action = (
                f"To get another one, the payer signs in at {self._dashboard_url} with the e-mail "
                "address of the payment and creates it, without paying again."
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
            f"claim_token: was already redeemed; the key is not recoverable. {action}",
            409,
        )


def generate_claim_token() -> str:
    """Return a new claim token of 256 random bits."""
    return f"ct_{secrets.token_urlsafe(32)}"


def _hash_token(claim_token: str) -> bytes:
    # Any text may be sent, such as a lone surrogate, which has no other form in UTF-8.
    return sha256(claim_token.encode("utf-8", "surrogatepass")).digest()
