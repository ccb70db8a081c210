"""Checkouts without a key: what the processor says of them, and how each gets its one key."""

import asyncio

from access.billing.provider import FailedPayment, Payment, Provider, SettledPayment
from access.keys import generate_key, hash_key
from access.single_flight_cache import SingleFlightCache, call_provider
from schemas.clock import Clock
from store.access_rows import ClaimRow, MembershipRow, normalize_email
from store.sql.access_store import AccessStore

# Of how many checkouts of a mailbox the processor is asked, newest first.
MAX_CLAIMS_CHECKED = 5


class Claims:
    """The claims of one access store towards one provider; `clock` tells epoch ms.

    A process has one, as at most one check of a checkout runs at a time. A word other than paid is
    repeated for as long as the provider holds it.
    """

    def __init__(self, store: AccessStore, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock
        self._payments = SingleFlightCache[Payment](clock, self._get_ttl_ms)

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the processor's word on a claim; ApiError 503 where it cannot be asked."""
        return await self._payments.get(claim.id, lambda: self._query_provider(claim))

    async def list_unredeemed(self, email: str) -> list[tuple[ClaimRow, SettledPayment]]:
        """Return what a mailbox paid for and nobody redeemed, newest first.

        The processor's e-mail decides ownership, not the one typed at checkout. ApiError 503 if the
        processor is unavailable.
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
        """Make the one key of a paid claim and return it; None where it was redeemed before."""
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
        provider = self._provider
        origin = (claim.provider, claim.mode)
        if provider.mode is not None and origin != (provider.name, provider.mode):
            return FailedPayment(f"was begun in {claim.mode} mode with another payment processor")
        return await call_provider(provider.fetch_payment(claim))

    def _get_ttl_ms(self, payment: Payment) -> int:
        return 0 if isinstance(payment, SettledPayment) else self._provider.pending_ttl_ms
