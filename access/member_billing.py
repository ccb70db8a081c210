"""What members learn of billing: where a plan stands, and the way to the processor's own pages."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog

from access.billing.provider import BillingError, Provider, Standing
from access.member_keys import MemberKeys, Plan
from access.single_flight_cache import Asked, word_of
from schemas.clock import Clock
from schemas.errors import ApiError
from store.access_rows import ClaimRow, HeldMembership, MembershipRow

# For how long a page repeats a word, or that there is none: who reloads asks nobody anew.
HOLDS_MS = 10_000
# For how long a page waits; what comes later, the next one shows.
WITHIN_S = 3.0

Said = TypeVar("Said")

log = structlog.get_logger("billing")


class MemberBilling:
    """The processor's word on what members bought; `clock` tells epoch ms."""

    def __init__(
        self,
        members: MemberKeys,
        provider: Provider,
        clock: Clock,
        within_s: float = WITHIN_S,
    ) -> None:
        """A processor that takes longer than `within_s` counts as one that cannot be asked."""
        self._members = members
        self._provider = provider
        self._within_s = within_s
        self._standings = Asked[Standing | None](clock, lambda said: HOLDS_MS)

    async def standings(self, plans: Sequence[Plan]) -> list[Standing | None]:
        """Return the processor's word on each plan, None where it has none or cannot be asked."""
        return await asyncio.gather(*map(self._standing, plans))

    async def unclaimed(self, email: str) -> list[ClaimRow] | None:
        """Return what a mailbox paid for without a key of it, None where nobody can be asked."""
        try:
            return await self._in_time(self._members.unclaimed(email))
        except ApiError:
            return None

    def manages(self, held: HeldMembership) -> bool:
        """Tell whether the processor has pages on a membership."""
        return self._provider.has_portal and held.member.mode == self._provider.mode

    async def portal(self, email: str, membership_id: int, return_url: str) -> str:
        """Return where a member manages a plan, an address for one visit.

        ApiError 404 for what is not the member's or not managed, 503 where nobody can be asked.
        """
        for plan in await self._members.plans(email):
            held = plan.membership
            if held.id == membership_id and self.manages(held):
                return await word_of(self._provider.portal(held.member, return_url))
        raise ApiError("invalid_parameter", "You have no such plan to manage here.", 404)

    async def _standing(self, plan: Plan) -> Standing | None:
        if not plan.is_live:
            return None
        member = plan.membership.member
        asking = self._standings.answer(member.subscription, lambda: self._ask(member))
        return await self._in_time(asking)

    async def _ask(self, member: MembershipRow) -> Standing | None:
        try:
            return await self._provider.standing(member)
        except BillingError as error:
            log.warning("billing_unavailable", why=str(error))
            return None

    async def _in_time(self, asking: Awaitable[Said]) -> Said | None:
        try:
            async with asyncio.timeout(self._within_s):
                return await asking
        except TimeoutError:
            return None
