"""The processor's word on checkouts: asked for once, for all the claims that wait for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from access.billing.provider import RETRY_S, BillingError, Ended, Paid, Payment, Provider
from schemas.errors import unavailable
from store.access_rows import ClaimRow

Said = TypeVar("Said")

log = structlog.get_logger("billing")


class Payments:
    """What one provider says of checkouts; `clock` tells epoch ms.

    At most one check of a checkout runs at a time. A word other than paid is repeated for as long
    as the provider holds it.
    """

    def __init__(self, provider: Provider, clock: Callable[[], int]) -> None:
        self._provider = provider
        self._clock = clock
        self._asked: dict[str, asyncio.Task[Payment]] = {}
        self._held: dict[str, tuple[Payment, int]] = {}

    async def word(self, claim: ClaimRow) -> Payment:
        """Return the word on a checkout; ApiError 503 where it cannot be asked for.

        A caller that leaves takes the check from nobody else.
        """
        said, until = self._held.get(claim.id, (None, 0))
        if said is not None and self._clock() < until:
            return said
        if claim.id not in self._asked:
            self._asked[claim.id] = asking = asyncio.create_task(self._ask(claim))
            asking.add_done_callback(lambda asked: self._answered(claim.id, asked))
        return await asyncio.shield(self._asked[claim.id])

    async def _ask(self, claim: ClaimRow) -> Payment:
        provider = self._provider
        begun_with = (claim.provider, claim.mode)
        if provider.mode is not None and begun_with != (provider.name, provider.mode):
            return Ended(f"was begun in {claim.mode} mode with another payment processor")
        said = await word_of(provider.payment(claim))
        if not isinstance(said, Paid):
            self._hold(claim.id, said)
        return said

    def _hold(self, claim_id: str, said: Payment) -> None:
        now = self._clock()
        self._held = {id_: held for id_, held in self._held.items() if now < held[1]}
        self._held[claim_id] = (said, now + self._provider.pending_holds_ms)

    def _answered(self, claim_id: str, asked: "asyncio.Task[Payment]") -> None:
        del self._asked[claim_id]
        if not asked.cancelled():
            asked.exception()  # Else asyncio reports one for which nobody waited.


async def word_of(asked: Awaitable[Said]) -> Said:
    """Return what the processor says; ApiError 503 where it cannot be asked."""
    try:
        return await asked
    except BillingError as error:
        log.warning("billing_unavailable", why=str(error))
        raise unavailable(
            f"Billing is temporarily unavailable; nothing is lost. Retry after {RETRY_S} seconds.",
            RETRY_S,
        ) from None
