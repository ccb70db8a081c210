"""Unredeemed checkouts: fetches their payment status and exchanges a paid one for its key."""

import asyncio

from access.billing.provider import FailedPayment, Payment, Provider, SettledPayment
from access.keys import generate_key, hash_key
from access.single_flight_cache import SingleFlightCache, call_provider
from schemas.clock import Clock
from store.access_rows import ClaimRow, MembershipRow, normalize_email
from store.sql.access_store import AccessStore

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

    async def redeem(self, claim: ClaimRow, payment: SettledPayment) -> str | None:
        """Create the one key of a paid claim and return it; None if it was already redeemed."""
        api_key, now = generate_key(), self._clock()
        member = MembershipRow(
            provider=claim.provider,
            mode=claim.mode,
            subscription=payment.subscription,
            customer=payment.customer,
            contact_email=payment.contact_email,
            billing=claim.billing,
            created_at=now,
        )
        if not await self._store.redeem_claim(claim, member, hash_key(api_key), now):
            return None
        return api_key

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
