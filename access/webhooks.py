"""Webhooks of the payment processor: each one only triggers a fresh query of the membership."""

from access.billing.provider import Provider
from access.memberships import update_membership
from access.single_flight_cache import call_provider
from schemas.clock import Clock
from store.sql.access_store import AccessStore


class WebhookHandler:
    """Handles the webhooks of one provider; `clock` returns epoch ms."""

    def __init__(self, store: AccessStore, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock

    async def handle_message(self, payload: bytes, signature: str | None) -> None:
        """Handle a message once; raise ApiError 400 if its signature is not valid.

        Raise ApiError 503 if the processor is unavailable, so that it sends the message again.
        """
        # Messages can arrive late and out of order, so their content is not used.
        event = await call_provider(self._provider.verify_event(payload, signature))
        if event.customer is None or await self._store.is_event_handled(event.id):
            return
        for membership in await self._store.list_open_memberships(
            self._provider.name, event.customer
        ):
            await call_provider(
                update_membership(
                    self._store,
                    self._provider,
                    membership.row,
                    self._clock(),
                    is_ended=membership.ended_at is not None,
                )
            )
        # Marked last: after a failure the processor must be able to repeat the message.
        await self._store.mark_event_handled(event.id, self._clock())
