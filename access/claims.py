"""Checkouts: fetches their payment status and exchanges a paid one for its one key."""

import asyncio
import hmac
import secrets
from base64 import urlsafe_b64encode

import structlog

from access.billing.provider import (
    BillingError,
    FailedPayment,
    Payment,
    Provider,
    SettledPayment,
)
from access.keys import generate_key, hash_key
from access.memberships import update_membership
from access.single_flight_cache import SingleFlightCache, call_provider
from schemas.clock import Clock
from schemas.purchase import CLAIM_REPEAT_DURATION_S
from store.access_rows import ClaimRow, MembershipRow, Redemption, normalize_email
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
        self._payments = SingleFlightCache[Payment](clock, self._get_ttl_ms)
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

    async def create_key(self, claim: ClaimRow, payment: SettledPayment) -> str | None:
        """Create the one key of a paid claim and return it; it cannot be shown again.

        Return None if the claim was already redeemed, or if the payment has just been reversed.
        Raise ApiError 503 if the processor is unavailable.
        """
        api_key = generate_key()
        return api_key if await call_provider(self._redeem(claim, payment, api_key, None)) else None

    async def create_membership(self, claim: ClaimRow, payment: SettledPayment) -> bool:
        """Create the membership of a paid claim without a key; return whether it was created.

        False if the claim was already redeemed, or if the payment has just been reversed. Raise
        ApiError 503 if the processor is unavailable.
        """
        return await call_provider(self._redeem(claim, payment, None, None))

    async def redeem(self, claim: ClaimRow, payment: SettledPayment, claim_token: str) -> None:
        """Create the one key of a paid claim, unless it was already redeemed; see `derive_key`.

        Raise BillingError, and create none, if the payment could not be checked again.
        """
        key_salt = secrets.token_bytes(32)
        await self._redeem(claim, payment, derive_key(claim_token, key_salt), key_salt)

    async def _redeem(
        self, claim: ClaimRow, payment: SettledPayment, api_key: str | None, key_salt: bytes | None
    ) -> bool:
        # A client that disconnects after the commit must not cancel the check that follows it.
        redemption = asyncio.create_task(self._store_redemption(claim, payment, api_key, key_salt))
        self._redemptions.add(redemption)
        redemption.add_done_callback(self._on_redeemed)
        return await asyncio.shield(redemption)

    def _on_redeemed(self, redemption: asyncio.Task[bool]) -> None:
        self._redemptions.discard(redemption)
        if not redemption.cancelled():
            # Retrieve it: if the caller was cancelled, asyncio would log it as never retrieved.
            redemption.exception()

    async def _store_redemption(
        self, claim: ClaimRow, payment: SettledPayment, api_key: str | None, key_salt: bytes | None
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
        if not await self._store.redeem_claim(claim, member, key_hash, now, key_salt):
            return False
        # A webhook that arrived between the check of the payment and the commit found no membership
        # to end, so the status is checked again.
        try:
            status = await update_membership(
                self._store, self._provider, member, now, is_ended=False
            )
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

    def _get_ttl_ms(self, payment: Payment) -> int:
        # A paid claim is redeemed at once, so a refund that comes next must be seen.
        return 0 if isinstance(payment, SettledPayment) else self._provider.pending_ttl_ms


def derive_key(claim_token: str, key_salt: bytes) -> str:
    """Return the key that a claim token gives: an HMAC of both, as random as other keys.

    Neither the stored salt without the token nor the token without the salt gives the key, so a
    claim can be repeated although neither key nor token is stored, and the service can refuse it.
    """
    return derive_secret("ek_", claim_token, key_salt)


def derive_secret(prefix: str, secret: str, salt: bytes) -> str:
    """Return another secret that follows from a secret and a salt: 256 bits after the prefix."""
    digest = hmac.digest(secret.encode(), salt, "sha256")
    return f"{prefix}{urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def explain_lost_key(redemption: Redemption, now: int) -> str | None:
    """Return why a redeemed claim no longer gives its key, or None if it still does.

    The reason continues "was already redeemed, and ...". `now` is epoch ms.
    """
    # Whoever has the token gets the key, as before the claim; so this ends early, and at the latest
    # when the buyer is sure to have the key.
    if redemption.key_hash is None:
        return "its payment had already given a key or a connection"
    if redemption.revoked_at is not None:
        return "its key was revoked"
    if redemption.is_used:
        return "its key has been used since"
    if redemption.key_salt is None:
        return "its key was shown elsewhere"
    if now - redemption.redeemed_at >= CLAIM_REPEAT_DURATION_S * 1000:
        return f"that was more than {CLAIM_REPEAT_DURATION_S // 60} minutes ago"
    return None
