"""Messages of the payment processor: each is a hint to ask it again, and never believed itself."""

from access.billing.provider import Provider
from access.memberships import revoke_if_ended
from access.single_flight_cache import call_provider
from schemas.clock import Clock
from store.sql.access_store import AccessStore


class WebhookHandler:
    """Takes one provider's messages into one access store; `clock` tells epoch ms."""

    def __init__(self, store: AccessStore, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock

    async def handle_message(self, payload: bytes, signature: str | None) -> None:
        """Act on a message once; ApiError 400 for a foreign one.

        ApiError 503 where the processor cannot be asked: it then sends the message again.
        """
        event = await call_provider(self._provider.verify_event(payload, signature))
        if event.customer is None or await self._store.is_event_handled(event.id):
            return
        for member in await self._store.list_active_memberships(
            self._provider.name, event.customer
        ):
            now = self._clock()
            await call_provider(revoke_if_ended(self._store, self._provider, member, now))
        await self._store.mark_event_handled(event.id, self._clock())
