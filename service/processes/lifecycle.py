"""What a process does around its work: its end on signals or with its parent, memory, locks."""

import asyncio
import ctypes
import fcntl
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from schemas.errors import OperatorError

# From glibc's malloc.h.
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
# Blocks of this size and more are returned alone. Columns of a ledger have 2 to 6 MB.
LARGE_BYTES = 1 << 20
# Python's defaults are 700, 10 and 10. With them, expensive calls caused a full collection each
# second, and with 1,500 connections each stopped all threads for 0.1 to 0.2 s. Rarer than this,
# cycles that requests leave behind would grow to a collection that everybody notices.
COLLECTION_THRESHOLDS = 2_000, 10, 500
SHUTDOWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def listen_for_shutdown() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Handle the signals during the block, also while it closes its resources.

    Yield what opens an inner block, which the first signal cancels, unless another one in it has
    ended. A signal outside an inner block cancels the next one at its first wait.
    """
    loop, is_requested = asyncio.get_running_loop(), asyncio.Event()
    tasks = set[asyncio.Task[object]]()

    def request_shutdown() -> None:
        # A second Ctrl-C must not interrupt the closing of the stores.
        if not is_requested.is_set():
            for task in tasks:
                task.cancel()
        is_requested.set()

    @contextmanager
    def cancel_on_request() -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        if is_requested.is_set():
            task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if not is_requested.is_set():
                raise
            task.uncancel()
        finally:
            tasks.clear()

    # `nohup` ignores SIGHUP for the command that it runs.
    handled = [one for one in SHUTDOWN_SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    for signal_number in handled:
        loop.add_signal_handler(signal_number, request_shutdown)
    try:
        yield cancel_on_request
    finally:
        for signal_number in handled:
            loop.remove_signal_handler(signal_number)


@asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a coroutine during the block; if it fails, cancel the block and raise the error."""
    block, running = asyncio.current_task(), asyncio.create_task(work)
    assert block is not None

    def on_done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            block.cancel()

    # Awaiting `running` below raises its error, which replaces the block's CancelledError.
    running.add_done_callback(on_done)
    try:
        yield running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def terminate_with_parent() -> None:
    """Send this process SIGTERM when its parent dies, even by SIGKILL."""
    # A surviving worker would keep the port. The sentinel is a pipe that closes with the parent.
    loop, parent = asyncio.get_running_loop(), parent_process()
    assert parent is not None
    parent_sentinel: int = parent.sentinel

    def on_parent_exit() -> None:
        loop.remove_reader(parent_sentinel)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent_sentinel, on_parent_exit)


def limit_malloc() -> None:
    """Make all threads share one malloc arena, and return large blocks once they are free.

    Call it before the first thread starts. It does nothing unless the C library is glibc.
    """
    # Each thread keeps freed memory in its own arena. A first start peaked at 235 to 267 MB; with
    # one arena, and with free memory returned after it, at 170 MB, of which 144 MB remain. glibc
    # also learns to keep blocks as large as those that were freed, which kept 40 MB of a ledger. A
    # first start takes as long without that.
    with suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def release_memory() -> None:
    """Return free memory to the system, and exclude all present objects from collections."""
    # A full collection after a first start would stop all threads for 0.1 s.
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def prepare_to_serve() -> None:
    """Exclude all present objects from collections, and make full collections rare."""
    release_memory()
    gc.set_threshold(*COLLECTION_THRESHOLDS)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock FILE.lock during the block, which is never removed; OperatorError if that fails.

    The lock ends with the process.
    """
    try:
        lock = path.with_name(f"{path.name}.lock").open("a")
    except OSError as error:
        raise OperatorError(f"cannot lock {path}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OperatorError(
                f"another command uses {path}: stop it, or choose another file"
            ) from None
        yield
