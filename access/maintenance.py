"""Daily maintenance of the access store: deletes old rows and ends lapsed memberships."""

from collections.abc import Awaitable, Callable

import structlog

from access.billing.provider import BillingError, Provider
from access.memberships import revoke_if_ended
from schemas.clock import Clock
from schemas.errors import describe_failure
from schemas.vocabulary import DAY_MS
from store.access_rows import RetentionCutoffs
from store.sql.access_store import AccessStore

# Short, because a sleep until the next day would be wrong after a suspend or a change of the clock.
SLEEP_STEP_S = 30.0
RETRY_MS = 3_600_000
CALL_RETENTION_DAYS = 30

log = structlog.get_logger("maintenance")


class MaintenanceJob:
    """Runs a round at once, then one per UTC day; repeats a failed round after an hour."""

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
        self._failed_at: int | None = None

    async def run(self) -> None:
        """Run rounds until cancelled; log failures and continue."""
        while True:
            now = self._clock()
            if self._is_due(now):
                await self._run_round(now)
            await self._sleep(SLEEP_STEP_S)

    def _is_due(self, now: int) -> bool:
        if now // DAY_MS == self._last_done_day:
            return False
        # If the clock was set back, the failure lies in the future and must not delay a round.
        return self._failed_at is None or not 0 <= now - self._failed_at < RETRY_MS

    async def _run_round(self, now: int) -> None:
        try:
            pruned = await self._store.prune(compute_cutoffs(now))
            unreached = await self._reconcile()
        except Exception as error:
            log.error("maintenance_failed", **describe_failure(error))
            self._failed_at = self._clock()
            return
        log.info("maintenance_done", pruned=pruned, unreached=unreached)
        self._failed_at = self._clock() if unreached else None
        if not unreached:
            self._last_done_day = now // DAY_MS

    async def _reconcile(self) -> int:
        """End lapsed memberships; return how many the processor gave no status for."""
        # Covers webhooks that were lost, and one that arrived between the check of a claim and its
        # redemption, when there was no membership to end yet.
        unreached = 0
        for member in await self._store.list_active_memberships(self._provider.name):
            if member.mode != self._provider.mode:
                continue
            try:
                await revoke_if_ended(self._store, self._provider, member, self._clock())
            except Exception as error:
                unreached += 1
                facts = (
                    {"why": str(error)}
                    if isinstance(error, BillingError)
                    else describe_failure(error)
                )
                log.error("reconcile_failed", subscription=member.subscription, **facts)
        return unreached


def compute_cutoffs(now: int) -> RetentionCutoffs:
    """Return the times (epoch ms) before which rows of the access store are deleted."""
    return RetentionCutoffs(
        usage=now - 400 * DAY_MS,
        # Counted from the end of a checkout, so a paid token can be redeemed for at least 90 days.
        unredeemed_claims=now - 90 * DAY_MS,
        events=now - 30 * DAY_MS,
        attempts=now - DAY_MS,
        sign_ins=now,
        calls=now - CALL_RETENTION_DAYS * DAY_MS,
    )
