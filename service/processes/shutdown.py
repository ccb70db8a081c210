"""How long what runs stays up: until a signal, or until what runs beside it fails."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

SHUTDOWN_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """What SIGINT and SIGTERM ask for; the first one counts.

    It ends the block within `cancel_on_request`; a signal outside of one, as while stores open,
    ends the next such block at its first wait.
    """

    def __init__(self) -> None:
        self._is_requested = False
        self._task: asyncio.Task[object] | None = None

    def request_shutdown(self) -> None:
        """End what can be ended; what closes behind it is left in peace."""
        if not self._is_requested and self._task is not None:
            self._task.cancel()
        self._is_requested = True

    @contextmanager
    def cancel_on_request(self) -> Iterator[None]:
        """End the block, whatever it waits for, when asked."""
        self._task = task = asyncio.current_task()
        assert task is not None
        if self._is_requested:
            task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_requested:
                raise
            task.uncancel()
        finally:
            self._task = None


@contextmanager
def listen_for_shutdown() -> Iterator[ShutdownSignal]:
    """Listen to the signals until the block has closed what it opened."""
    shutdown, loop = ShutdownSignal(), asyncio.get_running_loop()
    for signal_number in SHUTDOWN_SIGNALS:
        loop.add_signal_handler(signal_number, shutdown.request_shutdown)
    try:
        yield shutdown
    finally:
        for signal_number in SHUTDOWN_SIGNALS:
            loop.remove_signal_handler(signal_number)


@asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside the block, which ends with it if it fails."""
    block, running = asyncio.current_task(), asyncio.create_task(work)
    assert block is not None

    def on_done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            block.cancel()

    running.add_done_callback(on_done)
    try:
        yield running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
