"""How long what runs stays up: until a signal, or until what runs beside it fails."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """What SIGINT and SIGTERM ask for; the first one counts.

    It ends the block that is `ended` by it; asked for outside, as while stores open, it ends the
    next such block where that first waits.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._task: asyncio.Task[object] | None = None

    def ask(self) -> None:
        """End what can be ended; what closes behind it is left in peace."""
        if not self._is_asked and self._task is not None:
            self._task.cancel()
        self._is_asked = True

    @contextmanager
    def ends(self) -> Iterator[None]:
        """End the block, whatever it waits for, when asked."""
        self._task = task = asyncio.current_task()
        assert task is not None
        if self._is_asked:
            task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_asked:
                raise
            task.uncancel()
        finally:
            self._task = None


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Listen to the signals until the block has closed what it opened."""
    stop, loop = Stop(), asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.ask)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside the block, which ends with it if it fails."""
    block, running = asyncio.current_task(), asyncio.create_task(work)
    assert block is not None

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            block.cancel()

    running.add_done_callback(ended)
    try:
        yield running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
