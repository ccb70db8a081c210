"""What members learn of billing: where a plan stands, and the way to the processor's own pages."""

import asyncio
from collections.abc import Sequence

import structlog

from access.billing.provider import BillingError, Provider, Standing
from access.member_keys import MemberKeys, Plan
from access.payments import word_of
from schemas.errors import ApiError
from store.access_rows import ClaimRow

log = structlog.get_logger("billing")


class MemberBilling:
    """The processor's word on what members bought."""

    def __init__(self, members: MemberKeys, provider: Provider) -> None:
        self._members = members
        self._provider = provider

    async def standings(self, plans: Sequence[Plan]) -> list[Standing | None]:
        """Return the processor's word on each plan, None where it has none or cannot be asked."""
        return await asyncio.gather(*map(self._standing, plans))

    async def unclaimed(self, email: str) -> list[ClaimRow] | None:
        """Return what a mailbox paid for without a key of it, None where nobody can be asked."""
        try:
            return await self._members.unclaimed(email)
        except ApiError:
            return None

    async def portal(self, email: str, membership_id: int, return_url: str) -> str | None:
        """Return where a member manages a plan, an address for one visit; None for nowhere.

        ApiError 404 for what is not the member's on this server, 503 where nobody can be asked.
        """
        for plan in await self._members.plans(email):
            held = plan.membership
            if held.id == membership_id and held.member.mode == self._provider.mode:
                return await word_of(self._provider.portal(held.member, return_url))
        raise ApiError("invalid_parameter", "You have no such plan on this service.", 404)

    async def _standing(self, plan: Plan) -> Standing | None:
        if not plan.is_live:
            return None
        try:
            return await self._provider.standing(plan.membership.member)
        except BillingError as error:
            log.warning("billing_unavailable", why=str(error))
            return None
