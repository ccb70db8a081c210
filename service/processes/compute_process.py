"""The process that computes beside those that serve, and does what must be done once: the upkeep.

Its two ends: what runs in it, and what the process that started it knows of it.
"""

import asyncio
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, pthread_sigmask

import structlog

from access.maintenance import Upkeep
from compute.indicators.contract import Indicator
from mcp_server.tools.registry import TOOLS_BY_NAME
from schemas.clock import Clock
from service.commands.compute_command import computing
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.metrics import Metrics
from service.http.metrics_server import Operations
from service.http.resources import opened_parts, readiness_of
from service.processes.memory import one_heap
from service.processes.shutdown import stoppable
from service.processes.worker import end_with_parent

SPAWNING = get_context("spawn")

log = structlog.get_logger("service")


class Computer:
    """The process as its parent has it: begun again where something killed it."""

    def __init__(
        self,
        settings: Settings,
        indicators: Sequence[Indicator],
        clock: Clock,
        computes: bool,
        operations: Operations,
    ) -> None:
        """Start it, for the upkeep alone unless it `computes`; `clock` tells epoch milliseconds.

        It serves the operations port.
        """
        self._given = settings, indicators, clock, computes, operations
        self._has_caught_up = False
        self._start()

    async def caught_up(self) -> None:
        """Wait until it has caught up or stands by; raise what it failed with."""
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        while not self._has_caught_up:
            loop.add_reader(self._told, said.set)
            try:
                await said.wait()
            finally:
                loop.remove_reader(self._told)
            said.clear()
            self.watch()

    def watch(self) -> None:
        """Begin it again where it was killed; raise what it failed with."""
        while self._told.poll():
            try:
                failure = self._told.recv()
            except EOFError:
                self._start_again()
                continue
            if failure is not None:
                raise failure
            self._has_caught_up = True

    def end(self) -> None:
        """End it and wait until it has closed what it opened."""
        self._process.terminate()
        self._process.join()
        self._told.close()

    def _start(self) -> None:
        self._told, telling = SPAWNING.Pipe(duplex=False)
        self._process = SPAWNING.Process(target=_compute, args=(*self._given, telling))
        with deaf_to_terminals():
            self._process.start()
        telling.close()

    def _start_again(self) -> None:
        self._process.join()
        status = self._process.exitcode or 0
        if status > 0:
            raise RuntimeError(f"the computing process ended with status {status}")
        died = self._process.pid
        self._told.close()
        self._start()
        log.warning("computing_again", died=died, status=status)


@contextmanager
def deaf_to_terminals() -> Iterator[None]:
    """Start processes that no terminal ends, for it tells all of a group; their parent does."""
    before = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGHUP})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


def _compute(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
    computes: bool,
    operations: Operations,
    parent: Connection,
) -> None:
    log_to_standard_error()
    try:
        asyncio.run(_computed(settings, indicators, clock, computes, operations, parent))
    except Exception as error:
        # Where it failed is lost on the way to the parent, which raises it.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        _tell(parent, error)


async def _computed(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
    computes: bool,
    operations: Operations,
    parent: Connection,
) -> None:
    """Compute until it is told to end; tell the parent once the store is caught up."""
    one_heap()
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        end_with_parent()
        parts = await opened.enter_async_context(opened_parts(settings, clock))
        metrics = Metrics(TOOLS_BY_NAME)
        with stop.ends():
            work = computing(settings, parts.market, indicators, clock, metrics)
            watching = operations.watching(metrics, readiness_of(parts, clock))
            async with watching, work if computes else nullcontext():
                _tell(parent, None)
                await Upkeep(parts.access, parts.provider, clock, asyncio.sleep).run()


def _tell(parent: Connection, failure: Exception | None) -> None:
    # A parent that is gone ends this process by another way.
    with suppress(BrokenPipeError):
        parent.send(failure)
