"""Checkouts: fetches their payment status and exchanges a paid one for its one key."""

import asyncio

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
        Raise BillingError, and create none, if the payment could not be checked again.
        """
        api_key = generate_key()
        return api_key if await self._redeem(claim, payment, api_key) else None

    async def create_membership(self, claim: ClaimRow, payment: SettledPayment) -> bool:
        """Create the membership of a paid claim without a key; return whether it was created.

        False if the claim was already redeemed, or if the payment has just been reversed. Raise as
        `create_key`.
        """
        return await self._redeem(claim, payment, None)

    async def _redeem(self, claim: ClaimRow, payment: SettledPayment, api_key: str | None) -> bool:
        # A client that disconnects after the commit must not cancel the check that follows it.
        redemption = asyncio.create_task(self._store_redemption(claim, payment, api_key))
        self._redemptions.add(redemption)
        redemption.add_done_callback(self._on_redeemed)
        return await asyncio.shield(redemption)

    def _on_redeemed(self, redemption: asyncio.Task[bool]) -> None:
        self._redemptions.discard(redemption)
        if not redemption.cancelled():
            # Retrieve it: if the caller was cancelled, asyncio would log it as never retrieved.
            redemption.exception()

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
