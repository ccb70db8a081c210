"""Keeps memberships as the payment processor reports them, and the access store small.

The clock of the daily maintenance ignores short jumps, because a deleted row cannot be restored.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from access.billing.provider import BillingError, FailedPayment, Provider, SubscriptionStatus
from access.single_flight_cache import call_provider
from schemas.errors import describe_failure
from schemas.vocabulary import DAY_MS, HOUR_MS, Clock
from store.access_rows import ClaimRow, MembershipRow, RetentionCutoffs
from store.failure_log import FailureLog
from store.sql.access_store import AccessStore

# Short, because a sleep until the next day would be wrong after a suspend or a change of the clock.
SLEEP_STEP_S = 30.0
# Checkouts whose payment is requested from the processor in a round. If there are more, another
# round follows in an hour; the default limits accept 9,000 in that time from all clients together.
MAX_CLAIMS_CHECKED = 10_000
CALL_RETENTION_DAYS = 30

log = structlog.get_logger("maintenance")
billing_log = structlog.get_logger("billing")


class MaintenanceJob:
    """Runs a round at once, then one per UTC day; repeats one after an hour if it left some."""

    def __init__(
        self,
        store: AccessStore,
        provider: Provider,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        """`clock` returns epoch ms; `sleep` takes seconds."""
        self._store = store
        self._provider = provider
        self._clock = clock
        self._sleep = sleep
        self._last_done_day = -1
        self._unfinished_at: int | None = None
        self._failures = FailureLog()

    async def run(self) -> None:
        """Run rounds until cancelled; log failures and continue."""
        while True:
            now = self._clock()
            # If the clock was set back, it lies in the future and must not delay a round.
            last = self._unfinished_at
            is_waiting = last is not None and 0 <= now - last < HOUR_MS
            if now // DAY_MS != self._last_done_day and not is_waiting:
                is_done = False
                try:
                    pruned, has_more = await prune_access(self._store, self._provider, now)
                    unreached = await self._reconcile()
                except Exception as error:
                    self._failures.write(log.error, "maintenance_failed", describe_failure(error))
                else:
                    log.info("maintenance_done", pruned=pruned, unreached=unreached)
                    is_done = not unreached and not has_more
                self._unfinished_at = None if is_done else self._clock()
                if is_done:
                    self._last_done_day = now // DAY_MS
            await self._sleep(SLEEP_STEP_S)

    async def _reconcile(self) -> int:
        """Update memberships; return how many the processor gave no status for.

        Warn of members without access whose subscription may still be charged.
        """
        # Covers webhooks that were lost, and what Stripe sends no webhook for.
        unreached = 0
        charged: list[str] = []
        for member in await self._store.list_open_memberships(self._provider.name):
            if member.mode != self._provider.mode:
                continue
            try:
                status = await update_membership(self._store, self._provider, member, self._clock())
                if not status.is_final and (
                    status.ended_reason or (member.ended_at is not None and status.due_reason)
                ):
                    charged.append(member.subscription)
            except Exception as error:
                unreached += 1
                self._failures.write(
                    log.error,
                    "reconcile_failed",
                    _describe_provider_error(error),
                    subscription=member.subscription,
                )
        if charged:
            log.warning("members_charged_without_access", subscriptions=charged)
        return unreached


async def prune_access(store: AccessStore, provider: Provider, now: int) -> tuple[int, bool]:
    """Delete rows that are too old at `now` (epoch ms).

    Return how many, and whether there may be more.
    """
    cutoffs = compute_cutoffs(now)
    deleted = 0
    # Claims first: the sessions of the sandbox stay as long as their claims. The clock alone must
    # not decide: if it was wrong when the machine started, a claim that was paid a minute ago would
    # look lapsed. So a claim is deleted if the processor reports no payment, and stays if its
    # status is not known.
    claims: Sequence[ClaimRow] = ()
    if provider.mode is not None:
        claims = await store.list_lapsed_claims(
            provider.name, provider.mode, cutoffs.unredeemed_claims, MAX_CLAIMS_CHECKED
        )
    for claim in claims:
        try:
            payment = await provider.fetch_payment(claim)
        except Exception as error:
            # The others would fail too. The order is random, so each gets its turn another day.
            log.error("claims_not_checked", **_describe_provider_error(error))
            break
        if isinstance(payment, FailedPayment) and payment.is_unpaid:
            deleted += await store.delete_claim(claim)
    # Claims that stay, because they are paid, are no reason for another round.
    has_more = len(claims) == MAX_CLAIMS_CHECKED and deleted > 0
    return deleted + await store.prune(cutoffs), has_more


def _describe_provider_error(error: Exception) -> dict[str, str]:
    return {"why": str(error)} if isinstance(error, BillingError) else describe_failure(error)


def compute_cutoffs(now: int) -> RetentionCutoffs:
    """Return the times (epoch ms) before which rows of the access store are deleted."""
    return RetentionCutoffs(
        usage=now - 400 * DAY_MS,
        # Counted from the end of a checkout, so a paid token can be redeemed for at least 90 days.
        unredeemed_claims=now - 90 * DAY_MS,
        events=now - 30 * DAY_MS,
        attempts=now - DAY_MS,
        sign_ins=now,
        access_requests=now - 180 * DAY_MS,
        calls=now - CALL_RETENTION_DAYS * DAY_MS,
        oauth_clients=now - 90 * DAY_MS,
    )


async def update_membership(
    store: AccessStore, provider: Provider, member: MembershipRow, now: int
) -> SubscriptionStatus:
    """Store whether a membership gives access, as the processor reports; return its status.

    `now` is epoch ms. A membership that ends loses its keys
    for good, so the member of one that starts again creates another key. Raise BillingError if the
    processor is unavailable.
    """
    status = await provider.fetch_status(member)
    reason = status.ended_reason
    if reason is not None:
        keys = await store.end_membership(member, now, reason, is_final=status.is_final)
        if member.ended_at is None:
            billing_log.info(
                "membership_ended", subscription=member.subscription, why=reason, keys=keys
            )
    elif member.ended_at is not None and status.is_paid:
        await store.resume_membership(member)
        billing_log.info("membership_resumed", subscription=member.subscription)
    return status


async def handle_webhook(
    store: AccessStore, provider: Provider, clock: Clock, payload: bytes, signature: str | None
) -> None:
    """Handle a message of the processor once; `clock` returns epoch ms.

    Raise ApiError 400 if its signature is not valid, and 503 if the processor is unavailable, so
    that it sends the message again.
    """
    # Messages can arrive late and out of order, so their content is not used.
    event_id, customer = await call_provider(provider.verify_event(payload, signature))
    if customer is None or await store.is_event_handled(event_id):
        return
    for membership in await store.list_open_memberships(provider.name, customer):
        await call_provider(update_membership(store, provider, membership, clock()))
    # Marked last: after a failure the processor must be able to repeat the message.
    await store.mark_event_handled(event_id, clock())
