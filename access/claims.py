"""Checkouts without a key: what the processor says of them, and how each gets its one key."""

import asyncio

from access.billing.provider import Ended, Paid, Payment, Provider
from access.keys import hash_key, new_key
from access.single_flight_cache import Asked, word_of
from schemas.clock import Clock
from store.access_protocol import AccessStore
from store.access_rows import ClaimRow, MembershipRow, mailbox

# Of how many checkouts of a mailbox the processor is asked, newest first.
MOST_ASKED = 5


class Claims:
    """The claims of one access store towards one provider; `clock` tells epoch ms.

    A process has one, as at most one check of a checkout runs at a time. A word other than paid is
    repeated for as long as the provider holds it.
    """

    def __init__(self, store: AccessStore, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock
        self._words = Asked[Payment](clock, self._holds_ms)

    async def word(self, claim: ClaimRow) -> Payment:
        """Return the processor's word on a claim; ApiError 503 where it cannot be asked."""
        return await self._words.answer(claim.id, lambda: self._ask(claim))

    async def paid_by(self, email: str) -> list[tuple[ClaimRow, Paid]]:
        """Return what a mailbox paid for and nobody redeemed, newest first.

        Whose it is the processor says, not who began the checkout. ApiError 503 as `word`.
        """
        mode = self._provider.mode
        if mode is None:
            return []
        begun = await self._store.claims_of(email, self._provider.name, mode, MOST_ASKED)
        said = await asyncio.gather(*(self.word(claim) for claim in begun))
        return [
            (claim, payment)
            for claim, payment in zip(begun, said, strict=True)
            if isinstance(payment, Paid) and mailbox(payment.contact_email) == mailbox(email)
        ]

    async def redeem(self, claim: ClaimRow, paid: Paid) -> str | None:
        """Make the one key of a paid claim and return it; None where it was redeemed before."""
        api_key, now = new_key(), self._clock()
        member = MembershipRow(
            provider=claim.provider,
            mode=claim.mode,
            subscription=paid.subscription,
            customer=paid.customer,
            contact_email=paid.contact_email,
            billing=claim.billing,
            created_at=now,
        )
        if not await self._store.redeem(claim, member, hash_key(api_key), now):
            return None
        return api_key

    async def _ask(self, claim: ClaimRow) -> Payment:
        provider = self._provider
        begun_with = (claim.provider, claim.mode)
        if provider.mode is not None and begun_with != (provider.name, provider.mode):
            return Ended(f"was begun in {claim.mode} mode with another payment processor")
        return await word_of(provider.payment(claim))

    def _holds_ms(self, said: Payment) -> int:
        return 0 if isinstance(said, Paid) else self._provider.pending_holds_ms
