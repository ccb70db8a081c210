"""Ends a membership, or starts it again, as the payment processor reports."""

import structlog

from access.billing.provider import Provider, SubscriptionStatus
from store.access_rows import MembershipRow
from store.sql.access_store import AccessStore

log = structlog.get_logger("billing")


async def update_membership(
    store: AccessStore, provider: Provider, member: MembershipRow, now: int, *, is_ended: bool
) -> SubscriptionStatus:
    """Store whether a membership gives access, as the processor reports; return its status.

    `is_ended` is what the store has, and `now` is epoch ms. A membership that ends loses its keys
    for good, so the member of one that starts again creates another key. Raise BillingError if the
    processor is unavailable.
    """
    status = await provider.fetch_status(member)
    reason = status.ended_reason
    if reason is not None:
        keys = await store.end_membership(member, now, reason, is_final=status.is_final)
        if not is_ended:
            log.info("membership_ended", subscription=member.subscription, why=reason, keys=keys)
    elif is_ended and status.is_paid:
        await store.resume_membership(member)
        log.info("membership_resumed", subscription=member.subscription)
    return status
