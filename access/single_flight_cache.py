"""What the processor is asked: once for all who wait for it, and the answer holds for a while."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import structlog

from access.billing.provider import RETRY_S, BillingError
from schemas.clock import Clock
from schemas.errors import unavailable

Said = TypeVar("Said")

log = structlog.get_logger("billing")


class Asked(Generic[Said]):
    """Answers by what they are about; `clock` tells epoch ms, `holds_ms` how long one is repeated.

    At most one question about a thing is asked at a time.
    """

    def __init__(self, clock: Clock, holds_ms: Callable[[Said], int]) -> None:
        self._clock = clock
        self._holds_ms = holds_ms
        self._asked: dict[str, asyncio.Task[Said]] = {}
        self._held: dict[str, tuple[Said, int]] = {}

    async def answer(self, about: str, ask: Callable[[], Coroutine[Any, Any, Said]]) -> Said:
        """Return what was said of a thing, asking where nothing is held.

        A caller that leaves takes the question from nobody else.
        """
        held = self._held.get(about)
        if held is not None and self._clock() < held[1]:
            return held[0]
        if about not in self._asked:
            self._asked[about] = asking = asyncio.create_task(self._ask(about, ask))
            asking.add_done_callback(lambda asked: self._answered(about, asked))
        return await asyncio.shield(self._asked[about])

    async def _ask(self, about: str, ask: Callable[[], Coroutine[Any, Any, Said]]) -> Said:
        said = await ask()
        now = self._clock()
        self._held = {about: held for about, held in self._held.items() if now < held[1]}
        self._held[about] = (said, now + self._holds_ms(said))
        return said

    def _answered(self, about: str, asked: "asyncio.Task[Said]") -> None:
        del self._asked[about]
        if not asked.cancelled():
            asked.exception()  # Else asyncio reports one for which nobody waited.


async def word_of(asked: Awaitable[Said]) -> Said:
    """Return what the processor says; ApiError 503 where it cannot be asked."""
    try:
        return await asked
    except BillingError as error:
        log.warning("billing_unavailable", why=str(error))
        raise unavailable(
            f"Billing is temporarily unavailable; nothing is lost. Retry after {RETRY_S} seconds.",
            RETRY_S,
        ) from None
