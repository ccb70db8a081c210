"""Ends a membership when the payment processor reports that it has ended."""

import structlog

from access.billing.provider import Provider
from store.access_rows import MembershipRow
from store.sql.access_store import AccessStore

log = structlog.get_logger("billing")


async def revoke_if_ended(
    store: AccessStore, provider: Provider, member: MembershipRow, now: int
) -> bool:
    """Revoke a membership's keys if the processor reports that it has ended; `now` is epoch ms.

    Return whether it has ended; it never becomes active again. Raise BillingError if the processor
    is unavailable.
    """
    reason = (await provider.fetch_status(member)).ended_reason
    if reason is not None:
        keys = await store.end_membership(member, now, reason)
        log.info("membership_ended", subscription=member.subscription, why=reason, keys=keys)
    return reason is not None
