"""Shares concurrent requests to another server and caches their results for a while."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import structlog

from access.billing.provider import RETRY_AFTER_S, BillingError
from schemas.errors import unavailable_error
from schemas.vocabulary import Clock

ValueT = TypeVar("ValueT")

log = structlog.get_logger("billing")


class SingleFlightCache(Generic[ValueT]):
    """Caches values by key; at most one fetch of a key runs at a time.

    `clock` returns epoch ms, `get_ttl_ms` how long a value is kept. Beyond `max_entries` values,
    the one that was fetched first is dropped.
    """

    def __init__(
        self,
        clock: Clock,
        get_ttl_ms: Callable[[ValueT], int],
        max_entries: int | None = None,
    ) -> None:
        self._clock = clock
        self._get_ttl_ms = get_ttl_ms
        self._max_entries = max_entries
        self._tasks: dict[str, asyncio.Task[ValueT]] = {}
        self._entries: dict[str, tuple[ValueT, int]] = {}

    async def get(self, key: str, fetch: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        """Return the cached value of a key, fetching it if missing or expired.

        A caller that is cancelled does not cancel the fetch for the others.
        """
        entry = self._entries.get(key)
        if entry is not None and self._clock() < entry[1]:
            return entry[0]
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.create_task(self._fetch(key, fetch))
            task.add_done_callback(lambda _: self._tasks.pop(key))
            task.add_done_callback(retrieve_failure)
        return await asyncio.shield(self._tasks[key])

    async def _fetch(self, key: str, fetch: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        value = await fetch()
        now = self._clock()
        # Drop expired entries here, so that the cache is bounded by the rate of fetches.
        self._entries = {about: entry for about, entry in self._entries.items() if now < entry[1]}
        self._entries[key] = (value, now + self._get_ttl_ms(value))
        if self._max_entries is not None and len(self._entries) > self._max_entries:
            del self._entries[next(iter(self._entries))]
        return value


def retrieve_failure(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task whose callers may all have been cancelled."""
    # asyncio would log it as never retrieved.
    if not task.cancelled():
        task.exception()


async def call_provider(request: Awaitable[ValueT]) -> ValueT:
    """Await a provider's method; log its BillingError and raise ApiError 503 instead."""
    try:
        return await request
    except BillingError as error:
        log.warning("billing_unavailable", why=str(error))
        raise unavailable_error(
            f"Billing is temporarily unavailable; nothing is lost. "
            f"Retry after {RETRY_AFTER_S} seconds.",
            RETRY_AFTER_S,
        ) from None
