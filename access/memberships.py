"""Whether what was bought still holds: the processor is asked, and says when it is over."""

import structlog

from access.billing.provider import Provider
from store.access_rows import MembershipRow
from store.sql.access_store import AccessStore

log = structlog.get_logger("billing")


async def revoke_if_ended(
    store: AccessStore, provider: Provider, member: MembershipRow, now: int
) -> None:
    """Revoke a membership's keys where the processor says that it is over; `now` is epoch ms.

    BillingError where it cannot be asked. What is over stays so, whatever is said later.
    """
    reason = (await provider.fetch_status(member)).ended_reason
    if reason is not None:
        keys = await store.end_membership(member, now, reason)
        log.info("membership_ended", subscription=member.subscription, why=reason, keys=keys)
