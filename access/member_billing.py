"""Billing for members: the status of their plans, and links to the processor's portal."""

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

# A status is cached for this long, also if there was none. Each page view would otherwise
# send Stripe a dozen requests, and wait for its retries while it is down.
STATUS_TTL_MS = 10_000
# A page waits this long; the fetch continues, and the next page view shows its result.
TIMEOUT_S = 3.0

ValueT = TypeVar("ValueT")

log = structlog.get_logger("billing")


class MemberBilling:
    """Reads the billing status of memberships; `clock` returns epoch ms."""

    def __init__(
        self,
        members: MemberKeys,
        provider: Provider,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """If the processor takes longer than `timeout_s`, it counts as unavailable."""
        self._members = members
        self._provider = provider
        self._timeout_s = timeout_s
        self._statuses = SingleFlightCache[SubscriptionStatus | None](
            clock, lambda status: STATUS_TTL_MS
        )

    async def fetch_statuses(self, plans: Sequence[MemberPlan]) -> list[SubscriptionStatus | None]:
        """Return the status of each plan; None if it has ended or the processor is unavailable."""
        return await asyncio.gather(*map(self._fetch_status, plans))

    async def fetch_membership_statuses(
        self, memberships: Sequence[StoredMembership]
    ) -> list[SubscriptionStatus | None]:
        """Return the status of each membership; None as `fetch_statuses`."""
        return await asyncio.gather(*map(self._fetch_membership_status, memberships))

    async def list_unclaimed(self, email: str) -> list[ClaimRow] | None:
        """Return the paid claims that have no key yet; None if the processor is unavailable."""
        try:
            return await self._await_in_time(self._members.list_unclaimed(email))
        except ApiError:
            return None

    @property
    def is_remote(self) -> bool:
        """Whether statuses are requested over the network, from a processor with a portal."""
        return self._provider.has_portal

    def is_manageable(self, membership: StoredMembership) -> bool:
        """Return whether the processor's portal can manage a membership."""
        return self._provider.has_portal and membership.row.mode == self._provider.mode

    async def create_portal_url(self, email: str, membership_id: int, return_url: str) -> str:
        """Return a portal URL for one visit to manage a plan.

        Raise ApiError 404 if the plan is not the member's or has no portal, 503 if the processor is
        unavailable.
        """
        for plan in await self._members.list_plans(email):
            membership = plan.membership
            if membership.id == membership_id and self.is_manageable(membership):
                return await call_provider(
                    self._provider.create_portal_url(membership.row, return_url)
                )
        raise ApiError(
            "invalid_parameter", "You have no such plan to manage. Reload the page.", 404
        )

    async def _fetch_status(self, plan: MemberPlan) -> SubscriptionStatus | None:
        return await self._fetch_membership_status(plan.membership)

    async def _fetch_membership_status(
        self, membership: StoredMembership
    ) -> SubscriptionStatus | None:
        member = membership.row
        is_known = (member.provider, member.mode) == (self._provider.name, self._provider.mode)
        if membership.ended_at is not None or not is_known:
            return None
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
