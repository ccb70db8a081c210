"""What members learn of billing: where a plan stands, and the way to the processor's own pages."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog

from access.billing.provider import BillingError, Provider, SubscriptionStatus
from access.member_keys import MemberKeys, MemberPlan
from access.single_flight_cache import SingleFlightCache, call_provider
from schemas.clock import Clock
from schemas.errors import ApiError
from store.access_rows import ClaimRow, MembershipRow, StoredMembership

# For how long a page repeats a word, or that there is none: who reloads asks nobody anew.
STATUS_TTL_MS = 10_000
# For how long a page waits; what comes later, the next one shows.
TIMEOUT_S = 3.0

ValueT = TypeVar("ValueT")

log = structlog.get_logger("billing")


class MemberBilling:
    """The processor's word on what members bought; `clock` tells epoch ms."""

    def __init__(
        self,
        members: MemberKeys,
        provider: Provider,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """A processor that takes longer than `timeout_s` counts as unavailable."""
        self._members = members
        self._provider = provider
        self._timeout_s = timeout_s
        self._statuses = SingleFlightCache[SubscriptionStatus | None](
            clock, lambda status: STATUS_TTL_MS
        )

    async def fetch_statuses(self, plans: Sequence[MemberPlan]) -> list[SubscriptionStatus | None]:
        """Return the processor's word on each plan, None where it has none or cannot be asked."""
        return await asyncio.gather(*map(self._fetch_status, plans))

    async def list_unclaimed(self, email: str) -> list[ClaimRow] | None:
        """Return what a mailbox paid for without a key of it, None where nobody can be asked."""
        try:
            return await self._await_in_time(self._members.list_unclaimed(email))
        except ApiError:
            return None

    def is_manageable(self, membership: StoredMembership) -> bool:
        """Tell whether the processor has pages on a membership."""
        return self._provider.has_portal and membership.row.mode == self._provider.mode

    async def create_portal_url(self, email: str, membership_id: int, return_url: str) -> str:
        """Return where a member manages a plan, an address for one visit.

        ApiError 404 for what is not the member's or not managed, 503 where nobody can be asked.
        """
        for plan in await self._members.list_plans(email):
            membership = plan.membership
            if membership.id == membership_id and self.is_manageable(membership):
                return await call_provider(
                    self._provider.create_portal_url(membership.row, return_url)
                )
        raise ApiError("invalid_parameter", "You have no such plan to manage here.", 404)

    async def _fetch_status(self, plan: MemberPlan) -> SubscriptionStatus | None:
        if not plan.is_live:
            return None
        member = plan.membership.row
        request = self._statuses.get(member.subscription, lambda: self._query_provider(member))
        return await self._await_in_time(request)

    async def _query_provider(self, member: MembershipRow) -> SubscriptionStatus | None:
        try:
            return await self._provider.fetch_status(member)
        except BillingError as error:
            log.warning("billing_unavailable", why=str(error))
            return None

    async def _await_in_time(self, request: Awaitable[ValueT]) -> ValueT | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request
        except TimeoutError:
            return None
